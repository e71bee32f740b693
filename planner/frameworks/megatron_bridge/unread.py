"""Which overrides of a script does planner not read, though they may change time or memory?

Every field is said that is neither read (`recipes.READ`) nor among those that change nothing that is costed. Left out:
fields that the release does not have, which are unknown options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from planner.frameworks.fields import Settings
from planner.frameworks.megatron_bridge.precision import DEFAULTS
from planner.frameworks.megatron_bridge.recipes import READ
from planner.spec.model import ModelSpec

# sections that cost no step anything, but for what is read of them
_SECTIONS: Final = (
    "dataset", "tokenizer", "scheduler", "logger", "checkpoint", "rng", "validation", "profiling",
    "rerun_state_machine", "straggler", "nvrx_straggler", "ft", "inprocess_restart", "tensor_inspect", "env_vars",
    "peft",
)  # fmt: skip
# fields, by section, that change neither time nor memory by more than a kernel's choice that planner does not know
_INERT: Final = {
    "train": r"train_(?:iters|samples)|num_epochs|manual_gc\w*|exit_\w+|eval_\w+|check_\w+|gpu_sniff\w*"
             r"|iterations_to_skip|skip_train",
    "dist": r"(?:distributed_|flight_recorder_|external_gpu|local_rank|lazy_mpu|use_gloo|use_decentralized|eval_)\w*"
            r"|enable_megatron_core_experimental",
    "optimizer": r"(?:min_)?lr|decoupled_\w+|weight_decay|adam_\w+|clip_grad|\w*loss_scale\w*|hysteresis|sgd_momentum"
                 r"|muon_(?:momentum|nesterov|scale_mode|split_qkv|extra_scale_factor|coefficient_type|num_ns_steps)"
                 r"|apply_wd\w*|log_num\w*|grad_norm_skip\w*|params_dtype",
    "ddp": r"check_for_\w+|align_param_gather|fsdp_all_gather_in_start_param_sync",
    "comm_overlap": r"tp_comm_bootstrap_backend|align_param_gather|data_parallel_size|overlap_p2p_comm|batch_p2p_comm",
    "mixed_precision": r"params_dtype|pipeline_dtype|autocast_\w+|fp8_(?:margin|amax_\w+)|\w*loss_scale\w*|hysteresis"
                       r"|reuse_grad_buf_for_mxfp8_param_ag",
    "model": r"(?:\w*init_method\w*|\w*epsilon|\w*_std|\w*_coeff|rotary_\w+|rope_\w+|yarn_\w+|mscale\w*|beta_\w+"
             r"|mup_\w+|seq_len_interpolation_factor|hf_model_\w+|deterministic_mode|perform_initialization|softmax_\w+"
             r"|init_model_with_meta_device|use_te_rng_tracker|inference_\w+|pipeline_dtype|params_dtype"
             r"|fp8_(?:margin|amax_\w+)|cuda_graph_warmup_steps|make_vocab_size_divisible_by|should_pad_vocab"
             r"|is_hybrid_model|moe_router_(?:dtype|load_balancing_type|bias_update_rate|force_load_balancing"
             r"|topk_scaling_factor)|overlap_p2p_comm|batch_p2p_comm|moe_mlp_glu_interleave_size|keep_mtp_spec_in_bf16"
             r"|mtp_loss_scaling_factor|calculate_per_token_loss|transformer_impl|\w*logging|timers|attention_dropout"
             r"|mamba_chunk_size|log_max_attention_logit)",
}  # fmt: skip
_COMPILED: Final = {section: re.compile(f"(?:{pattern})$") for section, pattern in _INERT.items()}
# switches that are on unless they are switched off, and costed so; the others are off
_ON: Final = frozenset(
    "model." + name
    for name in (
        "apply_rope_fusion",
        "moe_permute_fusion",
        "moe_grouped_gemm",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "persist_layer_norm",
        "deallocate_pipeline_outputs",
        "use_mamba_mem_eff_path",
        "use_fused_weighted_squared_relu",
    )
) | {
    "ddp.average_in_collective",
    "ddp.gradient_reduce_div_fusion",
    "optimizer.pin_cpu_grads",
    "optimizer.pin_cpu_params",
}
# fields that make another model of the recipe's
_ARCHITECTURE: Final = re.compile(
    r"model\.(?:num_layers|hidden_size|ffn_hidden_size|num_attention_heads|num_query_groups|kv_channels|num_moe_experts"
    r"|moe_ffn_hidden_size|moe_router_topk|moe_layer_freq|moe_shared_expert_intermediate_size|moe_latent_size"
    r"|q_lora_rank|kv_lora_rank|qk_head_dim|qk_pos_emb_head_dim|v_head_dim|multi_latent_attention|gated_linear_unit"
    r"|add_bias_linear|add_qkv_bias|qk_layernorm|share_embeddings_and_output_weights|window_size|mamba_num_heads"
    r"|mamba_head_dim|mamba_num_groups|mamba_state_dim|linear_\w+|dsa_\w+)$"
)


def not_read(s: Settings, overrides: Mapping[str, Any]) -> list[str]:
    """A note on the overrides of `s` that are not read."""
    whole = [name for name, value in overrides.items() if name == "comm_overlap" and value != "null"]
    known = READ - set(whole)
    found = [s.name(n) for n, value in overrides.items() if not (n in known or _costs_nothing(n, value))]
    return [f"not read, though time or memory may depend on it: {', '.join(found)}"] if found else []


def _costs_nothing(name: str, value: Any) -> bool:
    section, _, field = name.partition(".")
    plain = section in _COMPILED and _COMPILED[section].match(field)
    # `sharding.overruled` says so
    overwritten = section in ("model", "optimizer", "ddp") and field in DEFAULTS
    if section in _SECTIONS or plain or overwritten or _ARCHITECTURE.match(name):
        return True
    word = str(value).lower()
    return word in ("true", "false", "null", "none") and (name in _ON) == (word == "true")


def remade(s: Settings, overrides: Mapping[str, Any], model: ModelSpec) -> str:
    """What overrides of `s` leave unknown of a recipe's model; empty where they repeat what it has anyway."""
    own = {"model.num_layers": model.num_layers, "model.hidden_size": model.hidden}
    changed = [n for n in overrides if _ARCHITECTURE.match(n) and str(overrides[n]) != str(own.get(n, ""))]
    return f"what {', '.join(map(s.name, changed))} makes of {model.name}" if changed else ""

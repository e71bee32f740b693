"""Which pre-training recipes has Megatron-Bridge, and what do they set before a script overrides it?

Settings are transcribed by `benchmarks/bridge_recipes.py` from the recipes' source, of every release. Left out: recipes
of models that planner does not ship, fine-tuning, and fields that decide neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

RECIPE_FILE: Final = Path(__file__).with_suffix(".yaml")
RELEASES: Final = ("0.6.0", "0.7.0")
# the class of a recipe's model that is no provider: it holds TransformerConfig's fields in one of its own
BUILT: Final = "BridgeGPTModelConfig"
# fields of a ConfigContainer that are read, of a recipe and of what overrides it
READ: Final = frozenset(
    (
        # how the model is divided, and what of it is computed again
        "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size",
        "model.virtual_pipeline_model_parallel_size", "model.context_parallel_size", "model.cp_comm_type",
        "model.expert_model_parallel_size", "model.expert_tensor_parallel_size", "model.sequence_parallel",
        "model.pipeline_model_parallel_layout", "model.num_layers_in_first_pipeline_stage",
        "model.num_layers_in_last_pipeline_stage", "model.account_for_embedding_in_pipeline_split",
        "model.account_for_loss_in_pipeline_split", "model.recompute_granularity", "model.recompute_method",
        "model.recompute_num_layers", "model.recompute_modules", "model.cpu_offloading",
        "model.cpu_offloading_activations", "model.cpu_offloading_num_layers",
        # the model
        "model.seq_length", "dataset.seq_length", "model.mtp_num_layers", "model.mtp_hybrid_override_pattern",
        "model.mtp_use_repeated_layer", "model.hybrid_layer_pattern", "model.hybrid_override_pattern",
        "model.vocab_size", "tokenizer.tokenizer_type", "tokenizer.vocab_size", "tokenizer.use_tokenizer_vocab_size",
        # kernels
        "model.cross_entropy_loss_fusion", "model.cross_entropy_fusion_impl", "model.attention_backend",
        "model.hidden_dropout", "model.bias_activation_fusion", "model.activation_func_fp8_input_store",
        "model.gradient_accumulation_fusion", "model.use_transformer_engine_op_fuser", "model.cuda_graph_impl",
        "model.cuda_graph_modules", "model.cuda_graph_scope", "optimizer.optimizer_cuda_graph",
        # experts
        "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend", "model.moe_shared_expert_overlap",
        "model.overlap_moe_expert_parallel_comm", "model.moe_expert_capacity_factor",
        "model.moe_pad_expert_input_to_capacity", "model.moe_expert_rank_capacity_factor", "model.moe_paged_stash",
        "model.moe_paged_stash_buffer_size_factor_cuda", "model.moe_paged_stash_buffer_size_factor_cpu",
        # who holds states, in which width, and when they are sent
        "mixed_precision", "mixed_precision.bf16", "mixed_precision.fp16", "mixed_precision.fp32",
        "mixed_precision.grad_reduce_in_fp32", "mixed_precision.fp8", "mixed_precision.fp8_recipe",
        "mixed_precision.fp8_param", "mixed_precision.fp8_param_gather", "mixed_precision.fp4",
        "mixed_precision.fp4_recipe", "mixed_precision.fp4_param", "mixed_precision.fp4_param_gather",
        "mixed_precision.first_last_layers_bf16", "mixed_precision.num_layers_at_start_in_bf16",
        "mixed_precision.num_layers_at_end_in_bf16", "ddp.grad_reduce_in_fp32", "ddp.use_distributed_optimizer",
        "ddp.use_megatron_fsdp", "ddp.data_parallel_sharding_strategy", "ddp.fsdp_double_buffer",
        "ddp.megatron_fsdp_main_grads_dtype", "ddp.num_distributed_optimizer_instances", "ddp.overlap_grad_reduce",
        "ddp.overlap_param_gather", "dist.use_megatron_fsdp", "dist.use_torch_fsdp2",
        "optimizer.use_distributed_optimizer", "optimizer.overlap_param_gather", "optimizer.optimizer",
        "optimizer.muon_tp_mode", "optimizer.use_precision_aware_optimizer", "optimizer.main_params_dtype",
        "optimizer.main_grads_dtype", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype",
        "optimizer.optimizer_cpu_offload", "optimizer.optimizer_offload_fraction", "comm_overlap",
        "comm_overlap.tp_comm_overlap", "comm_overlap.overlap_grad_reduce", "comm_overlap.overlap_param_gather",
        "comm_overlap.overlap_moe_expert_parallel_comm", "model.tp_comm_overlap", "train.global_batch_size",
        "train.micro_batch_size",
    )
)  # fmt: skip
RECIPES: Final = {
    "llama-2-7b": "llama2_7b_pretrain_2gpu_h100_bf16_config",
    "llama-3.2-1b": "llama32_1b_pretrain_1gpu_h100_bf16_config",
    "llama-3.2-3b": "llama32_3b_pretrain_1gpu_h100_bf16_config",
    "llama-3-8b": "llama3_8b_pretrain_2gpu_h100_bf16_config",
    "llama-3-70b": "llama3_70b_pretrain_32gpu_h100_bf16_config",
    "llama-3.1-8b": "llama31_8b_pretrain_2gpu_h100_bf16_config",
    "llama-3.1-70b": "llama31_70b_pretrain_32gpu_h100_bf16_config",
    "llama-3.1-405b": "llama31_405b_pretrain_256gpu_h100_bf16_config",
    "gpt-oss-20b": "gpt_oss_20b_pretrain_16gpu_h100_bf16_config",
    "gpt-oss-120b": "gpt_oss_120b_pretrain_config",
    "deepseek-v2-lite": "deepseek_v2_lite_pretrain_8gpu_h100_bf16_config",
    "deepseek-v2": "deepseek_v2_pretrain_128gpu_h100_bf16_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
    "kimi-k2": "kimi_k2_pretrain_512gpu_h100_bf16_config",
    "moonlight-16b-a3b": "moonlight_16b_pretrain_16gpu_h100_bf16_config",
    "glm-4.5": "glm45_355b_pretrain_128gpu_h100_bf16_config",
    "glm-4.5-air": "glm45_air_106b_pretrain_32gpu_h100_bf16_config",
    "qwen2.5-0.5b": "qwen25_500m_pretrain_1gpu_h100_bf16_config",
    "qwen2.5-1.5b": "qwen25_1p5b_pretrain_1gpu_h100_bf16_config",
    "qwen2.5-7b": "qwen25_7b_pretrain_2gpu_h100_bf16_config",
    "qwen2.5-14b": "qwen25_14b_pretrain_4gpu_h100_bf16_config",
    "qwen2.5-32b": "qwen25_32b_pretrain_16gpu_h100_bf16_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_pretrain_config",
    "qwen3-235b-a22b": "qwen3_235b_a22b_pretrain_config",
    "qwen3-next-80b-a3b": "qwen3_next_80b_a3b_pretrain_32gpu_h100_bf16_config",
    "qwen3.5-35b-a3b": "qwen35_text_35b_a3b_pretrain_8gpu_gb200_bf16_config",
    "nemotron-h-8b": "nemotronh_8b_pretrain_2gpu_h100_bf16_config",
    "nemotron-h-47b": "nemotronh_47b_pretrain_8gpu_h100_bf16_config",
    "nemotron-h-56b": "nemotronh_56b_pretrain_8gpu_h100_bf16_config",
    "nemotron-nano-9b-v2": "nemotron_nano_9b_v2_pretrain_2gpu_h100_bf16_config",
    "nemotron-3-nano-30b-a3b": "nemotron_3_nano_pretrain_8gpu_h100_bf16_config",
    "nemotron-3-super-120b-a12b": "nemotron_3_super_pretrain_16gpu_h100_bf16_config",
    "nemotron-3-ultra-550b-a55b": "nemotron_3_ultra_pretrain_24gpu_h100_bf16_config",
    "nemotron-3.5-lightning-30b-a3b": "nemotron_3_5_lightning_pretrain_config",
}
# more recipes of the same models, which `--model NAME` may stand for
MORE_RECIPES: Final = {"nemotron_3_super_pretrain_config": "nemotron-3-super-120b-a12b"}
# names of two recipes each, of which scripts/training/run_recipe.py takes the benchmark's (recipe_metadata.py
# BENCHMARK_RECIPE_PRECEDENCE_COLLISIONS); the other one has the shorter name that is written
BENCHMARKS: Final = {
    "gpt_oss_120b_pretrain_64gpu_h100_bf16_config": "gpt-oss-120b",
    "deepseek_v3_pretrain_1024gpu_h100_bf16_config": "deepseek-v3",
    "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config": "qwen3-30b-a3b",
    "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config": "qwen3-235b-a22b",
}
# whose functions compute how layers are dealt to stages (_pipeline_model_parallel_layout_builder)
LAYOUTS_COMPUTED: Final = frozenset(("deepseek-v3", "kimi-k2", "moonlight-16b-a3b"))
# whose functions set up Muon (distributed_muon_with_cosine_annealing)
MUON_RECIPES: Final = frozenset(("kimi-k2",))


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: Mapping[str, Any] = yaml.load(RECIPE_FILE.read_text(encoding="utf-8"), Loader=loader)
    return document


@dataclass(frozen=True)
class Recipe:
    """What is known of a recipe that a script runs, in a release. `model`: of the catalog, "" for none; `settings`:
    dotted field of a provider -> value that it sets, "computed" where its source does not say; `known`: are they its
    own, or what all have in common of sharding? `kind`: the class of its model, "" for a provider, None where no recipe
    is named."""

    model: str
    settings: Mapping[str, Any]
    known: bool = True
    kind: str | None = ""

    @property
    def overlaps(self) -> bool:
        """Has it a section comm_overlap, which overwrites fields of the model and of ddp at setup?"""
        return any(field.startswith("comm_overlap.") for field in self.settings)

    @property
    def spells_precision(self) -> bool:
        """Is its mixed precision a configuration of its own, whose fields can be overridden, not a name?"""
        return any(field.startswith("mixed_precision.") for field in self.settings)


def recipe_of(name: str, version: str = RELEASES[-1]) -> Recipe:
    """The recipe of this name, by any of its names, in a release."""
    document = _document()
    common, release = dict(document["common"]), document["releases"][version]
    kind = BUILT if name.startswith(tuple(release["built"])) else "" if name else None
    if name in BENCHMARKS:
        return Recipe(BENCHMARKS[name], _sharding_of(common), known=False, kind=kind)
    for model, recipe in (*RECIPES.items(), *((model, more) for more, model in MORE_RECIPES.items())):
        found, changed = document["recipes"][recipe], release["changes"].get(recipe)
        if name and name in (recipe, *found["names"]):
            settings = common | found["settings"]
            if changed:
                kept = {field: value for field, value in settings.items() if field not in changed["absent"]}
                settings = kept | changed["own"]
            return Recipe(model, settings, kind=kind)
    return Recipe("", _sharding_of(common), known=False, kind=kind)


def _sharding_of(common: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in common.items() if field.startswith("ddp.")}

"""What do Megatron-LM's arguments mean to Megatron-Core? Its configuration, field by field.

Source: Megatron-LM 0.16 megatron/training/arguments.py `core_transformer_config_from_args` and `validate_args`,
training/training.py `get_model`, gpt_builders.py. An argument that nothing here knows is refused by name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import torch

from planner.dryrun.megatron.core import activations, distributed, optimizers, transformer_config
from planner.dryrun.megatron.recipe import MegatronRecipe
from planner.errors import UnsupportedError

Words = tuple[str, ...]

_RENAMED: Final[Mapping[str, str]] = {
    "--norm-epsilon": "layernorm_epsilon",
    "--num-experts": "num_moe_experts",
    "--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--apply-layernorm-1p": "layernorm_zero_centered_gamma",
}
_MEANS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--swiglu": {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu},
    "--squared-relu": {"activation_func": activations.squared_relu},
    "--quick-geglu": {"gated_linear_unit": True, "activation_func": activations.quick_gelu},
    "--disable-bias-linear": {"add_bias_linear": False},
    "--no-bias-swiglu-fusion": {"bias_activation_fusion": False},
    "--no-bias-gelu-fusion": {"bias_activation_fusion": False},
    "--no-gradient-accumulation-fusion": {"gradient_accumulation_fusion": False},
}
# read elsewhere, or of no effect on what is asked of the allocator
_ASIDE: Final = frozenset({
    "--seq-length", "--max-position-embeddings", "--position-embedding-type", "--rotary-base", "--rotary-percent",
    "--use-rope-scaling", "--rope-scaling-factor", "--group-query-attention", "--untie-embeddings-and-output-weights",
    "--vocab-size", "--make-vocab-size-divisible-by", "--num-virtual-stages-per-pipeline-rank", "--tp-comm-overlap",
    "--use-distributed-optimizer", "--num-distributed-optimizer-instances", "--grad-reduce-in-bf16",
    "--overlap-grad-reduce", "--overlap-param-gather", "--attention-backend", "--moe-layer-freq", "--no-rope-fusion",
    "--window-size", "--window-attn-skip-freq",
})  # fmt: skip
_REFUSED: Final[Mapping[str, str]] = {
    "--softmax-type": "attention sinks",
    "--overlap-moe-expert-parallel-comm": "exchange of tokens hidden under another micro-batch",
    "--moe-flex-dispatcher-backend": "a fused dispatcher of tokens",
    "--moe-latent-size": "experts in a latent space",
    "--use-transformer-engine-op-fuser": "experts that one kernel runs",
}


@dataclass(frozen=True)
class Settings:
    """Configuration of the package's own classes; `model`: keywords of `GPTModel`."""

    transformer: Any
    model: Mapping[str, Any]
    buffers: Any
    optimizer: Any
    instances: int
    """Copies of what the distributed optimizer shards."""


def settings_of(recipe: MegatronRecipe) -> Settings:
    """What the arguments of a recipe mean. Raises `UnsupportedError` for one that is not known here."""
    given = recipe.arguments
    latent = "--multi-latent-attention" in given
    kind = transformer_config.MLATransformerConfig if latent else transformer_config.TransformerConfig
    known = {field.name for field in fields(kind)}
    values: dict[str, Any] = {}
    for name, words in given.items():
        if name in _REFUSED:
            raise _refusal(_REFUSED[name])
        if name in _MEANS:
            values |= _MEANS[name]
        elif name not in _ASIDE:
            field = _RENAMED.get(name, name.removeprefix("--").replace("-", "_"))
            if field not in known:
                raise _refusal(name)
            values[field] = _value(words, list_asked=field.endswith("_modules"))
    sharded = "--use-distributed-optimizer" in given
    fp32 = "--grad-reduce-in-bf16" not in given
    instances = int(given.get("--num-distributed-optimizer-instances", ("1",))[0])
    return Settings(
        transformer=_transformer(kind, recipe, values),
        model=_model(recipe),
        buffers=distributed.DistributedDataParallelConfig(
            grad_reduce_in_fp32=fp32,
            overlap_grad_reduce="--overlap-grad-reduce" in given,
            overlap_param_gather="--overlap-param-gather" in given,
            use_distributed_optimizer=sharded,
            num_distributed_optimizer_instances=instances,
        ),
        optimizer=optimizers.OptimizerConfig(
            optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0,
            use_distributed_optimizer=sharded, overlap_param_gather="--overlap-param-gather" in given,
        ),
        instances=instances,
    )  # fmt: skip


def _transformer(kind: Callable[..., Any], recipe: MegatronRecipe, values: dict[str, Any]) -> Any:
    fused = {
        "bias_activation_fusion": "--squared-relu" not in recipe.arguments,
        "bias_dropout_fusion": True,
        "gradient_accumulation_fusion": True,
    }
    usual = {
        "bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16, "perform_initialization": False,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "deallocate_pipeline_outputs": True,
        "masked_softmax_fusion": False, "apply_rope_fusion": _fuses_rotation(recipe), "persist_layer_norm": False,
        "overlap_p2p_comm": recipe.config.vpp > 1, "batch_p2p_comm": recipe.config.vpp == 1,
        "variable_seq_lengths": False,
    }  # fmt: skip
    if recipe.config.vpp > 1:
        usual["virtual_pipeline_model_parallel_size"] = recipe.config.vpp
    if recipe.experts_in:
        usual["moe_layer_freq"] = list(recipe.experts_in)
    if "num_attention_heads" in values and "num_query_groups" not in values:
        usual["num_query_groups"] = values["num_attention_heads"]
    return kind(**(usual | fused | values))


def _fuses_rotation(recipe: MegatronRecipe) -> bool:
    return (
        "--no-rope-fusion" not in recipe.arguments and "rope" in recipe.arguments["--position-embedding-type"]
    )


def _model(recipe: MegatronRecipe) -> dict[str, Any]:
    given = recipe.arguments

    def word(name: str, otherwise: str) -> str:
        return given.get(name, (otherwise,))[0]

    return {
        "vocab_size": recipe.vocabulary,
        "max_sequence_length": int(word("--max-position-embeddings", str(recipe.seq_len))),
        "position_embedding_type": word("--position-embedding-type", "learned_absolute"),
        "rotary_base": int(float(word("--rotary-base", "10000"))),
        "rotary_percent": float(word("--rotary-percent", "1.0")),
        "rope_scaling": "--use-rope-scaling" in given,
        "rope_scaling_factor": float(word("--rope-scaling-factor", "8.0")),
        "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights" not in given,
    }


def _value(words: Words, list_asked: bool) -> Any:
    if list_asked:
        return list(words)
    if not words:
        return True
    try:
        return ast.literal_eval(words[0])
    except (ValueError, SyntaxError):
        return words[0]


def _refusal(what: str) -> UnsupportedError:
    must = "a dry run of Megatron needs arguments that Megatron-Core's own layers know"
    return UnsupportedError(must, what, "choose another configuration")

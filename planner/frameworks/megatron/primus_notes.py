"""What do settings of Primus's own mean for Megatron-LM's arguments, which does it refuse, and what is not costed?

Source: AMD-AGI/Primus fd1eeab, primus/backends/megatron/patches and primus/configs/modules/megatron. Left out: settings
that change neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.errors import InputError
from planner.frameworks.adapters import Adapters, targets_of
from planner.frameworks.layout import ChunkLayers
from planner.frameworks.options import not_costed
from planner.spec.planned_config import MOST

Settings = Mapping[str, Any]
_KERNELS: Final = (
    "use_turbo_attention",
    "use_turbo_gemm",
    "use_turbo_grouped_gemm",
    "use_turbo_rms_norm",
    "use_turbo_fused_act_with_probs",
    "use_turbo_mega_moe",
)
_PLAIN_SCHEDULES: Final = ("1f1b", "1f1b-interleaved")
# architectures beyond the GPT of the arguments: a setting that is on -> what it makes of the model
_MODELS: Final = {"lfm_layer_types": "short convolutions", "is_hybrid_model": "state-space layers"}
_DESCRIBING: Final = (
    "hidden_size",
    "hybrid_attention_ratio",
    "hybrid_mlp_ratio",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
)


def turbo(settings: Settings) -> bool:
    """Are kernels of Primus-Turbo switched on (patches/turbo/utils.py is_primus_turbo_can_patch)?"""
    return bool(settings.get("enable_primus_turbo"))


def stage(settings: Settings) -> int:
    """Of the mixture of experts without synchronisation; 0 is none."""
    value = settings.get("turbo_sync_free_moe_stage") or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 3:
        raise InputError("turbo_sync_free_moe_stage must be from 0 to 3", str(value)[:40])
    return value


def exchanges_by_deepep(settings: Settings) -> bool:
    """Primus-Turbo's DeepEP: asked for, or brought by stage 2 (patches/args/rocm_arg_validation.py)."""
    return turbo(settings) and bool(settings.get("use_turbo_deepep") or stage(settings) >= 2)


def accept(settings: Settings) -> None:
    """Refuse what Primus refuses (patches/args/rocm_arg_validation.py), and schedules that are not costed. Raises
    `InputError`."""
    if stage(settings) and not turbo(settings):
        must = "turbo_sync_free_moe_stage needs enable_primus_turbo"
        raise InputError(must, "enable_primus_turbo false", "set it to true, or the stage to 0")
    if settings.get("num_experts") and (settings.get("use_turbo_deepep") or stage(settings) >= 2):
        if settings.get("moe_shared_expert_overlap"):
            must = "use_turbo_deepep does not support moe_shared_expert_overlap"
            raise InputError(must, "true", "set moe_shared_expert_overlap: false")
        if settings.get("moe_router_dtype") != "fp32":
            must = "use_turbo_deepep needs moe_router_dtype: fp32"
            raise InputError(must, str(settings.get("moe_router_dtype")), "set moe_router_dtype: fp32")
    if settings.get("fp4") and settings.get("fp4_recipe", "nvfp4") != "nvfp4":
        must = "fp4_recipe must be one that planner models: nvfp4"
        raise InputError(must, str(settings["fp4_recipe"]), "check the run in fp8, which takes longer")
    piped = str(settings.get("pipeline_model_parallel_size") or 1) != "1"
    other = settings.get("patch_primus_pipeline") and settings.get("pp_algorithm") not in _PLAIN_SCHEDULES
    if piped and (other or settings.get("patch_zero_bubble")):
        name = settings.get("pp_algorithm") if other else "zero bubble"
        must = (
            "the pipeline schedule must be one that planner models for Megatron-LM: 1F1B, interleaved or not"
        )
        raise InputError(
            must, str(name), "leave patch_primus_pipeline and patch_zero_bubble out, or pp_algorithm: 1f1b"
        )


def of_its_own(settings: Settings) -> dict[str, Any]:
    """Arguments of Megatron-LM that stand for settings of Primus's own; None takes one away."""
    found: dict[str, Any] = {}
    if turbo(settings) and settings.get("use_turbo_attention") and settings.get("use_sink_attention"):
        found["softmax_type"] = "learnable"
    if (copies := settings.get("data_parallel_replicate_degree") or 1) != 1:
        found["num_distributed_optimizer_instances"] = copies
    if layers := _split(settings.get("decoder_pipeline_manual_split_list")):
        stages = "|".join(f"t*{count}" for count in layers)
        found["pipeline_model_parallel_layout"] = f"E{stages}L"
    if beyond(settings):
        found |= dict.fromkeys(_DESCRIBING)
    # of what the parser itself works out from the other sizes a stated value does not count (validate_args)
    found["virtual_pipeline_model_parallel_size"] = None
    return found


def beyond(settings: Settings) -> str:
    """What makes the model more than the GPT that arguments describe; empty where nothing does."""
    kind = str(settings.get("model_type") or "gpt")
    return next((what for name, what in _MODELS.items() if settings.get(name)), "" if kind == "gpt" else kind)


def _split(value: Any) -> ChunkLayers:
    """Layers of every pipeline chunk, from a list of numbers."""
    if not value:
        return ()
    if not isinstance(value, list) or not all(isinstance(count, int) and count > 0 for count in value):
        must = "decoder_pipeline_manual_split_list must hold a whole number of layers for every chunk"
        raise InputError(must, str(value)[:80], "write it like [5, 6, 6, 5]")
    return tuple(value)


def layers_recomputed(settings: Settings) -> dict[str, Any]:
    """Layers recomputed by their numbers (patches/recompute_layer_patches.py), as a count; 0 of a block is none."""
    stated = settings.get("recompute_layer_ids")
    if stated is None or settings.get("recompute_granularity") != "full":
        none = settings.get("recompute_method") == "block" and settings.get("recompute_num_layers") == 0
        return {"recompute_granularity": None, "recompute_method": None} if none else {}
    numbers = (
        stated.split(",") if isinstance(stated, str) else stated if isinstance(stated, list) else [stated]
    )
    layers = {str(number).strip() for number in numbers} - {""}
    if not layers or not all(number.isdecimal() for number in layers):
        raise InputError("recompute_layer_ids must hold numbers of layers", str(stated)[:80])
    if str(settings.get("pipeline_model_parallel_size") or 1) != "1":
        must = (
            "recompute_layer_ids must be of a run without a pipeline: planner counts layers, not their places"
        )
        raise InputError(must, str(stated)[:80], "state recompute_method: block and recompute_num_layers")
    return {"recompute_method": "block", "recompute_num_layers": len(layers)}


def adapters_in(settings: Settings) -> tuple[Adapters | None, list[str]]:
    """Adapters of its fine-tuning (configs/modules/megatron/sft_trainer.yaml), and how they are costed. Raises
    `InputError`."""
    lora = settings.get("lora")
    if not isinstance(lora, Mapping) or not lora.get("enabled"):
        return None, []
    rank, names = lora.get("dim", 32), lora.get("target_modules") or []
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MOST:
        raise InputError("lora.dim must be a whole number, 1 or more", str(rank)[:40])
    targets, notes = targets_of(map(str, names if isinstance(names, list) else [names]))
    return Adapters(rank, targets), notes


def notes_on(settings: Settings) -> list[str]:
    """What is costed otherwise than the settings have it."""
    said = [f"{name}: {what}" for name, what in not_costed("primus").items() if settings.get(name)]
    kernels = [name for name in _KERNELS if settings.get(name)] if turbo(settings) else []
    if kernels:
        said.append(f"Primus-Turbo's kernels ({', '.join(kernels)}) are modelled as the stack's")
    if settings.get("num_experts") and exchanges_by_deepep(settings):
        said.append("Primus-Turbo's DeepEP: the exchange of tokens is modelled as an all-to-all")
    if (settings.get("torch_compile") or {}).get("enable"):
        said.append("torch_compile: operations are modelled as the stack runs them")
    if settings.get("virtual_pipeline_model_parallel_size"):
        said.append(
            "virtual_pipeline_model_parallel_size does not count: num_virtual_stages_per_pipeline_rank or a layout does"
        )
    if what := beyond(settings):
        said.append(f"the model is more than Megatron-LM's GPT ({what}): its arguments do not describe it")
    return said

"""Who holds weights, gradients and states, in which width, and when are they sent? As a configuration of
Megatron-Bridge says it: sections ddp, optimizer, comm_overlap and dist.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, src/megatron/bridge/training/config.py (C), comm_overlap.py (O); NVIDIA/
Megatron-LM d98e8a6, megatron/core/optimizer/optimizer_config.py (P). Left out: formats (`precision.py`), sizes of
buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.catalog.stack_options import DP_SERIAL, FP32_GRADIENTS, GATHER_SERIAL, GRADIENTS_16, GRADIENTS_32
from planner.errors import FileInputError
from planner.frameworks.fields import Settings
from planner.frameworks.framework import StackSetting
from planner.frameworks.megatron.muon import MUON
from planner.frameworks.megatron.states import STRATEGIES
from planner.frameworks.megatron_bridge.precision import SECTION, Mixed, overwrites
from planner.spec.config import OFFLOAD_ACTIVATIONS, OFFLOAD_OPTIMIZER
from planner.spec.job import Optimizer

OPTIMIZER: Final = "optimizer.optimizer"
# None has them in the type of the weights that compute (core/distributed/distributed_data_parallel_config.py)
MAIN_GRADIENTS: Final = "ddp.megatron_fsdp_main_grads_dtype"
FUSED_GRADIENTS: Final = "model.gradient_accumulation_fusion"
AWARE: Final = "optimizer.use_precision_aware_optimizer"
# the type of its moments, which some recipes have narrower than others
MOMENTS: Final = {Optimizer.ADAMW: "torch.float32", Optimizer.ADAMW_BF16: "torch.bfloat16"}
_MOMENTS: Final = ("exp_avg_dtype", "exp_avg_sq_dtype")
_FRACTION: Final = "optimizer.optimizer_offload_fraction"
# fields of comm_overlap that overwrite those of ddp, on unless it says otherwise, and of the model, off unless it does
_OF_REPLICAS: Final = ("overlap_grad_reduce", "overlap_param_gather")
_OF_MODEL: Final = ("tp_comm_overlap", "overlap_moe_expert_parallel_comm")


def uses_fsdp(s: Settings) -> bool:
    """Megatron-FSDP, which either section may ask for (C)."""
    return s.flag("ddp.use_megatron_fsdp") or s.flag("dist.use_megatron_fsdp")


def zero_stage(s: Settings) -> int:
    """The ZeRO stage: the distributed optimizer, which either section switches on for both (C
    _validate_and_sync_distributed_optimizer_settings), a strategy of Megatron-FSDP, or PyTorch's FSDP2."""
    if uses_fsdp(s):
        strategy = s.text("ddp.data_parallel_sharding_strategy", "optim_grads_params")
        return STRATEGIES.index(strategy) if strategy in STRATEGIES else 3
    if s.flag("dist.use_torch_fsdp2"):
        return 3
    dealt = s.text(OPTIMIZER, "adam") == MUON[1]  # matrices, without the distributed optimizer
    both = [s.flag(f"{section}.use_distributed_optimizer") for section in ("ddp", "optimizer")]
    return int(any(both) or dealt)


def overlaps(s: Settings, field: str, section: bool) -> bool:
    """Is this overlap on? Where the recipe has a `section` comm_overlap it overwrites what model and, with the
    distributed optimizer, ddp say: on for replicas and off for the model unless it says otherwise (O _get_optimizer_
    overlap_cfgs, _get_model_comm_overlap_cfgs)."""
    own = f"comm_overlap.{field}"
    if field in _OF_MODEL:
        return s.flag(own) if section else s.flag(f"model.{field}")
    if section and zero_stage(s):
        return s.flag(own, True)
    synced = field == "overlap_param_gather" and s.flag(f"optimizer.{field}")
    return s.flag(f"ddp.{field}", True) or synced


def options(s: Settings, mixed: Mixed | None, section: bool) -> tuple[str, ...]:
    """Options of the stack that gradients and what replicas exchange set; `mixed`: the precision, where it is known."""
    if uses_fsdp(s):
        return (FP32_GRADIENTS,) * (_type(s, MAIN_GRADIENTS, "") == "float32")
    width = () if mixed is None else (GRADIENTS_32 if mixed.wide else GRADIENTS_16,)
    if not overlaps(s, "overlap_grad_reduce", section):
        return (DP_SERIAL, *width)
    waits = zero_stage(s) == 1 and not overlaps(s, "overlap_param_gather", section)
    return (*[GATHER_SERIAL] * waits, *width)


def optimizer_of(s: Settings) -> Optimizer | None:
    """Muon, or AdamW with moments in bf16, where a precision-aware optimizer is given that type for both; None for
    fp32. Raises `FileInputError` where types are given that only a precision-aware optimizer takes (P)."""
    if s.text(OPTIMIZER, "adam") in MUON:
        return Optimizer.MUON
    for name in ("main_grads_dtype", "main_params_dtype", *_MOMENTS):
        given = _type(s, f"optimizer.{name}")
        if given != "float32" and not s.flag(AWARE):
            how = f"add {AWARE}=true"
            must = f"must be torch.float32 without {AWARE}"
            raise FileInputError(s.file, must, given, how, field=f"optimizer.{name}")
    both = [_type(s, f"optimizer.{name}") for name in _MOMENTS]
    return Optimizer.ADAMW_BF16 if both == ["bfloat16"] * 2 else None


def settings(s: Settings) -> tuple[StackSetting, ...]:
    """Numbers of the stack: masters in 16 bits, weight gradients that are not accumulated by their products."""
    found = []
    if _type(s, "optimizer.main_params_dtype") == "float16":
        found.append(StackSetting("bytes of optimizer.main_params_dtype", "engine", "master", 2.0))
    if not s.flag(FUSED_GRADIENTS, True):
        found.append(StackSetting(FUSED_GRADIENTS, "engine", "fused_weight_gradient", 0.0))
    return tuple(found)


def offloaded(s: Settings) -> int:
    """The optimizer's states (training/optim.py), of which a fraction must be named (P), and activations of layers, on
    the host."""
    away = s.flag("model.cpu_offloading") and s.flag("model.cpu_offloading_activations", True)
    states = s.flag("optimizer.optimizer_cpu_offload") and s.number(_FRACTION) > 0
    return (OFFLOAD_OPTIMIZER if states else 0) | (OFFLOAD_ACTIVATIONS if away else 0)


def notes(s: Settings, layers: int) -> list[str]:
    """What of states and of what lies on the host is costed otherwise; `layers`: of the model, 0 where not known."""
    said, aware = [], s.flag(AWARE)
    moments = [_type(s, f"optimizer.{name}") for name in _MOMENTS]
    if aware and moments not in (["float32"] * 2, ["bfloat16"] * 2):
        said.append(f"moments in {' and '.join(dict.fromkeys(moments))}: counted in fp32")
    if aware and _type(s, "optimizer.main_params_dtype") == "float32":
        said.append(
            f"{AWARE}: masters are counted in fp32; beside bf16 weights it keeps the 16 bits that those lack "
            "(store_param_remainders)"
        )
    share = s.number(_FRACTION)
    if s.flag("optimizer.optimizer_cpu_offload") and share < 1:
        counted = "all optimizer states are counted in CPU memory" if share else "none are in CPU memory"
        said.append(f"{_FRACTION} {share:g}: {counted}")
    count = s.count("model.cpu_offloading_num_layers", 0, least=0)
    if offloaded(s) & OFFLOAD_ACTIVATIONS and count < layers - 2:
        said.append(
            f"{s.name('model.cpu_offloading_num_layers')} {count}: activations of all layers are counted in CPU memory"
        )
    return said


def overruled(
    s: Settings, overrides: Mapping[str, Any], formats: Mapping[str, Any], section: bool
) -> list[str]:
    """Overrides without effect, since another section overwrites them at setup; `formats`: fields of the mixed
    precision, none where it is not known or there is none."""
    effects: dict[str, tuple[Any, str]] = {}
    for name, value in (overwrites(formats) if formats else {}).items():
        effects |= {f"{part}.{name}": (value, SECTION) for part in ("model", "optimizer", "ddp")}
    if section:
        replicas = _OF_REPLICAS if zero_stage(s) else ()
        for name in (*replicas, *_OF_MODEL):
            part = "ddp" if name in _OF_REPLICAS else "model"
            effects[f"{part}.{name}"] = (overlaps(s, name, section), "comm_overlap")
    said = []
    for field, (value, by) in effects.items():
        given, taken = (_word(one) for one in (overrides.get(field), value))
        if field in overrides and given != taken:
            name = field.partition(".")[2]
            said.append(
                f"{s.name(field)}={given} has no effect: {by} overwrites it, with {by}.{name} {taken}"
            )
    return said


def _word(value: Any) -> str:
    return "null" if value is None else str(value).lower()


def _type(s: Settings, field: str, default: str = "float32") -> str:
    """A torch type by its own name."""
    words = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
    given = s.text(field, default).removeprefix("torch.")
    return words.get(given, given)

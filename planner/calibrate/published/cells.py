"""What does one cell of a published row say? Numbers, precisions, schedules, recomputation, sharding.

Every reader takes the cell's text and appends to `assumed` what the text left open. Raises `UnsupportedError`
where it cannot be understood. Left out: what joins cells into a problem (`runs.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from planner.errors import UnsupportedError
from planner.spec.config import RECOMPUTE_MODULES, ContextKind, Recompute, Schedule
from planner.spec.job import Optimizer
from planner.spec.machine.accelerator import Accelerator
from planner.spec.model import ModelSpec
from planner.spec.precision import Dtype, Precision
from planner.spec.stack import Stack

Row = Mapping[str, str]

_PRECISIONS: Final = {
    "bfloat16": Precision.BF16,
    "float16": Precision.FP16,
    "half": Precision.FP16,
    "amp_bf16": Precision.BF16,
    "amp_fp8": Precision.FP8,
    "float32": Precision.FP32,
    "tf32": Precision.FP32,
    "fp8_delayed": Precision.FP8,
    "fp8_ds": Precision.FP8,
    "fp8_hybrid": Precision.FP8,
    "mxfp8": Precision.FP8_MX,
    "fp8_sc": Precision.FP8_BLOCKWISE,
    "fp8_block": Precision.FP8_BLOCKWISE,
    "fp4": Precision.NVFP4,
}
_SCHEDULES: Final = {
    "1f1b": Schedule.ONE_F_ONE_B,
    "interleaved": Schedule.INTERLEAVED,
    "interleaved1f1b": Schedule.INTERLEAVED,
    "gpipe": Schedule.GPIPE,
    "afab": Schedule.GPIPE,
    "zb": Schedule.ZB_H1,
    "zbh1": Schedule.ZB_H1,
    "zbh2": Schedule.ZB_H2,
    "zbv": Schedule.ZB_V,
    "vhalf": Schedule.V_HALF,
    "vmin": Schedule.V_MIN,
    "dualpipe": Schedule.DUALPIPE,
    "dualpipev": Schedule.DUALPIPE_V,
}
_OPTIMIZERS: Final = (
    (r"8.?bit", Optimizer.ADAMW_8BIT),
    (r"adam.*(bf16|precision-aware)|adam_bf16", Optimizer.ADAMW_BF16),
    (r"adafactor", Optimizer.ADAFACTOR),
    (r"muon", Optimizer.MUON),
    (r"lamb|adam", Optimizer.ADAMW),
    (r"momentum|lion", Optimizer.SGD_MOMENTUM),
    (r"sgd", Optimizer.SGD),
)
_ZEROS: Final = {"none": 0, "ddp": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
_VPP_IN_TEXT: Final = re.compile(r"(?:vpp?|virtual[ _a-z]*?)[ =:]+(\d+)", re.IGNORECASE)


def number_in(cells: Row, name: str) -> float | None:
    text = cells[name].replace(",", "").replace("_", "")
    if not text or text.lower() in ("na", "n/a", "none", "null", "nan", "-"):
        return None
    try:
        value = float(text)
    except ValueError:
        raise UnsupportedError(f"{name} must be a number", repr(cells[name])) from None
    if not math.isfinite(value) or not 0 <= value < 2**31:
        raise UnsupportedError(f"{name} must be a finite number, 0 or more", repr(cells[name]))
    return value


def count_in(cells: Row, name: str) -> int | None:
    """A count from a cell; None where it is empty. Raises `UnsupportedError`."""
    value = number_in(cells, name)
    if value is None:
        return None
    if value != int(value) or value < 1:
        raise UnsupportedError(f"{name} must be a whole number above 0", repr(cells[name]))
    return int(value)


def precision_in(text: str, accelerator: Accelerator, assumed: list[str]) -> Precision:
    """The recipe; not stated: bf16, or fp16 on a device without bf16."""
    key = text.lower().replace("-", "_").replace(" ", "_")
    if not key:
        formats = [dtype for dtype, _ in accelerator.peak]
        usual = Precision.BF16 if Dtype.BF16 in formats else Precision.FP16
        assumed.append(f"precision not stated: {usual}")
        return usual
    if key in _PRECISIONS:
        return _PRECISIONS[key]
    try:
        return Precision(key)
    except ValueError:
        known = ", ".join(Precision)
        raise UnsupportedError("precision must be a known recipe", repr(text), f"one of {known}") from None


def optimizer_in(text: str, assumed: list[str]) -> Optimizer:
    lower = text.lower()
    if not lower:
        assumed.append("optimizer not stated: adamw")
        return Optimizer.ADAMW
    for pattern, optimizer in _OPTIMIZERS:
        if re.search(pattern, lower):
            if "lamb" in lower or "lion" in lower:
                assumed.append(f"optimizer {text}: modelled as {optimizer}, which keeps as many moments")
            return optimizer
    raise UnsupportedError("the optimizer must be known", repr(text), "one of " + ", ".join(Optimizer))


def schedule_in(cells: Row, layers: int, pp: int, assumed: list[str]) -> tuple[Schedule, int]:
    """Schedule and virtual stages; the one follows from the other where only one is stated."""
    text, vpp = cells["schedule"].lower(), count_in(cells, "vpp")
    if vpp is None and (match := _VPP_IN_TEXT.search(f"{text} {cells['extras']}")):
        vpp = int(match[1])
    if pp == 1:
        return Schedule.ONE_F_ONE_B, 1
    known = _SCHEDULES.get(re.sub(r"[^a-z0-9]", "", text))
    if known is None and text:
        assumed.append(f"schedule {text!r}: " + ("interleaved" if (vpp or 1) > 1 else "1f1b"))
    if known not in (None, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
        return known, vpp if vpp is not None and known.runs_chunks(vpp) else (
            1 if known.runs_chunks(1) else 2
        )
    if vpp is None and known is Schedule.INTERLEAVED:
        fits = [v for v in range(2, layers // pp + 1) if layers % (pp * v) == 0]
        vpp = fits[0] if fits else 2
        assumed.append(f"virtual stages not stated: {vpp}")
    elif vpp is None:
        vpp = 1
        assumed.append("virtual stages not stated: 1")
    return (Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B), vpp


def sharding_in(
    text: str, stack: Stack, replicas: int, domain: int, tp: int, assumed: list[str]
) -> tuple[int, int]:
    """ZeRO stage and ranks that share one shard (0: all)."""
    key = re.sub(r"[^a-z0-9]", "", text.lower())
    if not key:
        zero = int(next(z for z in (1, 3, 2, 0) if z in stack.limits.zero))
        assumed.append(f"dp_sharding not stated: ZeRO stage {zero}")
    elif key in _ZEROS:
        zero = _ZEROS[key]
    else:
        raise UnsupportedError("dp_sharding must be known", repr(text), "one of " + ", ".join(_ZEROS))
    if replicas == 1:
        zero = 0
    if key != "hsdp":
        return zero, 0
    most = max(1, domain // tp)
    shard = max(size for size in range(1, min(most, replicas) + 1) if replicas % size == 0)
    assumed.append(f"hsdp: one shard per NVLink domain, {shard} ranks")
    return zero, shard


def sequence_parallel_in(text: str, tp: int, stack: Stack, assumed: list[str]) -> int:
    if tp == 1:
        return 0
    if text.lower() in ("true", "1", "1.0", "yes", "on"):
        return 1
    if text.lower() in ("false", "0", "0.0", "no", "off"):
        return 0
    sp = max(stack.limits.sequence_parallel)
    assumed.append(f"sequence parallelism not stated: {'on' if sp else 'off'}")
    return sp


def expert_tp_in(cells: Row, model: ModelSpec, degrees: dict[str, int], assumed: list[str]) -> int:
    """Expert tensor parallelism; not stated: tp, as Megatron-LM's default is, where that divides the ranks."""
    stated = count_in(cells, "etp")
    tp = degrees["tp"]
    if stated is not None or not model.is_moe or tp == 1:
        return stated or 1
    ranks = tp * degrees["cp"] * degrees["dp"]
    etp = tp if ranks % (degrees["ep"] * tp) == 0 else 1
    assumed.append(f"expert tensor parallelism not stated: {etp}")
    return etp


def context_kind_in(cells: Row, stack: Stack) -> ContextKind:
    text = cells["extras"].lower()
    if re.search(r"cp a2a|ulysses|cp[_-]comm[_-]type[ =:]+a2a", text):
        return ContextKind.A2A
    # Llama 3's own: keys and values gathered first (arXiv 2407.21783, section 3.3.2)
    if "meta internal" in cells["framework"].lower() or "all-gather cp" in text or "cp all_gather" in text:
        return ContextKind.ALL_GATHER
    return ContextKind.P2P


def recompute_in(
    cells: Row, model: ModelSpec, stack: Stack, pp: int, assumed: list[str]
) -> tuple[Recompute, int, int]:
    """Kind, layers per pipeline rank, modules as a bit mask, from text such as "full:5" or "selective:moe_act+mlp"."""
    text = cells["recompute"]
    lower, most = text.lower(), -(-model.num_layers // pp)
    if not lower and stack.name.startswith("maxtext"):
        assumed.append("recomputation not stated: full, the default of MaxText's remat_policy")
        return Recompute.FULL, most, 0
    if not lower:
        assumed.append("recomputation not stated: none")
        return Recompute.NONE, 0, 0
    if lower in ("none", "false", "off", "no"):
        return Recompute.NONE, 0, 0
    if lower.startswith("full"):
        count = re.match(r"full\s*[:=]\s*(\d+)", lower)
        return Recompute.FULL, min(int(count[1]), most) if count else most, 0
    share = re.search(r"(\d+)\s*/\s*(\d+)", lower)
    if share and int(share[2]) > 0:
        layers = max(1, min(most, round(most * int(share[1]) / int(share[2]))))
        return Recompute.FULL, layers, 0
    modules = _modules(lower)
    if modules:
        return Recompute.SELECTIVE, 0, modules
    if "minimal" in lower:  # MaxText: everything saved but attention
        assumed.append(f"recomputation {text!r}: the attention core")
        return Recompute.SELECTIVE, 0, _bits(("core_attn",))
    layers_apart = stack.framework == "fsdp" or "selective layer" in cells["extras"].lower()
    if stack.framework in ("torchtitan", "fsdp") and layers_apart:
        assumed.append(f"recomputation {text!r}: every second layer")
        return Recompute.FULL, max(1, most // 2), 0
    assumed.append(f"recomputation {text!r}: {'+'.join(stack.limits.selective_recompute)}")
    return Recompute.SELECTIVE, 0, _bits(stack.limits.selective_recompute)


def _modules(text: str) -> int:
    names = re.split(r"[:+,;\s()]+", text)
    return _bits(tuple(name for name in RECOMPUTE_MODULES if name in names))


def _bits(names: tuple[str, ...]) -> int:
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)

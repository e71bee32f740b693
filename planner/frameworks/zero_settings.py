"""Which settings of ZeRO in a ds_config.json change what a step takes and keeps?

Source: deepspeed 0.19.8 runtime/zero/config.py (names, defaults, overlap_comm_valid), stage3.py, stage_1_and_2.py,
runtime/utils.py; transformers 5.23 integrations/deepspeed.py trainer_config_finalize ("auto"). Left out: what
`not_costed.json` says of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from planner.errors import FileInputError
from planner.frameworks.fields import Settings
from planner.frameworks.framework import StackSetting
from planner.frameworks.options import not_costed

_ZERO: Final = "zero_optimization."
_MOST: Final = 1e15  # elements
_PERSISTENT: Final = 1e5  # the default threshold
# setting -> (field of the stack's engine, times hidden to the power that Transformers' Trainer writes for "auto")
_ANY_STAGE: Final = {"reduce_bucket_size": ("bucket_elements", (1.0, 2))}
_STAGE_3: Final = {
    "stage3_prefetch_bucket_size": ("prefetch_elements", (0.9, 2)),
    "stage3_param_persistence_threshold": ("persistent_elements", (10.0, 1)),
    "stage3_max_live_parameters": ("live_parameters", None),
    "stage3_max_reuse_distance": ("reuse_distance", None),
}
# flags that change messages in ways which have no term
_NOT_COSTED: Final = (
    "zero_quantized_weights", "zero_quantized_gradients", "stage3_use_all_reduce_for_fetch_params",
    "stage3_allgather_sequential",
)  # fmt: skip


_USUAL: Final = (None, False, 0, 1.0, "auto")  # what changes nothing, of the settings that are not costed
_PREFIX: Final = "stage3_"
# which DeepSpeedZeroConfig takes without the prefix too
_SHORT: Final = frozenset(
    (
        "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters",
        "max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold",
        "use_all_reduce_for_fetch_params", "allgather_sequential",
    )
)  # fmt: skip


def with_full_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """A DeepSpeed file with settings of ZeRO 3, and the section of bf16, under the names of its documentation."""
    said = dict(document)
    if "bf16" not in said and "bfloat16" in said:  # runtime/precision_config.py get_bfloat16_config
        said["bf16"] = said.pop("bfloat16")
    if isinstance(zero := said.get("zero_optimization"), dict):
        said["zero_optimization"] = {
            f"{_PREFIX}{name}" if name in _SHORT else name: value for name, value in zero.items()
        }
    return said


def zero_settings(s: Settings, stage: int) -> tuple[tuple[StackSetting, ...], tuple[str, ...]]:
    """What the stack takes from them, and notes. Raises `FileInputError` naming the setting."""
    found = list[StackSetting]()
    said = not_costed("deepspeed").items()
    notes = [
        f"{name}: {what}"
        for name, what in said
        if (value := s.values.get(name)) is True or value not in _USUAL
    ]
    if not stage:
        return (), tuple(notes)
    for name, (field, automatic) in {**_ANY_STAGE, **(_STAGE_3 if stage == 3 else {})}.items():
        value = s.values.get(_ZERO + name)
        if value == "auto" and automatic is not None:
            found.append(StackSetting(name, "engine", field, *automatic))
        elif value is not None and value != "auto":
            elements = _elements(s, _ZERO + name)
            found.append(StackSetting(name, "engine", field, elements))
            if field == "persistent_elements" and elements > _PERSISTENT:
                notes.append(
                    f"{name} above {_PERSISTENT:g}: what stays gathered counts in time, not in memory"
                )
    # absent or "auto": overlapped in stage 3 alone
    overlaps = s.flag(f"{_ZERO}overlap_comm", stage == 3)
    found.append(StackSetting("overlap_comm", "engine", "overlap_comm", float(overlaps)))
    if stage < 3 and s.has(f"{_ZERO}allgather_bucket_size"):
        notes.append(
            "allgather_bucket_size changes nothing: with today's PyTorch DeepSpeed gathers updated weights at once"
        )
    notes += [f"{name} is not modelled" for name in _NOT_COSTED if s.flag(_ZERO + name)]
    if stage == 3 and not s.flag(f"{_ZERO}reduce_scatter", True):
        notes.append("reduce_scatter=false: the all-reduce in its place is not modelled")
    return tuple(found), tuple(notes)


def _elements(s: Settings, name: str) -> float:
    """A number of elements, which DeepSpeed takes as 5e8 too; of those that must not be 0, 1."""
    value = s.values[name]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= _MOST:
        must = f"must be a number of elements from 0 to {_MOST:g}"
        raise FileInputError(s.file, must, repr(value)[:80], field=name)
    return number

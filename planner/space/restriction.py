"""Which values does `--set tp=8` or `--set pp=8,16` leave to an axis, and which split does `layout=8,9,9,6` state?

Left out: whether the values are legal, which the rules decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from planner.dialect import option
from planner.errors import InputError, UnknownNameError
from planner.space.axes import RESTRICTABLE, degree_range
from planner.spec.config import (
    CODED,
    CUDA_GRAPH_MODULES,
    OFFLOAD_LABELS,
    RECOMPUTE_MODULES,
    SCHEDULE_LABELS,
    WHOLE_LAYER,
    ContextKind,
    CudaGraphs,
    Recompute,
    module_mask,
    value_text,
)

_BETWEEN: Final = re.compile(r"[\s,]+(?=[A-Za-z][\w-]*\s*=)")
_LONGEST: Final = 9  # digits of a degree
# what an error shows of each option that takes settings of axes
_EXAMPLES: Final = {"set": "pp=8,16", "why_not": "pp=8,tp=4", "run": "train.log:pp=8,tp=4"}
_OTHER_NAMES: Final = {"mbs": "micro_batch", "cp_comm_type": "cp_kind"}
_SWITCH: Final = {"0": 0, "1": 1, "no": 0, "yes": 1, "false": 0, "true": 1, "off": 0, "on": 1}


def separate(settings: Iterable[str]) -> list[str]:
    """Settings one by one, of which a text may hold several: "tp=8,16,pp=4" or "tp=8,16 pp=4"."""
    return [one for text in settings for one in _BETWEEN.split(text.strip())]


def parse_restriction(settings: Iterable[str], of: str = "set") -> dict[str, tuple[int, ...]]:
    """The values that `--set axis=v[,v...]` leaves to each axis; a text may name several (`separate`).

    `of`: the option that errors speak of.

    Raises `InputError`.
    """
    asked, example = option(of), option(of, _EXAMPLES[of])
    restrict: dict[str, tuple[int, ...]] = {}
    for setting in separate(settings):
        name, equals, values = setting.partition("=")
        name = name.strip().lower().replace("-", "_")
        axis = _OTHER_NAMES.get(name, name)
        if not equals or not values.strip():
            raise InputError(f"{asked} must look like axis=value", setting, f"write it like {example}")
        if axis not in RESTRICTABLE:
            raise UnknownNameError(f"axis of {asked}", name, (*RESTRICTABLE, *_OTHER_NAMES))
        if axis in restrict:
            hint = f"write it like {option('set', f'{name}=1,2')}" if of == "set" else "name it once"
            raise InputError(f"{name} of {asked} must be given once", setting, hint)
        restrict[axis] = tuple(
            dict.fromkeys(_degree(axis, value.strip(), setting, example) for value in values.split(","))
        )
    if "recompute_modules" in restrict:  # what else would recompute them
        kinds = restrict.setdefault("recompute", (int(Recompute.SELECTIVE),))
        if int(Recompute.SELECTIVE) not in kinds:
            must = "recompute_modules belongs to recompute=selective"
            raise InputError(
                must, f"recompute={value_text('recompute', kinds[0])}", "leave one of the two out"
            )
    return restrict


def split_layout(settings: Iterable[str]) -> tuple[str, list[str]]:
    """The layout among settings such as "tp=8" and "layout=8,9,9,6", empty where there is none, and the others.

    Raises `InputError`.
    """
    stated = [(name.strip().lower(), text.strip(), name + equals + text)
              for name, equals, text in (setting.partition("=") for setting in separate(settings))]  # fmt: skip
    layouts = [text for name, text, _ in stated if name == "layout"]
    if len(layouts) > 1 or not all(layouts):
        raise InputError(
            f"layout of {option('set')} must be given once",
            ", ".join(layouts),
            f"write {option('set', 'layout=4,4,3')}",
        )
    return "".join(layouts), [setting for name, _, setting in stated if name != "layout"]


def restriction_of(given: Mapping[str, object]) -> tuple[dict[str, tuple[int, ...]], str]:
    """The values that a mapping such as {"tp": 8, "pp": [4, 8], "schedule": "1f1b"} leaves to each axis, and its
    layout; whole numbers stand for names where an axis has names, as a plan's table has them. Raises `InputError`."""
    texts, codes = [], dict[str, tuple[int, ...]]()
    for name, values in given.items():
        if name == "layout" and not values:
            continue
        several = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
        numbers = [one for one in several if isinstance(one, int) and not isinstance(one, bool)]
        if name in CODED and len(numbers) == len(several):
            codes[name] = tuple(_code(name, int(one)) for one in numbers)
        else:
            texts.append(f"{name}={','.join(map(str, several))}")
    layout, settings = split_layout(texts)
    return parse_restriction(settings) | codes, layout


def _code(axis: str, code: int) -> int:
    """A code of an axis whose values have names. Raises `InputError`."""
    try:
        value_text(axis, code)
    except (IndexError, KeyError, ValueError):
        raise InputError(f"{axis} of {option('set')} must be a name", str(code)) from None
    return code


def _degree(axis: str, value: str, setting: str, example: str) -> int:
    if axis == "recompute":
        if value.upper() in Recompute.__members__:
            return int(Recompute[value.upper()])
        raise InputError("recompute must be none, selective or full", setting)
    if axis == "offload":
        if value.lower() not in OFFLOAD_LABELS:
            raise UnknownNameError("offload", value, tuple(OFFLOAD_LABELS))
        return OFFLOAD_LABELS[value.lower()]
    if axis == "cuda_graph_impl":
        if value.upper().replace("-", "_") not in CudaGraphs.__members__:
            raise UnknownNameError("cuda_graph_impl", value, [graphs.label for graphs in CudaGraphs])
        return int(CudaGraphs[value.upper().replace("-", "_")])
    if axis == "cp_kind":
        labels = [kind.label for kind in ContextKind]
        label = {"allgather": "all-gather"}.get(value.lower(), value.lower().replace("_", "-"))
        if label not in labels:
            raise UnknownNameError("cp_kind", value, labels)
        return labels.index(label)
    if axis == "cuda_graph_modules":
        return _graph_modules(value.lower())
    if axis == "recompute_modules":
        return _recomputed(value.lower(), setting)
    if axis == "schedule":
        return _schedule(value)
    if axis == "sp":
        if value.lower() not in _SWITCH:
            raise InputError("sp must be 0 or 1", setting, f"write it like {option('set', 'sp=1')}")
        return _SWITCH[value.lower()]
    if value.isascii() and value.isdigit() and len(value) > _LONGEST:
        raise InputError(f"{axis} must have at most {_LONGEST} digits", setting)
    lowest, highest = degree_range(axis)
    must = f"{axis} must be a whole number from {lowest} to {highest:,}"
    if not (value.isascii() and value.isdigit()):
        raise InputError(must, setting, f"write it like {example}")
    return int(value)


def _schedule(value: str) -> int:
    """The code of a schedule, with or without hyphens, as `planner schedule` takes its name."""
    folded = {name.replace("-", ""): code for code, name in enumerate(SCHEDULE_LABELS)}
    code = folded.get(value.lower().replace("_", "").replace("-", ""))
    if code is None:
        raise UnknownNameError("pipeline schedule", value, SCHEDULE_LABELS)
    return code


def _recomputed(value: str, setting: str) -> int:
    """A mask from "moe_act+layernorm"."""
    names = [name.strip() for name in value.split("+")]
    for name in names:
        if name not in RECOMPUTE_MODULES:
            raise UnknownNameError("module of recompute_modules", name, RECOMPUTE_MODULES)
    if len(set(names)) < len(names):
        raise InputError("recompute_modules must name a module once", setting)
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)


def _graph_modules(value: str) -> int:
    """A mask from "attn+moe_router", 0 from "full"."""
    if value == WHOLE_LAYER:
        return 0
    names = [name.strip() for name in value.split("+")]
    for name in names:
        if name not in CUDA_GRAPH_MODULES:
            raise UnknownNameError("module of cuda_graph_modules", name, (*CUDA_GRAPH_MODULES, WHOLE_LAYER))
    return module_mask(names)

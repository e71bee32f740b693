"""What does one cell of a published row say? Numbers, switches, and how texts by hand are compared.

Every reader takes the cell's text and appends to `assumed` what the text left open. Raises `UnsupportedError`
where it cannot be understood. Left out: number formats and optimizers (`formats.py`), schedules (`schedules.py`),
sharding (`sharding.py`), and what joins cells into a problem (`runs.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from planner.errors import UnsupportedError
from planner.spec.config import RECOMPUTE_MODULES, ContextKind, Recompute
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack

Row = Mapping[str, str]

THOUSANDS: Final = re.compile(r"(?<=\d)[,_](?=\d{3}(?!\d))")  # what stands between them
_KILO: Final = 1024
_UNSTATED: Final = re.compile(
    r"|n/?a|nan|null|-+|\?|unknown|unstated|unspecified|not (?:stated|given|known|reported|specified)"
)
_DENIED: Final = re.compile(r"\b(?:no|not|non|without|w/o)[ -]+[a-z0-9_-]+")
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kK])?")


def stated(text: str) -> str:
    """A cell in lower case; empty where it says that nothing is known."""
    lower = text.strip().lower()
    return "" if _UNSTATED.fullmatch(lower) else lower


def affirmed(text: str) -> str:
    """A text in lower case without the words that it denies: "bf16 (no fp8)"."""
    return _DENIED.sub(" ", text.lower())


def spaced(text: str) -> str:
    """A text in lower case, everything but letters and digits as one space."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def same_words(text: str, name: str) -> bool:
    """Whether a text is a name in another case or with other separators, and nothing more."""
    return spaced(text).replace(" ", "") == spaced(name).replace(" ", "")


def quantity(text: str) -> float | None:
    """The number that a text is, "4,096" or "4k" of 1,024 each too; None for anything else."""
    match = _QUANTITY.fullmatch(THOUSANDS.sub("", text.strip()))
    if match is None:
        return None
    value = float(match[1]) * (_KILO if match[2] else 1)
    return value if math.isfinite(value) else None


def number_in(cells: Row, name: str) -> float | None:
    """A number from a cell; None where nothing is stated. Raises `UnsupportedError`."""
    text = cells[name]
    if stated(text) in ("", "none"):
        return None
    value = quantity(text)
    if value is None or not 0 <= value < 2**31:
        raise UnsupportedError(f"{name} must be a finite number, 0 or more", repr(text))
    return value


def count_in(cells: Row, name: str) -> int | None:
    """A count from a cell; None where it is empty. Raises `UnsupportedError`."""
    value = number_in(cells, name)
    if value is None:
        return None
    if value != int(value) or value < 1:
        raise UnsupportedError(f"{name} must be a whole number above 0", repr(cells[name]))
    return int(value)


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

"""What does one cell of a published row say? Numbers, switches, and how texts by hand are compared.

Every reader takes the cell's text and appends to `assumed` what the text left open. Raises `UnsupportedError`
where it cannot be understood. Left out: number formats and optimizers (`formats.py`), schedules (`schedules.py`),
sharding (`sharding.py`), recomputation (`recomputation.py`), and what joins cells into a problem (`runs.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from planner.errors import UnsupportedError
from planner.spec.config import ContextKind
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
    if sequence_parallel_stated(text):
        return 1
    if text.lower() in ("false", "0", "0.0", "no", "off"):
        return 0
    sp = max(stack.limits.sequence_parallel)
    assumed.append(f"sequence parallelism not stated: {'on' if sp else 'off'}")
    return sp


def sequence_parallel_stated(text: str) -> bool:
    return text.lower() in ("true", "1", "1.0", "yes", "on")


def context_kind_in(cells: Row, stack: Stack) -> ContextKind:
    text = cells["extras"].lower()
    if re.search(r"cp a2a|ulysses|cp[_-]comm[_-]type[ =:]+a2a", text):
        return ContextKind.A2A
    # Llama 3's own: keys and values gathered first (arXiv 2407.21783, section 3.3.2)
    if "meta internal" in cells["framework"].lower() or "all-gather cp" in text or "cp all_gather" in text:
        return ContextKind.ALL_GATHER
    return ContextKind.P2P

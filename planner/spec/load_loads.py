"""How many tokens does each expert get? Reads a file of loads, or the name of a distribution.

A file holds one number per expert, separated by commas, spaces or new lines, or a JSON list; any unit. Left out:
loads that differ between layers: give those of the layer that matters most.
"""

from __future__ import annotations

import math

from planner.errors import FileInputError, InputError
from planner.spec.load_file import read_text

BALANCED, ZIPF = "balanced", "zipf:"
ROUNDING = 1e-6  # relative, of sums of loads
_LARGEST_FILE = 10_000_000  # bytes


def zipf_exponent(text: str) -> float | None:
    """The exponent of "zipf:0.6", 0 for "balanced"; None for the name of a file. Raises `InputError`."""
    if not text.strip():
        raise InputError(
            "expert loads must be balanced, zipf:A or a file", "nothing", "write it like zipf:0.6"
        )
    if text.lower() == BALANCED:
        return 0.0
    if not text.lower().startswith(ZIPF):
        return None
    try:
        exponent = float(text[len(ZIPF) :])
    except ValueError:
        exponent = -1.0
    if not 0 <= exponent < math.inf:
        raise InputError("a Zipf distribution needs an exponent of 0 or more", text, "write it like zipf:0.6")
    return exponent


def load_expert_loads(path: str, experts: int, choices: float) -> tuple[float, ...]:
    """The loads in a file, one per expert; `choices`: different experts of a token, of whose loads none can be more
    than 1 / choices. Raises `FileInputError`."""
    hint = "one number per expert, or a distribution: balanced, or zipf:0.6 and the like"
    text = read_text(path, _LARGEST_FILE, missing=hint, large=hint)
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    try:
        loads = tuple(float(word) for word in words)
    except ValueError:
        bad = next(word for word in words if not _is_number(word))
        raise FileInputError(path, "must hold numbers only", bad[:40], hint) from None
    if len(loads) != experts:
        raise FileInputError(path, f"must hold a load of each of {experts} experts", f"{len(loads)}", hint)
    if not all(math.isfinite(load) and load >= 0 for load in loads) or not 0 < sum(loads) < math.inf:
        raise FileInputError(
            path, "loads and their sum must be finite, none below 0 and one above", hint=hint
        )
    most, limit = max(loads) / sum(loads), 1.0 / choices
    if most > limit * (1 + ROUNDING):
        must = (
            f"must hold loads of at most {limit:.4g} of their sum each: a token goes to {choices:.4g} experts"
        )
        raise FileInputError(path, must, f"{most:.4g}", "give the tokens that each expert got")
    return loads


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True

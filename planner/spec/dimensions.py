"""Is a dimension of a model one that can be? Errors name what must hold and what was given."""

from __future__ import annotations

from typing import Final

from planner.errors import InputError

LARGEST: Final = 2**30  # no dimension comes near, and columns hold 32 bits; above it the input is damaged
MOST_LAYERS: Final = 1_000  # as the deepest published (DeepNet, arXiv 2203.00555); times grow with the square


def require(holds: bool, must: str, given: object, hint: str = "check the model's dimensions") -> None:
    """Raise `InputError` unless it holds."""
    if not holds:
        raise InputError(must, str(given), hint)


def require_positive(owner: str, **sizes: int) -> None:
    """Raise `InputError` unless every size is an integer above 0, and none absurd."""
    for name, value in sizes.items():
        require(_is_int(value) and value > 0, f"{owner}.{name} must be an integer above 0", repr(value))
        require_not_too_large(f"{owner}.{name}", value)


def require_not_negative(owner: str, **sizes: int) -> None:
    """Raise `InputError` unless every size is an integer, 0 or more, and none absurd."""
    for name, value in sizes.items():
        require(_is_int(value) and value >= 0, f"{owner}.{name} must be an integer, 0 or more", repr(value))
        require_not_too_large(f"{owner}.{name}", value)


def require_not_too_large(what: str, size: int) -> None:
    """Raise `InputError` for a size that no model comes near."""
    require(size <= LARGEST, f"{what} must be at most {LARGEST:,}", repr(size))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

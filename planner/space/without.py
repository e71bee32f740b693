"""What can be left out of a search by name (`--without NAME`)?

Options of stacks that a search would try, axes that it opens by itself, or `all` of both: the stack as it is named.
Left out: values of axes, which a restriction fixes (`--set`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from planner.catalog.load_options import OPTIONS, OptionKind
from planner.catalog.stack_options import SEPARATOR
from planner.dialect import option
from planner.errors import InputError, UnknownNameError

ALL: Final = "all"


class OpenedAxis(StrEnum):
    """An axis that a search opens by itself, as `--without` names it."""

    CUDA_GRAPHS = "cuda-graphs"
    OFFLOAD = "offload"
    PIPELINES = "pipelines"


def known_names() -> tuple[str, ...]:
    """Everything that can be left out."""
    options = (option.name for option in OPTIONS if option.kind is OptionKind.SPEED)
    return (ALL, *OpenedAxis, *dict.fromkeys(str(name) for name in options))


def names_left_out(given: Iterable[str]) -> tuple[str, ...]:
    """The names, each once, with commas as separators too. Raises `InputError` for one that is none, and for an option
    that no search takes."""
    known, found = known_names(), dict[str, None]()
    others = {
        one.name: one.kind for one in OPTIONS if one.kind is not OptionKind.SPEED and one.name not in known
    }
    for name in (part.strip().lower().lstrip(SEPARATOR) for text in given for part in text.split(",")):
        if name in others:
            why = "changes numerics" if others[name] is OptionKind.NUMERICS else "describes what one has"
            must = f"{option('without')} must name what a search turns on"
            raise InputError(must, f"{name}, which {why}", "leave it out: it is never taken unasked")
        if name not in known:
            raise UnknownNameError(f"name after {option('without')}", name, known)
        found[name] = None
    return tuple(found)


def is_left_out(name: str, without: Sequence[str]) -> bool:
    """Is an option or an axis left out by these names?"""
    return ALL in without or name in without


def check_named(stack: str, without: Sequence[str]) -> None:
    """Raise `InputError` where an option is both named with a stack and left out."""
    for name in stack.lower().split(SEPARATOR)[1:]:
        if name in without:
            must = "an option must be named with the stack or left out, not both"
            raise InputError(
                must, f"{option('stack', stack)} {option('without', name)}", "leave one of them out"
            )

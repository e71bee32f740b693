"""In whose words is a hint said? Hints name options of the command line; a page, a file and Python have other names.

Left out: answers, which are the same files and objects wherever they were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from planner.errors import PlannerError

Say = Callable[
    [str, str], str | None
]  # name with underscores, value ("" where none follows) -> words; None: as it is
_WORD: Final = r"[\w.+=|*$/%-]+"
_OPTION: Final = re.compile(
    rf"--([a-z][a-z-]*[a-z])\b(?: (?:'([^']*)'|(?=[^\s,]*[\d=])({_WORD}(?:,{_WORD})*)))?"
)


def reworded(text: str, say: Say) -> str:
    """The text with every option, and the value that follows it, as `say` has it."""

    def said(found: re.Match[str]) -> str:
        value = found[2] or found[3] or ""
        stop = value[len(value.rstrip(".")) :] if found[3] and not value.endswith("...") else ""
        words = say(found[1].replace("-", "_"), value.removesuffix(stop))
        return found[0] if words is None else words + stop

    return _OPTION.sub(said, text)


def reword(error: PlannerError, say: Say) -> None:
    """Have an error say what must hold and what to do in these words."""
    error.must, error.hint = reworded(error.must, say), reworded(error.hint, say)
    error.args = (str(error),)


def as_keyword(name: str, value: str) -> str:
    """As a keyword of `planner.plan` and its kin."""
    if not value:
        return name
    if name in ("set", "assume"):
        key, _, values = value.partition("=")
        return f"{name}={{{key!r}: {_literal(values.removesuffix('...'))}}}"
    return f"{name}={_literal(value)}"


def as_key(name: str, value: str) -> str:
    """As a key of a YAML file."""
    if not value:
        return name
    key, _, values = value.partition("=")
    if name == "set" and values:
        return f"set: {{{key}: {f'[{values}]' if ',' in values else values}}}"
    return f"{name}: [{value}]" if name == "assume" else f"{name}: {value}"


def _literal(value: str) -> str:
    if not value:
        return "..."
    return value if re.fullmatch(r"\d+(\.\d+)?", value) else repr(value)

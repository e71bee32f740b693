"""What is an option of a question called: on the command line, in Python, in a YAML file, on a page?

Whoever writes an error or a finding puts a mark where an option is named; whoever shows it replaces the marks in the
words of where the question was asked. Left out: options of other software, which have one name everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

Dialect = Callable[[str, str], str]  # name with underscores, value (empty where none follows) -> words

_OPEN, _VALUE, _CLOSE = "\ue000", "\ue001", "\ue002"  # of the private use area: no text has them
_MARK: Final = re.compile(f"{_OPEN}([^{_VALUE}]*){_VALUE}([^{_CLOSE}]*){_CLOSE}")
_PLAIN: Final = re.compile(r"[\w.+=%:,/@-]+")  # what a shell takes as it is


def option(name: str, value: object = "") -> str:
    """A mark for an option, by its name in a question, and for the value that follows it."""
    return f"{_OPEN}{name}{_VALUE}{value}{_CLOSE}"


def in_words(text: str, dialect: Dialect | None = None) -> str:
    """The text with its marks in the words of a dialect, of the command line where none is given."""
    if _OPEN not in text:
        return text
    return _MARK.sub(lambda mark: (dialect or on_command_line)(mark[1], mark[2]), text)


def on_command_line(name: str, value: str) -> str:
    """As the command line has it."""
    said = f"--{name.replace('_', '-')}"
    if not value:
        return said
    return f"{said} {value}" if _PLAIN.fullmatch(value) else f"{said} '{value}'"


def only(names: Iterable[str], words: Dialect) -> Dialect:
    """A dialect that knows some options; others are those of the command line."""
    known = frozenset(names)
    return lambda name, value: (words if name in known else on_command_line)(name, value)


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

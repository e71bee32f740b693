"""What can be wrong with the input, and how it is said.

    PlannerError
    ├── InputError             malformed input: exit code 2
    │   ├── FileInputError     a file that is missing, unreadable, or holds a bad field
    │   ├── UnknownNameError   a name that no catalog knows; lists the nearest known ones
    │   └── UnitError          a quantity without a unit, or with one that does not fit
    ├── UnsupportedError       well-formed input that planner refuses to approximate: exit code 2
    └── NoConfigurationError   a plan in which nothing fits, where a verb needs one of its configurations: exit code 1

"Nothing fits" and "this configuration is illegal" are results, not errors (exit code 1); what cannot go on from such a
result ends as it did.
Every message says what must hold, what was given, and what to do.
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from planner.dialect import Dialect, in_words

DISTRIBUTION: Final = "llm-training-planner"  # as pip installs it
_FEW: Final = 30  # names that a message can hold
_BEGINNING: Final = 300  # characters of another's message


class PlannerError(Exception):
    """Root of all errors that a user can cause.

    `must` is what has to hold, `given` what was found instead, `hint` what to do about it; options are marked in them
    (`planner.dialect`), and in words of the command line in the text.
    """

    exit_code = 2

    def __init__(self, must: str, given: str = "", hint: str = "") -> None:
        self.must, self.given, self.hint = must, given, hint
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), dict(self.__dict__))

    def __str__(self) -> str:
        parts = [self.must.rstrip(".")]
        if self.given:
            parts.append(f"given: {self.given}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return in_words("\n  ".join(parts))

    def say_in(self, dialect: Dialect) -> None:
        """Name options as a dialect does."""
        self.must, self.given, self.hint = (
            in_words(text, dialect) for text in (self.must, self.given, self.hint)
        )
        self.args = (str(self),)


def _restored(kind: type[PlannerError], values: dict[str, Any]) -> PlannerError:
    """The error that another process raised, whatever its class takes to be made."""
    error = kind.__new__(kind)
    error.__dict__.update(values)
    error.args = (str(error),)
    return error


class InputError(PlannerError):
    """Malformed input."""


def install_hint(extra: str) -> str:
    """How to install what an optional extra of the distribution brings."""
    return f"install what it needs: pip install '{DISTRIBUTION}[{extra}]'"


class UnitError(InputError):
    """A quantity without a unit, or with one that does not fit its kind."""


class FileInputError(InputError):
    """A file that cannot be read, or a field in it that cannot be understood."""

    def __init__(self, file: str, must: str, given: str = "", hint: str = "", field: str = "") -> None:
        self.file, self.field = file, field
        where = f"{file}: {field}: " if field else f"{file}: "
        super().__init__(where + must, given, hint)


class UnsupportedError(PlannerError):
    """Well-formed input that planner does not model and refuses to approximate."""


class NoConfigurationError(PlannerError):
    """A plan that holds no configuration that fits, or none at all, because none is legal."""

    exit_code = 1


class UnknownNameError(InputError):
    """A name that no catalog knows. `hint`: what to give instead of a known name; `near`: of those the most like it,
    where not its letters tell that."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", near: Sequence[str] = ()
    ) -> None:
        self.kind, self.name = kind, name
        known = list(dict.fromkeys(known))
        few = len(known) <= _FEW
        nearest = near or (nearest_names if few else alike_names)(name, known)
        others = [other for other in known if other not in nearest] if few else []
        found = f"did you mean: {', '.join(nearest)}?" if nearest else ""
        if known and not nearest:
            found = f"none of {len(known)} known names is like it."
        found += f" Others: {', '.join(others)}" if others else ""
        super().__init__(f"unknown {kind} {name!r}", hint=" ".join(filter(None, (found, hint))))


# what a field must be, by the type of pydantic's error, where its own words are those of a programmer
_FIELD_MUST: Final = {
    "missing": "the key must be given",
    "extra_forbidden": "the key must be a known one",
}
_FIELD_BE: Final = {
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a finite number"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "keys with their values"),
}
_OWN, _BE = (
    "Value error, ",
    "Input should be ",
)  # before what pydantic says of an error that a check of ours, or it, raised


def in_short(error: BaseException) -> str:
    """What other software's error says, on one line: its kind, and the beginning of its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_BEGINNING] or 'no message'}"


def field_must(first: Mapping[str, Any], *others: Mapping[str, Any]) -> str:
    """What must hold of a field, from the first of pydantic's errors; `others`: of other kinds that it may be."""
    told = [(one["type"], str(one["msg"])) for one in (first, *others)]
    kinds = [_FIELD_BE.get(kind) or msg.removeprefix(_OWN).removeprefix(_BE) for kind, msg in told]
    kind, msg = told[0]
    said = "must be " if kind in _FIELD_BE or msg.startswith(_BE) else ""
    return _FIELD_MUST.get(kind) or said + " or ".join(kinds)


_SORTS: Final[dict[type, str]] = {
    type(None): "nothing", bool: "true or false", str: "text", list: "a list", dict: "a mapping",
    int: "a number", float: "a number", datetime.date: "a date", datetime.datetime: "a date",
}  # fmt: skip


def sort_of(value: object) -> str:
    """What a value of a JSON, YAML or TOML file is, in the words of a file."""
    return _SORTS.get(type(value), "something else")


def as_written(value: object) -> str:
    """A value as a file has it, in at most 200 characters."""
    if value is None or isinstance(value, datetime.date):
        return sort_of(value)
    try:
        return (repr(value) if isinstance(value, str) else json.dumps(value, default=str, skipkeys=True))[
            :200
        ]
    except ValueError:  # a number of more digits than Python writes
        return sort_of(value)


def field_given(found: Mapping[str, Any]) -> str:
    """What a field holds, from the first of pydantic's errors; empty where what holds the field is at fault."""
    value = found["input"]
    if isinstance(value, dict | list):
        return "" if found["type"] in ("missing", "value_error") else sort_of(value)
    return as_written(value)


def nearest_names(name: str, known: Iterable[str], count: int = 5) -> list[str]:
    """The `count` known names most like `name`, nearest first; the first ones where none is like it."""
    return alike_names(name, known, count) or sorted(set(known))[:count]


def alike_names(name: str, known: Iterable[str], count: int = 5) -> list[str]:
    """At most `count` known names that are like `name`, nearest first."""
    pool = sorted(set(known))
    folded = {candidate.lower(): candidate for candidate in reversed(pool)}
    close = difflib.get_close_matches(name.lower(), list(folded), n=count, cutoff=0.3)
    inside = [candidate for candidate in pool if name and name.lower() in candidate.lower()]
    ordered = dict.fromkeys([*inside[:count], *(folded[c] for c in close)])
    return list(ordered)[:count]

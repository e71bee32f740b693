"""What is an option of a question? Its help, its default, and the one reader of what is given for it, in whichever way.

An `Option` is a field of a dataclass that takes text or values and holds what was read: a type checker sees both.
Left out: which options there are (`question.py`), and how each way of asking shows them (`cli.options`, `api`,
`load_sweep`, `cli.serve`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from inspect import signature
from typing import Any, Final, Generic, TypeVar, get_type_hints, overload

from planner import dialect
from planner.errors import InputError

Given = TypeVar("Given")
Value = TypeVar("Value")


class Group(IntEnum):
    """What an option is about, in the order in which options are listed."""

    SUBJECT = 0
    GOAL = 1
    JOB = 2
    METHOD = 3
    STACK = 4
    SETTINGS = 5
    MEMORY = 6
    RUN = 7
    MEASURED = 8
    SEARCH = 9


@dataclass(frozen=True)
class Reader(Generic[Value]):
    """How text and values of Python, YAML and JSON are read; what was read is read as it is.

    `read`: what was given, and the option's name, to the value. Raises `InputError`.
    `write`: a value as a file holds it, to be read again. `metavar`: what stands for the value in help. `many`: may be
    given several times. `flag`: is given or not. `is_file`: names a file. `may_be_file`: names one, or what planner
    ships.
    """

    read: Callable[[Any, str], Value]
    metavar: str = "<str>"
    write: Callable[[Value], Any] = lambda value: value
    many: bool = False
    flag: bool = False
    is_file: bool = False
    may_be_file: bool = False


@dataclass(frozen=True)
class Label:
    """How the page shows an option: its name there, what stands in its empty field, and whether that is a wide one.
    `first`: in the row that is always seen."""

    name: str = ""
    empty: str = ""
    wide: bool = False
    first: bool = False


class Option(Generic[Given, Value]):
    """An option, as a field of a question. `unit`: of its value. `names`: what shells and the page suggest."""

    def __init__(
        self, reader: Reader[Any], group: Group, text: str, *, default: Value, unit: str = "", label: Label = Label(),
        required: bool = False, metavar: str = "", names: Callable[[], Iterable[Any]] | None = None,
    ) -> None:  # fmt: skip
        self.reader, self.group, self.help, self.unit, self.label = reader, group, text, unit, label
        self.default, self.required, self.names = default, required, names
        self.metavar = metavar or reader.metavar

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def words(self) -> str:
        """It as the command line has it."""
        return dialect.on_command_line(self.name, "")

    @property
    def shown(self) -> str:
        """What it is called on the page."""
        return self.label.name or self.name.replace("_", " ")

    def written(self, value: Value) -> Any:
        """A value as a file holds it."""
        return self.reader.write(value)

    @overload
    def __get__(self, held: None, kind: type) -> Option[Given, Value]: ...
    @overload
    def __get__(self, held: object, kind: type) -> Value: ...
    def __get__(self, held: object, kind: type) -> Any:
        if held is not None:
            return held.__dict__[self.name]
        if self.required:  # a dataclass looks here for a default
            raise AttributeError(self.name)
        return self.default

    def __set__(self, held: object, given: Given | None) -> None:
        left_out = given is self.default or (given is None and not self.required)
        held.__dict__[self.name] = self.default if left_out else self.reader.read(given, self.name)


@overload
def option(
    reader: Reader[Value], group: Group, text: str, *, default: Value, **more: Any
) -> Option[Any, Value]: ...
@overload
def option(reader: Reader[Value], group: Group, text: str, **more: Any) -> Option[Any, Value | None]: ...
def option(
    reader: Reader[Any], group: Group, text: str, *, default: Any = None, **more: Any
) -> Option[Any, Any]:
    """An option; without a default what is left out is None."""
    return Option(reader, group, text, default=default, **more)


class Asked:
    """What is asked never changes: `dataclasses.replace` makes another. Two that ask the same are equal, and print so;
    written here once, as a dataclass would compile either for every kind of question."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        values = sorted(self.__dict__.items())
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            raise AttributeError(f"{name} of a {type(self).__name__} never changes")
        object.__setattr__(self, name, value)


def options_of(kind: type) -> dict[str, Option[Any, Any]]:
    """Name -> option of a question, in the order of groups, and of the declaration within them."""
    found = {name: one for base in reversed(kind.__mro__) for name, one in vars(base).items()}
    ranked = [one for field in fields(kind) if isinstance(one := found.get(field.name), Option)]
    return {one.name: one for one in sorted(ranked, key=lambda one: one.group)}


def given_kinds(kind: type) -> list[Any]:
    """The types of what may be given for each option, in the order in which the question takes them."""
    hints, options = get_type_hints(kind), options_of(kind)
    given = [(options[name], hints[name].__args__[0]) for name in signature(kind).parameters]
    return [type_ if one.required else type_ | None for one, type_ in given]


def values_of(asked: Asked, names: Iterable[str]) -> dict[str, Any]:
    """The values of these options, for a question of another kind."""
    return {name: getattr(asked, name) for name in names}


def as_written(asked: Asked) -> dict[str, Any]:
    """What was asked other than by default, as a file holds it: a question's own keys with values that it reads."""
    held = {one: getattr(asked, name) for name, one in options_of(type(asked)).items()}
    return {
        one.name: one.written(value) for one, value in held.items() if one.required or value != one.default
    }


def refuse(name: str, must: str, given: object, hint: str = "") -> InputError:
    """The error of a value that an option cannot have."""
    return InputError(f"{dialect.option(name)} must be {must}", repr(given)[:LONGEST_SHOWN], hint)


LONGEST_SHOWN: Final = 80  # characters of what was given

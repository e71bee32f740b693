"""Frozen dataclasses, made in a third of the time that `dataclasses` takes.

The decorator of the standard library compiles six methods of every frozen class, in 0.35 ms of a processor; with the
150 classes that a command loads that was more than a quarter of planner's import. Here `__init__` alone is compiled
with the class, and `__eq__` and `__hash__` when they are first called; what shows and guards a value goes by the names
of its fields. For type checkers, `dataclasses.fields` and `replace`, pickles and subclasses these are dataclasses like
others. Left out: slots, order and `InitVar`, of which planner has none.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

Method = Callable[..., Any]
Fields = Sequence[dataclasses.Field[Any]]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
        """`dataclasses.dataclass`, of whose options these are the ones in use."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        return _frozen(cls, eq) if frozen else dataclasses.dataclass(eq=eq)(cls)


def _frozen(cls: type, eq: bool) -> type:
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(cls)
    unless_own: dict[str, Method] = {"__repr__": _repr([field.name for field in fields if field.repr])}
    if eq:
        compared = [field.name for field in fields if field.compare]
        hashed = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
        same = f"{_tuple('self', compared)} == {_tuple('other', compared)}"
        body = f"return {same} if other.__class__ is self.__class__ else NotImplemented"
        unless_own["__eq__"] = _compiled_when_called(cls, "__eq__", "self, other", body)
        unless_own["__hash__"] = _compiled_when_called(
            cls, "__hash__", "self", f"return hash({_tuple('self', hashed)})"
        )
    for name, method in unless_own.items():
        if vars(cls).get(name) is None:  # `__hash__ = None` stands in a class that has an `__eq__` of its own
            setattr(cls, name, method)
    for name, method in (("__init__", _init(cls, fields)), ("__setattr__", _set), ("__delattr__", _delete)):
        setattr(cls, name, method)
    return cls


def _tuple(value: str, names: Sequence[str]) -> str:
    return f"({''.join(f'{value}.{name}, ' for name in names)})"


def _init(cls: type, fields: Fields) -> Method:
    """One argument a field, those by keyword alone behind the others; a default that is made anew is told by its
    absence."""
    arguments, body = ["self"], []
    for field in sorted(fields, key=lambda field: field.kw_only is True):
        if field.kw_only is True and "*" not in arguments:
            arguments.append("*")
        made = field.default_factory is not dataclasses.MISSING
        usual = "=_unset" if made else f"=_defaults[{field.name!r}]"
        has_usual = made or field.default is not dataclasses.MISSING
        arguments.append(f"{field.name}{usual if has_usual else ''}")
        instead = f"_makers[{field.name!r}]() if {field.name} is _unset else "
        body.append(f"_set(self, {field.name!r}, {instead if made else ''}{field.name})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    known = {
        "_set": object.__setattr__,
        "_unset": dataclasses.MISSING,
        "_defaults": {field.name: field.default for field in fields},
        "_makers": {field.name: field.default_factory for field in fields},
    }
    init = _compiled(cls, "__init__", ", ".join(arguments), "; ".join(body or ["pass"]), known)
    init.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return init


def _compiled(
    cls: type, name: str, arguments: str, body: str, known: dict[str, object] | None = None
) -> Method:
    """A method that finds `known` beside the names of the class's module."""
    known = known or {}
    scope: dict[str, Any] = {}
    text = f"def make({', '.join(known)}):\n def {name}({arguments}): {body}\n return {name}"
    exec(text, vars(sys.modules[cls.__module__]), scope)
    method: Method = scope["make"](**known)
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _compiled_when_called(cls: type, name: str, arguments: str, body: str) -> Method:
    def first(*given: Any) -> Any:
        method = _compiled(cls, name, arguments, body)
        setattr(cls, name, method)
        return method(*given)

    return first


def _repr(names: Sequence[str]) -> Method:
    def shown(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return shown


def _set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

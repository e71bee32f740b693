"""How are the values of a finding put into a sentence?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from planner.dialect import option
from planner.spec.findings import Finding

Words = str | Callable[[Finding], str]  # a template of its values, or what makes the sentence
Kind = TypeVar("Kind")


def phrase(words: Words, found: Finding) -> str:
    """A finding in words, options marked: of its values, of `change` as options and of the value `to` of that."""
    if not isinstance(words, str):
        return words(found)
    to = found.change.value if found.change is not None else ""
    return words.format(**found.values, change=marked(found), to=to)


def marked(found: Finding) -> str:
    """What a finding says to change, as marked options."""
    changes = found.change or ()
    return " ".join(option(one.option, "" if one.value is None else one.value) for one in changes)


def amount(found: Finding, name: str, kind: type[Kind]) -> Kind:
    """A value of a kind that its code has."""
    value = found.values[name]
    if kind is float and isinstance(value, int):
        return float(value)  # type: ignore[return-value]
    assert isinstance(value, kind), (found.code, name)
    return value


def counted(number: int, one: str, several: str) -> str:
    """A number and what it counts."""
    return f"{number:,} {one if number == 1 else several}"

"""How are the values of a finding put into its words?

`words.json` has a template for most codes: `{name}` is a value, `{name:time}` a value in a form, `{names: or }` a list
with words between, `{--option}` an option, and a part in brackets stands only where every value that it names is there.
A template with tables puts words, templates too, in place of a value. Left out: findings whose words take computing,
which are functions in the other modules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Final, TypeVar

from planner.dialect import option
from planner.spec.findings import Finding
from planner.spec.verdict import MemoryVerdict
from planner.units import format_bandwidth, format_capacity, format_time

Kind = TypeVar("Kind")
PER_DAY: Final = 86400.0
_PART: Final = re.compile(r"\[([^\[\]]*)\]")
_NAME: Final = re.compile(r"\{(\w+)")


@dataclass(frozen=True)
class Template:
    """Words with places for values; `tables`: name of a value -> value -> its words, itself where it is not listed."""

    text: str
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


Words = Template | Callable[[Finding], str]


def span(seconds: float) -> str:
    """A time as it would be written by hand: 5 s, 10 min, 24 h."""
    units = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds >= size or unit == "s")
    return f"{seconds / size:.3g} {unit}"


_FORMS: Final[Mapping[str, Callable[[float], str]]] = {
    "capacity": format_capacity,
    "time": format_time,
    "bandwidth": format_bandwidth,
    "span": span,
    "percent": lambda share: f"{100 * share:.1f} %",
    "a day": lambda rate: f"{rate * PER_DAY:.3g} a day",
    "TFLOP/s": lambda rate: f"{rate / 1e12:,.0f} TFLOP/s",
    "Gbit/s": lambda bandwidth: f"{bandwidth * 8e-9:,g}",
}


class _Filled(Formatter):
    """The places of a template, filled in."""

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """A value, or an option's mark."""
        if field_name.startswith("--"):
            name, _, value = field_name[2:].partition("=")
            return option(name, value), field_name
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """It in a form of planner's, as a list, or as Python formats it."""
        if format_spec in _FORMS:
            return _FORMS[format_spec](value)
        if isinstance(value, list | tuple):
            return format_spec.join(map(str, value))
        return format(value, format_spec)


_FILLED: Final = _Filled()


def phrase(words: Words, found: Finding) -> str:
    """A finding in words, options marked: of its values, of `change` as options and of the value `to` of that, and of
    `fit`, whether it makes something fit."""
    if not isinstance(words, Template):
        return words(found)
    to = found.change.value if found.change is not None else ""
    values = {**found.values, "change": marked(found), "to": to, "fit": fit(found)}
    for name in words.tables.keys() & values.keys():
        said = words.tables[name].get(str(values[name]).lower())
        values |= {} if said is None else {name: _FILLED.vformat(said, (), values)}
    kept = _PART.sub(lambda part: part[1] if values.keys() >= {*_NAME.findall(part[1])} else "", words.text)
    return _FILLED.vformat(kept, (), values)


def marked(found: Finding) -> str:
    """What a finding says to change, as marked options."""
    changes = found.change or ()
    return " ".join(option(one.option, "" if one.value is None else one.value) for one in changes)


def fit(found: Finding) -> str:
    """Whether what a finding says would make something fit, and how surely where what was asked may fit as well."""
    if found.effect is None:
        return ""
    unsure = found.effect.before == MemoryVerdict.BORDERLINE
    return f"this would {'surely ' if unsure else ''}fit: "


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

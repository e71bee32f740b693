"""Which options does a release of a framework have, and of which type?

Tables ship as `options/FRAMEWORK.json`, transcribed from the release's own parser by
`benchmarks/framework_options.py`; every rendered option is checked against them. Where what a script names, a recipe,
decides which options there are, a release has a table for each class of them. Left out: conditions between options,
which are rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from planner.errors import UnsupportedError, nearest_names

OPTIONS_FOLDER: Final = Path(__file__).with_name("options")


@dataclass(frozen=True)
class Option:
    """One option: `type` is flag, int, float, str, bool or list, a list of a type written as int*; with its choices."""

    name: str
    type: str
    choices: tuple[str, ...] = ()

    def accepts(self, values: Sequence[str]) -> bool:
        """Would the parser take these words after the option?"""
        if self.type == "flag":
            return not values
        many = self.type.endswith("*")
        if not values and not many:
            return False
        return (many or len(values) == 1) and all(self._accepts_one(value) for value in values)

    def _accepts_one(self, value: str) -> bool:
        if self.choices:
            return value in self.choices
        kind = self.type.removesuffix("*")
        try:
            if kind == "int":
                int(value)
            elif kind == "float":
                float(value)
            elif kind == "bool":
                return value.lower() in ("true", "false")
        except ValueError:
            return False
        return True


@lru_cache(maxsize=32)
def option_table(framework: str, version: str, kind: str = "") -> Mapping[str, Option]:
    """Every option of a release by name; `kind`: the class that decides some of them, where that is not the usual."""
    document = _document(framework)
    release, texts = document["releases"][version], dict(document["options"])
    for said in (release, *([release["classes"][kind]] if kind else [])):
        missing = set(said["absent"])
        texts = {name: text for name, text in texts.items() if name not in missing} | said["own"]
    return {name: _option(name, text) for name, text in texts.items()}


def table_source(framework: str, version: str) -> str:
    """Where the table of a release comes from."""
    return str(_document(framework)["releases"][version]["source"])


def table_releases(framework: str) -> tuple[str, ...]:
    """Releases that have a table."""
    return tuple(_document(framework)["releases"])


@lru_cache(maxsize=16)
def _document(framework: str) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(
        (OPTIONS_FOLDER / f"{framework}.json").read_text(encoding="utf-8")
    )
    return document


def _option(name: str, text: str) -> Option:
    kind, _, choices = str(text).partition(" ")
    return Option(name, kind, tuple(choices.split("|")) if choices else ())


def table_classes(framework: str, version: str) -> tuple[str, ...]:
    """Classes that decide options of the release, where that is not the usual one."""
    return tuple(_document(framework)["releases"][version].get("classes", ()))


@lru_cache(maxsize=4)
def not_costed(program: str) -> Mapping[str, str]:
    """Options that change time or memory in ways that are not modelled -> what is said of them where they are set."""
    text = OPTIONS_FOLDER.with_name("not_costed.json").read_text(encoding="utf-8")
    said: Mapping[str, str] = json.loads(text)[program]
    return said


def check_options(framework: str, version: str, options: Iterable[tuple[str, ...]], kind: str = "") -> None:
    """Raise `UnsupportedError` where the release lacks an option (name, then its words) or its value."""
    table = option_table(framework, version, kind)
    for name, *values in options:
        known = table.get(name)
        if known is None:
            must = f"{framework} {version} must have the option {name}"
            raise UnsupportedError(must, "it has not", "choose another --framework-version or configuration")
        if not known.accepts(values):
            allowed = " or ".join(known.choices) or known.type
            must = f"{name} of {framework} {version} must be {allowed}"
            raise UnsupportedError(must, " ".join(values), "choose another configuration")


def unknown_options(framework: str, version: str, names: Iterable[str]) -> tuple[str, ...]:
    """Options that the release does not have, each with the nearest ones it has."""
    table = option_table(framework, version)
    return tuple(
        f"{name} (nearest: {', '.join(nearest_names(name, table, 2))})" for name in names if name not in table
    )

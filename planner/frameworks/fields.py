"""How are nested settings (JSON, YAML, TOML) flattened, checked and read back?

Left out: what the settings mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from planner.errors import FileInputError, as_written, sort_of
from planner.frameworks.shell.unset import how_to_set
from planner.spec.load_json import check_characters, unique_keys
from planner.spec.load_yaml import parse_yaml
from planner.spec.planned_config import MOST

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_LARGEST = 2_000_000  # characters of a settings file


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value; lists and empty mappings are values."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def option_words(settings: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Settings as options with words, for the check against an option table."""
    return [(name, *_words(value)) for name, value in flatten(settings).items()]


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, list | tuple):
        return tuple(json.dumps(item) if isinstance(item, list | dict) else str(item) for item in value)
    return (str(value),)


def load_settings(text: str, file: str, repeated: list[str] | None = None) -> dict[str, Any]:
    """The mapping in a JSON, TOML or YAML document, by the file's ending; `repeated`: takes keys that a YAML gives
    twice, as `parse_yaml` has it. Raises `FileInputError`."""
    if len(text) > _LARGEST:
        raise FileInputError(file, "must be smaller than 2 MB", f"{len(text)} characters")
    try:
        if file.endswith(".json"):
            document = json.loads(text, object_pairs_hook=unique_keys(file))
            check_characters(text, document, file)
        elif file.endswith(".toml"):
            import tomllib  # few files are TOML

            document = tomllib.loads(text)
        else:
            document = parse_yaml(text, file, repeated)
    except (ValueError, RecursionError) as error:
        raise FileInputError(
            file, "must be a valid document of its kind", " ".join(str(error).split())
        ) from None
    if not isinstance(document, dict):
        raise FileInputError(file, "must hold named settings", sort_of(document))
    return {str(key): value for key, value in document.items()}


class Settings:
    """Settings by dotted name, with errors that name file and setting; `named`: what the file calls them instead."""

    def __init__(
        self, values: Mapping[str, Any], file: str, named: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.values, self.file, self.named = flatten(values), file, named

    def name(self, name: str) -> str:
        """What the file calls a setting."""
        return self.named.get(name, name)

    def has(self, name: str) -> bool:
        """Is a value stated? null and "auto" leave it to the program."""
        return self.values.get(name) not in (None, "auto")

    def count(self, name: str, default: int, least: int = 1) -> int:
        """A whole number of at least `least`; the default where it is absent, null or "auto"."""
        value = self.values.get(name)
        if value is None or value == "auto":
            return default
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            must = f"must be a whole number from {least} to {MOST:,}{self._or_auto(value)}"
            how = how_to_set(value) if isinstance(value, str) and set("$`") & set(value) else ""
            raise FileInputError(self.file, must, as_written(value)[:80], how, field=self.name(name))
        return value

    def number(self, name: str) -> float:
        """A number, with decimals or without; 0 where it is absent, null or "auto"."""
        value = self.values.get(name)
        if value in (None, "None", "auto"):
            return 0.0
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found):
            must = f"must be a number{self._or_auto(value)}"
            raise FileInputError(self.file, must, as_written(value)[:80], field=self.name(name))
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None or value == "auto":
            return default
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            must = f"must be true or false{self._or_auto(value)}"
            raise FileInputError(self.file, must, as_written(value)[:80], field=self.name(name))
        return value

    def _or_auto(self, value: object) -> str:
        """The word that leaves a setting of DeepSpeed's JSON to the program, where another word stands."""
        return ', or "auto"' if isinstance(value, str) and self.file.endswith(".json") else ""

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name)
        return default if value is None else str(value)


def dump_json(settings: Mapping[str, Any]) -> str:
    """Settings as a JSON document."""
    return json.dumps(settings, indent=2) + "\n"


def dump_yaml(settings: Mapping[str, Any]) -> str:
    """Settings as a YAML document."""
    return yaml.safe_dump(dict(settings), sort_keys=False, width=110)

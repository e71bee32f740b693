"""What does a YAML file of the user's hold? One mapping, read strictly.

Left out: which keys belong there.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from planner.errors import FileInputError, sort_of
from planner.spec.load_file import read_text

_LARGEST_FILE: Final = 1_000_000  # bytes; a specification has a few thousand
_DEEPEST_NESTING: Final = 32
_MOST_VALUES: Final = 1_000_000  # with what every alias repeats
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, to_do: str = "check the path") -> dict[str, Any]:
    """The mapping in a YAML file; `to_do` where there is none. Raises `FileInputError`."""
    return parse_yaml(read_text(path, _LARGEST_FILE, missing=to_do), str(path))


def parse_yaml(text: str, name: str, repeated: list[str] | None = None) -> dict[str, Any]:
    """The mapping in a YAML document that came from `name`; `repeated`: takes the keys that are given twice, of which
    the last counts then. Raises `FileInputError`, for such keys too where nothing takes them."""
    try:
        _check_depth(text)
        loader = _RepeatedKeyLoader(text)
        try:
            document = loader.get_single_data()
        finally:
            loader.dispose()
        if loader.repeated and repeated is None:
            key, mark = loader.repeated[0]
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", mark)
        if repeated is not None:
            repeated += [key for key, _ in loader.repeated]
        if _values(document, {}) > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values, counted as often as aliases repeat them")
    # constructors of tags raise whatever they meet
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "indent with spaces, one value per key"
        raise FileInputError(name, "must be valid YAML", reason, hint) from None
    if not isinstance(document, dict):
        raise FileInputError(
            name, "must hold a YAML mapping", sort_of(document), "write it in lines like name: value"
        )
    return document


class _RepeatedKeyLoader(_SafeLoader):  # type: ignore[misc]
    """YAML that keeps count of keys given twice, of which PyYAML silently keeps the last."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[str, yaml.Mark]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                self.repeated.append((key.value, key.start_mark))
            seen.add(str(key.value))
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _check_depth(text: str) -> None:
    """Raise ValueError on deep nesting, on which the C parser would overflow its stack and end the process."""
    depth = 0
    for event in yaml.parse(text, _SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST_NESTING:
            raise ValueError(f"nested more than {_DEEPEST_NESTING} levels deep")


def _values(value: Any, counted: dict[int, float]) -> float:
    """Values in all, each as often as aliases repeat it: infinite where a value holds itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counted:
        counted[id(value)] = float("inf")
        inside = value.values() if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(_values(one, counted) for one in inside)
    return counted[id(value)]

"""Which keys does a JSON object hold? Each once, as YAML is read.

Left out: what belongs in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from planner.errors import FileInputError


def unique_keys(file: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """The `object_pairs_hook` of `json.loads` for a file: the object, or `FileInputError` that names a key given twice,
    of which Python would silently keep the last."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise FileInputError(file, "must be given once", "twice", "leave one out", field=twice)
        return mapping

    return unique


def check_characters(text: str, document: Any, file: str) -> None:
    """Raise `FileInputError` where a JSON document holds half a surrogate pair, which no text can."""
    if "\\ud" not in text and "\\uD" not in text:
        return
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        given = "half a surrogate pair, such as \\ud800"
        raise FileInputError(
            file, "must hold whole characters", given, "write the character itself"
        ) from None

"""Which plan is in this file, and how is one written?

Reading is strict: broken JSON, an unknown or missing key, a value of the wrong kind and an unknown schema
version are errors that name the key. Left out: what files of schema 1 held (`schema_1.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from planner.errors import FileInputError, field_given, field_must, sort_of
from planner.spec.load_file import read_text
from planner.spec.load_json import check_characters, unique_keys
from planner.spec.planfile import SCHEMA_VERSION, Plan
from planner.spec.save import save_text
from planner.spec.schema_1 import upgraded

_LARGEST_FILE = 100_000_000  # bytes; a plan of ten configurations has some tens of thousands
_MAKE_ONE = "write one with: planner plan ... -o plan.json"


def plan_json(plan: Plan) -> str:
    """The plan as one JSON document."""
    return plan.model_dump_json(indent=2) + "\n"


def load_plan(path: Path | str) -> Plan:
    """The plan in a file. Raises `FileInputError` naming file and key."""
    name = str(path)
    return parse_plan(read_document(path), name)


def parse_plan(text: str, name: str) -> Plan:
    """The plan in a JSON document that came from `name`. Raises `FileInputError` naming the key."""
    document = parse_json(text, name)
    if isinstance(kind := document.get("kind"), str):
        raise FileInputError(
            name, "must be a plan", f"a {kind}"[:40], f"{_MAKE_ONE}; planner report reads a {kind}"[:120]
        )
    version = document.get("schema_version")
    if type(version) is not int or version not in (1, SCHEMA_VERSION):
        given = "none" if version is None else repr(version)
        hint = "make the plan again with this planner" if version is not None else _MAKE_ONE
        raise FileInputError(name, f"must be {SCHEMA_VERSION}, or 1", given, hint, field="schema_version")
    try:
        if version < SCHEMA_VERSION:
            text = json.dumps(upgraded(document))
        return Plan.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        given = field_given(first)
        raise FileInputError(name, field_must(first), given, _MAKE_ONE, field=field) from None


def read_document(path: Path | str) -> str:
    """The text of a plan or result file. Raises `FileInputError`."""
    return read_text(path, _LARGEST_FILE, missing=_MAKE_ONE)


def parse_json(text: str, name: str) -> dict[str, Any]:
    """The object in a JSON document that came from `name`. Raises `FileInputError`."""

    def refuse(constant: str) -> NoReturn:
        raise FileInputError(name, "must hold finite numbers only", constant)

    try:
        document = json.loads(text, object_pairs_hook=unique_keys(name), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise FileInputError(name, "must be valid JSON", reason, _MAKE_ONE) from None
    check_characters(text, document, name)
    if not isinstance(document, dict):
        raise FileInputError(name, "must hold a JSON object", sort_of(document), _MAKE_ONE)
    return document


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write the plan, replacing the file at once: a reader sees the old one or the new one, whole.

    Raises `FileInputError` where that is not possible.
    """
    save_text(plan_json(plan), path)

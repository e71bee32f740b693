"""Which plan is in this file, and how is one written so that nobody ever reads half of it?

Reading is strict: broken JSON, an unknown or missing key, a value of the wrong kind and another schema
version are errors that name the key. Left out: older schema versions, of which there are none yet.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from planner.errors import FileInputError
from planner.spec.planfile import SCHEMA_VERSION, Plan

_LARGEST_FILE = 100_000_000  # bytes; a plan of ten configurations has some tens of thousands
_MAKE_ONE = "write one with: planner plan ... -o plan.json"


def plan_json(plan: Plan) -> str:
    """The plan as one JSON document."""
    return plan.model_dump_json(indent=2) + "\n"


def load_plan(path: Path | str) -> Plan:
    """The plan in a file. Raises `FileInputError` naming file and key."""
    name = str(path)
    return parse_plan(_read_text(Path(path), name), name)


def load_json(path: Path | str) -> dict[str, Any]:
    """The JSON object in a file, of whatever kind. Raises `FileInputError`."""
    return _parse_json(_read_text(Path(path), str(path)), str(path))


def parse_plan(text: str, name: str) -> Plan:
    """The plan in a JSON document that came from `name`. Raises `FileInputError` naming the key."""
    document = _parse_json(text, name)
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        given = "none" if version is None else repr(version)
        hint = "make the plan again with this planner" if version is not None else _MAKE_ONE
        raise FileInputError(name, f"must be {SCHEMA_VERSION}", given, hint, field="schema_version")
    try:
        return Plan.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        given = "" if isinstance(first["input"], dict | list) else repr(first["input"])
        must = first["msg"].removeprefix("Value error, ")
        raise FileInputError(name, must, given, _MAKE_ONE, field=field) from None


def _read_text(path: Path, name: str) -> str:
    try:
        if path.is_dir():
            raise FileInputError(name, "must be a file", "a folder", "name the plan file in it")
        if path.stat().st_size > _LARGEST_FILE:
            raise FileInputError(name, "must be smaller than 100 MB", f"{path.stat().st_size} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileInputError(name, "the file must exist", hint=_MAKE_ONE) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, bytes that are not UTF-8
        raise FileInputError(name, "must be a readable UTF-8 text file", str(error)) from None


def _parse_json(text: str, name: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise FileInputError(name, "must be given once", "twice", field=twice)
        return mapping

    def refuse(constant: str) -> NoReturn:
        raise FileInputError(name, "must hold finite numbers only", constant)

    try:
        document = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise FileInputError(name, "must be valid JSON", reason, _MAKE_ONE) from None
    if not isinstance(document, dict):
        raise FileInputError(name, "must hold a JSON object", type(document).__name__, _MAKE_ONE)
    return document


def check_plan_target(path: Path | str) -> None:
    """Raise `FileInputError` unless a plan can be written there; called before the work is done."""
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise FileInputError(str(path), "must be a file to write", "a folder", "add a file name")
        if target.exists() and not target.is_file():
            raise FileInputError(str(path), "must be a regular file", hint="use --json to print the plan")
        if target.exists() and not os.access(target, os.W_OK):
            raise FileInputError(str(path), "must be writable", "a read-only file", "choose another file")
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".planner-"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileInputError(
            str(path), "must be in a folder that can be written to", reason, "choose another file"
        ) from None


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write the plan, replacing the file at once: a reader sees the old one or the new one, whole.

    Raises `FileInputError` where that is not possible.
    """
    save_text(plan_json(plan), path)


def save_text(text: str, path: Path | str) -> None:
    """Write a text file as `save_plan` writes a plan. Raises `FileInputError`."""
    save_bytes(text.encode("utf-8"), path)


def save_bytes(content: bytes, path: Path | str) -> None:
    """Write a file as `save_plan` writes a plan. Raises `FileInputError`."""
    check_plan_target(path)
    target = Path(path).resolve()  # a symbolic link keeps pointing to the file it names
    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, _usual_mode(target))
        os.replace(partial, target)
    except OSError as error:
        raise FileInputError(str(path), "must be writable", error.strerror or str(error)) from None
    finally:
        if partial is not None and os.path.exists(partial):
            os.unlink(partial)


def _usual_mode(target: Path) -> int:
    """The mode of the file that is replaced, or what a new file gets here (mkstemp's own is private)."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

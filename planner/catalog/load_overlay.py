"""Which calibration is in this file? Reads and writes the YAML of `spec/overlay.py`.

Reading is strict; writing is whole or not at all. Left out: how a calibration is made (`calibrate/`).
"""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from planner.errors import FileInputError
from planner.spec.overlay import Overlay

_LARGEST: Final = 1_000_000  # bytes; a calibration has one or two thousand
_MAKE_ONE: Final = "write one with: planner calibrate ... -o calibration.yaml"


@lru_cache(maxsize=16)
def load_overlay(path: str) -> Overlay:
    """The calibration in a file. Raises `FileInputError` naming file and key."""
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise FileInputError(path, "a calibration must be smaller than 1 MB", "a larger file", _MAKE_ONE)
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileInputError(path, "the calibration must exist", hint=_MAKE_ONE) from None
    except (OSError, ValueError) as error:
        raise FileInputError(path, "must be a readable UTF-8 text file", str(error)) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise FileInputError(path, "must be valid YAML", " ".join(str(error).split())[:200]) from None
    if not isinstance(document, dict):
        raise FileInputError(path, "must hold a calibration", type(document).__name__, _MAKE_ONE)
    try:
        return Overlay.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        given = "" if isinstance(first["input"], dict | list) else repr(first["input"])
        raise FileInputError(path, first["msg"], given, _MAKE_ONE, field=field) from None


def overlay_text(overlay: Overlay) -> str:
    """The calibration as YAML."""
    document = overlay.model_dump(mode="json", exclude_defaults=True) | {"schema_version": 1}
    head = "# Calibration of planner's numbers on measurements; use it with --calibration FILE.\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def save_overlay(overlay: Overlay, path: Path) -> None:
    """Write the whole file or nothing. Raises `FileInputError`."""
    write_whole(overlay_text(overlay), path)


def write_whole(text: str, path: Path) -> None:
    """Write a text file whole or not at all. Raises `FileInputError`."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError as error:
        if name and os.path.exists(name):
            os.unlink(name)
        raise FileInputError(str(path), "the file must be writable", str(error.strerror or error)) from None

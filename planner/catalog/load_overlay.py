"""Which calibration is in this file? Reads and writes the YAML of `spec/overlay.py`.

Reading is strict; writing is whole or not at all. Left out: how a calibration is made (`calibrate/`).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from planner.catalog.load_options import OptionKind
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import SEPARATOR, options_for, with_options
from planner.errors import FileInputError, field_given, field_must
from planner.spec.load_yaml import read_yaml
from planner.spec.overlay import Overlay
from planner.spec.save import save_text
from planner.spec.stack import Stack

_MAKE_ONE: Final = "write one with: planner calibrate ... -o calibration.yaml"


@lru_cache(maxsize=16)
def load_overlay(path: str) -> Overlay:
    """The calibration in a file. Raises `FileInputError` naming file and key."""
    try:
        return Overlay.model_validate(read_yaml(Path(path)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        given = field_given(first)
        raise FileInputError(path, field_must(first), given, _MAKE_ONE, field=field) from None


def calibrated(stack: Stack, overlay: Overlay) -> Stack:
    """The stack with a calibration's numbers. One made for the stack without options that change speed alone holds for
    it with them: what they change is predicted as ever. Raises `InputError`."""
    more = stack.name.removeprefix(overlay.stack).split(SEPARATOR)[1:]
    searched = {option.name for option in options_for(stack) if option.kind is OptionKind.SPEED}
    if not (overlay.stack and more and stack.name.startswith(overlay.stack) and searched.issuperset(more)):
        return overlay.of_stack(stack)
    return with_options(overlay.of_stack(load_stack(overlay.stack)), more)


def save_overlay(overlay: Overlay, path: Path) -> None:
    """Write the whole file or nothing. Raises `FileInputError`."""
    document = overlay.model_dump(mode="json", exclude_defaults=True) | {"schema_version": 1}
    head = "# Calibration of planner's numbers on measurements; use it with --calibration FILE.\n"
    save_text(head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100), path)

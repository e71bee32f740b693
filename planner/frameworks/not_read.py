"""Whose files are these, if planner does not read them? Launchers known by their files, to be refused by name.

Their settings look like those of frameworks that planner does read, but mean other things. Left out: reading them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from planner.frameworks.shell.script import is_script
from planner.frameworks.trainer_yaml import is_trainer_yaml
from planner.spec.load_yaml import parse_yaml


class Launcher(BaseModel):
    """A launcher in whose files all of `marks` are found: YAML, or shell scripts. `instead`: what to do. `source`: of
    its settings, documented or as examples have them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    marks: tuple[re.Pattern[str], ...]
    instead: str
    script: bool = False
    source: str


@lru_cache(maxsize=1)
def launchers() -> tuple[Launcher, ...]:
    """All of them; the first that fits a file counts."""
    file = Path(__file__).with_suffix(".yaml")
    listed = parse_yaml(file.read_text(encoding="utf-8"), file.name)["launchers"]
    return TypeAdapter(tuple[Launcher, ...]).validate_python(listed)


def launcher_of(name: str, text: str) -> Launcher | None:
    """The launcher that a file is of, None where it is none of these."""
    script = is_script(name)
    if is_trainer_yaml(name, text) or (not script and not name.endswith((".yaml", ".yml"))):
        return None
    return next(
        (
            known
            for known in launchers()
            if known.script is script and all(m.search(text) for m in known.marks)
        ),
        None,
    )


def not_read(files: Mapping[str, str]) -> dict[str, Launcher]:
    """Those of the files that are another launcher's."""
    found = {name: launcher_of(name, text) for name, text in files.items()}
    return {name: launcher for name, launcher in found.items() if launcher is not None}

"""Which arguments does a YAML with MODEL_ARGS hold? The form of Megatron-LM's own tests and of its MoE model zoo.

Source: Megatron-LM main of 2026-08 tests/functional_tests/shell_test_utils/_run_training.sh;
yanring/Megatron-MoE-ModelZoo sbatch_benchmarking.sh. A script beside it goes before it, and sets the variables that it
names. Left out: arguments of a second run (MODEL_ARGS_2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from planner.errors import FileInputError, sort_of
from planner.frameworks.fields import load_settings
from planner.frameworks.shell.script import expand

_MARK: Final = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
_NAMES: Final = re.compile(r"\[([A-Za-z_][\w. ]*)\]")  # words of one argument, not a pattern of layers


def is_model_args(name: str, text: str) -> bool:
    """Is it such a file?"""
    return name.endswith((".yaml", ".yml")) and _MARK.search(text) is not None


def options_in(text: str, name: str, variables: dict[str, str]) -> list[tuple[str, ...]]:
    """Its arguments, variables filled in: those that are true alone, none that is false. Raises `FileInputError`."""
    document = load_settings(text, name)
    found = []
    for option, value in _mapping(document, "MODEL_ARGS", name).items():
        words = _words(value, variables)
        if words is not None:
            found.append((str(option), *words))
    return found


def environment_in(text: str, name: str) -> dict[str, str]:
    """Variables that it sets for the program."""
    return {
        str(key): str(value) for key, value in _mapping(load_settings(text, name), "ENV_VARS", name).items()
    }


def _mapping(document: Mapping[str, Any], section: str, name: str) -> Mapping[str, Any]:
    found = document.get(section) or {}
    if not isinstance(found, dict):
        raise FileInputError(name, "must hold arguments by name", sort_of(found), field=section)
    return found


def _words(value: Any, variables: dict[str, str]) -> list[str] | None:
    """Words behind an argument; None where it is not given."""
    if isinstance(value, list):
        return [str(item) for item in value]
    text = expand(str(value), variables).strip() if value is not None else ""
    if text.lower() in ("true", "false"):
        return [] if text.lower() == "true" else None
    named = _NAMES.fullmatch(text)
    return (named[1] if named else text).split() or None

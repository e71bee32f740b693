"""Which training frameworks does planner write and read launch files for?

To add one: a module of its own with the fields of `Framework`, a line in `_FRAMEWORKS`, an option table in
`options/`, golden files in `tests/frameworks/golden/`. A test fails if a step is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Final

from planner.errors import UnknownNameError
from planner.frameworks.framework import Framework

# Names of all, each that of its module too, and the `framework` of stack files they stand for. One is loaded when it is
# asked for: most questions are about one framework.
_FRAMEWORKS: Final[Mapping[str, tuple[str, ...]]] = {
    "megatron": ("megatron",),
    "megatron-bridge": (),
    "deepspeed": ("deepspeed",),
    "torchtitan": ("torchtitan",),
    "accelerate": ("fsdp",),
    "nanotron": ("nanotron",),
    "maxtext": ("maxtext",),
}


def framework_names() -> tuple[str, ...]:
    """Names of all frameworks."""
    return tuple(_FRAMEWORKS)


def framework(name: str) -> Framework:
    """The framework of that name. Raises `UnknownNameError`."""
    known = name.strip().lower()
    if known not in _FRAMEWORKS:
        raise UnknownNameError("framework", name, framework_names())
    return _loaded(known)


@cache
def _loaded(name: str) -> Framework:
    module = name.replace("-", "_")
    found: Framework = getattr(import_module(f"planner.frameworks.{module}"), module.upper())
    return found


def stacks_of(framework: str) -> tuple[str, ...]:
    """The `framework` of stack files that a framework of that name stands for."""
    return _FRAMEWORKS[framework]


def framework_of_stack(stack_framework: str) -> Framework | None:
    """The framework that runs a stack's configurations (`framework` of its file), if planner knows it."""
    for name, stacks in _FRAMEWORKS.items():
        if stack_framework in stacks:
            return _loaded(name)
    return None


def written_stacks() -> tuple[str, ...]:
    """Frameworks, as stacks name them, whose launch files planner writes."""
    return tuple(name for stacks in _FRAMEWORKS.values() for name in stacks)


def explicit_splits(stack_framework: str) -> bool:
    """Can the framework that runs a stack's configurations be told how many layers each pipeline stage holds?"""
    found = framework_of_stack(stack_framework)
    return found is not None and bool(found.splits)

"""Which training frameworks does planner write and read launch files for?

To add one: a module of its own with the fields of `Framework`, a line in `_FRAMEWORKS`, an option table in
`options/`, golden files in `tests/frameworks/golden/`. A test fails if a step is forgotten.
"""

from __future__ import annotations

from typing import Final

from planner.errors import UnknownNameError
from planner.frameworks.accelerate import ACCELERATE
from planner.frameworks.deepspeed import DEEPSPEED
from planner.frameworks.framework import Framework
from planner.frameworks.maxtext import MAXTEXT
from planner.frameworks.megatron import MEGATRON
from planner.frameworks.megatron_bridge import MEGATRON_BRIDGE
from planner.frameworks.nanotron import NANOTRON
from planner.frameworks.torchtitan import TORCHTITAN

_FRAMEWORKS: Final[tuple[Framework, ...]] = (
    MEGATRON,
    MEGATRON_BRIDGE,
    DEEPSPEED,
    TORCHTITAN,
    ACCELERATE,
    NANOTRON,
    MAXTEXT,
)


def framework_names() -> tuple[str, ...]:
    """Names of all frameworks."""
    return tuple(framework.name for framework in _FRAMEWORKS)


def framework(name: str) -> Framework:
    """The framework of that name. Raises `UnknownNameError`."""
    for candidate in _FRAMEWORKS:
        if candidate.name == name.strip().lower():
            return candidate
    raise UnknownNameError("framework", name, framework_names())


def framework_of_stack(stack_framework: str) -> Framework | None:
    """The framework that runs a stack's configurations (`framework` of its file), if planner knows it."""
    for candidate in _FRAMEWORKS:
        if stack_framework in candidate.stacks:
            return candidate
    return None


def written_stacks() -> tuple[str, ...]:
    """Frameworks, as stacks name them, whose launch files planner writes."""
    return tuple(name for framework in _FRAMEWORKS for name in framework.stacks)


def explicit_splits(stack_framework: str) -> bool:
    """Can the framework that runs a stack's configurations be told how many layers each pipeline stage holds?"""
    found = framework_of_stack(stack_framework)
    return found is not None and bool(found.splits)

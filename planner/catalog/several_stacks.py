"""Which stacks does a question name? One, several with commas between, or `any`: all that are current.

Current is, of every framework and engine of states whose launch files planner writes, the newest that runs on the
device, released within two years of the newest of all. Left out: their options (`stack_options.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from planner.catalog.load_stacks import FILES, load_stack, stack_families, stack_to_plan, stacks_to_plan
from planner.dialect import option
from planner.errors import InputError
from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.compiled_devices import runs_on
from planner.spec.stack import Stack

ANY: Final = "any"
BETWEEN: Final = ","
CURRENT_MONTHS: Final = 24


def names_to_ask_for() -> list[str]:
    """Everything that one name may be: a stack, a family of them, or any."""
    return sorted({*stacks_to_plan(), *stack_families(), ANY})


def names_several(text: str | None) -> bool:
    """Does a text name more than one stack, or as many as there are?"""
    return text is not None and (BETWEEN in text or text.strip().lower() == ANY)


def require_one(text: str) -> None:
    """Raise `InputError` for a text that names several stacks, where one is needed."""
    if names_several(text):
        must = "one stack must be named where configurations are not searched for"
        raise InputError(must, option("stack", text), "name one of them; planner plan searches several")


def stacks_asked(text: str, chip: Accelerator, written: Iterable[str]) -> tuple[str, ...]:
    """Names of the stacks that a text asks for, each once. `written`: frameworks, as stacks name them, whose launch
    files planner writes. Raises `InputError` for a name that is none or empty."""
    if text.strip().lower() == ANY:
        return current_stacks(chip, written)
    names = [part.strip() for part in text.split(BETWEEN)]
    if not all(names):
        raise InputError(
            "every stack between commas must have a name", text, "write megatron-2026,deepspeed-2025"
        )
    stacks: dict[str, str] = {}
    for name in names:
        found = stack_to_plan(name).name
        stacks.setdefault(found, name if name.endswith(FILES) else found)
    return tuple(stacks.values())


def current_stacks(chip: Accelerator, written: Iterable[str]) -> tuple[str, ...]:
    """The newest stack of every family that runs on a device, the newest first."""
    frameworks = set(written)
    stacks = [load_stack(name) for name in stacks_to_plan()]
    running = [s for s in stacks if s.framework in frameworks and runs_on(s, chip)]
    newest = max((_months(stack) for stack in running), default=0)
    families: dict[tuple[str, str], Stack] = {}
    for stack in sorted(running, key=lambda s: (-_months(s), s.name)):
        families.setdefault((stack.framework, stack.engine.kind), stack)
    return tuple(s.name for s in families.values() if newest - _months(s) <= CURRENT_MONTHS)


def _months(stack: Stack) -> int:
    year, _, month = stack.released.partition("-")
    return 12 * int(year) + int(month or 1)

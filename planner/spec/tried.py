"""What did a search turn on, hold fixed, and compare? The parts of a plan file that say so.

Left out: how many candidates there were and what is proven of them (`planfile.py`).
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from planner.spec.findings import Findings
from planner.spec.record import Record


class HeldBy(StrEnum):
    """Why an axis has one value, where the user did not fix it."""

    NUMERICS = "numerics"  # another would change what is computed
    LEFT_OUT = "left out"  # by --without
    UNTRIED = "untried"  # estimate takes others, no search tries them unasked
    STACK = "stack"  # the stack runs no other, or its launcher cannot be told


class Held(Record):
    """An axis, or an option of the stack, that the program holds fixed."""

    axis: str = Field(description="as --set or --stack names it")
    value: str = Field(description="what it is held at; of several values, all of them")
    why: HeldBy
    stack: str = Field("", description="of several stacks, another than the best's; empty: the best's")
    gain: float | None = Field(
        None, lt=1, description="share of the step time that freeing it saves, if that was tried [1]"
    )


class TurnedOn(Record):
    """An option of the stack that the search turned on for the best configuration."""

    name: str = Field(description="as --stack has it behind a +, and --without")
    without_step_time: float | None = Field(
        None, gt=0, description="of the best without it; absent where nothing fits, or none is known [s]"
    )
    gain: float | None = Field(
        None, lt=1, description="share of `without_step_time` that it saves; absent as that is [1]"
    )


class StackStanding(Record):
    """One of several stacks that were searched."""

    name: str = Field(description="as it was named")
    framework: str
    released: str
    stack: str = Field("", description="with the options of its best configuration")
    configuration: str = Field("", description="its best, in one line; empty where there is none")
    step_time: float | None = Field(None, gt=0, description="of its best; absent where there is none [s]")
    reason: Findings = Field((), description="why there is none")

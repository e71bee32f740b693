"""What was written down of a program that ran: its operations, its allocations, and which made which.

Left out: how it is written down (`recorder.py`), which needs PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from planner.cost.captured.operation import Operation
from planner.dryrun.allocator.trace import Trace


class Holds(StrEnum):
    """What a block of memory holds."""

    INPUT = "input"
    WEIGHTS = "weights"
    GATHERED = "gathered_weights"
    CAST = "cast_weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer_states"
    ACTIVATIONS = "activations"
    WORKSPACE = "workspace"
    TEMPORARY = "temporary"


class Wait(NamedTuple):
    """What goes to queue `stream` from operation `at` on begins once operation `end` has ended; the host goes on only
    then where `stream` is `HOST`."""

    at: int
    stream: int
    end: int


HOST: Final = -1


@dataclass
class Recording:
    """A program's allocations, and the operations that made them.

    `made_by`: of each block, the operation's number, or -1 where none made it; `kinds`: of some blocks, what they hold.
    `first_step`, `second_step`, `end`: the numbers of events before the first step, behind which everything is built,
    before the second step, and of all. `host`: what tensors in the host's memory ask for there, where the program has
    some. `waits`: where queues wait for each other, in order.
    """

    trace: Trace = field(default_factory=Trace)
    host: Trace = field(default_factory=Trace)
    operations: list[Operation] = field(default_factory=list)
    made_by: list[int] = field(default_factory=list)
    kinds: dict[int, Holds] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    first_step: int = 0
    second_step: int = 0
    end: int = 0

"""What was written down of a program that ran: its operations, its allocations, and which made which.

Left out: how it is written down (`recorder.py`), which needs PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from planner.dryrun.allocator.trace import Trace


class Phase(StrEnum):
    """A part of a step."""

    BUILD = "build"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


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


Shape = tuple[tuple[int, ...], str]
"""Dimensions of a tensor and its number format."""


class HostWork(NamedTuple):
    """What the host does from one operation to the next: views made, modules entered; `by_autograd`: is it PyTorch's
    engine that runs the backward pass?"""

    views: int = 0
    modules: int = 0
    by_autograd: bool = False


NO_WORK: Final = HostWork()


class Message(NamedTuple):
    """What an operation sends between the ranks of a process group.

    `kind`: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast" or "p2p"; `size`: of the whole
    buffer, for an all-to-all that of one rank [bytes]; `ranks`: of the group, `stride` apart; `apart`: does it run in
    a queue of the group's own, so that only what waits for it comes after it?
    """

    kind: str
    size: int
    ranks: int
    stride: int
    apart: bool


class Wait(NamedTuple):
    """What goes to queue `stream` from operation `at` on begins once operation `end` has ended; the host goes on only
    then where `stream` is `HOST`."""

    at: int
    stream: int
    end: int


HOST: Final = -1


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that ran: `first`: the number of events before it; `taken`: what `expand` repeats once, but of
    products; `stream`: the queue of the device that it went to, 0 but for what FSDP gathers and sums; `flags`: of a
    product, which of the tensors that it takes lie transposed in memory, of others the arguments that are yes or no;
    `alike`: do all of its tensors have one shape, and lie alike and densely in memory? `message`: what it sends."""

    name: str
    module: str
    phase: Phase
    first: int
    taken: tuple[Shape, ...]
    given: tuple[Shape, ...]
    stream: int = 0
    flags: tuple[bool, ...] = ()
    alike: bool = True
    host: HostWork = NO_WORK
    message: Message | None = None


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

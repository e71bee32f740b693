"""What is an operation of PyTorch, as it was dispatched: what it takes and gives, and what the host did before it?

Left out: how long it takes (`kernels.py`, `traffic.py`), and who writes it down (`dryrun/recorder.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Phase(StrEnum):
    """A part of a step."""

    BUILD = "build"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


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

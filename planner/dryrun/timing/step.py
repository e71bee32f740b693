"""How long do the phases of a recorded step take? `time_of`.

A fold over the operations of the second step: what each takes on the device (`cost/captured/`) or on the links
(`messages.py`), when the host issues it, and clocks (`clocks.py`). Left out: what the host does between steps, such as
loading data; ranks that come late to a message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.captured.kernels import Device
from planner.cost.captured.operation import Message, Operation, Phase
from planner.cost.captured.seconds import device_seconds, issue_seconds
from planner.cost.captured.traffic import plain_name
from planner.dryrun.recording import Recording, Wait
from planner.dryrun.timing.clocks import MAIN, Ended, ended
from planner.dryrun.timing.messages import Wires
from planner.spec.machine.host import HostRates

Array = NDArray[np.float64]

_READS: Final = ("_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "unique_dim")


@dataclass(frozen=True)
class RankTime:
    """Times of one rank's step, from a device at rest until it is at rest again [s]."""

    step: float
    forward: float
    backward: float
    optimizer: float
    busy: float
    """What the device computes of it; the rest of the time it waits, for the host or for messages."""
    messages: float = 0.0
    """What messages take, alone on their links."""
    exposed: float = 0.0
    """Of the step, while nothing is computed for want of a message."""


def time_of(
    recording: Recording,
    device: Device,
    host: HostRates,
    num_microbatches: int = 1,
    wires: Wires | None = None,
) -> RankTime:
    """Times of the second step of a recording; a micro-batch between the first and the last stands for all further
    ones. `wires`: of the messages that it sends."""
    begin = bisect_right(recording.operations, recording.second_step - 1, key=lambda one: one.first)
    waits = [
        Wait(max(one.at - begin, 0), one.stream, one.end - begin)
        for one in recording.waits
        if one.end >= begin
    ]
    return time_of_operations(recording.operations[begin:], device, host, num_microbatches, waits, wires)


def time_of_operations(
    operations: Sequence[Operation],
    device: Device,
    host: HostRates,
    num_microbatches: int = 1,
    waits: Sequence[Wait] = (),
    wires: Wires | None = None,
) -> RankTime:
    """The same of a list of operations."""
    sent = {i: one.message for i, one in enumerate(operations) if one.message is not None}
    seconds = device_seconds(operations, device)
    seconds[list(sent)] = _message_seconds(list(sent.values()), wires)
    links = {} if wires is None else {i: wires.outermost(one) for i, one in sent.items()}
    done = ended(
        operations, issue_seconds(operations, host), seconds, _reads(operations), host.read, waits, links
    )
    parts = _parts(operations, done, seconds)
    further = max(num_microbatches - sum(one.phase is Phase.FORWARD for one in parts), 0)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        alike = [one for one in parts if one.phase is phase]
        parts += [alike[-2] if len(alike) > 2 else alike[-1]] * further if alike else []
    times = {phase: sum(one.seconds for one in parts if one.phase is phase) for phase in Phase}
    return RankTime(
        step=sum(times.values()),
        forward=times[Phase.FORWARD],
        backward=times[Phase.BACKWARD],
        optimizer=times[Phase.OPTIMIZER],
        busy=sum(one.busy for one in parts),
        messages=sum(one.messages for one in parts),
        exposed=sum(one.exposed for one in parts),
    )


def _message_seconds(messages: Sequence[Message], wires: Wires | None) -> list[float]:
    """Of each, worked out once for those alike [s]."""
    if wires is None:
        return [0.0] * len(messages)
    known = {one: wires.seconds(one) for one in set(messages)}
    return [known[one] for one in messages]


def _reads(operations: Sequence[Operation]) -> list[int]:
    """Where the host reads a value from the device; counts of an optimizer's steps lie in its own memory
    (torch/optim/adam.py, `_init_group`)."""
    return [
        i
        for i, one in enumerate(operations)
        if plain_name(one) in _READS and one.phase is not Phase.OPTIMIZER
    ]


class _Part(NamedTuple):
    """Operations of one phase without any of another between them: how long they take, and of it the device, messages,
    and what of those nothing hides [s]."""

    phase: Phase
    seconds: float
    busy: float
    messages: float
    exposed: float


def _parts(operations: Sequence[Operation], done: Ended, seconds: Array) -> list[_Part]:
    """A part ends when the main queue is through with it, the last one when all queues are."""
    sends = np.array([one.message is not None for one in operations], dtype=bool)
    main = np.array([one.stream == MAIN for one in operations], dtype=bool) & ~sends
    ends = np.maximum.accumulate(np.where(main, done.at, 0.0))
    ends[-1:] = done.at.max(initial=0.0)
    parts: list[_Part] = []
    first, before, waited = 0, 0.0, 0.0
    for i, one in enumerate(operations):
        if i + 1 == len(operations) or operations[i + 1].phase is not one.phase:
            part, end = slice(first, i + 1), float(ends[i])
            busy = float(seconds[part][main[part]].sum())
            sent, exposed = float(seconds[part][sends[part]].sum()), float(done.waited[i]) - waited
            parts.append(_Part(one.phase, end - before, busy, sent, exposed))
            first, before, waited = i + 1, end, float(done.waited[i])
    return parts

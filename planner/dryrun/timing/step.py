"""How long do the phases of a recorded step take? `time_of`.

A fold over the operations of the second step: what each takes on the device (`kernels.py`), when the host issues it,
and two clocks (`clocks.py`). Left out: what the host does between steps, such as loading data.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.dryrun.recording import Operation, Phase, Recording
from planner.dryrun.timing.clocks import ends
from planner.dryrun.timing.kernels import Device
from planner.dryrun.timing.traffic import moved_by, plain_name
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
    """What the device is at work of it; the rest of the time it waits for the host."""


def time_of(recording: Recording, device: Device, host: HostRates, num_microbatches: int = 1) -> RankTime:
    """Times of the second step of a recording, the last of whose micro-batches stands for all further ones."""
    begin = bisect_right(recording.operations, recording.second_step - 1, key=lambda one: one.first)
    return time_of_operations(recording.operations[begin:], device, host, num_microbatches)


def time_of_operations(
    operations: Sequence[Operation], device: Device, host: HostRates, num_microbatches: int = 1
) -> RankTime:
    """The same of a list of operations."""
    on_device = device_seconds(operations, device)
    done = ends(issue_seconds(operations, host), on_device, _waits(operations), host.read)
    parts = _parts(operations, done, on_device)
    further = max(num_microbatches - sum(one.phase is Phase.FORWARD for one in parts), 0)
    last = {one.phase: one for one in parts if one.phase is not Phase.OPTIMIZER}
    parts += [one for one in last.values() for _ in range(further)]
    times = {phase: sum(one.seconds for one in parts if one.phase is phase) for phase in Phase}
    return RankTime(
        step=sum(times.values()),
        forward=times[Phase.FORWARD],
        backward=times[Phase.BACKWARD],
        optimizer=times[Phase.OPTIMIZER],
        busy=sum(one.busy for one in parts),
    )


def device_seconds(operations: Sequence[Operation], device: Device) -> Array:
    """What each operation takes on the device (n,) [s], worked out once for those alike."""
    known: dict[tuple[object, ...], float] = {}
    found = np.empty(len(operations))
    for i, one in enumerate(operations):
        key = one.name, one.taken, one.given, one.flags, one.alike
        if key not in known:
            known[key] = device.seconds(one)
        found[i] = known[key]
    return found


def issue_seconds(operations: Sequence[Operation], host: HostRates) -> Array:
    """What the host takes from issuing one operation until it has issued the next (n,) [s]."""
    found = np.empty(len(operations))
    kernels: dict[tuple[object, ...], int] = {}
    before = None
    for i, one in enumerate(operations):
        if one.phase is not Phase.OPTIMIZER:
            key = one.name, one.taken, one.given, one.flags
            if key not in kernels:
                kernels[key] = sum(part.kernels for part in moved_by(one))
            seconds = _issue(one, kernels[key], host)
            found[i] = seconds + (host.call if one.phase is not before else 0.0)
        else:
            found[i] = _issue(one, 1, host) + host.listed * len(one.taken)
        before = one.phase
    return found


def _issue(operation: Operation, kernels: int, host: HostRates) -> float:
    """Time of the host for one operation and what it does before it [s]."""
    work = operation.host
    each, view = host.operation, host.view
    if work.by_autograd:
        each, view = host.backward_operation, host.backward_view
    own = each + host.kernel * (kernels - 1) if kernels else view
    return own + view * work.views + host.module * work.modules


def _waits(operations: Sequence[Operation]) -> list[int]:
    """Where the host reads a value from the device; counts of an optimizer's steps lie in its own memory
    (torch/optim/adam.py, `_init_group`)."""
    return [
        i
        for i, one in enumerate(operations)
        if plain_name(one) in _READS and one.phase is not Phase.OPTIMIZER
    ]


class _Part(NamedTuple):
    """Operations of one phase without any of another between them: how long they take, and the device of it [s]."""

    phase: Phase
    seconds: float
    busy: float


def _parts(operations: Sequence[Operation], done: Array, on_device: Array) -> list[_Part]:
    parts: list[_Part] = []
    first, before = 0, 0.0
    for i, one in enumerate(operations):
        if i + 1 == len(operations) or operations[i + 1].phase is not one.phase:
            end = float(done[i])
            parts.append(_Part(one.phase, end - before, float(on_device[first : i + 1].sum())))
            first, before = i + 1, end
    return parts

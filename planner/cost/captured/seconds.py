"""How long do operations take one by one, on the device and on the host that issues them?

Left out: when each begins (`dryrun/timing/clocks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.captured.kernels import Device
from planner.cost.captured.operation import Operation, Phase
from planner.cost.captured.traffic import moved_by
from planner.spec.machine.host import HostRates

Array = NDArray[np.float64]


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

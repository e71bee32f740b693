"""When does each operation end, where a host launches them and queues of a device run them?

The host issues an operation and goes on; its queue begins it when it is issued, all before it in the queue are done and
so is what the queue was told to wait for. Messages over the same links come one after the other. Where the host reads a
value it waits for the queue. A step begins with all at rest. Left out: that the host waits where 1,024 launches are
pending, as the device has work until then; what kernels of a message take from those that compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.captured.operation import Operation
from planner.dryrun.recording import HOST, Wait

Array = NDArray[np.float64]
MAIN = 0  # the queue that nobody made


@dataclass(frozen=True)
class Ended:
    """When operations end (n,) [s], and for how long the main queue waits for messages [s], summed up to each (n,)."""

    at: Array
    waited: Array


def ended(
    operations: Sequence[Operation],
    issue: Array,
    run: Array,
    reads: Collection[int] = (),
    read: float = 0.0,
    waits: Sequence[Wait] = (),
    links: Mapping[int, int] | None = None,
) -> Ended:
    """When each of n operations ends.

    `issue`: what the host takes up to issuing each; `run`: what each takes on the device (n,) [s]; `reads`: numbers of
    those that the host waits for, and `read` until it has their result [s]; `waits`: in order; `links`: of messages, by
    number, which links they run on.
    """
    links = links or {}
    at, waited = np.empty(len(operations)), np.empty(len(operations))
    ready = defaultdict[int, float](float)  # by queue, as `bounds`
    free = defaultdict[int, float](float)  # by links
    bounds: dict[int, float] = {}
    clock = total = 0.0
    told = 0
    for i, one in enumerate(operations):
        while told < len(waits) and waits[told].at <= i:
            queue, end = waits[told].stream, float(at[waits[told].end])
            if queue == HOST:
                clock = max(clock, end)
            else:
                bounds[queue] = max(bounds.get(queue, 0.0), end)
            told += 1
        clock += issue[i]
        could = max(clock, ready[one.stream])
        begin = max(could, bounds.pop(one.stream, 0.0), free[links[i]] if i in links else 0.0)
        at[i] = end = begin + run[i]
        if i in links:
            free[links[i]] = end
        if one.message is None or not one.message.apart:
            ready[one.stream] = end
            if one.stream == MAIN:
                total += (begin if one.message is None else end) - could
        waited[i] = total
        if i in reads:
            clock = max(clock, end) + read
    return Ended(at, waited)

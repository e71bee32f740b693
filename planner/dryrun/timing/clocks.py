"""When does each phase of a step end, where a host launches operations that a device runs one after the other?

Two clocks. The host issues an operation and goes on; the device begins it when it is issued and all before it are done.
Where the host reads a value it waits for the device. A step begins with both at rest. Left out: that the host waits
where 1,024 launches are pending, as the device has work until then; several streams.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def ends(host: Array, device: Array, waits: Sequence[int], read: float = 0.0) -> Array:
    """When the device ends each of n operations (n,) [s].

    `host`: what the host takes up to issuing each; `device`: what each takes on the device (n,) [s]; `waits`: rising
    numbers of operations that the host waits for, and `read` until it has their result [s]. Between two of those the
    end of operation i is the latest of issued(j) + device(j) + ... + device(i) over the j up to i.
    """
    done = np.empty(len(host))
    clock = last = 0.0
    begin = 0
    for stop in (*waits, len(host) - 1):
        if stop < begin:
            continue
        part = slice(begin, stop + 1)
        issued = clock + np.cumsum(host[part])
        run = np.cumsum(device[part])
        idle = np.maximum(np.maximum.accumulate(issued - run + device[part]), last)
        done[part] = idle + run
        last = float(done[stop])
        clock = max(last, float(issued[-1])) + read
        begin = stop + 1
    return done

"""How long does 1F1B take when every stage has its own time, without simulating it?

The longest path through the schedule enters the steady phase of one stage, stays there, and leaves. How it
enters and leaves is independent of how long it stays, so the makespan is a maximum over stages of sums: linear in
the number of stages, and over runs of equal stages linear in the number of runs. Equality with the simulator is
a property test (tests/schedule/test_uneven.py), over every number of micro-batches and strongly uneven stages.
Left out: weight gradients run apart, and interleaved schedules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Points:
    """Stages at which the maximum can be attained, along the first axis, in rising order."""

    index: Floats  # of the stage; negative: no such point
    forward: Floats  # of the stage [s]
    backward: Floats
    forwards: Floats  # of this stage and all before it [s]
    backwards: Floats
    longest_forward: Floats  # among this stage and all before it [s]
    longest_backward: Floats


def one_f_one_b_makespan(forward: ArrayLike, backward: ArrayLike, stages: ArrayLike, m: ArrayLike) -> Floats:
    """Makespan of 1F1B with uneven stages, runs of equal neighbours together, and free hops; exact [s].

    max over stages s >= p - m of  U_s + (m - p + s) (f_s + b_s) + V_s, with
    U_s = max over q >= s of  f_0 + .. + f_q + (p - 1 - q) max(f_0 .. f_q) + b_{s+1} + .. + b_q   (until the first
    backward of s can start) and V_s the same with f and b exchanged (from its last forward's end on). Within a run
    every term is linear or convex in the stage, so the ends of the runs suffice.
    Derived here. Equal stages give (m + p - 1)(f + b) (Narayanan 2021, arXiv 2104.04473, section 2.1).

    `forward`, `backward`, `stages` (how many stages in the run, 0 for none) have shape (..., runs); `m` one number or
    (...). Fastest where the runs are the slow axis in memory.
    """
    pair = np.broadcast_arrays(np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64))
    f, b = (np.moveaxis(x, -1, 0) for x in pair)
    n = np.broadcast_to(np.moveaxis(np.asarray(stages, dtype=np.float64), -1, 0), f.shape)
    count = np.asarray(m, dtype=np.float64)
    end = np.cumsum(n, axis=0)
    p = end[-1]
    first, last = end - n, end - 1.0
    # stages before p - m are never reached; where that bound falls inside a run, the run starts there
    low = np.minimum(np.maximum(first, p - count), last)
    present = n > 0

    def both(at_low: Floats, at_last: Floats) -> Floats:
        return np.stack((at_low, at_last), axis=1).reshape(-1, *f.shape[1:])

    def longest(x: Floats) -> Floats:
        return np.maximum.accumulate(np.where(present, x, 0.0), axis=0)

    before_f, before_b = np.cumsum(n * f, axis=0) - n * f, np.cumsum(n * b, axis=0) - n * b
    points = _Points(
        index=both(np.where(present, low, -1.0), np.where(present, last, -1.0)),
        forward=both(f, f),
        backward=both(b, b),
        forwards=both(before_f + (low - first + 1.0) * f, before_f + n * f),
        backwards=both(before_b + (low - first + 1.0) * b, before_b + n * b),
        longest_forward=both(longest(f), longest(f)),
        longest_backward=both(longest(b), longest(b)),
    )
    return _steady_line(points, p, count)


def _steady_line(x: _Points, p: Floats, m: Floats) -> Floats:
    """The maximum over the points; see `one_f_one_b_makespan`."""
    reached = (x.index >= 0) & (x.index >= p - m)
    later = p - 1.0 - x.index
    filled = np.where(reached, x.forwards + later * x.longest_forward, -np.inf)
    drained = np.where(reached, x.backwards + later * x.longest_backward, -np.inf)
    enter = _largest_from(filled + x.backwards) - x.backwards
    leave = _largest_from(drained + x.forwards) - x.forwards
    steady = (m - p + x.index) * (x.forward + x.backward)
    return np.asarray(np.where(reached, enter + steady + leave, -np.inf).max(axis=0))


def _largest_from(x: Floats) -> Floats:
    """Largest entry from each place on, along the first axis."""
    return np.flip(np.maximum.accumulate(np.flip(x, 0), axis=0), 0)

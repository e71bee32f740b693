"""How many chunks does a rank hold at its worst moment, where weight gradients run apart from input gradients?

Between the two a chunk keeps other tensors than before, so that neither count alone gives the peak: what matters are
the moments at which some weighing of the two is largest. Left out: schedules whose counts have a closed form
(`formulas.in_flight`), and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.schedule.actions import ActionTable, Pass
from planner.schedule.generate import action_table
from planner.schedule.memory_limited import default_limit
from planner.spec.config import Schedule

Point = tuple[int, int]  # chunks before their input gradient, chunks between their two gradients
SATURATED: Final = 3  # micro-batches per rank beyond which no rank holds more (tests/schedule/test_held.py)


def worst_moments(points: Iterable[Point]) -> tuple[Point, ...]:
    """Those of `points` at which x + rho y can be largest for some rho >= 0: the upper right of their convex hull."""
    hull: list[Point] = []
    most_y = -1
    for x, y in sorted(set(points), key=lambda point: (-point[0], -point[1])):
        if y <= most_y:
            continue
        most_y = y
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (x0 - x1) * (y - y1) < (x1 - x) * (y1 - y0):
                break
            hull.pop()
        hull.append((x, y))
    return tuple(hull)


def held_moments(table: ActionTable) -> list[tuple[Point, ...]]:
    """The worst moments of every rank of a schedule."""
    forward = np.cumsum(table.where(Pass.FORWARD), axis=1)
    released = table.where(Pass.INPUT_GRADIENT, Pass.BACKWARD)
    split, done = table.where(Pass.INPUT_GRADIENT), table.where(Pass.WEIGHT_GRADIENT)
    # what a pass releases still counts while it runs
    before = forward - np.cumsum(released, axis=1) + released
    between: NDArray[np.int64] = np.cumsum(split, axis=1) - np.cumsum(done, axis=1) + done - split
    ranks = range(table.ranks)
    return [worst_moments(zip(before[r].tolist(), between[r].tolist(), strict=True)) for r in ranks]


def most_held(schedule: Schedule, p: int, v: int, m: int) -> tuple[tuple[Point, ...], ...]:
    """The worst moments of every rank, for schedules that hold no more beyond `SATURATED` micro-batches a rank.

    Where the order is found under a memory limit, that limit before the input gradient.
    """
    if schedule in (Schedule.V_HALF, Schedule.V_MIN):
        return (((min(default_limit(schedule, p), v * m), 0),),) * p
    return _most_held(schedule, p, v, min(m, SATURATED * p))


@lru_cache(maxsize=4096)
def _most_held(schedule: Schedule, p: int, v: int, m: int) -> tuple[tuple[Point, ...], ...]:
    return tuple(held_moments(action_table(schedule, p, m, v)))

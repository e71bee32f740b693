"""How many chunks, and which, does a rank hold at the moments of a step that can be its worst?

Where weight gradients run apart from input gradients a chunk keeps other tensors between the two than before, so that
neither count alone gives the peak: what matters are the moments at which some weighing of the two is largest. Where
the chunks of an interleaved rank differ, those at which some weighing of its chunks is. Left out: the number of chunks
of 1F1B and interleaved ranks, which has a closed form (`formulas.in_flight`), and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.schedule.actions import ActionTable, Pass
from planner.schedule.formulas import default_limit
from planner.schedule.generate import action_table
from planner.schedule.looped import group_order
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


Counts = NDArray[np.float64]  # (moments, v): micro-batches held of every chunk


def interleaved_moments(p: int, v: int, m: int, rank: int) -> tuple[Counts, Counts]:
    """Micro-batches that an interleaved rank holds of each of its chunks, in pipeline order, at the moments that can be
    its worst: of the step, and of the backward passes of its last chunk (on the last rank, where the loss is).

    W = (v - 1) p + 2 (p - 1 - r) forwards go ahead; backward i then runs with the first W + 1 + i forwards done and i
    backwards, which take the chunks in reverse (Megatron-LM core/pipeline_parallel/schedules.py,
    get_pp_rank_microbatches and get_model_chunk_id, groups of p). As long as neither turns to another chunk every count
    rises or falls by one a pass, so that some weighing of the chunks is largest where one turns. From 3 p micro-batches
    on the same counts return.
    """
    return _interleaved_moments(p, v, m if m % p else min(m, SATURATED * p), rank)


@lru_cache(maxsize=64)
def _taken(p: int, v: int, m: int) -> tuple[NDArray[np.int32], Counts]:
    """The chunk of every forward of an interleaved rank, and how many of every chunk are among the first n."""
    order, _ = group_order(v, m, p)
    taken = np.zeros((len(order) + 1, v))
    taken[np.arange(1, len(order) + 1), order] = 1
    return order, np.cumsum(taken, axis=0)


@lru_cache(maxsize=4096)
def _interleaved_moments(p: int, v: int, m: int, rank: int) -> tuple[Counts, Counts]:
    order, taken = _taken(p, v, m)
    ahead = min((v - 1) * p + 2 * (p - 1 - rank), len(order) - 1)
    turns = np.flatnonzero(np.diff(order)) + 1
    last = len(order) - 1 - ahead  # backwards before the forwards have run out
    at = np.concatenate([[0, last], turns, turns - 1, turns - ahead - 1])
    at = np.array(sorted({moment for moment in at.tolist() if 0 <= moment <= last}))
    held = taken[at + ahead + 1] - taken[at][:, ::-1]
    return _undominated(held), _undominated(held[order[at] == 0])


def _undominated(held: Counts) -> Counts:
    """Those of some counts that no other reaches in every chunk."""
    held = held[np.lexsort(held.T[::-1])]
    held = held[np.concatenate([[True], (held[1:] != held[:-1]).any(axis=1)])]
    more: NDArray[np.bool_] = np.logical_and.reduce(held[None] >= held[:, None], axis=2)
    return held[more.sum(axis=1) == 1]

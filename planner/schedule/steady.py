"""How long do many micro-batches take, from the makespan of few: when does an interleaved pipeline repeat itself?

With p ranks the order of passes repeats every p micro-batches once all ranks are past their first forwards. A pass
starts at the largest of sums of times of passes before it, so that once several groups of p in a row took equally long,
in every pass, all later ones do, until the last forwards are through; what comes then is the same as with fewer
micro-batches, later. So the makespan is exact, not an estimate; where no such groups are found, there is no answer.
Left out: schedules other than interleaved 1F1B in groups of p.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.schedule.actions import Pass
from planner.schedule.graph import DependencyGraph, schedule_graph
from planner.schedule.simulate import StageTimes, entry_times
from planner.spec.config import Schedule

Floats = NDArray[np.float64]

GROUPS: Final = 12  # of p micro-batches that are simulated
WORTHWHILE: Final = 2 * GROUPS  # groups of a pipeline that is not simulated whole
_ALIKE: Final = (
    3  # groups in a row that must take equally long: a pass waits for none more than two groups back
)
_SAME: Final = 1e-9  # of their time: rounding


def repeats(schedule: Schedule, p: int, m: int) -> bool:
    """Is the order of passes of so many micro-batches one that repeats itself often enough to be worth it?"""
    return schedule is Schedule.INTERLEAVED and m % p == 0 and m >= WORTHWHILE * p


def makespans_of_many(p: int, m: int, v: int, times: StageTimes) -> Floats:
    """Makespans of interleaved 1F1B with m micro-batches where it `repeats` itself, shape (cases,) [s]; NaN where the
    last of the first `GROUPS` groups do not yet take equally long."""
    graph, late, early = _compared(p, v)
    _, end = entry_times(graph, times)
    period = end[late] - end[early]
    longest, shortest = period.max(axis=0), period.min(axis=0)
    more = (m - GROUPS * p) // p
    steady = longest - shortest <= _SAME * longest
    return np.where(steady, end.max(axis=0) + more * (longest + shortest) / 2, np.nan)


@lru_cache(maxsize=16)
def _compared(p: int, v: int) -> tuple[DependencyGraph, NDArray[np.int64], NDArray[np.int64]]:
    """The graph of the first groups, its entries of passes in the groups that are compared, and those of the same
    passes a group earlier.

    A rank runs less than two groups of forwards ahead of its backwards: forwards of group g and backwards of group
    g - 2 wait for none before groups g - 2 and g - 4.
    """
    graph = schedule_graph(Schedule.INTERLEAVED, p, GROUPS * p, v)
    kind, stage, batch = (
        column.ravel()[graph.place]
        for column in (graph.table.kind, graph.table.stage, graph.table.microbatch)
    )
    entry = np.empty((2, GROUPS * p, p * v), dtype=np.int64)
    entry[(kind != Pass.FORWARD).astype(np.intp), batch, stage] = np.arange(graph.size)
    last = [
        (0, GROUPS),
        (1, GROUPS - 2),
    ]  # forwards of every group follow backwards, backwards of the last two nothing
    late = [entry[direction, (end - _ALIKE) * p : end * p].ravel() for direction, end in last]
    early = [entry[direction, (end - _ALIKE - 1) * p : (end - 1) * p].ravel() for direction, end in last]
    return graph, np.concatenate(late), np.concatenate(early)

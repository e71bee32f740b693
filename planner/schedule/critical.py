"""Which passes and messages make a schedule as long as it is?

The makespan is the length of the longest path through the passes; the same path is a lower bound of it for any other
times. Left out: overlapped pairs, and weight gradients run apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.schedule.actions import Pass
from planner.schedule.graph import DependencyGraph
from planner.schedule.simulate import StageTimes, entry_times

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CriticalPaths:
    """How often passes lie on the longest path: `forward`, `backward` (cases, stages); `hops` (cases, stages - 1)
    messages across each boundary."""

    forward: Floats
    backward: Floats
    hops: Floats


def critical_paths(graph: DependencyGraph, times: StageTimes) -> CriticalPaths:
    """The longest path of every case, from its end back to its start; of equal ones, that which stays on a rank."""
    cases, stages = times.forward.shape
    end = np.concatenate([entry_times(graph, times)[1], np.zeros((1, cases))])
    delay = np.concatenate([times.hop, np.zeros((cases, 1))], axis=1)  # the last: no hop
    needs, before, crossed = graph.needs[:, 0], graph.before, graph.hop[:, 0]
    waits = end[needs] + delay.T[crossed] > end[before]
    following = np.where(waits, needs[:, None], before[:, None])
    ahead = graph.table.kind.ravel()[graph.place] == Pass.FORWARD
    stage = graph.table.stage.ravel()[graph.place].astype(np.intp)
    passes, hops = np.zeros((2, cases, stages)), np.zeros((cases, stages))
    for case, last in enumerate(end[:-1].argmax(axis=0).tolist()):
        path = np.array(_followed(following[:, case].tolist(), last), dtype=np.intp)
        for direction, rows in enumerate((path[ahead[path]], path[~ahead[path]])):
            passes[direction, case] = np.bincount(stage[rows], minlength=stages)
        over = crossed[path[waits[path, case]]] % stages  # the last: no hop
        hops[case] = np.bincount(over, minlength=stages)
    return CriticalPaths(passes[0], passes[1], hops[:, :-1])


def _followed(following: list[int], entry: int) -> list[int]:
    """The entries from one to the first that waits for nothing; in lists, whose elements are quicker to get at than
    those of arrays."""
    path = []
    while entry < len(following):
        path.append(entry)
        entry = following[entry]
    return path

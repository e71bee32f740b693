"""Which passes and messages make a schedule as long as it is?

The makespan is the length of the longest path through the passes; the same path is a lower bound of it for any other
times. Left out: schedules whose order depends on the times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.schedule.actions import Pass
from planner.schedule.graph import PAIR, DependencyGraph
from planner.schedule.simulate import StageTimes, entry_times

Floats = NDArray[np.float64]

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, SAVED = range(4)  # parts of a path


@dataclass(frozen=True)
class CriticalPaths:
    """How often passes lie on the longest path.

    `passes` (4, cases, stages): forward passes, input gradients, weight gradients, of which a whole backward pass is
    one of each, and what an overlapped pair saves of the sum of its two passes, half of it on the stage of either, as
    less than none. `hops` (cases, stages - 1): messages across each boundary."""

    passes: Floats
    hops: Floats

    def lengths(
        self, forward: Floats, backward: Floats, weight: Floats, hops: Floats, saved: Floats
    ) -> Floats:
        """Lengths (cases,) for times of every case, of a pair as long as its passes without what it saves (cases,
        stages) [s]."""
        passes = np.stack([forward, backward, weight, saved])
        return np.asarray((self.passes * passes).sum(axis=(0, 2)) + (self.hops * hops).sum(axis=1))


def critical_paths(graph: DependencyGraph, times: StageTimes) -> CriticalPaths:
    """The longest path of every case, from its end back to its start; of equal ones, that which stays on a rank."""
    cases, stages = times.forward.shape
    end = np.concatenate([entry_times(graph, times)[1], np.zeros((1, cases))])
    delay = np.concatenate([times.hop, np.zeros((cases, 1))], axis=1)  # the last: no hop
    latest, following = end[graph.before], np.repeat(graph.before[:, None], cases, axis=1)
    crossed = np.full((graph.size, cases), stages - 1)
    for needs, hop in zip(graph.needs.T, graph.hop.T, strict=True):
        arrival = end[needs] + delay.T[hop]
        waits = arrival > latest
        latest = np.where(waits, arrival, latest)
        following = np.where(waits, needs[:, None], following)
        crossed = np.where(waits, hop[:, None] % stages, crossed)
    kind, stage = graph.duration // stages, graph.duration % stages
    passes, hops = np.zeros((4, cases, stages)), np.zeros((cases, stages))
    for case, last in enumerate(end[:-1].argmax(axis=0).tolist()):
        path = np.array(_followed(following[:, case].tolist(), last), dtype=np.intp)
        counted = np.zeros((PAIR + 1, stages))
        np.add.at(counted, (kind[path], stage[path]), 1.0)
        passes[:, case] = _parts(counted, graph.partner)
        hops[case] = np.bincount(crossed[path, case], minlength=stages)
    return CriticalPaths(passes, hops[:, :-1])


def _parts(counted: Floats, partner: NDArray[np.int32]) -> Floats:
    """Parts (4, stages) of passes that are counted by kind (kinds, stages)."""
    found = np.array(
        [
            counted[Pass.FORWARD] + counted[PAIR],
            counted[Pass.INPUT_GRADIENT] + counted[Pass.BACKWARD],
            counted[Pass.WEIGHT_GRADIENT] + counted[Pass.BACKWARD],
            -counted[PAIR] / 2,
        ]
    )
    for stage in np.flatnonzero(counted[PAIR]).tolist():
        other = int(partner[stage])
        found[[INPUT_GRADIENT, WEIGHT_GRADIENT], other] += counted[PAIR, stage]
        found[SAVED, other] -= counted[PAIR, stage] / 2
    return found


def _followed(following: list[int], entry: int) -> list[int]:
    """The entries from one to the first that waits for nothing; in lists, whose elements are quicker to get at than
    those of arrays."""
    path = []
    while entry < len(following):
        path.append(entry)
        entry = following[entry]
    return path

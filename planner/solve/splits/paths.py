"""Which ways through a schedule does the simulation of a few splits find?

The makespan is the length of the longest way through the passes (`schedule.critical`), so that the length of any way is
a bound that adds up over chunks, and the same for all configurations of a shape. Left out: which of them bound splits
best (`relaxed.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.schedule.critical import CriticalPaths, critical_paths
from planner.schedule.graph import schedule_graph
from planner.schedule.simulate import StageTimes, stage_times
from planner.spec.config import Schedule, ranks_of_chunks

Array = NDArray[np.float64]

HEAVIER: Final = (1.25, 4.0)  # a rank's chunks where they decide
FIRST_PASSES: Final = 1_500_000  # through which ways are looked for, of all splits
_LEAST: Final = 1e-6  # of a layer's forward pass, the least that any pass takes


@dataclass(frozen=True)
class Shape:
    """A pipeline of layers that are all alike: in forward passes of one layer, its input gradient, weight gradient and
    what a pair saves of them (`passes`, (4,)); the same of what lies before the first and behind the last layer
    (`ends`); and a message between ranks."""

    schedule: Schedule
    p: int
    v: int
    m: int
    layers: int
    passes: tuple[float, ...]
    ends: tuple[tuple[float, ...], tuple[float, ...]]
    hop: float

    @property
    def chunks(self) -> int:
        """Of all ranks."""
        return self.p * self.v

    @property
    def hops(self) -> Array:
        """Messages behind every chunk, none between those of one rank."""
        ranks = np.array(ranks_of_chunks(self.p, self.v, self.schedule.placement))
        return np.where(ranks[1:] == ranks[:-1], 0.0, self.hop)

    def times(self, splits: Array) -> Array:
        """Passes (4, splits, chunks) of splits into layers that need not be whole."""
        found = np.array(self.passes)[:, None, None] * splits
        for end, place in zip(self.ends, (0, -1), strict=True):
            found[:, :, place] += np.array(end)[:, None]
        return np.concatenate([np.maximum(found[:2], _LEAST), found[2:]])


@dataclass(frozen=True)
class Ways:
    """`passes` (ways, 4, chunks): how often each part of a pass lies on each (`schedule.critical`); `hops` (ways,
    chunks - 1): messages."""

    passes: Array
    hops: Array

    @classmethod
    def found(cls, paths: CriticalPaths) -> Ways:
        """Those found, each once."""
        none = cls(np.zeros((0, 4, paths.passes.shape[2])), np.zeros((0, paths.hops.shape[1])))
        return none.and_also(cls(paths.passes.swapaxes(0, 1), paths.hops))

    def and_also(self, other: Ways) -> Ways:
        """Both, each once, in their order."""
        passes, hops = np.concatenate([self.passes, other.passes]), np.concatenate([self.hops, other.hops])
        rows = np.concatenate([passes.reshape(len(passes), -1), hops], axis=1)
        seen = dict.fromkeys(row.tobytes() for row in rows)
        first = dict(zip([row.tobytes() for row in rows][::-1], range(len(rows) - 1, -1, -1), strict=True))
        kept = [first[row] for row in seen]
        return Ways(passes[kept], hops[kept])


def timed(times: Array, hops: Array) -> StageTimes:
    """Passes (4, splits, chunks) for the simulator."""
    forward, backward, weight, saved = times
    pairs = None
    if saved.any():
        whole = (backward + weight)[:, ::-1]
        pairs = np.maximum(forward + whole - (saved + saved[:, ::-1]) / 2, forward)
    return stage_times(forward.shape[1], forward, backward, weight, hops, pairs)


@lru_cache(maxsize=256)
def first_ways(shape: Shape) -> Ways:
    """Ways through a schedule that are quickly found: of even splits, of those with one rank heavier, and of those with
    one chunk a layer heavier."""
    graph, tried = schedule_graph(shape.schedule, shape.p, shape.m, shape.v), _first_tried(shape)
    times = timed(shape.times(tried[:: -(-len(tried) // _most_tried(shape))]), shape.hops)
    return Ways.found(critical_paths(graph, times))


def number_tried(shape: Shape) -> int:
    """Splits that `first_ways` simulates."""
    every = 1 + len(HEAVIER) * shape.p + shape.chunks
    return -(-every // -(-every // _most_tried(shape)))


def _most_tried(shape: Shape) -> int:
    return max(FIRST_PASSES // (3 * shape.chunks * shape.m), 1)


def _first_tried(shape: Shape) -> Array:
    """The even split, those with one rank heavier, and those with one chunk a layer heavier."""
    ranks = np.array(ranks_of_chunks(shape.p, shape.v, shape.schedule.placement))
    weights = [np.ones(shape.chunks)]
    weights += [np.where(ranks == rank, more, 1.0) for more in HEAVIER for rank in range(shape.p)]
    one = shape.chunks / shape.layers  # a layer, as a share of what an even chunk holds
    weights += [1.0 + one * (np.arange(shape.chunks) == chunk) for chunk in range(shape.chunks)]
    some = np.array(weights)
    return np.asarray(some * shape.layers / some.sum(axis=1, keepdims=True))

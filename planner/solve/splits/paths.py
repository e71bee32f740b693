"""Which ways through a schedule bound its makespan best, whatever its chunks hold?

The makespan is the length of the longest way through the passes (`schedule.critical`), so that any mixture of ways is a
bound that adds up over chunks. The mixture that bounds best where layers can be cut anywhere is a linear programme's
dual; ways are added where its solution turns out to be slower. Left out: that layers are whole (`many_chunks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.schedule.critical import CriticalPaths, critical_paths
from planner.schedule.graph import DependencyGraph, schedule_graph
from planner.schedule.simulate import StageTimes, makespans, stage_times
from planner.spec.config import Schedule, ranks_of_chunks

Array = NDArray[np.float64]

ROUNDS: Final = 40  # of adding ways
BETWEEN: Final = (0.02, 0.1, 0.3, 1.0)  # of the way from the best split known to the programme's
HEAVIER: Final = (1.25, 4.0)  # a rank's chunks where they decide
VARIED: Final = 80  # splits that differ from the even one at random, by so much in every chunk
SPREAD: Final = 0.15
KEPT: Final = 40  # ways that are handed back beyond three for every chunk
CLOSE: Final = 3e-4  # of bound and best split, as near as the programme goes
FIRST_PASSES: Final = 6_000_000  # through which the first ways are looked for, of all splits
LARGEST: Final = 60_000  # passes of a schedule through which ways are looked for
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

    def of(self, rows: NDArray[np.intp]) -> Ways:
        """Some of them."""
        return Ways(self.passes[rows], self.hops[rows])

    def mixed(self, shares: Array) -> Ways:
        """Mixtures of ways, `shares` (mixtures, ways)."""
        number = len(self.passes)
        passes = shares @ self.passes.reshape(number, -1)
        return Ways(passes.reshape(-1, *self.passes.shape[1:]), shares @ self.hops)

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


@lru_cache(maxsize=64)
def best_ways(shape: Shape) -> Ways:
    """Ways through a schedule of which some mixture bounds it well, the best of those known; also where one rank holds
    as many layers as some rank must, the mean rounded up."""
    graph = schedule_graph(shape.schedule, shape.p, shape.m, shape.v)
    tried = _first_tried(shape)
    found, seconds = _tried(shape, graph, tried)
    best, taken = tried[seconds.argmin()], float(seconds.min())
    programme, near = Programme(Alike.of(shape), shape.chunks, shape.m), [best]
    full, closed = _full(shape), False
    for turn in range(ROUNDS):
        if closed and not full:
            break
        of_all = not full or (turn % 2 == 0 and not closed)
        programme.also_within(Limit((), (), 0.0) if of_all else full[turn // 2 % len(full)])
        if not programme.solve(found, shape.hops):
            break
        least, split = programme.least, programme.split()[:, 0]
        tried = np.array([best + share * (split - best) for share in BETWEEN])
        more, seconds = _tried(shape, graph, tried)
        if of_all and seconds.min() < taken:
            best, taken = tried[seconds.argmin()], float(seconds.min())
        closed |= of_all and least >= taken * (1 - CLOSE)
        near.append(split)
        found = found.and_also(more)
    return found.of(_longest(shape, found, np.array([best, *near[-len(full) - 2 :]])))


@lru_cache(maxsize=256)
def first_ways(shape: Shape) -> Ways:
    """Ways through a schedule that are quickly found: of even splits, and of those with one rank heavier."""
    graph = schedule_graph(shape.schedule, shape.p, shape.m, shape.v)
    tried = _first_tried(shape)[: len(HEAVIER) * shape.p + 1]
    most = max(FIRST_PASSES // (3 * shape.chunks * shape.m), 1)
    return _tried(shape, graph, tried[:: -(-len(tried) // most)])[0]


def _full(shape: Shape) -> list[Limit]:
    """That each rank in turn holds the mean of layers, rounded up; none where that is the mean."""
    most = -(-shape.layers // shape.p)
    if most * shape.p == shape.layers:
        return []
    ranks = np.array(ranks_of_chunks(shape.p, shape.v, shape.schedule.placement))
    return [
        Limit(tuple(np.flatnonzero(ranks == rank).tolist()), (-1.0,), -float(most)) for rank in range(shape.p)
    ]


def _longest(shape: Shape, ways: Ways, splits: Array) -> NDArray[np.intp]:
    """Of some ways those that are longest under a few splits, and those of ranks alone, with which it began."""
    lengths = (
        np.tensordot(ways.passes, shape.times(splits), axes=((1, 2), (0, 2)))
        + (ways.hops @ shape.hops)[:, None]
    )
    longest = (lengths / lengths.max(axis=0)).max(axis=1)
    some = np.argsort(-longest, kind="stable")[: 3 * shape.chunks + KEPT]
    return np.union1d(some, np.arange(min(len(HEAVIER) * shape.p + 1, len(longest))))


def _first_tried(shape: Shape) -> Array:
    """Splits about the even one: with heavier ranks, and varied."""
    ranks = np.array(ranks_of_chunks(shape.p, shape.v, shape.schedule.placement))
    weights = [np.ones(shape.chunks)]
    weights += [np.where(ranks == rank, more, 1.0) for more in HEAVIER for rank in range(shape.p)]
    chance = np.random.default_rng(0)
    weights += list(chance.uniform(1 - SPREAD, 1 + SPREAD, (VARIED, shape.chunks)))
    some = np.array(weights)
    return np.asarray(some * shape.layers / some.sum(axis=1, keepdims=True))


def _tried(shape: Shape, graph: DependencyGraph, splits: Array) -> tuple[Ways, Array]:
    """The longest ways of some splits, and how long they take."""
    times = timed(shape.times(splits), shape.hops)
    return Ways.found(critical_paths(graph, times)), makespans(graph, times)


@dataclass(frozen=True)
class Alike:
    """Layers of several kinds, `number` (kinds,) of each, whose passes take `passes` (kinds, 4); the passes of what
    lies before the first and behind the last of all, `ends` (2, 4)."""

    number: Array
    passes: Array
    ends: Array

    @classmethod
    def of(cls, shape: Shape) -> Alike:
        """The layers of a shape."""
        return cls(np.array([float(shape.layers)]), np.array([shape.passes]), np.array(shape.ends))


@dataclass(frozen=True)
class Limit:
    """What some `chunks` hold together at most: `each` (kinds,) of a layer of every kind, and `most` of all."""

    chunks: tuple[int, ...]
    each: tuple[float, ...]
    most: float


class Programme:
    """Minimise the longest of some ways over splits into layers that need not be whole, nor in their order, within some
    limits."""

    def __init__(self, layers: Alike, chunks: int, m: int, limits: Sequence[Limit] = ()) -> None:
        from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

        self.layers, self.chunks = layers, chunks
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.infinity = self.solver.infinity()
        self.unit = float(m * (layers.number @ layers.passes[:, :3].sum(axis=1)))
        self.longest = self.solver.NumVar(0.0, self.infinity, "")
        self.held = [
            [self.solver.NumVar(0.0, float(number), "") for number in layers.number] for _ in range(chunks)
        ]
        for kind, number in enumerate(layers.number.tolist()):
            every = self.solver.Constraint(number, number)
            for chunk in self.held:
                every.SetCoefficient(chunk[kind], 1.0)
        self.solver.Objective().SetCoefficient(self.longest, 1.0)
        self.solver.Objective().SetMinimization()
        self.rows: list[Any] = []
        self.limits, self.within = list(limits), [self._limited(limit) for limit in limits]

    def _limited(self, limit: Limit) -> Any:
        row = self.solver.Constraint(-self.infinity, limit.most)
        for chunk in limit.chunks:
            for kind, each in enumerate(limit.each):
                row.SetCoefficient(self.held[chunk][kind], each)
        return row

    def also_within(self, limit: Limit) -> None:
        """One limit more, the only one of those added so."""
        if len(self.within) > len(self.limits):
            self.within.pop().SetBounds(-self.infinity, self.infinity)
        self.within.append(self._limited(limit))

    def solve(self, ways: Ways, hops: Array) -> bool:
        """Solve it for some ways, of which the first may be known from before; whether the solver did."""
        passes = self.layers.passes / self.unit
        fixed = (ways.hops @ hops) / self.unit
        for end, place in zip(self.layers.ends / self.unit, (0, -1), strict=True):
            fixed = fixed + ways.passes[:, :, place] @ end
        for row in range(len(self.rows), len(ways.passes)):
            bound = self.solver.Constraint(float(fixed[row]), self.infinity)
            bound.SetCoefficient(self.longest, 1.0)
            each = passes @ ways.passes[row]  # (kinds, chunks)
            for kind, chunk in np.argwhere(each).tolist():
                bound.SetCoefficient(self.held[chunk][kind], -float(each[kind, chunk]))
            self.rows.append(bound)
        return bool(self.solver.Solve() == self.solver.OPTIMAL)

    @property
    def least(self) -> float:
        """The least that was found [s]."""
        return float(self.solver.Objective().Value() * self.unit)

    def split(self) -> Array:
        """Layers of each kind in every chunk (chunks, kinds)."""
        return np.maximum([[kind.solution_value() for kind in chunk] for chunk in self.held], 0.0)

    def shares(self) -> Array:
        """How much of each way is in the mixture that bounds best (ways,)."""
        shares = np.maximum([row.dual_value() for row in self.rows], 0.0)
        return np.asarray(shares / max(float(shares.sum()), 1e-30))

    def prices(self) -> Array:
        """Seconds that each limit would save if it were wider by one (limits,)."""
        return np.asarray([max(-row.dual_value(), 0.0) * self.unit for row in self.within], dtype=np.float64)

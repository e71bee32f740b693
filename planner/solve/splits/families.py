"""Which of many configurations have no split faster than some time? Of those alike, many at once.

Configurations of one schedule, and as many ranks, chunks and micro-batches, differ in what layers cost. One that takes
as little as any of them in everything stands for all: where it has no split that is fast enough and fits, none of them
has; else they are halved. Left out: a single one of which this is not told (`split.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import are_simulated
from planner.cost.model import CostModel
from planner.schedule.critical import critical_paths
from planner.schedule.graph import schedule_graph
from planner.schedule.simulate import makespans
from planner.solve.splits.paths import Shape, Ways, first_ways, number_tried, timed
from planner.solve.splits.pipe import Kinds, Pipe
from planner.solve.splits.profiles import Profiles, profiles, recomputed_of
from planner.solve.splits.programme import Outcome, Programme
from planner.solve.splits.rank_loads import alike, least_loads
from planner.solve.splits.relaxed import Known, Relaxed, times_of
from planner.solve.splits.whole_ranks import whole_ranks
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

Array = NDArray[np.float64]
Index = NDArray[np.intp]

STEP: Final = 1.15  # by which shapes are told apart where ways through them are looked for
ONCE: Final = 0.03  # of the solver's deterministic time, for a family
SHARES: Final = (0.992, 1.0)  # of what is allowed, that are looked at
FAILED: Final = 3  # times that ranks' layers are whole where this tells too little
FAILED_WHOLE: Final = 10  # times that families are looked at of which not all are closed
ROUNDINGS: Final = 16  # splits into whole layers that are tried where one is cut anywhere
PASS: Final = 1e-8  # seconds of a processor, about, of a simulated pass
AGAIN: Final = 4  # times that ways of what was found are added
WAYS, WAYS_PASS = (
    0.003,
    1e-7,
)  # seconds of a processor, about, of ways through a schedule, also by passes simulated
CLOSED: Final = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)  # whose makespans have a closed form
ADAPTIVE: Final = (Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE)  # whose splits are the stack's own


def shape_of(pipe: Pipe, profile: Profiles) -> Shape:
    """About a profile's pipeline, with layers all alike."""
    share = np.bincount(pipe.kinds, minlength=profile.passes.shape[1]) / len(pipe.kinds)
    mean = share @ profile.passes[0]
    unit = float(mean[0])

    def told(values: Array) -> tuple[float, ...]:
        return tuple(
            0.0 if value <= 0 else STEP ** round(log(value, STEP)) for value in (values / unit).tolist()
        )

    hop = told(np.array([profile.hops[0].mean() if profile.hops.size else 0.0]))[0]
    ends = told(profile.ends[0, 0]), told(profile.ends[0, 1])
    return Shape(pipe.schedule, pipe.p, pipe.v, pipe.m, len(pipe.kinds), told(mean), ends, hop)


def known_of(pipe: Pipe, profile: Profiles) -> tuple[Known, float]:
    """Ways through a profile's pipeline that are quickly found, and the effort of it."""
    shape = shape_of(pipe, profile)
    return Known(first_ways(shape)), WAYS + WAYS_PASS * 2 * pipe.m * pipe.chunks * number_tried(shape)


@dataclass(frozen=True)
class _Group:
    """Configurations `rows` of one pipeline."""

    pipe: Pipe
    rows: Index


@dataclass(frozen=True)
class _Some:
    """Of `rows` of one pipeline what their layers cost, the `least` makespans as shares of what is allowed, and a split
    near which they are."""

    pipe: Pipe
    rows: Index
    own: Profiles
    least: Array
    near: Array

    def bound(self, target: float) -> Array:
        """Step times that no split beats, as far as they are below `target` (n,) [s]."""
        steps = self.own.step_time(np.minimum(self.least, 1.0))
        return np.where(self.least < 1.0, np.minimum(steps, target), target)


class Families:
    """Configurations, of whose ranks each may recompute so many layers (n lists)."""

    def __init__(
        self, model: CostModel, table: ConfigTable, limit: float, choices: Sequence[Sequence[int]],
        fewest: Callable[[ParallelConfig], int], known: dict[Pipe, Known],
    ) -> None:  # fmt: skip
        self.model, self.limit, self.known, self.effort, self.number = model, limit, known, 0.0, len(table)
        layers, each = model.problem.model.num_layers, zip(choices, table["pp"].tolist(), strict=True)
        ways = [recomputed_of(some, layers, ranks) for some, ranks in each]
        self.recomputed = [one for some in ways for one in some]
        self.entry = np.repeat(np.arange(len(table)), [len(some) for some in ways])
        self.table = table = table.take(self.entry)
        names = ("schedule", "pp", "vpp", "num_microbatches")
        usable = are_simulated(table) & ~np.isin(table["schedule"], ADAPTIVE) & (table["pp"] > 1)
        usable &= (table["vpp"] > 1) | ~np.isin(table["schedule"], CLOSED)
        rows = np.flatnonzero(usable)
        keys = np.stack([table[name][rows] for name in names], axis=1)
        found, of = np.unique(keys, axis=0, return_inverse=True)
        self.groups = [
            _Group(Pipe.of(model, table.row(int(some[0])), fewest(table.row(int(some[0])))), some)
            for some in (rows[of.ravel() == i] for i in range(len(found)))
        ]

    def raise_bounds(
        self,
        bound: Array,
        target: float,
        effort: float,
        closely: bool,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Array:
        """What no split of each beats (n,), at most `target`, where `bound` is known before [s]. `closely`: of layers
        that are whole, else they may be cut anywhere."""
        found = self._raised(bound[self.entry], target, self.effort + effort, closely, stopped)
        least = np.full(self.number, np.inf)
        np.minimum.at(least, self.entry, found)
        return np.maximum(bound, least)

    def _raised(
        self, bound: Array, target: float, end: float, closely: bool, stopped: Callable[[], bool]
    ) -> Array:
        """The same, apart for every way to recompute; what is known of a pipeline is asked without effort."""
        found = bound.copy() if closely or self.effort >= end else self._by_loads(bound, target)
        open_ = [(group, group.rows[found[group.rows] < target]) for group in self.groups]
        open_ = [(group, rows) for group, rows in open_ if len(rows)]
        some = list[_Some]()
        for group, rows in sorted(open_, key=lambda one: float(found[one[1]].min())):
            if stopped():
                return found
            if self.effort >= end and not (group.pipe in self.known and self.known[group.pipe].bounds):
                continue
            recomputed = [self.recomputed[row] for row in rows.tolist()]
            own = profiles(self.model, self.table.take(rows), self.limit, target, recomputed)
            least, near = self._relaxed(group.pipe, own, end, closely)
            if self.known[group.pipe].split is None and (least < 1.0).any():
                self._round(group.pipe, own.take(np.array([least.argmin()])), near)
            some.append(_Some(group.pipe, rows, own, least, near))
            found[rows] = np.maximum(found[rows], some[-1].bound(target))
        for share in SHARES if closely else ():
            for one in sorted(some, key=lambda one: float(found[one.rows].min())):
                if self.effort >= end or stopped():
                    break
                self._whole(one, share, end)
                found[one.rows] = np.maximum(found[one.rows], one.bound(target))
        return found

    def _by_loads(self, bound: Array, target: float) -> Array:
        """The same, of layers of several kinds rank by rank."""
        kinds, found = tuple(self.model.problem.model.layer_kind_of), bound.copy()
        open_ = np.flatnonzero(found < target)
        if len(set(kinds)) < 2 or not len(open_):
            return found
        for some in alike(self.table.take(open_)):
            rows = open_[some]
            recomputed = [self.recomputed[row] for row in rows.tolist()]
            table = self.table.take(rows)
            own = profiles(self.model, table, self.limit, target, recomputed, with_hops=False)
            least, effort = least_loads(kinds, table, own)
            self.effort += effort
            steps = own.step_time(np.minimum(least, 1.0))
            found[rows] = np.maximum(found[rows], np.where(least < 1.0, np.minimum(steps, target), target))
        return found

    def _relaxed(self, pipe: Pipe, own: Profiles, end: float, closely: bool) -> tuple[Array, Array]:
        """What no makespan of some profiles is below, as shares of what is allowed, where layers may be cut anywhere,
        or those of ranks are whole, and a split near which that is."""
        if pipe not in self.known:
            self.known[pipe], spent = known_of(pipe, own.least())
            self.effort += spent
        kinds, near = Kinds(pipe, own), np.full(pipe.chunks, len(pipe.kinds) / pipe.chunks)
        known, told = self.known[pipe], np.zeros(len(own), dtype=np.bool_)
        least = np.where(own.allowed > 0, known.least(pipe, own, kinds), np.inf)
        failed, relaxed = 0, None
        while self.effort < end and failed < (FAILED if closely else 1) and (least[~told] < 1.0).any():
            open_ = np.flatnonzero((least < 1.0) & ~told)
            chosen = open_[[least[open_].argmin()]]  # what bounds it may bound others as well
            before = relaxed.effort if relaxed else 0.0
            if relaxed is None or not relaxed.turn_to(own.take(chosen)):
                relaxed, before = Relaxed(pipe, own.take(chosen), known, kinds), 0.0
            relaxed.solve()
            told[chosen], least[chosen] = True, np.maximum(least[chosen], relaxed.least)
            near = near if relaxed.split is None else relaxed.split
            if relaxed.prices is not None:
                known.remember(kinds, (relaxed.prices,))
                if closely and relaxed.least < 1.0:
                    boxes = whole_ranks(relaxed, 1.0, end - self.effort + before)
                    known.remember(kinds, boxes.prices)
                    least[chosen] = np.maximum(least[chosen], boxes.least)
                least = np.maximum(least, known.least(pipe, own, kinds))
            failed += bool(least[chosen][0] < 1.0)
            self.effort += relaxed.effort - before
        return least, near

    def _round(self, pipe: Pipe, profile: Profiles, near: Array) -> None:
        """Remember the fastest of some splits into whole layers near one whose layers are cut anywhere."""
        kinds, layers = Kinds(pipe, profile), len(pipe.kinds)
        edges = np.rint(np.cumsum(near) + np.linspace(-0.5, 0.5, ROUNDINGS)[:, None])
        edges[:, -1] = layers
        splits = np.diff(np.clip(edges, 0, layers), axis=1, prepend=0).astype(np.int64)
        splits = np.unique(splits[(splits[:, 1:-1] >= pipe.fewest).all(axis=1)], axis=0)
        if not len(splits):
            return
        none = np.zeros(pipe.chunks)
        times = [times_of(pipe, profile, kinds, kinds.of_split(one).astype(float), none) for one in splits]
        graph = schedule_graph(pipe.schedule, pipe.p, pipe.m, pipe.v)
        found = makespans(graph, timed(np.concatenate(times, axis=1), profile.hops))
        self.known[pipe].split = tuple(splits[found.argmin()].tolist())
        self.effort += PASS * 2 * pipe.m * pipe.chunks * len(splits)

    def _whole(self, one: _Some, share: float, end: float) -> None:
        """See of which profiles no split into whole layers takes so small a share of what is allowed, and fits: twice
        as many together after a success, half as many after a failure."""
        kinds, open_ = Kinds(one.pipe, one.own), np.flatnonzero(one.least < share)
        waiting, failed, size = open_[np.argsort(one.least[open_], kind="stable")], 0, 1
        while len(waiting) and failed < FAILED_WHOLE and self.effort < end:
            some = waiting[:size]
            if self._none(one.pipe, one.own.take(some).least(), self.known[one.pipe], kinds, one.near, share):
                one.least[some] = share
                waiting, size = waiting[size:], 2 * size
                continue
            failed += 1
            waiting, size = (waiting, size // 2) if len(some) > 1 else (waiting[1:], 1)

    def _none(
        self, pipe: Pipe, profile: Profiles, known: Known, kinds: Kinds, near: Array, share: float
    ) -> bool:
        """Is there no split that is fast enough and fits?"""
        programme = Programme(pipe, profile, known, kinds)
        programme.look_near(near)
        graph = schedule_graph(pipe.schedule, pipe.p, pipe.m, pipe.v)
        found = Outcome.UNKNOWN
        for _ in range(AGAIN):
            found, split = programme.solve(share, ONCE)
            if split is None:
                break
            programme.look_near(split.astype(np.float64))
            held = kinds.of_split(split).astype(float)
            times = timed(times_of(pipe, profile, kinds, held, np.zeros(pipe.chunks)), profile.hops)
            if makespans(graph, times)[0] <= share or not known.also(
                Ways.found(critical_paths(graph, times))
            ):
                break
        self.effort += programme.effort
        return found is Outcome.NONE

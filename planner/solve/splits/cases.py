"""Which splits of one configuration are fast where its ranks recompute one number of layers?

Step by step: a bound for every split, a fast split, and whether one that is left is faster. Left out: what a split
costs exactly, and which number of recomputed layers is best (`split.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import PipelineSimulator, are_simulated
from planner.solve.splits.dealt import Chunks, Dealt
from planner.solve.splits.layers import Beside, LayerCosts
from planner.solve.splits.many_chunks import Search, Simulated, even_splits
from planner.solve.splits.one_chunk import OneChunk, Recomputing
from planner.solve.splits.paths import Ways
from planner.solve.splits.room import Room
from planner.solve.splits.ways_bound import WaysBound, known_ways
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

SLOWEST_TIMES: Final = 33  # at which what the slowest rank hides is looked at
LONGEST: Final = 1e6  # [s] of a step where nothing is known of it
# seconds of a processor, about: of ways through a schedule, also by passes, of a bound by them, of what ranks have room
# for, and of a label of the exact programme and of starting with some
WAYS, WAYS_PASS, WAYS_BOUND, EFFORT_OF_ROOM, LABEL, LABELS = 0.03, 3e-5, 0.01, 0.03, 8e-6, 0.005


class Case(Protocol):
    """Splits of which ranks recompute as many layers. `bound`: what none of them beats [s]; `free`: what none beats
    whatever memory there is, so that those which recompute more do not either [s]."""

    bound: float
    free: float

    def may_learn(self, target: float) -> bool:
        """May more effort tell more about splits faster than `target`?"""
        ...

    def learn(self, target: float, starts: Sequence[Chunks]) -> tuple[list[Dealt], float]:
        """What the next step finds, the fastest first, and its effort; `starts`: splits that may be near a fast one."""
        ...


class Layout:
    """What all cases of one configuration share."""

    def __init__(
        self, config: ParallelConfig, limit: float, simulator: PipelineSimulator, costs: LayerCosts, per_stage: bool,
        fewest: int,
    ) -> None:  # fmt: skip
        self.config, self.simulator, self.costs, self.per_stage = config, simulator, costs, per_stage
        self.fewest, self.room = fewest, Room(costs, limit)
        self.known: list[Ways | None] = []
        self.told = False
        closed = costs.v == 1 and costs.schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
        self.closed = closed
        self.simulated = bool(are_simulated(ConfigTable.of([config]))[0])

    def cases(self, choices: tuple[int, ...]) -> list[Case]:
        """One for every number of recomputed layers; where every rank has a number of its own, one for none and one for
        some."""
        stated = [Recomputing(count, (self.costs.recomputed(count),)) for count in choices]
        if self.per_stage:
            counts = tuple(sorted({self.costs.recomputed(count) for count in choices}))
            stated = [one for one in stated if not one.stated]
            if max(choices):
                stated.append(Recomputing(max(choices), counts))
        return [ClosedCase(self, one) if self.closed else SteppedCase(self, one) for one in stated]

    def ways(self) -> Ways | None:
        """Ways through the schedule that together bound it well."""
        if not self.known:
            self.known = [known_ways(self.costs)]
        return self.known[0]

    def spent_on_ways(self) -> float:
        """The effort of finding them, once."""
        first, self.told = not self.told, True
        return first * (WAYS + WAYS_PASS * 2 * self.costs.m * len(self.costs.rank_of))

    def beside(self, slowest: float) -> float:
        """What a step takes beside its passes at least where no rank takes longer than `slowest` [s]."""
        beside = Beside(self.costs, self.costs.lightest()[None])
        deepest = np.array([self.costs.deepest(slowest)])
        return float(beside.seconds(np.zeros(1, dtype=np.intp), np.array([slowest]), deepest)[0])

    def step_of(self, makespan: float, longest: float) -> float:
        """A step time that no split beats, unless it is slower than `longest`, whose makespan is no shorter [s].

        Between two of some times of the slowest rank at least the work of the one and what the other leaves in sight.
        """
        costs = self.costs
        if costs.m * longest <= makespan or np.isinf(makespan):
            return longest
        least = max(costs.total / costs.p, 1e-9)
        most = max(costs.subtotal(longest) / costs.m, makespan / costs.m, 1.01 * least)
        times = np.linspace(least, most, SLOWEST_TIMES)
        level = np.zeros(len(times), dtype=np.intp)
        deepest = np.full(len(times), costs.deepest(float(times[-1])))
        rest = Beside(costs, costs.lightest()[None]).seconds(level, times, deepest)
        return min(
            costs.step_time(float((np.maximum(makespan, costs.m * times[:-1]) + rest[1:]).min())), longest
        )


class ClosedCase:
    """One whose makespans have a closed form: solved at once."""

    def __init__(self, layout: Layout, recomputing: Recomputing) -> None:
        self.layout, self.recomputing = layout, recomputing
        self.bound = self.free = layout.step_of(0.0, LONGEST)
        self.bounded = self.solved = 0.0  # the times below which splits were looked for [s]
        self.one_chunk: OneChunk | None = None

    def may_learn(self, target: float) -> bool:
        return self.solved < target

    def learn(self, target: float, starts: Sequence[Chunks]) -> tuple[list[Dealt], float]:
        layout = self.layout
        if self.one_chunk is None:
            self.one_chunk = OneChunk(layout.costs, layout.room, self.recomputing, layout.fewest)
        subtotal = layout.costs.subtotal(min(target, LONGEST))
        if self.bounded < target:
            self.bounded = target
            self.free = max(self.free, min(layout.costs.step_time(self.one_chunk.least(subtotal)), target))
            self.bound = max(self.bound, self.free)
            return [], LABELS
        before = self.one_chunk.work
        found = self.one_chunk.solve(subtotal)
        self.bound = max(self.bound, min(layout.costs.step_time(found.bound), target))
        self.solved = target
        dealt = [
            Dealt(tuple(split), tuple(again) if layout.per_stage else (self.recomputing.stated,))
            for split, again in zip(found.splits.tolist(), found.recomputed.tolist(), strict=True)
        ]
        return dealt, LABELS + LABEL * (self.one_chunk.work - before)


class SteppedCase:
    """One whose splits are simulated: a bound, what leaves room in memory, a fast split, and all that are left."""

    def __init__(self, layout: Layout, recomputing: Recomputing) -> None:
        self.layout, self.recomputing = layout, recomputing
        self.bound = self.free = layout.step_of(0.0, LONGEST)
        self.count = min(recomputing.counts)
        counts = np.full(layout.costs.p, self.count)
        simulated = Simulated(layout.costs, layout.simulator, counts)
        self.search = Search(simulated, layout.room, recomputing.stated, layout.fewest)
        self.ways: WaysBound | None = None
        self.held: NDArray[np.int64] | None = None  # layers that ranks have room for at most
        self.descended = False
        self.bounded = self.within = self.below = 0.0  # times up to which steps were taken [s]

    def may_learn(self, target: float) -> bool:
        return self.layout.simulated and self.below < target

    def learn(self, target: float, starts: Sequence[Chunks]) -> tuple[list[Dealt], float]:
        layout, longest = self.layout, min(target, LONGEST)
        if self.bounded < target:
            self.bounded = target
            return [], self._bound(longest)
        if self.within < target:
            self.within = target
            return [], self._bound_within(longest)
        assert self.ways is not None, "made at first"
        before = self.search.simulated.effort + self.ways.effort
        if not self.descended:
            self.descended = True
            for start in dict.fromkeys((*starts, *even_splits(layout.costs))):
                self.search.descend(np.array(start))
        else:
            self.below = target
            self._look_at_all(longest)
        return self._found(), self.search.simulated.effort + self.ways.effort - before

    def _bound(self, longest: float) -> float:
        """Bound all splits, whatever memory there is; the effort."""
        layout, spent = self.layout, WAYS_BOUND
        if self.ways is None:
            ways = layout.ways()
            self.ways = WaysBound(layout.costs, ways, self.count, layout.fewest)
            spent += layout.spent_on_ways()
        makespan = self.ways.least(layout.costs.subtotal(longest) / layout.costs.m)
        self.free = max(self.free, layout.step_of(makespan, longest))
        self.bound = max(self.bound, self.free)
        return spent

    def _bound_within(self, longest: float) -> float:
        """Bound all splits that ranks have room for; the effort."""
        layout, costs = self.layout, self.layout.costs
        assert self.ways is not None, "made at first"
        if self.held is None:
            self.held = layout.room.most_layers(self.recomputing.stated, self.most_recomputed)
        if (self.held >= costs.layers).all():
            return EFFORT_OF_ROOM
        makespan = np.inf
        if self.held.sum() >= costs.layers:
            makespan = self.ways.least(costs.subtotal(longest) / costs.m, self.held)
        self.bound = max(self.bound, layout.step_of(makespan, longest))
        return EFFORT_OF_ROOM + WAYS_BOUND

    @property
    def most_recomputed(self) -> int:
        """Layers that chunks recompute at most."""
        return max(self.recomputing.counts)

    def _look_at_all(self, longest: float) -> None:
        """The fastest of all splits that ways through the schedule leave below `longest`, if these are few."""
        assert self.ways is not None, "made before"
        costs = self.layout.costs
        subtotal = costs.subtotal(longest)
        splits = self.ways.below(subtotal - self.layout.beside(subtotal / costs.m))
        if splits is None:
            return
        seconds = self.search.simulated.seconds(splits) if len(splits) else np.zeros(0)
        order = np.argsort(seconds, kind="stable")
        for at in order[seconds[order] < subtotal].tolist():
            if self.search.fit(splits[[at]])[0]:
                self.search.best, self.search.taken = splits[at], float(seconds[at])
                self.bound = max(self.bound, costs.step_time(self.search.taken))
                return
        self.bound = max(self.bound, longest)

    def _found(self) -> list[Dealt]:
        if self.search.best is None:
            return []
        counts = (self.recomputing.stated,) * (self.layout.costs.p if self.layout.per_stage else 1)
        return [Dealt(tuple(self.search.best.tolist()), counts)]

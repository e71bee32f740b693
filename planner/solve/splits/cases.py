"""Which splits of one configuration are fast where its ranks recompute one number of layers?

Step by step: a bound for every split, a fast split, and whether one that is left is faster. Left out: what a split
costs exactly, and which number of recomputed layers is best (`split.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import PipelineSimulator, are_simulated
from planner.schedule.critical import critical_paths
from planner.schedule.graph import schedule_graph
from planner.solve.splits.dealt import Chunks, Dealt
from planner.solve.splits.families import known_of
from planner.solve.splits.layers import Beside, LayerCosts
from planner.solve.splits.many_chunks import Search, Simulated, even_splits
from planner.solve.splits.one_chunk import OneChunk, Recomputing
from planner.solve.splits.paths import Ways
from planner.solve.splits.pipe import Kinds, Pipe
from planner.solve.splits.profiles import Profiles, Recomputed, profiles, recomputed_of
from planner.solve.splits.programme import Outcome, Programme
from planner.solve.splits.relaxed import Known, Relaxed, fullest
from planner.solve.splits.room import Room
from planner.solve.splits.whole_ranks import whole_ranks
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

SLOWEST_TIMES: Final = 33  # at which what the slowest rank hides is looked at
LONGEST: Final = 1e6  # [s] of a step where nothing is known of it
LABEL, LABELS = (
    8e-6,
    0.002,
)  # seconds of a processor, about, of a label of the exact programme, and of starting with some
AT_ONCE: Final = 6  # programmes that are solved before others have their turn
LIMIT, MOST_LIMIT = 0.1, 6.0  # of the solver's deterministic time for one, at first and at most
WHOLE_RANKS: Final = 0.3  # seconds of a processor, about, of a bound of splits whose ranks hold whole layers
LEAST_AIM: Final = 0.1  # of what is open that is worth to be told
TOLERANCE: Final = 1e-4  # of a step that is
DESCENTS: Final = (
    0.1  # seconds of a processor, about, after which no other start is tried once one has led somewhere
)


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
        fewest: int, known: dict[Pipe, Known],
    ) -> None:  # fmt: skip
        self.config, self.simulator, self.costs, self.per_stage = config, simulator, costs, per_stage
        self.fewest, self.room, self.limit = fewest, Room(costs, limit), limit
        self.known, self.recomputed = known, list[Recomputed]()
        self.descended, self.fits, self.short = False, True, False
        self.relaxed = dict[Recomputed, tuple[float, Relaxed]]()
        self.pipe = Pipe.of(costs.model, config, fewest)
        closed = costs.v == 1 and costs.schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
        self.closed = closed
        self.simulated = bool(are_simulated(ConfigTable.of([config]))[0])

    def cases(self, choices: tuple[int, ...], least: Mapping[int, float]) -> list[Case]:
        """One for every number of recomputed layers; where every rank has a number of its own, one for none and one for
        some. `least`: of such numbers what no split beats [s]."""
        stated = [Recomputing(count, (self.costs.recomputed(count),)) for count in choices]
        self.recomputed = recomputed_of(choices, self.costs.layers, self.costs.p)
        if self.per_stage:
            self.recomputed = [Recomputed(max(choices))]
            counts = tuple(sorted({self.costs.recomputed(count) for count in choices}))
            stated = [one for one in stated if not one.stated]
            if max(choices):
                stated.append(Recomputing(max(choices), counts))
        cases: list[Case] = [
            ClosedCase(self, one) if self.closed else SteppedCase(self, one) for one in stated
        ]
        if not self.per_stage:
            for case, one in zip(cases, stated, strict=True):
                case.bound = max(case.bound, least.get(one.stated, 0.0))
        return cases

    @property
    def longest(self) -> float:
        """A step time that no split takes longer than: everything one after another [s]."""
        costs = self.costs
        again = float(costs.again[0].sum()) if self.recomputed != [Recomputed(0)] else 0.0
        passes = costs.m * (costs.total + again + float(costs.hops.sum()))
        return costs.step_time(2 * passes + self.beside(0.0))

    def ways(self) -> tuple[Known, float]:
        """What is known of the pipeline, and the effort of finding it."""
        spent = 0.0
        if self.pipe not in self.known:
            self.known[self.pipe], spent = known_of(self.pipe, self._profile(1.0, self.recomputed[0]))
        return self.known[self.pipe], spent

    def _profile(self, target: float, recomputed: Recomputed) -> Profiles:
        table = ConfigTable.of([self.config])
        return profiles(self.costs.model, table, self.limit, target, [recomputed])

    def way(self, count: int) -> Recomputed:
        """The way to recompute of which so many layers of a chunk are a case."""
        return self.recomputed[-1 if count else 0]

    def relax(self, target: float, way: Recomputed) -> float:
        """See what no split beats whose chunks recompute layers in some way, where steps may last `target` [s], once;
        the effort."""
        if way in self.relaxed:
            return 0.0
        profile, (known, spent) = self._profile(target, way), self.ways()
        relaxed = Relaxed(self.pipe, profile, known, Kinds(self.pipe, profile))
        least = float(known.least(self.pipe, profile, relaxed.kinds)[0])
        if least < 1.0:
            least, split = max(relaxed.solve(), least), relaxed.split
            if least < 1.0 and relaxed.prices is not None:
                least, relaxed.split = max(whole_ranks(relaxed, 1.0, WHOLE_RANKS).least, least), split
        bound = target if least >= 1.0 else self.step_of(least * float(profile.allowed[0]), target)
        spent += relaxed.effort
        if bound < target and way.most:  # several cases at once
            programme = Programme(self.pipe, profile, known, relaxed.kinds)
            if programme.solve(1.0, LIMIT)[0] is Outcome.NONE:
                bound = target
            spent += programme.effort
        self.relaxed[way] = bound, relaxed
        return spent

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
    """One whose splits are simulated: a bound, a fast split, and whether a faster one is left."""

    def __init__(self, layout: Layout, recomputing: Recomputing) -> None:
        self.layout, self.recomputing = layout, recomputing
        self.bound = self.free = layout.step_of(0.0, LONGEST)
        self.count = min(recomputing.counts)
        counts = np.full(layout.costs.p, self.count)
        simulated = Simulated(layout.costs, layout.simulator, counts)
        self.search = Search(simulated, layout.room, recomputing.stated, layout.fewest)
        self.programme: Programme | None = None
        self.descended = False
        self.below = 0.0  # the time below which nothing is left [s]
        self.aim, self.limit = 1.0, LIMIT

    def may_learn(self, target: float) -> bool:
        return self.layout.simulated and self.below < target

    def learn(self, target: float, starts: Sequence[Chunks]) -> tuple[list[Dealt], float]:
        longest, before = min(target, LONGEST), self.search.simulated.effort
        unknown = target >= LONGEST  # no split is known that fits
        if not self.layout.descended or (unknown and not self.descended):
            known, spent = self.layout.ways()
            self.search.simulated.effort += spent
            if known.split is not None:  # which is fast for others
                starts = [*starts[:1], known.split]
            elif not self.layout.descended:
                starts = list(dict.fromkeys((*self._near(), *starts, *even_splits(self.layout.costs))))
            else:
                starts = starts[-1:]  # where more is recomputed, from what was found
            self.layout.descended = self.descended = True
            for start in starts:
                if self.search.best is not None and self.search.simulated.effort - before > DESCENTS:
                    break
                self.search.descend(np.array(start))
            if self.search.best is not None:
                known.split = tuple(self.search.best.tolist())
            found = self._found()
        else:
            # where nothing fits as far as is known, anything that does is of interest
            some = self.layout.longest if unknown else longest
            if self.programme is None:
                return [], self._relax(some)
            found = self._look(some)
            if unknown and self.below >= some:
                self.below = target
        return found, self.search.simulated.effort - before

    def _near(self) -> list[Chunks]:
        """A split near that of the bound, if there is one yet."""
        near = self.programme.near if self.programme else None
        return [] if near is None else [tuple(near.tolist())]

    def _relax(self, longest: float) -> float:
        """Bound all splits; the effort."""
        way = self.layout.way(self.count)
        spent = self.layout.relax(longest, way)
        bound, relaxed = self.layout.relaxed[way]
        exact = self.count if way.most and not (self.layout.per_stage and self.count) else None
        self.programme = Programme(relaxed.pipe, relaxed.profile, relaxed.known, relaxed.kinds, exact)
        if relaxed.split is not None:
            self.programme.look_near(relaxed.split)
        self.bound = max(self.bound, bound)
        if way.most:  # of whatever is recomputed
            self.free = max(self.free, bound)
        return spent

    def _allowed(self, longest: float) -> float:
        """What passes and messages of a step that long may take, as the programme counts it."""
        assert self.programme is not None, "made before"
        costs = self.layout.costs
        subtotal = costs.subtotal(longest)
        return (subtotal - self.layout.beside(subtotal / costs.m)) / float(self.programme.profile.allowed[0])

    def _look(self, longest: float) -> list[Dealt]:
        """Look for a split that is faster than `longest` and fits, or for what none beats; one that is found."""
        programme, costs = self.programme, self.layout.costs
        assert programme is not None, "made before"
        aimed, subtotal = self.bound + self.aim * (longest - self.bound), costs.subtotal(longest)
        for _ in range(AT_ONCE):
            before = programme.effort
            outcome, split = programme.solve(self._allowed(aimed), self.limit, self.layout.short)
            self.search.simulated.effort += programme.effort - before
            if outcome is Outcome.NONE:
                self.bound = max(self.bound, aimed)
                if not self.layout.short:  # whatever memory there is
                    self.free = max(self.free, aimed)
                if aimed >= longest or self.bound >= longest * (1 - TOLERANCE):
                    self.below = longest
                return []
            if outcome is Outcome.UNKNOWN or split is None:
                self._aim_lower(longest)
                return []
            programme.look_near(split.astype(np.float64))
            seconds = float(self.search.simulated.seconds(split[None])[0])
            fits = bool(self.search.fit(split[None])[0])
            if seconds < subtotal and fits:
                self.search.descend(split)
                every = range(self.layout.pipe.chunks)
                if self.search.best is None or not programme.without(self.search.best, every):
                    # where moving layers leads nowhere new it is costed itself
                    self.search.best, self.search.taken = split, seconds
                    if not programme.without(split, every):
                        programme.in_order_at(every[1:])
                return self._found()
            if not fits and not self.layout.short:
                self.layout.short = True  # from here on it is a matter of memory
            else:
                self._rule_out(split, fits)
        return []

    def _aim_lower(self, longest: float) -> None:
        """Be content with less, then look for longer."""
        self.aim /= 2
        if self.aim < LEAST_AIM or self.bound >= longest * (1 - TOLERANCE):
            self.aim, self.limit = 1.0, 4 * self.limit
            if self.limit > MOST_LIMIT:
                self.below = longest

    def _rule_out(self, split: NDArray[np.int64], fits: bool) -> None:
        """See to it that the programme does not find this split again."""
        programme, simulated = self.programme, self.search.simulated
        assert programme is not None, "made before"
        pipe, kinds = programme.pipe, programme.kinds
        graph = schedule_graph(pipe.schedule, pipe.p, pipe.m, pipe.v)
        times = simulated.stage_times(simulated.times(split[None]), self.layout.costs.hops)
        new = programme.known.also(Ways.found(critical_paths(graph, times)))
        if not fits:
            again, held = np.minimum(split, self.count).astype(float), kinds.of_split(split).astype(float)
            for rank in range(pipe.p):
                worst = fullest(pipe, programme.profile, kinds, rank, held, again)
                if worst is not None:
                    new |= programme.known.also_at(rank, worst)
        if new:
            return
        if fits:
            new = programme.without(split, range(pipe.chunks))
        else:  # nor does any with as much or more on a rank that is too full
            for rank in self.search.too_full(split):
                new |= programme.without(split, np.flatnonzero(pipe.rank_of == rank).tolist())
        if not new and len(kinds.number) > 1:
            programme.in_order_at(range(1, pipe.chunks))

    def _found(self) -> list[Dealt]:
        if self.search.best is None:
            return []
        counts = (self.recomputing.stated,) * (self.layout.costs.p if self.layout.per_stage else 1)
        return [Dealt(tuple(self.search.best.tolist()), counts)]

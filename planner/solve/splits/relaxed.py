"""Which makespan does no split of one profile's layers beat, and which ways through the schedule and which moments of a
rank's memory say so?

A linear programme in layers that can be cut anywhere. What it finds is simulated; where a way is longer, or a rank
holds more than there is room for, that is added, until nothing more is. Left out: that layers are whole
(`programme.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.schedule.critical import critical_paths
from planner.schedule.graph import schedule_graph
from planner.schedule.held import interleaved_moments, most_held
from planner.solve.splits.paths import Ways, timed
from planner.solve.splits.pipe import Kinds, Pipe
from planner.solve.splits.profiles import SAVED, Profiles
from planner.spec.config import Schedule

Array = NDArray[np.float64]

ITERATIONS: Final = 3000  # of the simplex method, for a round
ROUNDS, WITHIN_ROUNDS = 40, 3  # of adding ways and moments
CLOSE: Final = 2e-4  # of the makespan that a round is worth, of those of four
# of what is allowed, that an even split's largest chunk counts while ways are looked for: of splits that are as fast
# the evenest says most
EVEN: Final = (1e-3, 0.0)
BETWEEN: Final = (0.1, 0.4)  # of the way from the fastest split known to the programme's
REMEMBERED: Final = 12  # of a pipeline's bounds
ROUNDING: Final = 1e-7
LEAST: Final = 1e-12  # that a pass takes
SHAPED: Final = 1e-6  # layers more than neighbours hold, that do not matter
# of what is allowed, that a rank's missing room for 1 % of what it has counts: what shows that nothing fits shows it of
# others as well
MISSING: Final = 10.0
# seconds of a processor, about: of a round, of a step of the simplex method by rows and columns, and of a simulated
# pass with the way it lies on
ROUND, PIVOT, PASS = 1e-3, 4.5e-8, 7e-8
ROW, TERM = 5e-6, 1e-6  # the same of a row that is made, and of a term in it


@dataclass
class Known:
    """Ways through a pipeline that matter, and moments of its ranks' memory, `moments`: rank and micro-batches of each
    of its chunks. `split`: one that is fast for some layers. `every`: no other ways matter. `bounds`: by the kinds that
    are told apart, prices of some boxes in one of which every split lies, the last ones found."""

    ways: Ways
    moments: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    split: tuple[int, ...] | None = None
    every: bool = False
    bounds: dict[tuple[int, ...], list[tuple[Prices, ...]]] = field(default_factory=dict)

    def also(self, ways: Ways) -> bool:
        """Further ways; whether any of them is new."""
        before = len(self.ways.passes)
        self.ways = self.ways.and_also(ways)
        return len(self.ways.passes) > before

    def remember(self, kinds: Kinds, prices: tuple[Prices, ...]) -> None:
        """Keep prices, and forget others."""
        kept = self.bounds.setdefault(tuple(kinds.of_layer.tolist()), [])
        kept[:] = [*kept, prices][-REMEMBERED:]

    def least(self, pipe: Pipe, own: Profiles, kinds: Kinds) -> Array:
        """Makespans that no splits of some profiles beat, as far as is known (n,)."""
        found = np.zeros(len(own))
        for some in self.bounds.get(tuple(kinds.of_layer.tolist()), ()):
            each = [prices.least(pipe, own, kinds) for prices in some]
            found = np.maximum(found, np.min(each, axis=0) if each else np.inf)
        return found

    def also_at(self, rank: int, held: Array) -> bool:
        """A further moment; whether it is new."""
        moment = rank, tuple(held.tolist())
        if moment in self.moments:
            return False
        self.moments.append(moment)
        return True


def moments_of(pipe: Pipe, rank: int) -> Array:
    """Micro-batches that a rank holds at least of each of its chunks, in pipeline order, at moments that can be its
    worst (moments, v)."""
    if pipe.schedule is Schedule.INTERLEAVED and pipe.v > 1:
        return interleaved_moments(pipe.p, pipe.v, pipe.m, rank)[0]
    if pipe.schedule is Schedule.GPIPE:
        return np.full((1, pipe.v), float(pipe.m))
    if pipe.schedule in (Schedule.ONE_F_ONE_B, Schedule.DUALPIPE):
        return np.ones((1, pipe.v))
    # whose chunks count as equal
    return np.full((1, pipe.v), most_held(pipe.schedule, pipe.p, pipe.v, pipe.m)[rank][0][0] / pipe.v)


@dataclass(frozen=True)
class Sum:
    """Layers of a kind in `chunks`, which are a whole number in every split into whole layers."""

    chunks: tuple[int, ...]
    kind: int


Box = Mapping[Sum, tuple[int, int]]  # the least and the most of some sums


@dataclass(frozen=True)
class Prices:
    """What bounds the makespan of every split of every profile: a mixture of ways (`passes` (4, C), `hops` (C - 1,)),
    and seconds that more room at moments (`held` (C,) a micro-batch of a chunk, `states` (p,)) and more freedom of
    layers (`shape` (C, K), `paid` for all there is) would save."""

    passes: Array
    hops: Array
    held: Array
    states: Array
    shape: Array
    paid: float

    def least(self, pipe: Pipe, own: Profiles, kinds: Kinds) -> Array:
        """Makespans that no splits of some profiles beat, as a share of what is allowed (n,)."""
        first, rank_of = kinds.first, pipe.rank_of
        each = np.einsum("ic,nki->nck", self.passes, own.passes[:, first])
        each += self.held[:, None] * own.kept[:, None, first]
        each += self.states[rank_of][:, None] * own.states[:, None, first] + self.shape
        less = (own.kept - own.kept_again)[:, first].max(axis=1)
        again = self.passes[1] * own.again[:, first].min(axis=1)[:, None] - self.held * less[:, None]
        each += np.where(own.recomputed[:, None] > 0, np.minimum(again, 0.0), 0.0)[:, :, None]
        found = each.min(axis=1) @ kinds.number - self.paid + own.hops @ self.hops - self.states.sum()
        for end, chunk in ((0, 0), (1, -1)):
            found += own.ends[:, end] @ self.passes[:, chunk]
            found += own.ends_states[:, end] * self.states[rank_of[chunk]]
        return np.asarray((found + self.held[-1] * own.ends_kept) * (1 - ROUNDING))


class Relaxed:
    """The linear programme of one profile. `least`: the least makespan found, as a share of what is allowed, far beyond
    it where nothing fits. `effort`: seconds of a processor, about."""

    def __init__(self, pipe: Pipe, profile: Profiles, known: Known, kinds: Kinds) -> None:
        from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

        self.pipe, self.profile, self.known, self.kinds = pipe, profile, known, kinds
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._by_simplex(dual=True)
        self.infinity = self.solver.infinity()
        self.effort = 0.0
        self.graph = schedule_graph(pipe.schedule, pipe.p, pipe.m, pipe.v)
        self.rank_rows, self.way_rows, self.moment_rows = list[Any](), list[Any](), list[Any]()
        self.longest = self.solver.NumVar(0.0, self.infinity, "")
        self.missing = self.solver.NumVar(0.0, self.infinity, "")  # room at some moment
        self.held = [
            [self.solver.NumVar(0.0, float(number), "") for number in kinds.number]
            for _ in range(pipe.chunks)
        ]
        for kind, number in enumerate(kinds.number.tolist()):
            self._row([(of[kind], 1.0) for of in self.held], float(number), float(number))
        self.shaped: list[
            tuple[Any, int, Array, float]
        ] = []  # row, chunk, weights (K,) of a sum, at most so much
        every = np.ones(len(kinds.number))
        for c in range(1, pipe.chunks - 1 if pipe.fewest else 1):
            self._shape(c, -every, -float(pipe.fewest))
        # what holds of a chunk's layers of every kind, where they are neighbours: weights and most of sums
        lines = [
            (a * every + b * (np.arange(len(every)) == kind), float(most))
            for kind, some in enumerate(kinds.lines)
            for a, b, most in some
        ]
        self.sums = dict[Sum, Any]()
        self.lines = np.array([weights for weights, _ in lines]).reshape(len(lines), len(every))
        self.most = np.array([most for _, most in lines])
        self.in_line = set[tuple[int, int]]()
        self.largest = self.solver.NumVar(0.0, self.infinity, "")
        for of in self.held:
            self._row([(self.largest, 1.0), *((one, -1.0) for one in of)], 0.0, self.infinity)
        self.again: list[Any] = []
        if profile.recomputed[0]:
            self.again = [
                self.solver.NumVar(0.0, float(profile.recomputed[0]), "") for _ in range(pipe.chunks)
            ]
            for again, of in zip(self.again, self.held, strict=True):
                self._row([(again, 1.0), *((one, -1.0) for one in of)], -self.infinity, 0.0)
        self.solver.Objective().SetCoefficient(self.longest, 1.0)
        self.solver.Objective().SetCoefficient(self.missing, 100 * MISSING)
        self.solver.Objective().SetMinimization()
        self.turn_to(profile)

    def turn_to(self, profile: Profiles) -> bool:
        """See to another profile of the pipeline; whether its layers may be recomputed as this one's."""
        if bool(self.again) != bool(profile.recomputed[0]):
            return False
        self.profile, self.passes = profile, profile.passes[0, self.kinds.first]
        for again in self.again:
            again.SetUb(float(profile.recomputed[0]))
        self.again_each = float(profile.again[0, self.kinds.first].min())
        self.ways_in = self.moments_in = 0
        self.least = 0.0
        self.prices: Prices | None = None
        self.split: Array | None = None  # layers of chunks, cut anywhere (C,)
        self.layers: Array | None = None  # the same of every kind (C, K)
        self.box: Box = {}
        for row in self.sums.values():
            row.SetBounds(0.0, self.infinity)
        self.best: Array | None = None  # passes of the fastest split known
        self.fastest, self.fast = np.inf, False  # and whether a split is so fast that no bound can be enough
        self._ranks()
        return True

    def solve_within(self, box: Box, enough: float, at_least: float) -> Array | None:
        """The least makespan of splits within a box, which is `at_least` so much, as soon as it is beyond what would be
        `enough`: `least`, and `prices` of it. Layers of every kind in every chunk (C, K); None where the box is
        empty."""
        for some in box:
            if some not in self.sums:
                self.sums[some] = self._row([(self.held[c][some.kind], 1.0) for c in some.chunks], 0.0, 0.0)
        for some, row in self.sums.items():
            row.SetBounds(*(float(end) for end in box.get(some, (0.0, self.infinity))))
        self.box, self.least = box, at_least
        self.best, self.fastest, self.fast, self.layers = None, np.inf, False, None
        self.solver.Objective().SetCoefficient(self.largest, 0.0)
        self._solve(enough, True, WITHIN_ROUNDS)
        return self.layers

    def _by_simplex(self, dual: bool) -> None:
        """The dual simplex method is faster where rows were added, the primal one does not stall where it does."""
        self.solver.SetSolverSpecificParametersAsString(
            f"use_preprocessing: false use_dual_simplex: {str(dual).lower()} max_number_of_iterations: {ITERATIONS}"
        )

    def _row(self, terms: Sequence[tuple[Any, float]], low: float, high: float, row: Any = None) -> Any:
        """A new row, or `row` with other terms."""
        if row is None:
            row = self.solver.Constraint(low, high)
        else:
            row.Clear()
            row.SetBounds(low, high)
        for variable, weight in terms:
            if weight:
                row.SetCoefficient(variable, weight)
        self.effort += ROW + TERM * len(terms)
        return row

    def _shape(self, chunk: int, weights: Array, most: float) -> None:
        """What holds of the layers of a chunk whatever they cost."""
        row = self._row(list(zip(self.held[chunk], weights.tolist(), strict=True)), -self.infinity, most)
        self.shaped.append((row, chunk, weights, most))

    def _sum(self, each: Array, again: Array) -> list[tuple[Any, float]]:
        """A sum over layers of every kind in every chunk (C, K), and of those recomputed (C,)."""
        terms = [(self.held[c][k], each[c, k]) for c, k in np.argwhere(each).tolist()]
        if self.again:
            terms += [(self.again[c], again[c]) for c in np.flatnonzero(again).tolist()]
        return terms

    def _ranks(self) -> None:
        """Every rank has all its passes to do."""
        work = self.passes[:, :SAVED].sum(axis=1) - self.passes[:, SAVED]
        for rank in range(self.pipe.p):
            on = (self.pipe.rank_of == rank).astype(float)
            fixed = sum(
                float(self.profile.ends[0, e, :SAVED].sum() - self.profile.ends[0, e, SAVED])
                for e in self.pipe.ends_on(rank)
            )
            terms = self._sum(-self.pipe.m * on[:, None] * work, -self.pipe.m * on * self.again_each)
            _put(
                self.rank_rows,
                rank,
                self._row(
                    [(self.longest, 1.0), *terms],
                    self.pipe.m * fixed,
                    self.infinity,
                    _at(self.rank_rows, rank),
                ),
            )

    def _add_known(self) -> None:
        ways, own = self.known.ways, self.profile
        new = Ways(ways.passes[self.ways_in :], ways.hops[self.ways_in :])
        fixed = (
            new.hops @ own.hops[0]
            + new.passes[:, :, 0] @ own.ends[0, 0]
            + new.passes[:, :, -1] @ own.ends[0, 1]
        )
        each, again = np.einsum("wic,ki->wck", new.passes, self.passes), new.passes[:, 1] * self.again_each
        for row in range(len(each)):
            terms = [(self.longest, 1.0), *self._sum(-each[row], -again[row])]
            place = self.ways_in + row
            _put(
                self.way_rows,
                place,
                self._row(terms, float(fixed[row]), self.infinity, _at(self.way_rows, place)),
            )
        self.ways_in = len(ways.passes)
        for place in range(self.moments_in, len(self.known.moments)):
            rank, held = self.known.moments[place]
            each_, again_, room = memory_row(self.pipe, own, self.kinds, rank, np.array(held))
            terms = [(self.missing, -1.0), *self._sum(each_, again_)]
            row_ = self._row(terms, -self.infinity, room, _at(self.moment_rows, place))
            _put(self.moment_rows, place, row_)
        self.moments_in = len(self.known.moments)

    def solve(self, enough: float = 1.0) -> float:
        """The least makespan, as soon as it is beyond what would be `enough`."""
        for even in EVEN:
            self.solver.Objective().SetCoefficient(
                self.largest, even * self.pipe.chunks / len(self.pipe.kinds)
            )
            if not self._solve(enough, not even, 1 if self.fast else ROUNDS):
                break
        return self.least

    def _solve(self, enough: float, exact: bool, rounds: int) -> bool:
        """Add ways and moments until they say little more; whether less even splits may be faster. `exact`: of all
        splits the makespan counts alone."""
        recent = [0.0] * 4
        for _ in range(rounds):
            self._add_known()
            status = self._simplex()
            if status not in (self.solver.OPTIMAL, self.solver.INFEASIBLE):
                self._by_simplex(dual=False)
                status = self._simplex()
                self._by_simplex(dual=True)
            if status == self.solver.INFEASIBLE:
                self.least = np.inf
                return False
            if status != self.solver.OPTIMAL:
                return not exact
            value = float(self.solver.Objective().Value()) * (1 - ROUNDING)
            makespan = float(self.longest.solution_value()) * (1 - ROUNDING)
            if exact:
                self.least, self.prices = value, self._prices()
            split = np.array([[one.solution_value() for one in of] for of in self.held])
            self.layers, self.split = split, split.sum(axis=1)
            missing = float(self.missing.solution_value()) > ROUNDING
            if (value if exact else makespan) >= enough:
                return not exact
            again = np.array([one.solution_value() for one in self.again] or np.zeros(self.pipe.chunks))
            if self._look_at_shapes(split) or self._look_at_memory(split, again):
                continue
            if missing:
                return not exact
            recent = [*recent[1:], value]
            if recent[-1] - recent[0] < CLOSE or not self._look_at(split, again, enough, makespan):
                break
        return True

    def _simplex(self) -> Any:
        """Solve the programme as it is; its status."""
        status = self.solver.Solve()
        size = self.solver.NumConstraints() + self.solver.NumVariables()
        self.effort += ROUND + PIVOT * size * max(int(self.solver.iterations()), 0)
        return status

    def _prices(self) -> Prices:
        """The dual of what was solved."""
        ways, pipe = self.known.ways, self.pipe
        share = np.maximum([row.dual_value() for row in self.way_rows], 0.0)
        passes, hops = np.tensordot(share, ways.passes[: len(share)], 1), share @ ways.hops[: len(share)]
        for rank, row in enumerate(self.rank_rows):
            of = max(row.dual_value(), 0.0) * pipe.m * (pipe.rank_of == rank)
            passes[:SAVED] += of
            passes[SAVED] -= of
        held, states = np.zeros(pipe.chunks), np.zeros(pipe.p)
        for (rank, moment), row in zip(self.known.moments, self.moment_rows, strict=True):
            price = max(-row.dual_value(), 0.0)
            held[pipe.rank_of == rank] += price * np.array(moment)
            states[rank] += price
        shape, paid = np.zeros((pipe.chunks, len(self.kinds.number))), 0.0
        for row, chunk, weights, most in self.shaped:
            price = max(-row.dual_value(), 0.0)
            shape[chunk] += price * weights
            paid += price * most
        for some, (least, most) in self.box.items():
            value = float(self.sums[some].dual_value())
            shape[list(some.chunks), some.kind] -= value
            paid -= value * (least if value > 0 else most)
        return Prices(passes, hops, held, states, shape, paid)

    def _look_at(self, split: Array, again: Array, enough: float, makespan: float) -> bool:
        """Add the longest ways of a split, which takes at least `makespan`, and of some between it and the fastest
        known one; whether this is worth another round."""
        if self.known.every:
            return False
        own = times_of(self.pipe, self.profile, self.kinds, split, again)
        every = (
            [own]
            if self.best is None
            else [own, *(self.best + share * (own - self.best) for share in BETWEEN)]
        )
        times = np.concatenate(every, axis=1)
        stage_times = timed(times, self.profile.hops)
        self.effort += PASS * 2 * self.pipe.m * self.pipe.chunks * len(every)
        found = critical_paths(self.graph, stage_times)
        lengths = (found.passes * times).sum(axis=(0, 2)) + found.hops @ self.profile.hops[0]
        fastest = int(lengths.argmin())
        if lengths[fastest] < self.fastest:
            self.best, self.fastest = times[:, [fastest]], float(lengths[fastest])
        # no bound is more than that of a split which fits, as far as is known
        self.fast |= bool(lengths[0] < enough)
        if self.fastest <= makespan * (1 + CLOSE) or self.fast:
            return False
        return self.known.also(Ways.found(found))

    def _look_at_shapes(self, split: Array) -> bool:
        """Add what neighbours hold, where chunks do not; whether any is new."""
        if not len(self.most):
            return False
        beyond = split @ self.lines.T - self.most
        new = [
            (chunk, line)
            for chunk, line in np.argwhere(beyond > SHAPED * (1 + np.abs(self.most))).tolist()
            if (chunk, line) not in self.in_line
        ]
        for chunk, line in new:
            self._shape(chunk, self.lines[line], float(self.most[line]))
        self.in_line.update(new)
        return bool(new)

    def _look_at_memory(self, split: Array, again: Array) -> bool:
        """Add the moment at which every rank holds most, where that is more than there is room for; whether one is
        new."""
        new = False
        for rank in range(self.pipe.p):
            if (worst := fullest(self.pipe, self.profile, self.kinds, rank, split, again)) is not None:
                new |= self.known.also_at(rank, worst)
        return new


def _at(rows: list[Any], place: int) -> Any:
    return rows[place] if place < len(rows) else None


def _put(rows: list[Any], place: int, row: Any) -> None:
    rows[place:] = [row, *rows[place + 1 :]]


def fullest(
    pipe: Pipe, profile: Profiles, kinds: Kinds, rank: int, split: Array, again: Array
) -> Array | None:
    """The moment at which a rank of a split (C, K), of which so many layers are recomputed (C,), holds most; None where
    it has room."""
    every = moments_of(pipe, rank)
    on = pipe.rank_of == rank
    first = kinds.first
    kept, less = profile.kept[0, first], profile.kept[0, first] - profile.kept_again[0, first]
    of_chunk = split[on] @ kept - again[on] * less.max()
    if pipe.rank_of[-1] == rank:
        of_chunk[-1] += profile.ends_kept[0]
    states = float((split[on] @ profile.states[0, first]).sum()) + sum(
        float(profile.ends_states[0, end]) for end in pipe.ends_on(rank)
    )
    needed = every @ of_chunk
    worst = int(needed.argmax())
    return every[worst] if states + needed[worst] > 1 + ROUNDING else None


def memory_row(
    pipe: Pipe, profile: Profiles, kinds: Kinds, rank: int, held: Array
) -> tuple[Array, Array, float]:
    """What a rank needs at a moment: by layer of every kind in every chunk (C, K), by layer recomputed (C,), and its
    room."""
    on, first = pipe.rank_of == rank, kinds.first
    kept, less = profile.kept[0, first], profile.kept[0, first] - profile.kept_again[0, first]
    each = np.where(on[:, None], profile.states[0, first], 0.0)
    each[on] += held[:, None] * kept
    again = np.zeros(pipe.chunks)
    again[on] = -held * float(less.max())
    room = 1.0 - sum(float(profile.ends_states[0, end]) for end in pipe.ends_on(rank))
    if pipe.rank_of[-1] == rank:
        room -= float(held[-1] * profile.ends_kept[0])
    return each, again, room


def times_of(pipe: Pipe, profile: Profiles, kinds: Kinds, split: Array, again: Array) -> Array:
    """Passes (4, 1, C) of layers of every kind in every chunk (C, K), so many of them recomputed (C,)."""
    found = (split @ profile.passes[0, kinds.first]).T[:, None]
    found[1, 0] += again * float(profile.again[0, kinds.first].min())
    for place, end in ((0, 0), (-1, 1)):
        found[:, 0, place] += profile.ends[0, end]
    return np.concatenate([np.maximum(found[:2], LEAST), found[2:]])

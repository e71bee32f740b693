"""Which split is the fastest where every rank holds one chunk and the makespan has a closed form: 1F1B and GPipe?

Exact, stage by stage: of splits of the first layers over the first stages those are kept that no other one beats in
everything that counts later (`_Labels`), and that the best completion (`_completions`) does not make too slow. What a
step takes beside its passes is known to `FINENESS`. Left out: schedules that are simulated (`many_chunks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.solve.splits.layers import Beside, LayerCosts, Passes
from planner.solve.splits.room import Room
from planner.spec.config import Schedule

Array = NDArray[np.float64]
Index = NDArray[np.intp]

FINENESS: Final = 2e-6  # of a step, to which what it takes beside its passes is told apart
MOST_LABELS: Final = 600  # of one stage that are gone on with
# of the least makespan: up to there splits are looked for at a time
WIDENING: Final = (1.0003, 1.002, 1.01, 1.03, 1.1, 1.3)
CANDIDATES: Final = 8  # that are handed back at most
BLOCK: Final = 256  # labels that are compared with others at a time


@dataclass(frozen=True)
class Recomputing:
    """What ranks recompute: the configuration says `stated` layers, and chunks recompute their first `counts[0]`, or,
    if there are more, the fewest of `counts` with which they fit."""

    stated: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """`bound`: a time, stragglers left out, that no split beats [s]. `splits` (n, p), fastest first, and layers that
    every rank recomputes of each, `recomputed` (n, p). `work`: labels and runs of layers that were looked at."""

    bound: float
    splits: NDArray[np.int64]
    recomputed: NDArray[np.int64]
    work: int


@dataclass(frozen=True)
class _Arcs:
    """Runs of layers that a stage may hold: `layers` from the layer `first` on, of which `again` are recomputed, the
    seconds of their passes, and ranks of what counts beside these (`_Levels`), (n, 4). Sorted by `first`."""

    first: Index
    layers: Index
    again: Index
    forward: Array
    backward: Array
    levels: Array

    def of(self, kept: NDArray[np.bool_] | Index) -> _Arcs:
        """Some of them."""
        return _Arcs(*(value[kept] for value in vars(self).values()))


@dataclass(frozen=True)
class _Labels:
    """Splits of layers over the first stages. `place` (n,): the layer that follows; `time` (n, d) and `levels` (n, 4):
    what counts later, less of each being better. `before`, `arc`: how each was made."""

    place: Index
    time: Array
    levels: Array
    before: Index
    arc: Index

    def of(self, kept: NDArray[np.bool_] | Index) -> _Labels:
        """Some of them."""
        return _Labels(*(value[kept] for value in vars(self).values()))


class OneChunk:
    """`fewest`: layers that stages between the first and the last hold at least."""

    def __init__(self, costs: LayerCosts, room: Room, recomputing: Recomputing, fewest: int) -> None:
        self.costs, self.room, self.recomputing, self.fewest = costs, room, recomputing, fewest
        self.p, self.m, self.layers = costs.p, costs.m, costs.layers
        self.gpipe = costs.schedule is Schedule.GPIPE
        comm = costs.model.problem.stack.communication
        hops = float(costs.prepared.pipelines.hops[0])
        self.hops = 2.0 * comm.p2p_exposed * float(costs.hops.sum()) if self.gpipe else hops
        first, count = np.meshgrid(np.arange(self.layers + 1), np.arange(self.layers + 1), indexing="ij")
        legal = first + count <= self.layers
        self.first, self.count = first[legal], count[legal]
        self.passes = {n: Passes(costs, n) for n in recomputing.counts}
        least = self.passes[min(recomputing.counts)].of(
            self.first[self.first == 0], self.count[self.first == 0]
        )
        again = len(recomputing.counts) == 1 and recomputing.counts[0] >= self.layers
        # work of the first layers, exact where all or none are recomputed, with the embedding and at the end the head
        work = least[:3].sum(axis=0) if again else self._plain()
        self.before = work + costs.ends[:2, 0].sum()
        self.whole = float(self.before[-1] + costs.ends[:2, 1].sum())
        self.heaviest = costs.lightest()
        # work behind the first layers, before the last stage and after it
        self.behind = np.stack([self.whole - self.before, np.zeros(self.layers + 1)])
        self.work = 0

    def _plain(self) -> Array:
        """Seconds of the first n layers without recomputation."""
        return np.concatenate([[0.0], self.costs.of_layer[:2].sum(axis=0).cumsum()])

    def least(self, target: float) -> float:
        """A time that no split beats, whatever memory there is, `target` at most, stragglers left out [s]."""
        slowest = target / self.m
        stages = [self._runs(stage, slowest) for stage in range(self.p)]
        return min(self._least(stages, target) + self._beside(slowest) + self.hops, target)

    def solve(self, target: float) -> Found:
        """The fastest splits that take less than `target`, stragglers left out [s], if there are any."""
        slowest = target / self.m
        rest = self._beside(slowest)
        stages = [self._runs(stage, slowest) for stage in range(self.p)]
        least = self._least(stages, target) + rest + self.hops
        for wider in WIDENING:
            if least * wider < target:
                found = self._within(stages, least * wider, self._beside(least * wider / self.m))
                if len(found.splits):
                    return found
        return self._within(stages, target, rest)

    def _beside(self, slowest: float) -> float:
        """What a step takes beside its passes at least where no stage takes longer than `slowest` [s]."""
        beside = Beside(self.costs, self.heaviest[None])
        level, deepest = np.zeros(1, dtype=np.intp), np.array([self.costs.deepest(slowest)])
        return float(beside.seconds(level, np.array([slowest]), deepest)[0])

    def _runs(self, stage: int, slowest: float) -> _Arcs:
        """All runs that a stage may hold which takes no longer than `slowest`, where memory is no matter."""
        first, count, costs = self.first, self.count, self.costs
        last = stage == self.p - 1
        kept = count >= (self.fewest if 0 < stage < self.p - 1 else 0)
        kept &= (first == 0) if stage == 0 else (first + count == self.layers) if last else kept
        first, count = first[kept], count[kept]
        chunk = 0 if stage == 0 else 1 if last else -1
        least = self.passes[min(self.recomputing.counts)].of(first, count, chunk)
        fast = least[:3].sum(axis=0) <= slowest
        first, count, times = first[fast], count[fast], least[:, fast]
        again = np.minimum(count, min(self.recomputing.counts))
        heavy = costs.heavy(np.full(len(first), stage), costs.parameters(first, count), count)
        deep = np.maximum(count + last * sum(costs.spec.last_stage_layers), 1)
        beside = np.column_stack([times[:3].sum(axis=0), deep, heavy])
        return _Arcs(first, count, again, times[0], times[1] + times[2], beside)

    def _terms(self, stage: int, runs: _Arcs) -> Array:
        """Makespans that no split beats in which a stage holds these runs: its own work between one micro-batch's way
        to it and from it, before or after its steady phase."""
        p, m, f, b = self.p, self.m, runs.forward, runs.backward
        if self.gpipe:
            return self.whole + (m - 1.0) * (f + b)
        before = self.before[runs.first] if stage else np.zeros(len(f))
        found = before + m * (f + b)
        if stage >= p - m:
            steady = (m - p + stage) * (f + b) + self.whole
            after = self.behind[int(stage == p - 1), runs.first + runs.layers]
            found = np.maximum(found, steady + np.maximum(after, (p - 1 - stage) * np.maximum(f, b)))
        return np.asarray(found)

    def _completions(self, stages: list[_Arcs], terms: list[Array]) -> list[Array]:
        """Of every stage and layer that it begins with, the least largest term of it and all behind it."""
        after = np.full(self.layers + 1, np.inf)
        after[-1] = 0.0
        found = [after]
        for runs, term in zip(reversed(stages), reversed(terms), strict=True):
            here = np.full(self.layers + 1, np.inf)
            np.minimum.at(here, runs.first, np.maximum(term, after[runs.first + runs.layers]))
            found.append(after := here)
        return found[::-1]

    def _least(self, stages: list[_Arcs], target: float) -> float:
        """A makespan that no split beats [s]."""
        terms = [self._terms(stage, runs) for stage, runs in enumerate(stages)]
        return min(float(self._completions(stages, terms)[0][0]), target)

    def _within(self, stages: list[_Arcs], target: float, rest: float) -> Found:
        """The fastest splits below `target`, the step taking `rest` or more beside its passes and messages."""
        most = target - rest - self.hops
        stages = self._viable(self._fitting(self._viable(stages, most)), most)
        self.work += sum(len(runs.first) for runs in stages)
        none = np.zeros((0, self.p), dtype=np.int64)
        if any(not len(runs.first) for runs in stages):
            return Found(target, none, none, self.work)
        levels = _Levels(self.costs, stages, self.heaviest, target)
        stages = [replace(runs, levels=levels.of(runs.levels)) for runs in stages]
        after = self._completions(stages, [self._terms(stage, runs) for stage, runs in enumerate(stages)])
        kept: list[_Labels] = []
        labels, dropped = self._none_placed(), np.inf
        for stage, runs in enumerate(stages):
            labels = self._grown(stage, runs, labels)
            self.work += len(labels.place)
            labels = labels.of(self._bounds(stage, labels, after[stage + 1]) < most)
            labels = labels.of(_undominated(labels))
            if len(labels.place) > MOST_LABELS:
                least = self._bounds(stage, labels, after[stage + 1])
                order = np.argsort(least, kind="stable")
                dropped = min(dropped, float(least[order[MOST_LABELS]]))
                labels = labels.of(np.sort(order[:MOST_LABELS]))
            kept.append(labels)
        taken = self._makespans(labels) + levels.beside(labels.levels) + self.hops
        order = np.argsort(taken, kind="stable")[:CANDIDATES]
        order = order[taken[order] < target]
        splits = np.zeros((len(order), self.p), dtype=np.int64)
        again = np.zeros_like(splits)
        at = order
        for stage in range(self.p - 1, -1, -1):
            arc = kept[stage].arc[at]
            splits[:, stage], again[:, stage] = stages[stage].layers[arc], stages[stage].again[arc]
            at = kept[stage].before[at]
        bound = min(target, float(taken.min(initial=np.inf)), dropped + rest + self.hops)
        return Found(bound, splits, again, self.work)

    def _viable(self, stages: list[_Arcs], most: float) -> list[_Arcs]:
        """Runs that some split with a makespan below `most` may hold."""
        terms = [self._terms(stage, runs) for stage, runs in enumerate(stages)]
        after = self._completions(stages, terms)
        found, before = [], np.full(self.layers + 1, np.inf)
        before[0] = 0.0
        for runs, term, behind in zip(stages, terms, after[1:], strict=True):
            own = np.maximum(term, before[runs.first])
            viable = np.maximum(own, behind[runs.first + runs.layers]) < most
            runs, own = runs.of(viable), own[viable]
            before = np.full(self.layers + 1, np.inf)
            np.minimum.at(before, runs.first + runs.layers, own)
            found.append(runs)
        return found

    def _fitting(self, stages: list[_Arcs]) -> list[_Arcs]:
        """Runs that fit, with as few of their layers recomputed as that needs."""
        stage = np.repeat(np.arange(self.p), [len(runs.first) for runs in stages])
        left = _Arcs(
            *(np.concatenate(part) for part in zip(*(vars(runs).values() for runs in stages), strict=True))
        )
        found, ranks = [], []
        for count in sorted(self.recomputing.counts):
            fits = self.room.runs_fit(stage, left.first, left.layers, self.recomputing.stated, count)
            some, rank = left.of(fits), stage[fits]
            chunk = np.where(rank == 0, 0, np.where(rank == self.p - 1, 1, -1))
            times = self.passes[count].of(some.first, some.layers, chunk)
            beside = some.levels.copy()
            beside[:, 0] = times[:3].sum(axis=0)
            again = np.minimum(some.layers, count)
            found.append(replace(some, again=again, backward=times[1] + times[2], levels=beside))
            ranks.append(rank)
            left, stage = left.of(~fits), stage[~fits]
        every = _Arcs(
            *(np.concatenate(part) for part in zip(*(vars(runs).values() for runs in found), strict=True))
        )
        of_stage = np.concatenate(ranks)
        order = np.lexsort((every.first, of_stage))
        edges = np.searchsorted(of_stage[order], np.arange(self.p + 1))
        return [every.of(order[low:high]) for low, high in pairwise(edges)]

    def _none_placed(self) -> _Labels:
        """The only way to place nothing. Times of 1F1B, see `_grown`; of GPipe: work, longest passes."""
        nowhere = np.full((1, 3 if self.gpipe else 7), -np.inf)
        nowhere[0, :3] = 0.0
        levels = np.array([[np.inf] * 2 + [0.0] * len(self.heaviest)])
        start = np.zeros(1, dtype=np.intp)
        return _Labels(start, nowhere, levels, start, start)

    def _grown(self, stage: int, runs: _Arcs, labels: _Labels) -> _Labels:
        """All ways to place one stage more.

        1F1B's makespan is the largest X_s + A_q + C_r of stages q, r >= s (`schedule.uneven`), with I_q the work of the
        stages up to q: X_s = (m - p + s) (f_s + b_s) - I_s, A_q = I_q + (p - 1 - q) x the longest forward pass up to q,
        C_q likewise of backward passes. Kept: I, both longest passes, and the largest X + 2 I, X + A + I, X + C + I,
        X + A + C so far, I being that of now.
        """
        starts = np.searchsorted(runs.first, labels.place, side="left")
        number = np.searchsorted(runs.first, labels.place, side="right") - starts
        before = np.repeat(np.arange(len(number)), number)
        arc = starts[before] + np.arange(len(before)) - np.repeat(np.cumsum(number) - number, number)
        f, b = runs.forward[arc], runs.backward[arc]
        old, p, m = labels.time[before].T, self.p, self.m
        work, forward, backward = old[0] + f + b, np.maximum(old[1], f), np.maximum(old[2], b)
        time = [work, forward, backward]
        if not self.gpipe:
            steady = (m - p + stage) * (f + b) + work if stage >= p - m else np.full(len(f), -np.inf)
            x = np.maximum(old[3] + 2.0 * (f + b), steady)
            a, c = (work + (p - 1 - stage) * longest for longest in (forward, backward))
            xa = np.maximum(old[4] + f + b, x - work + a)
            xc = np.maximum(old[5] + f + b, x - work + c)
            time += [x, xa, xc, np.maximum(old[6], np.maximum(xc - work + a, xa - work + c))]
        here, mine = labels.levels[before], runs.levels[arc]
        levels = np.concatenate(
            [np.minimum(here[:, :2], mine[:, :2]), np.maximum(here[:, 2:], mine[:, 2:])], axis=1
        )
        return _Labels(
            runs.first[arc] + runs.layers[arc], np.array(time).T.reshape(-1, len(time)), levels, before, arc
        )

    def _bounds(self, stage: int, labels: _Labels, after: Array) -> Array:
        """Makespans that no completion of splits over the stages up to one beats."""
        time, behind = labels.time.T, self.behind[int(stage == self.p - 1), labels.place]
        if self.gpipe:
            ways = time[0] + behind + (self.m - 1.0) * (time[1] + time[2])
        else:
            ways = np.max([time[3] + 2.0 * behind, time[4] + behind, time[5] + behind, time[6]], axis=0)
        return np.maximum(ways, after[labels.place])

    def _makespans(self, labels: _Labels) -> Array:
        """Makespans of whole splits."""
        time = labels.time.T
        if self.gpipe:
            return np.asarray(time[0] + (self.m - 1.0) * (time[1] + time[2]))
        return np.asarray(time[6])


class _Levels:
    """What a step takes beside its passes, by levels (n, d) of the slowest stage's time, the deepest one's layers, and
    the parameters of the heaviest, a lower level taking less.

    A level stands for values among which a step changes by `FINENESS` at most, whatever the others are; it is counted
    with the one that takes least."""

    def __init__(self, costs: LayerCosts, stages: list[_Arcs], heaviest: Array, target: float) -> None:
        self.costs = costs
        every = np.concatenate([runs.levels for runs in stages])
        every[:, 2:] = np.maximum(every[:, 2:], heaviest)
        ends = np.array([every.min(axis=0), every.max(axis=0)])
        number = every.shape[1]
        corners = np.array(
            [ends[list(corner), np.arange(number)] for corner in product((0, 1), repeat=number)]
        )
        fineness = FINENESS * target
        self.edges = [self._told_apart(every[:, i], i, corners, fineness) for i in range(number)]

    def _told_apart(self, values: Array, which: int, corners: Array, fineness: float) -> Array:
        """Of the values of one quantity the first of every level."""
        values = np.unique(values)
        values = values[::-1] if which < 2 else values  # the longest hides most
        if len(values) < 2:
            return values
        others = np.unique(np.delete(corners, which, axis=1), axis=0)
        given = np.insert(np.tile(others, (len(values), 1)), which, np.repeat(values, len(others)), axis=1)
        taken, kept = self._seconds(given).reshape(len(values), -1), [0]
        for i in range(1, len(values)):
            if (taken[i] > taken[kept[-1]] + fineness).any():
                kept.append(i)
        return np.asarray(values[kept])

    def _seconds(self, given: Array) -> Array:
        heavy, row = np.unique(given[:, 2:], axis=0, return_inverse=True)
        beside = Beside(self.costs, heavy)
        return beside.seconds(row.ravel(), given[:, 0], given[:, 1])

    def of(self, values: Array) -> Array:
        """The levels of some stages."""
        found = np.zeros_like(values)
        for i, edges in enumerate(self.edges):
            sign = -1.0 if i < 2 else 1.0
            found[:, i] = np.maximum(np.searchsorted(sign * edges, sign * values[:, i], side="right") - 1, 0)
        return found

    def beside(self, levels: Array) -> Array:
        """Seconds of some levels."""
        if not len(levels):
            return np.zeros(0)
        some, row = np.unique(levels.astype(np.int64), axis=0, return_inverse=True)
        given = np.column_stack([edges[some[:, i]] for i, edges in enumerate(self.edges)])
        return np.asarray(self._seconds(given)[row.ravel()])


def _undominated(labels: _Labels) -> NDArray[np.bool_]:
    """Those that no other one with the same layers placed is as good as in everything, the first of equals."""
    kept = np.ones(len(labels.place), dtype=np.bool_)
    values = np.concatenate([np.where(np.isfinite(labels.time), labels.time, 0.0), labels.levels], axis=1)
    order = np.lexsort((values.sum(axis=1), labels.place))
    places = labels.place[order]
    edges: Sequence[int] = []
    if len(order):
        edges = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1], [True]])).tolist()
    for low, high in pairwise(edges):
        rows = order[low:high]
        best = rows[:1]
        for start in range(1, len(rows), BLOCK):
            some = rows[start : start + BLOCK]
            both = np.concatenate([best, some])
            as_good = (values[both][None] <= values[some][:, None]).all(axis=2)
            # of rows in this order none is better than one before
            earlier = np.arange(len(both))[None] < len(best) + np.arange(len(some))[:, None]
            best = np.concatenate([best, some[~(as_good & earlier).any(axis=1)]])
        kept[np.setdiff1d(rows, best)] = False
    return kept

"""Which makespan does no split of one configuration's layers beat, where ranks and chunks hold whole layers?

Ways through the schedule bound splits of layers that can be cut anywhere (`paths.py`). From there on splits are told
apart by how many layers, and of which kind, a rank holds, then by how many a chunk does: those below some number and
those above, ever those with the least bound (branch and bound). Left out: what a step takes beside its makespan.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.schedule.critical import critical_paths
from planner.schedule.graph import schedule_graph
from planner.solve.splits.layers import LayerCosts, Passes
from planner.solve.splits.many_chunks import Search
from planner.solve.splits.paths import LARGEST, Again, Alike, Programme, Shape, Ways, best_ways, timed

Array = NDArray[np.float64]
Splits = NDArray[np.int64]

STEP: Final = 1.15  # by which shapes are told apart where ways through them are looked for
ROUNDING: Final = 1e-9
WHOLE: Final = 1e-4  # of a layer, to which numbers of them are whole
MOST_KINDS: Final = 3  # that are counted one by one
MOST_WAYS: Final = 700
ROUNDS: Final = 4  # of adding ways at first
BETWEEN: Final = (0.1, 0.3, 1.0)  # of the way from the best split known to the programme's
TRIED: Final = 8  # groups of which both sides are tried before one is chosen
OTHER_SIDE: Final = 0.1  # of what the better side gains, as it counts
MOST_GAIN: Final = 1.1  # of a bound, as it counts
SAME: Final = 1e-5  # of makespans
# seconds of a processor, about, of a solved programme and by its size, and of a simulated pass with the ways it lies on
SOLVED, SOLVED_SIZE, WAY = 1e-3, 2.5e-7, 2e-7


def mean_shape(costs: LayerCosts) -> Shape:
    """About the configuration's pipeline, with layers all alike."""
    unit = float(costs.mean_layer[0])
    none = np.zeros(1, dtype=np.intp)
    ends = [Passes(costs, 0).of(none, none, end)[:, 0] for end in (0, 1)]

    def told(values: Array) -> tuple[float, ...]:
        return tuple(0.0 if value <= 0 else STEP ** round(log(value, STEP)) for value in (values / unit).tolist())

    hop = told(np.array([costs.hops.mean()]))[0]
    passes, ends_told = told(costs.mean_layer), (told(ends[0]), told(ends[1]))
    return Shape(costs.schedule, costs.p, costs.v, costs.m, costs.layers, passes, ends_told, hop)


def known_ways(costs: LayerCosts) -> Ways | None:
    """Ways through a configuration's schedule that together bound it well; None where it has too many passes."""
    return best_ways(mean_shape(costs)) if 3 * costs.p * costs.v * costs.m <= LARGEST else None


@dataclass(frozen=True)
class _Branch:
    """Splits whose groups of layers hold `low` to `high` of them (groups,), of which none takes less than `bound` [s];
    `split` (chunks, kinds): the programme's, None where it is not known."""

    bound: float
    low: Array
    high: Array
    split: Array | None


class Branches:
    """Splits that `search` looks for. `counts`: layers that chunks recompute, the fewest and the most. `bound`: a makespan that none of them beats [s]. `effort`: seconds of a processor,
    about."""

    def __init__(self, search: Search, ways: Ways, counts: tuple[int, int]) -> None:
        self.search, self.simulated, self.ways = search, search.simulated, ways
        self.costs = self.simulated.costs
        self.chunks, self.number = len(self.costs.rank_of), np.bincount(self.costs.kinds).astype(float)
        self.groups, self.ranked = self._groups()
        self.flat = self.groups.reshape(len(self.groups), -1).astype(float)
        self.counts = counts
        self.effort, self.order, self.settled = 0.0, 0, np.inf
        self.gain, self.tries = np.zeros((2, len(self.groups))), np.zeros((2, len(self.groups)))
        self.open: list[tuple[float, int, _Branch]] = []

    def _groups(self) -> tuple[NDArray[np.bool_], int]:
        """Layers that are counted together, (n, chunks, kinds), and how many of them are of ranks: all and those of each
        kind of every rank, then all of every chunk."""
        rank_of, kinds = self.costs.rank_of, len(self.number)
        shape = (self.chunks, kinds)
        of_rank = [
            np.broadcast_to((rank_of == rank)[:, None] & of, shape)
            for rank in range(self.costs.p)
            for of in [np.ones(kinds, dtype=np.bool_), *np.eye(kinds, dtype=np.bool_)[: self._counted_kinds()]]
        ]
        of_chunk = [np.broadcast_to(np.eye(self.chunks, dtype=np.bool_)[chunk][:, None], shape) for chunk in range(self.chunks)]
        return np.array([*of_rank, *of_chunk]), len(of_rank)

    def _counted_kinds(self) -> int:
        """Kinds of layers that are counted one by one."""
        return len(self.number) - 1 if 1 < len(self.number) <= MOST_KINDS else 0

    def _alike(self) -> Alike:
        """The layers, whatever is recomputed left out."""
        costs = self.costs
        of_kind = np.zeros((4, len(self.number)))
        forward, backward, _, weight = costs.of_layer
        of_kind[:, costs.kinds] = np.array([forward, backward - weight, weight, costs.hidden])
        none = np.zeros(1, dtype=np.intp)
        ends = np.array([Passes(costs, 0).of(none, none, end)[:, 0] for end in (0, 1)])
        return Alike(self.number, of_kind.T, ends)

    def _recomputed(self, most: float, fewest: Array | None) -> Again | None:
        """What is recomputed of layers where no chunk holds more than `most` and ranks recompute the `fewest`."""
        if not self.counts[1]:
            return None
        share = min(1.0, self.counts[0] / max(most, 1.0))
        lines = [
            (np.flatnonzero(self.costs.rank_of == rank), *line)
            for rank, of_rank in enumerate([] if fewest is None else fewest)
            for line in _lines_below(of_rank)
        ]
        return Again(float(self.costs.again[0].min()), share, float(self.counts[1]), tuple(lines))

    def _most(self, longest: float, kind: int | None = None) -> Array:
        """Layers, or layers of a kind, that ranks hold at most which take no longer than `longest` (p,)."""
        costs = self.costs
        each = costs.of_layer[:2].sum(axis=0) - costs.hidden
        taken = np.sort(each if kind is None else each[costs.kinds == kind]).cumsum()
        left = longest - costs.outside
        found = np.searchsorted(taken, left * (1 + ROUNDING), side="right").astype(float)
        return np.where(left < 0, -1.0, found)

    def start(self, target: float, fewest: Array | None = None, near: Splits | None = None) -> float:
        """Begin anew with splits that may take less than `target`, of whose ranks each that holds so many layers
        recomputes the `fewest` of them (p, layers + 1), infinitely many where they do not fit; a makespan that none of
        them beats, infinite where there is none [s]. `near`: a fast split, about which ways are looked for."""
        held = None if fewest is None else np.isfinite(fewest).sum(axis=1) - 1.0
        low, high = self._limits(target / self.costs.m, held)
        self.open, self.settled = [], np.inf
        if (low > high).any() or high[: self.ranked : 1 + self._counted_kinds()].sum() < self.costs.layers:
            return np.inf
        again = self._recomputed(float(high[self.ranked :].max()), fewest)
        self.programme = Programme(self._alike(), self.chunks, self.costs.m, self.groups, again)
        if near is not None:
            self._look_near(near)
        branch = self._solved(0.0, low, high)
        for _ in range(ROUNDS):
            if near is None or branch.split is None or not self._look_at(branch.split, near):
                break
            branch = self._solved(branch.bound, low, high)
        self._keep(branch)
        return branch.bound

    def _limits(self, longest: float, held: Array | None) -> tuple[Array, Array]:
        """Layers that groups hold at least and at most, where no rank takes longer than `longest` (n,) each."""
        low, high = np.zeros(len(self.groups)), np.full(len(self.groups), float(self.costs.layers))
        most, kinds = self._most(longest), self._counted_kinds()
        most = most if held is None else np.minimum(most, held)
        ranked = high[: self.ranked].reshape(self.costs.p, 1 + kinds)
        ranked[:, 0] = most
        for kind in range(kinds):
            ranked[:, 1 + kind] = np.minimum(most, self._most(longest, kind))
        low[self.ranked + 1 : -1] = self.search.fewest
        high[self.ranked :] = most[self.costs.rank_of]
        return low, high

    def _look_near(self, split: Splits) -> None:
        """Add ways of a split and of those with one layer more in any chunk."""
        times = self.simulated.times(split[None])
        heavier = np.repeat(times, self.chunks, axis=1)
        every = np.arange(self.chunks)
        heavier[:, every, every] += self.costs.mean_layer[:, None]
        self._look(np.concatenate([times, heavier], axis=1))

    def _look_at(self, split: Array, near: Splits) -> bool:
        """Add ways of the programme's split and of some between it and one that is near; whether there are new ones."""
        times = np.tensordot(self.programme.layers.passes, split, axes=(0, 1))[:, None]
        for end, place in zip(self.programme.layers.ends, (0, -1), strict=True):
            times[:, :, place] += end[:, None]
        fast = self.simulated.times(near[None])
        return self._look(np.concatenate([fast + share * (times - fast) for share in BETWEEN], axis=1))

    def _look(self, times: Array) -> bool:
        costs, known = self.costs, len(self.ways.passes)
        if known >= MOST_WAYS:
            return False
        self.effort += WAY * 2 * costs.m * times[0].size
        times = np.concatenate([np.maximum(times[:2], ROUNDING), times[2:]])
        graph = schedule_graph(costs.schedule, costs.p, costs.m, costs.v)
        self.ways = self.ways.and_also(Ways.found(critical_paths(graph, timed(times, costs.hops))))
        return len(self.ways.passes) > known

    def _solved(self, bound: float, low: Array, high: Array) -> _Branch:
        size = len(self.ways.passes) * self.chunks * len(self.number)
        self.effort += SOLVED + SOLVED_SIZE * size
        least = self.programme.least(self.ways, self.costs.hops, low, high)
        return _Branch(max(bound, least), low, high, self.programme.split)

    def _keep(self, branch: _Branch) -> None:
        if branch.split is None:  # nothing more can be known of it
            self.settled = min(self.settled, branch.bound)
            return
        self.order += 1
        heappush(self.open, (branch.bound, self.order, branch))

    @property
    def bound(self) -> float:
        """A makespan that no split beats [s]."""
        return min(self.open[0][0] if self.open else np.inf, self.settled)

    def rounded(self) -> Splits | None:
        """Whole layers near what the programme finds; None where that is not known."""
        if not self.open:
            return None
        split = self.open[0][2].split
        assert split is not None, "others are settled"
        ends = np.round(split.sum(axis=1).cumsum()).astype(np.int64)
        return np.diff(ends, prepend=0)

    def may_grow(self, target: float) -> bool:
        """May more be known of splits that take less than `target` [s]?"""
        return bool(self.open) and self.open[0][0] < min(target, self.settled)

    def grow(self, near: Splits) -> Splits | None:
        """Tell the splits with the least bound apart; a whole one that it came across. `near`: a fast split."""
        _, _, branch = heappop(self.open)
        assert branch.split is not None, "others are settled"
        counts = self.flat @ branch.split.ravel()
        torn = np.flatnonzero(np.abs(counts - np.round(counts)) > WHOLE)
        if not len(torn):
            return self._whole(branch, np.round(counts[self.ranked :]).astype(np.int64))
        of_ranks = torn[torn < self.ranked]
        self._tell_apart(branch, of_ranks if len(of_ranks) else torn, counts, None if len(of_ranks) else near)
        return None

    def _whole(self, branch: _Branch, split: Splits) -> Splits:
        """Go on with splits of which the programme finds one with whole layers."""
        times = self.simulated.times(split[None])
        taken, fits = float(self.simulated.makespans(times)[0]), bool(self.search.fit(split[None])[0])
        only = bool((branch.low[self.ranked :] == branch.high[self.ranked :]).all())
        if only or (fits and taken <= branch.bound * (1 + SAME)):
            self.settled = min(self.settled, taken if fits else np.inf)
            return split
        if self._look(times):
            again = self._solved(branch.bound, branch.low, branch.high)
            if again.bound > branch.bound * (1 + SAME):
                self._keep(again)
                return split
        wide = self.ranked + int((branch.high - branch.low)[self.ranked :].argmax())
        held = float(split[wide - self.ranked])
        for low, high in ((branch.low[wide], held - 1), (held, held), (held + 1, branch.high[wide])):
            if low <= high:
                self._keep(self._within(branch, wide, low, high))
        return split

    def _within(self, branch: _Branch, group: int, low: float, high: float) -> _Branch:
        lows, highs = branch.low.copy(), branch.high.copy()
        lows[group], highs[group] = low, high
        return self._solved(branch.bound, lows, highs)

    def _tell_apart(
        self, branch: _Branch, torn: NDArray[np.intp], counts: Array, near: Splits | None
    ) -> None:
        """Two branches in place of one, by that of the groups `torn` which raises the bound of either most, as far as is
        known; `near`: ways are added about this split, if one is given."""
        sides: dict[tuple[int, int], _Branch] = {}
        below = counts - np.floor(counts)

        def side(group: int, up: int) -> _Branch:
            if (group, up) not in sides:
                low, high = branch.low[group], np.floor(counts[group])
                found = self._within(branch, group, *((high + 1, branch.high[group]) if up else (low, high)))
                if near is not None and found.split is not None and self._look_at(found.split, near):
                    found = self._solved(found.bound, found.low, found.high)
                sides[group, up] = found
                share = 1 - below[group] if up else below[group]
                gain = min(found.bound, MOST_GAIN * branch.bound) - branch.bound
                self.gain[up, group] += gain / share
                self.tries[up, group] += 1
            return sides[group, up]

        known = self.tries[:, torn].all(axis=0)
        new = torn[~known]
        parts = np.abs(below[new] - 0.5)
        for group in new[np.argsort(parts, kind="stable")[:TRIED]].tolist():
            side(group, 0), side(group, 1)
        some = torn[self.tries[:, torn].all(axis=0)]
        rate = self.gain[:, some] / self.tries[:, some] * np.array([below[some], 1 - below[some]])
        best = int(some[(rate.min(axis=0) + OTHER_SIDE * rate.max(axis=0)).argmax()])
        for up in (0, 1):
            self._keep(side(best, up))


def _lines_below(values: Array) -> list[tuple[float, float]]:
    """Lines a n + b, as (a, b), that no value lies below, value n being infinite from some n on."""
    corners: list[tuple[float, float]] = []
    for point in enumerate(values[np.isfinite(values)].tolist()):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (point[0] - x0) < (point[1] - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append(point)
    slopes = [((y1 - y0) / (x1 - x0), x0, y0) for (x0, y0), (x1, y1) in pairwise(corners)]
    return [(slope, y - slope * x) for slope, x, y in slopes if slope > 0]

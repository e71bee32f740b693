"""Which makespan does no split of one configuration's layers beat, as ways through its schedule tell?

A mixture of ways is a bound that adds up over chunks, so that its least over all splits is found chunk by chunk, with
layers whole, in their order, and of their own kinds. What a rank may hold at most is part of it (`limits`). Where so
few splits are left below a time that each can be looked at, they are. Left out: which of them is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.solve.splits.layers import LayerCosts, Passes
from planner.solve.splits.paths import LARGEST, Alike, Limit, Programme, Shape, Ways, best_ways

Array = NDArray[np.float64]
Splits = NDArray[np.int64]

STEP: Final = 1.15  # by which shapes are told apart where ways through them are looked for
ROUNDING: Final = 1e-9
MOST_RANKS: Final = 32  # of which each is taken for one that holds as many layers as some do
MOST: Final = 30_000  # splits of the first layers that are gone on with
LABEL: Final = 4e-8  # seconds of a processor, about, of one split and one way


def mean_shape(costs: LayerCosts) -> Shape:
    """About the configuration's pipeline, with layers all alike."""
    unit = float(costs.mean_layer[0])
    none = np.zeros(1, dtype=np.intp)
    ends = [Passes(costs, 0).of(none, none, end)[:, 0] for end in (0, 1)]

    def told(values: Array) -> tuple[float, ...]:
        return tuple(
            0.0 if value <= 0 else STEP ** round(log(value, STEP)) for value in (values / unit).tolist()
        )

    hop = told(np.array([costs.hops.mean()]))[0]
    passes, ends_told = told(costs.mean_layer), (told(ends[0]), told(ends[1]))
    return Shape(costs.schedule, costs.p, costs.v, costs.m, costs.layers, passes, ends_told, hop)


def known_ways(costs: LayerCosts) -> Ways | None:
    """Ways through a configuration's schedule that together bound it well; None where it has too many passes."""
    return best_ways(mean_shape(costs)) if 3 * costs.p * costs.v * costs.m <= LARGEST else None


class WaysBound:
    """Bounds of the makespans of splits of whose chunks the first `count` layers are recomputed. `fewest`: layers of
    chunks between the first and the last."""

    def __init__(self, costs: LayerCosts, ways: Ways | None, count: int, fewest: int) -> None:
        self.costs, self.ways, self.passes, self.fewest = costs, ways, Passes(costs, count), fewest
        self.chunks = len(costs.rank_of)
        kinds = costs.kinds
        self.number = np.bincount(kinds).astype(float)
        of_kind = np.zeros((4, len(self.number)))
        forward, backward, _, weight = costs.of_layer
        share = min(1.0, count * self.chunks / costs.layers)
        of_kind[:, kinds] = np.array(
            [forward, backward - weight + share * costs.again[0], weight, costs.hidden]
        )
        none = np.zeros(1, dtype=np.intp)
        ends = np.array([self.passes.of(none, none, end)[:, 0] for end in (0, 1)])
        self.alike = Alike(self.number, of_kind.T, ends)
        one_hot = kinds[:, None] == np.arange(len(self.number))
        self.before = np.concatenate([np.zeros((1, len(self.number))), one_hot.cumsum(axis=0)])
        self.mixture: Ways | None = None
        self.solved: Ways | None = None
        self.effort = 0.0

    def least(self, longest: float, room: NDArray[np.int64] | None = None) -> float:
        """A makespan that no split beats of whose ranks none takes longer than `longest` for a micro-batch, and that
        have `room` for so many layers (p,); infinite where there is none [s].

        Layers are whole: a rank holds no more of them than it has time for, and of the kind of which there are most
        some ranks hold the mean, rounded up. Whichever these are, the split is no faster than under the fastest of as
        many as can be left out.
        """
        limits = self._limits(longest)
        if limits is None:
            return np.inf
        if self.ways is None:
            return 0.0
        every = (1.0,) * len(self.number)
        for rank, most in enumerate([] if room is None else room.tolist()):
            if most < self.costs.layers:
                limits.append(Limit(self._chunks_of(rank), every, float(most)))
        programme = Programme(self.alike, self.chunks, self.costs.m, limits)
        found = self._solved(programme, limits, longest)
        self.mixture = self.solved or self.mixture
        kind = int(self.number.argmax())
        ranks, full = self.costs.p, -(-int(self.number[kind]) // self.costs.p)
        most = max(int((longest - self._ends().min()) / self._work()[kind] + ROUNDING), full)
        filled = -(-(int(self.number[kind]) - (full - 1) * ranks) // (most - full + 1))
        if ranks > MOST_RANKS or filled < 1 or found >= self.costs.m * longest:
            return found
        each = tuple(-float(one == kind) for one in range(len(self.number)))
        through = []
        for rank in range(ranks):
            limit = Limit(self._chunks_of(rank), each, -float(full))
            programme.also_within(limit)
            through.append(self._solved(programme, [*limits, limit], longest))
        return max(found, sorted(through)[filled - 1])

    def _solved(self, programme: Programme, limits: Sequence[Limit], longest: float) -> float:
        """A makespan that no split within some limits beats."""
        assert self.ways is not None, "looked for"
        if not programme.solve(self.ways, self.costs.hops):
            return 0.0
        mixture, prices = self.ways.mixed(programme.shares()[None]), programme.prices()
        paid = sum(price * limit.most for price, limit in zip(prices.tolist(), limits, strict=True))
        found = self._completions(mixture, longest, self._priced(limits, prices))[0, 0, 0]
        self.solved = mixture
        return float(found + mixture.hops[0] @ self.costs.hops - paid)

    def _limits(self, slowest: float) -> list[Limit] | None:
        """What ranks can hold that take no longer than `slowest` for a micro-batch; None where one cannot."""
        found, work, number = [], self._work(), self.number.astype(int)
        for rank, ends in enumerate(self._ends().tolist()):
            left, chunks = slowest - ends, self._chunks_of(rank)
            if left < 0:
                return None
            if len(work) == 2:
                first = np.arange(min(int(left / work[0] + ROUNDING), number[0]) + 1)
                second = np.minimum(np.floor((left - first * work[0]) / work[1] + ROUNDING), number[1])
                found += [Limit(chunks, each, most) for each, most in _edges(first.astype(float), second)]
                continue
            alone = np.eye(len(work))
            found += [
                Limit(chunks, tuple(alone[kind]), float(np.floor(left / work[kind] + ROUNDING)))
                for kind in range(len(work))
            ]
            if len(work) > 1:
                found.append(Limit(chunks, tuple((work / work.max()).tolist()), float(left / work.max())))
        return found

    def _chunks_of(self, rank: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.costs.rank_of == rank).tolist())

    def _work(self) -> Array:
        """Seconds of a micro-batch's passes of a layer of every kind, whatever is recomputed left out."""
        work = np.zeros(len(self.number))
        work[self.costs.kinds] = self.costs.of_layer[:2].sum(axis=0) - self.costs.hidden
        return work

    def _ends(self) -> Array:
        """Seconds of a micro-batch's passes on every rank outside the layers that a split deals."""
        found = np.zeros(self.costs.p)
        for end, hidden in ((0, 0.0), (-1, self.costs.hidden_behind)):
            found[self.costs.rank_of[end]] += self.costs.ends[:2, end].sum() - hidden
        return found

    def _priced(self, limits: Sequence[Limit], prices: Array) -> Array:
        """What a layer of every kind in every chunk costs of limits (chunks, kinds) [s]."""
        found = np.zeros((self.chunks, len(self.number)))
        for limit, price in zip(limits, prices.tolist(), strict=True):
            found[list(limit.chunks)] += price * np.array(limit.each)
        return found

    def below(self, longest: float) -> Splits | None:
        """All splits with no way as long as `longest` [s]; None where they are too many on the way."""
        if self.mixture is None or self.ways is None:
            return None
        half = Ways((self.ways.passes + self.mixture.passes) / 2, (self.ways.hops + self.mixture.hops) / 2)
        costs, ways, layers, chunks = self.costs, self.mixture.and_also(half), self.costs.layers, self.chunks
        behind = self._completions(ways, longest / costs.m, np.zeros((chunks, len(self.number))))
        done = (ways.hops @ costs.hops)[None]
        place, found = np.zeros(1, dtype=np.intp), np.zeros((1, 0), dtype=np.int64)
        for chunk in range(chunks):
            last = chunk == chunks - 1
            number = np.ones(len(place), dtype=np.intp) if last else layers - place + 1
            before = np.repeat(np.arange(len(place)), number)
            count = np.arange(len(before)) - np.repeat(np.cumsum(number) - number, number)
            count = (layers - place)[before] if last else count
            open_ = np.isfinite(behind[chunk + 1][place[before] + count, 0])
            open_ &= count >= (self.fewest if 0 < chunk < chunks - 1 else 0)
            before, count = before[open_], count[open_]
            first = place[before]
            times = self.passes.of(first, count, 0 if chunk == 0 else 1 if last else -1)
            taken = done[before] + times.T @ ways.passes[:, :, chunk].T
            self.effort += LABEL * taken.size
            kept = (taken + behind[chunk + 1][first + count] < longest).all(axis=1)
            if kept.sum() > MOST:
                return None
            done, place = taken[kept], (first + count)[kept]
            found = np.column_stack([found[before[kept]], count[kept]])
        return found

    def _completions(self, ways: Ways, longest: float, prices: Array) -> Array:
        """Of every chunk and one more, and every layer that it may begin with, the least that each of `ways` still
        takes, where no chunk takes longer than `longest` and layers cost `prices`: (chunks + 1, layers + 1, ways)
        [s]."""
        costs, layers, chunks = self.costs, self.costs.layers, self.chunks
        each = costs.of_layer[:2].sum(axis=0) - costs.hidden
        most = min(int((np.sort(each).cumsum() <= longest).sum()), layers)
        first = np.arange(layers + 1)[:, None]
        count = np.minimum(np.arange(most + 1)[None], layers - first)
        first = np.broadcast_to(first, count.shape)
        legal = first + np.arange(most + 1) <= layers
        found = np.full((chunks + 1, layers + 1, len(ways.passes)), np.inf)
        found[chunks, layers] = 0.0
        tables = {end: self.passes.of(first, count, end) for end in (-1, 0, 1)}
        kinds = self.before[first + count] - self.before[first]
        for chunk in range(chunks - 1, -1, -1):
            end = 0 if chunk == 0 else 1 if chunk == chunks - 1 else -1
            times = tables[end]
            allowed = legal & (times[:3].sum(axis=0) - times[3] <= longest)
            allowed &= count >= (self.fewest if end < 0 else 0)
            taken = (
                np.tensordot(times, ways.passes[:, :, chunk], axes=(0, 1)) + found[chunk + 1][first + count]
            )
            taken = taken + (kinds @ prices[chunk])[..., None]
            found[chunk] = np.where(allowed[..., None], taken, np.inf).min(axis=1)
        return found


def _edges(first: Array, second: Array) -> list[tuple[tuple[float, float], float]]:
    """Of pairs (x, y), y the most there can be beside x ascending, the lines beyond which none of them lies: a x + b y
    <= c as ((a, b), c)."""
    corners: list[tuple[float, float]] = []
    for point in zip(first.tolist(), second.tolist(), strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (x1 - x0) * (point[1] - y0) < (y1 - y0) * (point[0] - x0):
                break
            corners.pop()
        corners.append(point)
    found = [
        ((y0 - y1, x1 - x0), (y0 - y1) * x0 + (x1 - x0) * y0) for (x0, y0), (x1, y1) in pairwise(corners)
    ]
    return [*found, ((1.0, 0.0), corners[-1][0]), ((0.0, 1.0), corners[0][1])]

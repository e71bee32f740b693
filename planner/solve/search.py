"""Which legal configurations fit and are fastest?

Best first: every stem (a configuration without what it recomputes) has a time that none of its leaves can beat, from
the work of its layers alone. Stems are costed in the order of that bound, each recomputing as little as it may; more
never takes less time, so that cost bounds its other leaves in turn (where `first_is_fastest`; else the bound does),
which are looked at only where the first does not fit. What is left when every bound is behind the k-th best
needs no look: the k best are exact. Of each stem only its fastest leaf that fits is listed. A search that is stopped
says what a configuration it did not look at could reach at best. Left out: splits other than the stack's own
(`splits/split.py`), and other objectives (`objective.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.solve.leaves import HostRoom, costed_leaves, first_is_fastest, places_behind_first
from planner.space.enumerate import Enumeration
from planner.spec.config import ConfigTable

BOUND_STEMS = 262144  # bounded at a time
WAVE_STEMS = 2048  # costed at a time; waves double
WAVES_LARGEST = 262144
PROBES_LARGEST = 16384  # of stems whose other leaves are looked at
PROBE_STEMS = 512  # of each wave, those whose other leaves are looked at before the next wave

Index = NDArray[np.intp]


@dataclass(frozen=True)
class Bounds:
    """What no leaf of a stem can beat: `time` (n,) [s] and `memory` (n,) [bytes]."""

    time: NDArray[np.float64]
    memory: NDArray[np.float64]


@dataclass(frozen=True)
class SearchResult:
    """`best`: the fastest configurations that fit, best first, by what they take at least once their pipelines are
    simulated (`CostModel.least_step_time`); ties by least memory, then by order of the space.
    `costed`: candidates whose memory and time were computed. `by_memory`: not computed, because their states alone do
    not fit. `behind`: not computed, because a bound showed that none is among the best, or because they recompute more
    of a stem that fits without. `too_large`: costed candidates that do not fit. `smallest`: the costed candidate that
    needs least memory, the fastest of those (one row, or none where none was costed); of all candidates where none
    fits, if asked. `unseen`: the step time that no candidate left without a look can beat [s], infinite where the
    search ended by itself; `behind` then counts those as well. `solved`: how many had their pipelines simulated;
    `behind_solved`: the step time that none of the others can beat [s]. `once`: axes in which alone the best do not
    differ, where there are enough others."""

    best: ConfigTable
    costed: int
    by_memory: int
    behind: int
    too_large: int
    smallest: ConfigTable
    unseen: float = np.inf
    solved: int = 0
    behind_solved: float = np.inf
    once: tuple[str, ...] = ()


def bounds_of(model: CostModel, space: Enumeration, limit: float = np.inf) -> Bounds:
    """The bounds of every stem of a space; a time of 0 for those whose memory is above `limit` [bytes]."""
    blocks = [slice(b, b + BOUND_STEMS) for b in range(0, len(space.stems), BOUND_STEMS)]
    none = np.zeros(0)
    memory = np.concatenate([none, *(model.least_memory(space.stems.take(block)) for block in blocks)])
    time, possible = np.zeros(len(memory)), np.flatnonzero(memory <= limit)
    for start in range(0, len(possible), BOUND_STEMS):
        rows = possible[start : start + BOUND_STEMS]
        time[rows] = model.lower_bound(space.stems.take(rows))
    return Bounds(time, memory)


class _Best:
    """The k best rows so far, as (time, memory, stem, which of its leaves)."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.rows = np.zeros((0, 4))

    def offer(self, rows: NDArray[np.float64]) -> None:
        both = np.concatenate([self.rows, rows])
        order = np.lexsort((both[:, 3], both[:, 2], both[:, 1], both[:, 0]))
        _, first = np.unique(both[order, 2], return_index=True)  # of a stem, its fastest leaf
        self.rows = both[order[np.sort(first)[: self.k]]]

    @property
    def threshold(self) -> float:
        return float(self.rows[-1, 0]) if len(self.rows) == self.k else np.inf


class _Looker:
    """Costs leaves, keeps the best and counts. A leaf is named by its place among its stem's choices."""

    def __init__(
        self, model: CostModel, space: Enumeration, limit: float, top: int, bound: NDArray[np.float64]
    ) -> None:
        self.model, self.space, self.limit, self.bound = model, space, limit, bound
        self.best = _Best(top)
        self.costed = self.too_large = 0
        self.hosts = HostRoom(model, space.stems)
        self.least = (np.inf, np.inf, 0, 0)  # memory, time, stem, place
        self.counts = space.counts
        self.ordered = first_is_fastest(model, space.choices)

    def first_leaves(self, stems: Index) -> tuple[Index, NDArray[np.float64]]:
        """Cost each stem's first leaf: those of which another may be better, and the times these cannot beat."""
        kind = self.space.kind[stems]
        none = np.zeros(len(stems), dtype=np.intp)
        time, fits = self._look(stems, np.arange(len(stems)), none)
        waiting = (self.counts[stems] > 1) & ~(fits & self.ordered[kind])
        time = np.where(self.ordered[kind], time, self.bound[stems])
        return stems[waiting], time[waiting]

    def other_leaves(self, stems: Index) -> None:
        """Cost all leaves of stems but the first of each."""
        self._look(stems, *places_behind_first(self.counts[stems] - 1))

    def _look(
        self, stems: Index, leaf: Index, places: Index
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Step time of the leaves (`leaf` indexes `stems`, ascending) and whether they fit."""
        time, fits = np.empty(len(leaf)), np.empty(len(leaf), dtype=np.bool_)
        named, ways = stems[leaf], self.space.recomputed(stems[leaf], places)
        for rows, cost in costed_leaves(self.model, self.space.stems.take(stems), leaf, ways, least=True):
            assert cost.least is not None, "it was asked for"
            good = cost.device_memory <= self.limit
            fitting = np.flatnonzero(good)
            good[fitting] = self.hosts.holds(named[rows][fitting], ways.take(rows).take(fitting))
            time[rows], fits[rows] = cost.least, good
            small = np.flatnonzero(cost.device_memory == cost.device_memory.min())
            one = int(small[cost.least[small].argmin()])
            found = float(cost.device_memory[one]), float(cost.least[one])
            if found < self.least[:2]:
                self.least = (*found, int(named[rows][one]), int(places[rows][one]))
            chosen = np.flatnonzero(good & (cost.least <= self.best.threshold))
            if len(chosen):
                at_stem, at_leaf = named[rows][chosen], places[rows][chosen]
                columns = (cost.least[chosen], cost.device_memory[chosen], at_stem, at_leaf)
                self.best.offer(np.stack([column.astype(float) for column in columns], axis=1))
        self.costed += len(leaf)
        self.too_large += int((~fits).sum())
        return time, fits


def search(
    model: CostModel, space: Enumeration, limit: float, top: int, bounds: Bounds | None = None,
    stopped: Callable[[], bool] = lambda: False, name_smallest: bool = True,
) -> SearchResult:  # fmt: skip
    """The `top` fastest configurations whose device memory is at most `limit` [bytes] and whose hosts have room.

    `stopped` is asked between waves, of which the first is always looked at. `name_smallest`: where nothing fits, find
    the candidate that needs least memory among those whose states alone do not fit, too.
    """
    if not len(space.stems):
        return SearchResult(space.stems, 0, 0, 0, 0, space.stems)
    bounds = bounds or bounds_of(model, space)
    possible = np.flatnonzero(bounds.memory <= limit)
    looker, unseen = _Looker(model, space, limit, top, bounds.time), np.inf
    if len(possible):
        unseen = _look_through(looker, possible, stopped)
    by_memory = len(space) - int(space.counts[possible].sum())
    if name_smallest and not len(looker.best.rows) and np.isinf(unseen) and by_memory:
        others = np.setdiff1d(np.arange(len(space.stems)), possible)
        before = looker.costed
        unseen = _name_smallest(looker, others, bounds.memory[others], stopped)
        by_memory -= looker.costed - before
    best, least = looker.best.rows, looker.least
    chosen = space.leaves(*best[:, 2:].T.astype(np.intp))
    seen = int(np.isfinite(least[0]))
    smallest = space.leaves(np.array([least[2]])[:seen], np.array([least[3]])[:seen])
    behind = len(space) - looker.costed - by_memory
    return SearchResult(chosen, looker.costed, by_memory, behind, looker.too_large, smallest, unseen)


def _look_through(looker: _Looker, stems: Index, stopped: Callable[[], bool]) -> float:
    """Cost what may be among the best of `stems`; the least step time of what was not looked at when stopped."""
    waiting, times, unseen = _first_pass(looker, stems, stopped)
    order = np.argsort(times, kind="stable")
    waiting, times, start, size = waiting[order], times[order], 0, PROBE_STEMS
    while start < len(waiting):
        chosen = waiting[start : start + size][times[start : start + size] <= looker.best.threshold]
        if not len(chosen):
            break
        if stopped():
            return min(unseen, float(times[start]))
        looker.other_leaves(chosen)
        start, size = start + size, min(2 * size, PROBES_LARGEST)
    return unseen


def _name_smallest(
    looker: _Looker, stems: Index, memory: NDArray[np.float64], stopped: Callable[[], bool]
) -> float:
    """Cost `stems` in the order of their bounds of `memory` (n,) [bytes] until no other needs less than the least; the
    least step time of what was not looked at when stopped."""
    order = np.argsort(memory, kind="stable")
    stems, memory, start, size = stems[order], memory[order], 0, PROBE_STEMS
    while start < len(stems) and memory[start] < looker.least[0]:
        if start and stopped():
            return float(looker.bound[stems[start:]].min())
        wave = np.sort(stems[start : start + size])
        looker.first_leaves(wave)
        looker.other_leaves(wave)
        start, size = start + size, min(2 * size, PROBES_LARGEST)
    return np.inf


def _first_pass(
    looker: _Looker, left: Index, stopped: Callable[[], bool]
) -> tuple[Index, NDArray[np.float64], float]:
    """Cost the first leaf of every stem whose bound is not behind; return the stems whose other leaves wait, the times
    that these cannot beat, and the least bound of the stems not looked at when stopped."""
    size, bound = WAVE_STEMS, looker.bound
    waiting, times = [np.zeros(0, dtype=np.intp)], [np.zeros(0)]
    while len(left):
        if len(left) > size:
            order = np.argpartition(bound[left], size)
            wave, left = left[order[:size]], left[order[size:]]
        else:
            wave, left = left, left[:0]
        stems, time = looker.first_leaves(np.sort(wave))
        near = np.argsort(time, kind="stable")
        probes, others = near[:PROBE_STEMS], near[PROBE_STEMS:]
        probes = probes[time[probes] <= looker.best.threshold]
        if len(probes):
            looker.other_leaves(stems[probes])
        others = others[time[others] <= looker.best.threshold]
        waiting.append(stems[others])
        times.append(time[others])
        left = left[bound[left] <= looker.best.threshold]
        size = min(2 * size, WAVES_LARGEST)
        if len(left) and stopped():
            return np.concatenate(waiting), np.concatenate(times), float(bound[left].min())
    return np.concatenate(waiting), np.concatenate(times), np.inf

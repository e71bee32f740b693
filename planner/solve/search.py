"""Which legal configurations fit and are fastest?

Best first: every stem (a configuration without its fully recomputed layers) has a time that none of its leaves
can beat, from the work of its layers alone. Stems are costed in the order of that bound, each with as few
recomputed layers as it may have; more of them never take less time, so that cost bounds its other leaves in turn,
which are looked at only where the first does not fit. What is left when every bound is behind the k-th best needs
no look: the k best are exact. Of each stem only its fastest leaf that fits is listed: recomputing more layers than
it needs is slower. A search that is stopped says what a configuration it did not look at could reach at best. Left
out: splits other than the stack's own (`splits/split.py`), and other objectives (`solve/objective.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.host_memory import always_on_host, on_host
from planner.cost.model import CostModel
from planner.space.enumerate import Enumeration, with_recomputed_layers
from planner.spec.config import ConfigTable, IntColumn

BOUND_STEMS = 262144  # bounded at a time
WAVE_STEMS = 2048  # costed at a time; waves double
WAVES_LARGEST = 262144
PROBES_LARGEST = 16384  # of stems whose other leaves are looked at
BATCH_ROWS = 16384  # completed at a time: what a core's cache holds
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
    needs least memory (one row, or none where none was costed); of all candidates where none fits, if asked. `unseen`:
    the step time that no candidate left without a look can beat [s], infinite where the search ended by itself;
    `behind` then counts those as well. `solved`: how many had their pipelines simulated; `behind_solved`: the step time
    that none of the others can beat [s]. `once`: axes in which alone the best do not differ, where there are enough
    others."""

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
    """The k best rows so far, as (time, memory, stem, recomputed layers)."""

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
    """Costs leaves, keeps the best and counts."""

    def __init__(self, model: CostModel, space: Enumeration, limit: float, top: int) -> None:
        self.model, self.space, self.limit = model, space, limit
        self.best = _Best(top)
        self.costed = self.too_large = 0
        self.hosted = always_on_host(model, space.stems)
        self.least = (np.inf, 0, 0)
        self.first = np.array([choices[0] for choices in space.layer_choices], dtype=np.int32)
        self.choices = np.array([len(choices) for choices in space.layer_choices], dtype=np.int64)

    def first_leaves(self, stems: Index) -> tuple[Index, NDArray[np.float64]]:
        """Cost each stem's first leaf: those that do not fit and have other leaves, and their times."""
        kind = self.space.kind[stems]
        time, fits = self._look(stems, np.arange(len(stems)), self.first[kind])
        waiting = ~fits & (self.choices[kind] > 1)
        return stems[waiting], time[waiting]

    def other_leaves(self, stems: Index) -> None:
        """Cost all leaves of stems but the first of each."""
        kind = self.space.kind[stems]
        leaf = np.repeat(np.arange(len(stems)), self.choices[kind] - 1)
        self._look(stems, leaf, np.concatenate([self.space.layer_choices[k][1:] for k in kind]))

    def _look(
        self, stems: Index, leaf: Index, layers: IntColumn
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Step time of the leaves (`leaf` indexes `stems`, ascending) and whether they fit."""
        prepared = self.model.prepare(self.space.stems.take(stems))
        time, fits = np.empty(len(leaf)), np.empty(len(leaf), dtype=np.bool_)
        for start in range(0, len(leaf), BATCH_ROWS):
            rows = slice(start, min(start + BATCH_ROWS, len(leaf)))
            low, high = int(leaf[start]), int(leaf[rows.stop - 1]) + 1
            cost = prepared.evaluate(slice(low, high), leaf[rows] - low, layers[rows], least=True)
            assert cost.least is not None, "it was asked for"
            good = cost.device_memory <= self.limit
            if not self.hosted and good.any():
                fitting = np.flatnonzero(good)
                table = with_recomputed_layers(
                    self.space.stems.take(stems[leaf[start + fitting]]), layers[rows][fitting]
                )
                good[fitting] = on_host(self.model, table)
            time[rows], fits[rows] = cost.least, good
            smallest = int(cost.device_memory.argmin())
            if cost.device_memory[smallest] < self.least[0]:
                at = (int(stems[leaf[start + smallest]]), int(layers[start + smallest]))
                self.least = (float(cost.device_memory[smallest]), *at)
            chosen = np.flatnonzero(good & (cost.least <= self.best.threshold))
            if len(chosen):
                named = (stems[leaf[start + chosen]], layers[start + chosen])
                columns = (cost.least[chosen], cost.device_memory[chosen], *named)
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
    the candidate that needs least memory, which takes costing all of them.
    """
    if not len(space.stems):
        return SearchResult(space.stems, 0, 0, 0, 0, space.stems)
    bounds = bounds or bounds_of(model, space)
    possible = np.flatnonzero(bounds.memory <= limit)
    looker, unseen = _Looker(model, space, limit, top), np.inf
    if len(possible):
        unseen = _look_through(looker, bounds.time, possible, stopped)
    by_memory = len(space) - int(space.counts[possible].sum())
    if name_smallest and not len(looker.best.rows) and np.isinf(unseen) and by_memory:
        others = np.setdiff1d(np.arange(len(space.stems)), possible)
        unseen, by_memory = _look_through(looker, bounds.time, others, stopped), 0
    best, least = looker.best.rows, looker.least
    chosen = _rows(space, best[:, 2].astype(np.intp), best[:, 3].astype(np.int32))
    seen = int(np.isfinite(least[0]))
    smallest = _rows(space, np.array([least[1]])[:seen], np.array([least[2]], dtype=np.int32)[:seen])
    behind = len(space) - looker.costed - by_memory
    return SearchResult(chosen, looker.costed, by_memory, behind, looker.too_large, smallest, unseen)


def _look_through(
    looker: _Looker, bound: NDArray[np.float64], stems: Index, stopped: Callable[[], bool]
) -> float:
    """Cost what may be among the best of `stems`; the least step time of what was not looked at when stopped."""
    waiting, times, unseen = _first_pass(looker, bound, stems, stopped)
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


def _first_pass(
    looker: _Looker, bound: NDArray[np.float64], left: Index, stopped: Callable[[], bool]
) -> tuple[Index, NDArray[np.float64], float]:
    """Cost the first leaf of every stem whose bound is not behind; return the stems whose other leaves wait, the times
    of their first, and the least bound of the stems not looked at when stopped."""
    size = WAVE_STEMS
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


def _rows(space: Enumeration, stems: Index, layers: IntColumn) -> ConfigTable:
    return with_recomputed_layers(space.stems.take(stems), layers)

"""Which legal configurations fit and are fastest?

Best first. Every cut of a space (degrees, exchanges, micro-batch) has a time and a memory that none of its
configurations can beat (`cost.bounds.least_of_cuts`); cuts are dealt into stems (a configuration without what it
recomputes) in the order of that time, as far as it is not behind the k-th best found. Every stem has such a time in
turn, from the work of its layers alone. Stems are costed in the order of that bound, each recomputing as little as it
may; more never takes less time, so that cost bounds its other leaves in turn (where `first_is_fastest`; else the bound
does), which are looked at only where the first does not fit. What is left when every bound is behind the k-th best
needs no look: the k best are exact. Of each stem only its fastest leaf that fits is listed. A search that is stopped
says what a configuration it did not look at could reach at best. Left out: splits other than the stack's own
(`splits/split.py`), and other objectives (`answer/objective.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.solve.dealing import Dealt, Source
from planner.solve.kept import Fastest, Front, Kept
from planner.solve.leaves import HostRoom, first_is_fastest, places_behind_first
from planner.space.enumerate import Enumeration, Space
from planner.spec.config import ConfigTable

WAVE_STEMS = 2048  # costed at a time; waves double
WAVES_LARGEST = 262144
PROBES_LARGEST = 16384  # of stems whose other leaves are looked at
PROBE_STEMS = 512  # of each wave, those whose other leaves are looked at before the next wave

Index = NDArray[np.intp]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class SearchResult:
    """`best`: the fastest configurations that fit, best first, by what they take at least once their pipelines are
    simulated (`CostModel.least_step_time`); ties by least memory, then by order of the space.
    `legal`: candidates known to be legal, like all counts of all searches of one source so far. `costed`: of these,
    those whose memory and time were computed. `by_memory`: not computed, because their states alone do not fit.
    `behind`: not computed, because a bound showed that none is among the best, or because they recompute more of a stem
    that fits without. `undealt`: candidates, legal or not, of cuts that no one looked at further, for a bound of their
    time; `undealt_by_memory`: for one of their memory. `too_large`: costed candidates that do not fit. `smallest`: the
    costed candidate that needs least memory, the fastest of those (one row, or none where none was costed); of all
    candidates where none fits, if asked. `unseen`: the step time that no candidate left without a look can beat [s],
    infinite where the search ended by itself; `behind` then counts those as well. `solved`: how many had their
    pipelines simulated; `behind_solved`: the step time that none of the others can beat [s]. `once`: axes in which
    alone the best do not differ, where there are enough others."""

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
    legal: int = 0
    undealt: int = 0
    undealt_by_memory: int = 0


class _Looker:
    """Costs leaves of one block after another, keeps the best and counts."""

    def __init__(self, model: CostModel, limit: float, top: int, front: Front | None, cutoff: float) -> None:
        self.model, self.limit, self.front, self.cutoff = model, limit, front, cutoff
        self.best = Fastest(top)
        self.hosted_out = 0
        self.least, self.smallest = (np.inf, np.inf), ConfigTable.of([])  # memory, time

    def begin(self, dealt: Dealt) -> None:
        """Turn to a block."""
        self.space, self.bound, self.start, self.costs = (
            dealt.block,
            dealt.bounds.time,
            dealt.start,
            dealt.costs,
        )
        self.counts, self.hosts = self.space.counts, HostRoom(self.model, self.space.stems)
        self.ordered = first_is_fastest(self.model, self.space)

    def end(self) -> None:
        """Write down what is kept of it."""
        for kept in filter(None, (self.best, self.front)):
            kept.write_down(self.space, self.start)

    @property
    def threshold(self) -> float:
        """A time that only what is not slower is of interest [s]."""
        return min(self.best.threshold, self.cutoff)

    def first_leaves(self, stems: Index) -> tuple[Index, Array]:
        """Cost each stem's first leaf: those of which another may be better, and the times these cannot beat."""
        none = np.zeros(len(stems), dtype=np.intp)
        time, fits = self._look(stems, np.arange(len(stems)), none)
        waiting = (self.counts[stems] > 1) & ~(fits & self.ordered[stems])
        time = np.where(self.ordered[stems], time, self.bound[stems])
        return stems[waiting], time[waiting]

    def other_leaves(self, stems: Index) -> None:
        """Cost all leaves of stems but the first of each."""
        self._look(stems, *places_behind_first(self.counts[stems] - 1))

    def _look(self, stems: Index, leaf: Index, places: Index) -> tuple[Array, NDArray[np.bool_]]:
        """Step time of the leaves (`leaf` indexes `stems`, ascending) and whether they fit."""
        least, time, memory = self.costs.of(stems, leaf, places)
        named, fits = stems[leaf], memory <= self.limit
        fitting = np.flatnonzero(fits)
        ways = self.space.recomputed(named[fitting], places[fitting])
        fits[fitting] = self.hosts.holds(named[fitting], ways)
        if len(leaf):
            self._note_smallest(named, places, least, memory)
        chosen = np.flatnonzero(fits & (least <= self.threshold))
        self._offer(self.best, least, memory, named, places, chosen)
        if self.front is not None:
            better = np.flatnonzero(fits & (self.front.least(time) > memory))
            self._offer(self.front, time, memory, named, places, better)
        self.hosted_out += int((memory[~fits] <= self.limit).sum())
        return least, fits

    def _offer(
        self, kept: Kept, time: Array, memory: Array, stems: Index, places: Index, chosen: Index
    ) -> None:
        if len(chosen):
            columns = time[chosen], memory[chosen], self.start + stems[chosen], places[chosen]
            kept.offer(np.stack([column.astype(float) for column in columns], axis=1))

    def _note_smallest(self, stems: Index, places: Index, least: Array, memory: Array) -> None:
        small = np.flatnonzero(memory == memory.min())
        one = int(small[least[small].argmin()])
        found = float(memory[one]), float(least[one])
        if found < self.least:
            self.least, self.smallest = found, self.space.leaves(stems[[one]], places[[one]])


def search(
    model: CostModel, space: Enumeration | Space | Source, limit: float, top: int, *,
    stopped: Callable[[], bool] = lambda: False, name_smallest: bool = True, front: Front | None = None,
    cutoff: float = np.inf,
) -> SearchResult:  # fmt: skip
    """The `top` fastest configurations whose device memory is at most `limit` [bytes] and whose hosts have room.

    `stopped` is asked between waves, of which the first is always looked at. `name_smallest`: where nothing fits, find
    the candidate that needs least memory among those whose states alone do not fit, too. `front`: is offered whatever
    is costed and fits. `cutoff`: slower ones are of no interest [s].
    """
    source = space if isinstance(space, Source) else Source(model, space, limit)
    looker, unseen, begun = _Looker(model, limit, top, front, cutoff), np.inf, False
    for dealt in source.blocks(lambda: looker.threshold):
        if begun and stopped():
            unseen = min(source.least, float(dealt.least.time.min()))
            break
        begun = True
        looker.begin(dealt)
        unseen = _look_through(looker, np.flatnonzero(dealt.bounds.memory <= limit), stopped)
        looker.end()
        if np.isfinite(unseen):
            unseen = min(unseen, source.least)
            break
    if name_smallest and not len(looker.best.rows) and np.isinf(unseen):
        unseen = _name_smallest(looker, source, stopped)
    costed, by_memory, too_large = source.counts(limit)
    return SearchResult(
        looker.best.table, costed, by_memory, source.legal - costed - by_memory, too_large + looker.hosted_out,
        looker.smallest, unseen, legal=source.legal, undealt=source.undealt,
        undealt_by_memory=source.undealt_by_memory,
    )  # fmt: skip


def _look_through(looker: _Looker, stems: Index, stopped: Callable[[], bool]) -> float:
    """Cost what may be among the best of `stems`; the least step time of what was not looked at when stopped."""
    waiting, times, unseen = _first_pass(looker, stems, stopped)
    order = np.argsort(times, kind="stable")
    waiting, times, start, size = waiting[order], times[order], 0, PROBE_STEMS
    while start < len(waiting):
        chosen = waiting[start : start + size][times[start : start + size] <= looker.threshold]
        if not len(chosen):
            break
        if stopped():
            return min(unseen, float(times[start]))
        looker.other_leaves(chosen)
        start, size = start + size, min(2 * size, PROBES_LARGEST)
    return unseen


def _name_smallest(looker: _Looker, source: Source, stopped: Callable[[], bool]) -> float:
    """Cost all stems in the order of their bounds of memory until no other needs less than the least; the least step
    time of what was not looked at when stopped."""
    for dealt in source.by_memory(lambda: looker.least[0]):
        memory = dealt.bounds.memory
        others = np.flatnonzero((memory > looker.limit) & (memory < looker.least[0]))
        looker.begin(dealt)
        order = np.argsort(memory[others], kind="stable")
        others, start, size = others[order], 0, PROBE_STEMS
        while start < len(others) and memory[others[start]] < looker.least[0]:
            if start and stopped():
                return float(dealt.least.time[others[start:]].min())
            wave = np.sort(others[start : start + size])
            looker.first_leaves(wave)
            looker.other_leaves(wave)
            start, size = start + size, min(2 * size, PROBES_LARGEST)
    return np.inf


def _first_pass(looker: _Looker, left: Index, stopped: Callable[[], bool]) -> tuple[Index, Array, float]:
    """Cost the first leaf of every stem whose bound is not behind; return the stems whose other leaves wait, the times
    that these cannot beat, and the least bound of the stems not looked at when stopped."""
    size, bound = WAVE_STEMS, looker.bound
    left = left[bound[left] <= looker.threshold]
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
        probes = probes[time[probes] <= looker.threshold]
        if len(probes):
            looker.other_leaves(stems[probes])
        others = others[time[others] <= looker.threshold]
        waiting.append(stems[others])
        times.append(time[others])
        left = left[bound[left] <= looker.threshold]
        size = min(2 * size, WAVES_LARGEST)
        if len(left) and stopped():
            return np.concatenate(waiting), np.concatenate(times), float(bound[left].min())
    return np.concatenate(waiting), np.concatenate(times), np.inf

"""In which order are the cuts of a space dealt into stems, and which never need to be?

Cuts come in the order of a step time that none of their configurations beats, in blocks that double, until that time is
behind the slowest of interest; cuts whose states cannot fit are left out. Left out: what the stems cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.any_split import least_of_any_layout
from planner.cost.bounds import LateAxes
from planner.cost.model import CostModel
from planner.solve.leaves import costed_leaves
from planner.space.enumerate import Enumeration, Space
from planner.spec.config import Schedule

BOUND_STEMS = 262144  # bounded at a time
HOSTED_REACH = 4.0  # times the slowest bound without the host, up to which the host's work is counted
FIRST_CUTS, MOST_CUTS = 128, 8192  # dealt at a time; blocks double
# schedules that hold min(m, p - r) micro-batches or more on rank r
_QUEUED = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2)
_PAIRED = (Schedule.DUALPIPE, Schedule.DUALPIPE_V)

Index = NDArray[np.intp]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bounds:
    """What cannot be beaten: `time` (n,) [s] and `memory` (n,) [bytes]."""

    time: Array
    memory: Array


class LeafCosts:
    """What is known of the leaves of a block of stems, so that each is costed once, whoever asks."""

    def __init__(self, model: CostModel, block: Enumeration) -> None:
        self.model, self.block = model, block
        ends = np.cumsum(block.counts)
        self._first, self._ends = ends - block.counts, ends
        # what a leaf takes at least, by the cost model's equations [s], and its device memory [bytes]
        self.least, self.time, self.memory = np.full((3, int(ends[-1]) if len(ends) else 0), np.nan)

    def of(self, stems: Index, leaf: Index, places: Index) -> tuple[Array, Array, Array]:
        """`least`, `time`, `memory` of leaves: of each its stem (`leaf` indexes `stems`, ascending) and its place."""
        named = self._first[stems[leaf]] + places
        new = np.flatnonzero(np.isnan(self.memory[named]))
        if len(new):
            ways, stem = self.block.recomputed(stems[leaf[new]], places[new]), self.block.stems.take(stems)
            for rows, cost in costed_leaves(self.model, stem, leaf[new], ways, least=True):
                at = named[new[rows]]
                self.least[at], self.time[at], self.memory[at] = (
                    cost.least,
                    cost.step_time,
                    cost.device_memory,
                )
        return self.least[named], self.time[named], self.memory[named]

    def forget(self) -> None:
        """Know nothing any more, and take no room."""
        self.least = self.time = self.memory = np.zeros(0)

    def counts(self, fits: float) -> tuple[int, int]:
        """How many are known, and how many of them need more than `fits` [bytes]."""
        known = ~np.isnan(self.memory)
        return int(known.sum()), int((self.memory[known] > fits).sum())

    def unknown(self, stems: Index) -> int:
        """How many of some stems are not known."""
        before = np.concatenate([[0], np.cumsum(np.isnan(self.memory))])
        return int((before[self._ends[stems]] - before[self._first[stems]]).sum())


@dataclass(frozen=True)
class Dealt:
    """A block of stems, numbered over all blocks from `start` on; `bounds`: what no leaf of a stem beats under the
    stack's own split; `least`: nor any layout of its layers (the bounds of its cut); `costs`: of its leaves."""

    block: Enumeration
    start: int
    bounds: Bounds
    least: Bounds
    costs: LeafCosts


def bounds_of(model: CostModel, space: Enumeration, limit: float = np.inf) -> Bounds:
    """The bounds of every stem of a space; a time of 0 for those whose memory is above `limit` [bytes]."""
    blocks = [slice(b, b + BOUND_STEMS) for b in range(0, len(space.stems), BOUND_STEMS)]
    none = np.zeros(0)
    memory = np.concatenate([none, *(model.least_memory(space.stems.take(block)) for block in blocks)])
    time, possible = np.zeros(len(memory)), np.flatnonzero(memory <= limit)
    for start in range(0, len(possible), BOUND_STEMS):
        rows = possible[start : start + BOUND_STEMS]
        stems = space.stems.take(rows)
        least = model.lower_bound(stems)
        hosted = np.flatnonzero(stems["offload"])  # what the host does counts too
        if len(hosted):
            some = stems.take(hosted)
            beside = least_of_any_layout(model, some, HOSTED_REACH * float(least[hosted].max()))
            least[hosted] = np.maximum(least[hosted], beside)
        time[rows] = least
    return Bounds(time, memory)


def late_axes(space: Space) -> LateAxes:
    """What the cuts of a space leave open."""
    limits, pinned = space.problem.stack.limits, space.axes.restrict
    schedules = pinned.get("schedule", tuple(map(int, space.axes.schedules)))
    offload = 0
    for (bits,) in space.axes.offload(1):
        offload |= bits
    return LateAxes(
        zero=max(pinned.get("zero", limits.zero)),
        offload=offload,
        graphs=max(kind for (kind,) in space.axes.cuda_graph_impl(1)),
        paired=any(kind in _PAIRED for kind in schedules),
        mirrored=int(Schedule.DUALPIPE) in schedules,
        queued=all(kind in _QUEUED for kind in schedules),
    )


class Source:
    """The blocks of a space of which something may fit in `limit` [bytes]; of an enumeration, all its stems at once.

    `undealt`, `undealt_by_memory`: candidates, legal or not, of cuts left out for their time or their memory.
    """

    def __init__(self, model: CostModel, space: Enumeration | Space, limit: float) -> None:
        self.model, self.limit, self.stems = model, limit, 0
        self.done, self.larger = list[Dealt](), list[Dealt]()  # dealt for their time, and for their memory
        none = np.zeros(0, dtype=np.intp)
        self.space, self.left, self.too_large = None, none, none
        self.time = self.memory = np.zeros(0)
        if isinstance(space, Space):
            self.space = space
            self.time, self.memory = model.least_of_cuts(space.cuts, late_axes(space), limit)
            fits = self.memory <= limit
            possible = np.flatnonzero(fits)
            self.left = possible[np.argsort(self.time[possible], kind="stable")]
            self.too_large = np.flatnonzero(~fits)
            self.too_large = self.too_large[np.argsort(self.memory[self.too_large], kind="stable")]
        elif len(space.stems):
            bounds = bounds_of(model, space)
            self.done.append(Dealt(space, 0, bounds, bounds, LeafCosts(model, space)))

    @property
    def undealt(self) -> int:
        """Those of cuts whose time was never reached."""
        return 0 if self.space is None else self.space.candidates(self.left)

    @property
    def undealt_by_memory(self) -> int:
        """Those of cuts whose states do not fit."""
        return 0 if self.space is None else self.space.candidates(self.too_large)

    @property
    def least(self) -> float:
        """The step time that nothing of cuts left so far beats [s]."""
        return float(self.time[self.left[0]]) if len(self.left) else np.inf

    def blocks(self, threshold: Callable[[], float]) -> Iterator[Dealt]:
        """One after another, those dealt before first, until all others are slower than `threshold` says [s]."""
        for dealt in list(self.done):
            if dealt.least.time.min(initial=np.inf) <= threshold():
                yield dealt
        size = FIRST_CUTS
        while len(self.left) and self.least <= threshold():
            rows, self.left = np.sort(self.left[:size]), self.left[size:]
            size = min(2 * size, MOST_CUTS)
            dealt = self._deal(rows, self.limit)
            if len(dealt.block.stems):
                self.done.append(dealt)
                yield dealt

    @property
    def legal(self) -> int:
        """The legal candidates of all blocks dealt so far."""
        return sum(len(dealt.block) for dealt in (*self.done, *self.larger))

    def counts(self, limit: float) -> tuple[int, int, int]:
        """Of these, those that are costed; those that are not, and whose states alone need more than `limit` [bytes];
        and the costed ones that need more."""
        costed = by_memory = too_large = 0
        for dealt in (*self.done, *self.larger):
            known, larger = dealt.costs.counts(limit)
            least = np.maximum(dealt.bounds.memory, dealt.least.memory)
            by_memory += dealt.costs.unknown(np.flatnonzero(least > limit))
            costed, too_large = costed + known, too_large + larger
        return costed, by_memory, too_large

    def forget_costs(self) -> None:
        """No search will ask for leaves any more, nor count them."""
        for dealt in (*self.done, *self.larger):
            dealt.costs.forget()

    def by_memory(self, least: Callable[[], float]) -> Iterator[Dealt]:
        """The blocks dealt so far, and then further ones, until all others need as much memory as `least` says
        [bytes]."""
        yield from [*self.done, *self.larger]
        size = FIRST_CUTS
        while len(self.too_large) and self.memory[self.too_large[0]] < least():
            rows, self.too_large = np.sort(self.too_large[:size]), self.too_large[size:]
            size = min(2 * size, MOST_CUTS)
            dealt = self._deal(rows, np.inf)
            if len(dealt.block.stems):
                self.larger.append(dealt)
                yield dealt

    def others(self, worth: Callable[[Array, Array], NDArray[np.bool_]]) -> Iterator[Dealt]:
        """Blocks of the cuts that no search dealt, as far as they are `worth` it by their time and memory; they count
        as undealt all the same."""
        left, size = self.left, FIRST_CUTS
        while len(left):
            left = left[worth(self.time[left], self.memory[left])]
            rows, left = np.sort(left[:size]), left[size:]
            size = min(2 * size, MOST_CUTS)
            dealt = self._deal(rows, self.limit, counted=False)
            if len(dealt.block.stems):
                yield dealt

    def _deal(self, rows: Index, limit: float, counted: bool = True) -> Dealt:
        assert self.space is not None, "it has cuts"
        block, cut = self.space.dealt(rows, counted)
        least = Bounds(self.time[rows][cut], self.memory[rows][cut])
        start, self.stems = self.stems, self.stems + len(block.stems)
        bounds = bounds_of(self.model, block, limit)
        return Dealt(block, start, bounds, least, LeafCosts(self.model, block))

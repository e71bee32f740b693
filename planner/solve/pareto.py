"""Which configurations trade step time for memory best? The front over every configuration that fits.

A configuration is on the front if none is both as fast and as small. A stem is left out only where the front holds a
point at least as good as its two lower bounds together; of the others the leaves that recompute least and most are
costed, and those between them only where the corner that the two span (or the bounds, where these leaves are not the
fastest and the smallest for sure) is not behind the front. So the front is exact under the equations of the cost model.
Left out: simulated pipelines, which an answer gives its points, and splits other than the stack's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.solve.leaves import HostRoom, costed_leaves, first_is_fastest, places_behind_first
from planner.solve.search import Bounds, bounds_of
from planner.space.enumerate import Enumeration
from planner.spec.config import ConfigTable

NEAR_MOST_ROOM = 0.01  # of the memory that may be used: so much less free is no reason to take a slower one
WAVE_STEMS = 32768  # costed between two looks at the bounds

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class ParetoFront:
    """Points by rising step time and falling memory. `complete`: False where the search was stopped."""

    table: ConfigTable
    step_time: Array
    device_memory: Array
    complete: bool

    def roomiest(self, limit: float) -> ConfigTable:
        """The fastest of those whose free memory is within `NEAR_MOST_ROOM` of the most, then the faster ones, by
        falling room. `limit`: the memory that may be used [bytes]."""
        if not len(self.table):
            return self.table
        near = self.device_memory <= self.device_memory[-1] + NEAR_MOST_ROOM * limit
        return self.table.take(slice(int(np.argmax(near)), None, -1))


class _Front:
    """The points so far: columns time, memory, stem, which of its leaves; time rises, memory falls."""

    def __init__(self) -> None:
        self.rows = np.zeros((0, 4))

    def offer(self, rows: Array) -> None:
        """Keep of these and the present points those that no other is as good as in both."""
        both = np.concatenate([self.rows, rows])
        both = both[np.lexsort((both[:, 3], both[:, 2], both[:, 1], both[:, 0]))]
        least = np.minimum.accumulate(both[:, 1])
        self.rows = both[np.concatenate([[True], both[1:, 1] < least[:-1]])] if len(both) else both

    def least(self, time: Array) -> Array:
        """The least memory of a point that is no slower than each of these times; infinite where there is none."""
        memory = np.concatenate([[np.inf], self.rows[:, 1]])
        return np.asarray(memory[np.searchsorted(self.rows[:, 0], time, side="right")])


def pareto_front(
    model: CostModel, space: Enumeration, limit: float, bounds: Bounds | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> ParetoFront:  # fmt: skip
    """The front of step time against device memory of all configurations within `limit` [bytes]."""
    if not len(space.stems):
        return ParetoFront(space.stems, np.zeros(0), np.zeros(0), True)
    builder = _Builder(model, space, limit, bounds or bounds_of(model, space), stopped)
    complete, rows = builder.fill(), builder.front.rows
    return ParetoFront(space.leaves(*rows[:, 2:].T.astype(np.intp)), rows[:, 0], rows[:, 1], complete)


class _Builder:
    """Costs the leaves that may be on the front."""

    def __init__(
        self, model: CostModel, space: Enumeration, limit: float, bounds: Bounds, stopped: Callable[[], bool]
    ) -> None:
        self.model, self.space, self.limit, self.bounds, self.stopped = model, space, limit, bounds, stopped
        self.front, self.hosts = _Front(), HostRoom(model, space.stems)
        self.counts = space.counts
        self.fastest = first_is_fastest(model, space.choices)
        self.smallest = np.array([not choices.modules.any() for choices in space.choices], dtype=np.bool_)

    def fill(self) -> bool:
        """Every point of the front; False where it was stopped."""
        time, memory = self.bounds.time, self.bounds.memory
        left = np.flatnonzero(memory <= self.limit)
        left = left[np.argsort(time[left], kind="stable")]
        waiting: list[tuple[Index, Array, Array]] = []
        while len(left):
            if self.stopped():
                return False
            left = left[self.front.least(time[left]) > memory[left]]
            wave, left = np.sort(left[:WAVE_STEMS]), left[WAVE_STEMS:]
            kind, leaf = self.space.kind[wave], np.arange(len(wave))
            fast, _ = self._look(wave, leaf, np.zeros(len(wave), dtype=np.intp))
            _, small = self._look(wave, leaf, self.counts[wave] - 1)
            fast = np.where(self.fastest[kind], fast, time[wave])
            small = np.where(self.smallest[kind], small, memory[wave])
            more = (self.counts[wave] > 2) & (small <= self.limit)
            waiting.append((wave[more], fast[more], small[more]))
        return self._between(waiting)

    def _between(self, waiting: list[tuple[Index, Array, Array]]) -> bool:
        """Cost the leaves between the first and the last of stems, given with a time and a memory that none of them
        beats, as far as these are not behind the front; False where it was stopped."""
        stems = np.concatenate([np.zeros(0, dtype=np.intp), *(part[0] for part in waiting)])
        time = np.concatenate([np.zeros(0), *(part[1] for part in waiting)])
        memory = np.concatenate([np.zeros(0), *(part[2] for part in waiting)])
        order = np.argsort(time, kind="stable")
        for start in range(0, len(order), WAVE_STEMS // 8):
            if self.stopped():
                return False
            part = order[start : start + WAVE_STEMS // 8]
            wave = stems[np.sort(part[self.front.least(time[part]) > memory[part]])]
            self._look(wave, *places_behind_first(self.counts[wave] - 2))
        return True

    def _look(self, stems: Index, leaf: Index, places: Index) -> tuple[Array, Array]:
        """Cost leaves (`leaf` indexes `stems`, ascending), offer those that fit; their times and memory."""
        time, memory, ways = (
            np.empty(len(leaf)),
            np.empty(len(leaf)),
            self.space.recomputed(stems[leaf], places),
        )
        for rows, cost in costed_leaves(self.model, self.space.stems.take(stems), leaf, ways):
            time[rows], memory[rows] = cost.step_time, cost.device_memory
        good = np.flatnonzero((memory <= self.limit) & (self.front.least(time) > memory))
        good = good[self.hosts.holds(stems[leaf[good]], ways.take(good))]
        columns = (time[good], memory[good], stems[leaf[good]], places[good])
        self.front.offer(np.stack([np.asarray(column, dtype=float) for column in columns], axis=1))
        return time, memory

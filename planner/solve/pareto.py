"""Which configurations trade step time for memory best? The front over every configuration that fits and is not much
slower than the fastest.

A configuration is on the front if none is both as fast and as small. The search has offered whatever it costed. Of the
rest a cut or a stem is left out only where the front holds a point at least as good as its two lower bounds together;
of the others the leaves that recompute least and most are costed, and those between them only where the corner that
the two span (or the bounds, where these leaves are not the fastest and the smallest for sure) is not behind the front.
So the front is exact under the equations of the cost model. Left out: configurations slower than `REACH` times the
fastest, which nobody runs for their memory, simulated pipelines, which an answer gives its points, and splits other
than the stack's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.solve.dealing import Dealt, Source
from planner.solve.kept import Front
from planner.solve.leaves import HostRoom, first_is_fastest, places_behind_first
from planner.space.enumerate import Enumeration, Space
from planner.spec.config import ConfigTable

NEAR_MOST_ROOM = 0.01  # of the memory that may be used: so much less free is no reason to take a slower one
REACH = 2.0  # times the fastest step
WAVE_STEMS = 4096  # costed between two looks at the bounds

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


def pareto_front(
    model: CostModel, space: Enumeration | Space | Source, limit: float,
    stopped: Callable[[], bool] = lambda: False, front: Front | None = None, reach: float = np.inf,
) -> ParetoFront:  # fmt: skip
    """The front of step time against device memory of all configurations within `limit` [bytes].

    `front`: what a search of the same source offered. `reach`: times the fastest of these that a point may take.
    """
    source, front = space if isinstance(space, Source) else Source(model, space, limit), front or Front()
    builder = _Builder(model, limit, stopped, front, reach)
    complete = all(builder.fill(dealt) for dealt in source.done) and all(
        builder.fill(dealt) for dealt in source.others(builder.worth)
    )
    rows, table = front.rows, front.table
    within = rows[:, 0] <= builder.slowest
    return ParetoFront(table.take(within), rows[within, 0], rows[within, 1], complete)


class _Builder:
    """Costs leaves that the front may need."""

    def __init__(
        self, model: CostModel, limit: float, stopped: Callable[[], bool], front: Front, reach: float
    ) -> None:
        self.model, self.limit, self.stopped, self.front, self.reach = model, limit, stopped, front, reach

    @property
    def slowest(self) -> float:
        """What no point of interest takes longer than [s]."""
        return self.reach * float(self.front.rows[0, 0]) if len(self.front.rows) else np.inf

    def worth(self, time: Array, memory: Array) -> NDArray[np.bool_]:
        """Which of some lower bounds of both are not behind the front?"""
        return (memory <= self.limit) & (time <= self.slowest) & (self.front.least(time) > memory)

    def fill(self, dealt: Dealt) -> bool:
        """Every point that a block adds; False where it was stopped."""
        self.space, self.start, self.costs = dealt.block, dealt.start, dealt.costs
        self.counts, self.hosts = self.space.counts, HostRoom(self.model, self.space.stems)
        fastest = first_is_fastest(self.model, self.space)
        smallest = np.array([not choices.modules.any() for choices in self.space.choices], dtype=np.bool_)
        memory = np.maximum(dealt.bounds.memory, dealt.least.memory)
        time = np.maximum(dealt.bounds.time, dealt.least.time)
        left = np.flatnonzero(self.worth(time, memory))
        left = left[np.argsort(time[left], kind="stable")]
        waiting: list[tuple[Index, Array, Array]] = []
        while len(left):
            if self.stopped():
                self.front.write_down(self.space, self.start)  # what it has of the block so far
                return False
            left = left[self.worth(time[left], memory[left])]
            wave, left = np.sort(left[:WAVE_STEMS]), left[WAVE_STEMS:]
            kind, leaf = self.space.kind[wave], np.arange(len(wave))
            fast, _ = self._look(wave, leaf, np.zeros(len(wave), dtype=np.intp))
            _, small = self._look(wave, leaf, self.counts[wave] - 1)
            fast = np.where(fastest[wave], fast, time[wave])
            small = np.where(smallest[kind], small, memory[wave])
            more = (self.counts[wave] > 2) & (small <= self.limit)
            waiting.append((wave[more], fast[more], small[more]))
        complete = self._between(waiting)
        self.front.write_down(self.space, self.start)
        return complete

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
            wave = stems[np.sort(part[self.worth(time[part], memory[part])])]
            self._look(wave, *places_behind_first(self.counts[wave] - 2))
        return True

    def _look(self, stems: Index, leaf: Index, places: Index) -> tuple[Array, Array]:
        """Cost leaves (`leaf` indexes `stems`, ascending), offer those that fit; their times and memory."""
        _, time, memory = self.costs.of(stems, leaf, places)
        good = np.flatnonzero((memory <= self.limit) & (self.front.least(time) > memory))
        ways = self.space.recomputed(stems[leaf[good]], places[good])
        good = good[self.hosts.holds(stems[leaf[good]], ways)]
        columns = (time[good], memory[good], self.start + stems[leaf[good]], places[good])
        self.front.offer(np.stack([np.asarray(column, dtype=float) for column in columns], axis=1))
        return time, memory

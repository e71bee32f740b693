"""Which configurations trade step time for memory best? The front over every configuration that fits.

A configuration is on the front if none is both as fast and as small. A stem is left out only where the front
holds a point at least as good as its two lower bounds together; of the others the leaves that recompute least and
most are costed, and those between them only where the corner that the two span is not behind the front. So the
front is exact under the equations of the cost model. Left out: simulated pipelines, which an answer
gives its points, and splits other than the stack's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.host_memory import always_on_host, on_host
from planner.cost.model import CostModel
from planner.cost.prepared import PreparedCosts
from planner.solve.search import Bounds, bounds_of
from planner.space.enumerate import Enumeration, with_recomputed_layers
from planner.spec.config import ConfigTable, IntColumn

WAVE_STEMS = 32768  # costed between two looks at the bounds
BATCH_ROWS = 8192  # completed at a time: what a core's cache holds

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class ParetoFront:
    """Points by rising step time and falling memory. `complete`: False where the search was stopped."""

    table: ConfigTable
    step_time: Array
    device_memory: Array
    complete: bool


class _Front:
    """The points so far: columns time, memory, stem, recomputed layers; time rises, memory falls."""

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
    front, complete = _Front(), True
    if len(space.stems):
        bounds = bounds or bounds_of(model, space)
        complete = _fill(front, model, space, limit, bounds, stopped)
    stems, layers = front.rows[:, 2].astype(np.intp), front.rows[:, 3].astype(np.int32)
    table = with_recomputed_layers(space.stems.take(stems), layers)
    return ParetoFront(table, front.rows[:, 0], front.rows[:, 1], complete)


def _fill(
    front: _Front, model: CostModel, space: Enumeration, limit: float, bounds: Bounds, stopped: Callable[[], bool]
) -> bool:  # fmt: skip
    """Every point of the front; False where it was stopped."""
    time, memory = bounds.time, bounds.memory
    left = np.flatnonzero(memory <= limit)
    left = left[np.argsort(time[left], kind="stable")]
    first = np.array([choices[0] for choices in space.layer_choices], dtype=np.int32)
    last = np.array([choices[-1] for choices in space.layer_choices], dtype=np.int32)
    several = np.array([len(choices) > 2 for choices in space.layer_choices])
    waiting: list[tuple[Index, Array, Array]] = []
    while len(left):
        if stopped():
            return False
        left = left[front.least(time[left]) > memory[left]]
        wave, left = np.sort(left[:WAVE_STEMS]), left[WAVE_STEMS:]
        kind = space.kind[wave]
        leaf, prepared = np.arange(len(wave)), model.prepare(space.stems.take(wave))
        fast = _look(front, model, space, prepared, limit, wave, leaf, first[kind])
        small = _look(front, model, space, prepared, limit, wave, leaf, last[kind])
        more = several[kind] & (small[1] <= limit)
        waiting.append((wave[more], fast[0][more], small[1][more]))
    return _between(front, model, space, limit, waiting, stopped)


def _between(
    front: _Front, model: CostModel, space: Enumeration, limit: float, waiting: list[tuple[Index, Array, Array]],
    stopped: Callable[[], bool],
) -> bool:  # fmt: skip
    """Cost the leaves between the first and the last of stems, given with the time of the one and the memory of the
    other, as far as these are not behind the front; False where it was stopped."""
    stems = np.concatenate([np.zeros(0, dtype=np.intp), *(part[0] for part in waiting)])
    time = np.concatenate([np.zeros(0), *(part[1] for part in waiting)])
    memory = np.concatenate([np.zeros(0), *(part[2] for part in waiting)])
    order = np.argsort(time, kind="stable")
    for start in range(0, len(order), WAVE_STEMS // 8):
        if stopped():
            return False
        part = order[start : start + WAVE_STEMS // 8]
        part = np.sort(part[front.least(time[part]) > memory[part]])
        choices = [space.layer_choices[k][1:-1] for k in space.kind[stems[part]]]
        leaf = np.repeat(np.arange(len(part)), [len(c) for c in choices])
        if len(leaf):
            wave = stems[part]
            prepared = model.prepare(space.stems.take(wave))
            _look(front, model, space, prepared, limit, wave, leaf, np.concatenate(choices))
    return True


def _look(
    front: _Front, model: CostModel, space: Enumeration, prepared: PreparedCosts, limit: float, stems: Index,
    leaf: Index, layers: IntColumn,
) -> tuple[Array, Array]:  # fmt: skip
    """Cost leaves (`leaf` indexes `stems`, ascending), offer those that fit; their times and memory."""
    time, memory = np.empty(len(leaf)), np.empty(len(leaf))
    if not len(leaf):
        return time, memory
    for start in range(0, len(leaf), BATCH_ROWS):
        rows = slice(start, min(start + BATCH_ROWS, len(leaf)))
        low, high = int(leaf[start]), int(leaf[rows.stop - 1]) + 1
        cost = prepared.evaluate(slice(low, high), leaf[rows] - low, layers[rows])
        time[rows], memory[rows] = cost.step_time, cost.device_memory
    good = np.flatnonzero((memory <= limit) & (front.least(time) > memory))
    if not always_on_host(model, space.stems):
        table = with_recomputed_layers(space.stems.take(stems[leaf[good]]), layers[good])
        good = good[on_host(model, table)]
    columns = (time[good], memory[good], stems[leaf[good]], layers[good])
    front.offer(np.stack([np.asarray(column, dtype=float) for column in columns], axis=1))
    return time, memory

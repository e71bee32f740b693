"""Which of the leaves costed so far are kept: the fastest, or those that trade step time for memory best?

A leaf is named by its stem and its place among that one's choices. Stems come in blocks that are not held on to, so
that what is kept of a block is written down as configurations when it is done. Left out: which leaves are costed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.space.enumerate import Enumeration
from planner.spec.config import ConfigTable

Array = NDArray[np.float64]
Index = NDArray[np.intp]


class Kept:
    """Leaves as rows: step time [s], device memory [bytes], stem (numbered over all blocks), place."""

    def __init__(self) -> None:
        self.rows = np.zeros((0, 4))
        self._written: dict[tuple[int, int], int] = {}
        self._table = ConfigTable.of([])

    def offer(self, rows: Array) -> None:
        """Keep of these and the present ones what is worth it."""
        raise NotImplementedError

    def write_down(self, block: Enumeration, start: int) -> None:
        """End a block whose stems are numbered from `start`."""
        named = [(int(stem), int(place)) for stem, place in self.rows[:, 2:]]
        old = [self._written[name] for name in named if name in self._written]
        new = [name for name in named if name not in self._written]
        if new or len(old) < len(self._table):
            stems, places = np.array(new, dtype=np.intp).reshape(len(new), 2).T
            parts = [self._table.take(np.array(old, dtype=np.intp)), block.leaves(stems - start, places)]
            self._table = ConfigTable.joined(parts)
            order = [name for name in named if name in self._written] + new
            self._written = {name: i for i, name in enumerate(order)}

    @property
    def table(self) -> ConfigTable:
        """The configurations of the rows, all blocks having ended."""
        order = [self._written[int(stem), int(place)] for stem, place in self.rows[:, 2:]]
        return self._table.take(np.array(order, dtype=np.intp))


class Fastest(Kept):
    """The k fastest, of each stem one leaf; ties by least memory, then by the order of the space."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def offer(self, rows: Array) -> None:
        both = np.concatenate([self.rows, rows])
        order = np.lexsort((both[:, 3], both[:, 2], both[:, 1], both[:, 0]))
        _, first = np.unique(both[order, 2], return_index=True)  # of a stem, its fastest leaf
        self.rows = both[order[np.sort(first)[: self.k]]]

    @property
    def threshold(self) -> float:
        """The time of the k-th; infinite while there are fewer [s]."""
        return float(self.rows[-1, 0]) if len(self.rows) == self.k else np.inf


class Front(Kept):
    """Those than which no other is both as fast and as small: time rises, memory falls."""

    def offer(self, rows: Array) -> None:
        both = np.concatenate([self.rows, rows])
        both = both[np.lexsort((both[:, 3], both[:, 2], both[:, 1], both[:, 0]))]
        least = np.minimum.accumulate(both[:, 1])
        self.rows = both[np.concatenate([[True], both[1:, 1] < least[:-1]])] if len(both) else both

    def least(self, time: Array) -> Array:
        """The least memory of one that is no slower than each of these times; infinite where there is none [bytes]."""
        memory = np.concatenate([[np.inf], self.rows[:, 1]])
        return np.asarray(memory[np.searchsorted(self.rows[:, 0], time, side="right")])

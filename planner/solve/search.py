"""Which legal configurations fit and are fastest?

Every stem (a configuration without its fully recomputed layers) is costed with as few of them as it may have.
Recomputing more layers is never faster, so that time bounds all its leaves from below: the leaves of stems that
fit as they are, or whose bound is behind the k-th best found, need no look. The k best are exact. Left out:
splits other than the stack's own, and other objectives than the step time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.space.enumerate import Enumeration, with_recomputed_layers
from planner.spec.config import ConfigTable, IntColumn

BATCH_ROWS = 16384
BATCH_STEMS = 1024


@dataclass(frozen=True)
class SearchResult:
    """`best`: the fastest configurations that fit, best first; ties by least memory, then by order of the space.
    `costed`: candidates whose memory and time were computed. `behind`: not computed, because a bound showed that
    none is among the best. `too_large`: costed candidates that do not fit. `smallest`: the costed candidate that
    needs least memory (one row, or none where nothing is legal)."""

    best: ConfigTable
    costed: int
    behind: int
    too_large: int
    smallest: ConfigTable


class _Best:
    """The k best rows so far, as (time, memory, stem, recomputed layers)."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.rows = np.zeros((0, 4))

    def offer(self, rows: NDArray[np.float64]) -> None:
        both = np.concatenate([self.rows, rows])
        order = np.lexsort((both[:, 3], both[:, 2], both[:, 1], both[:, 0]))
        self.rows = both[order[: self.k]]

    @property
    def threshold(self) -> float:
        return float(self.rows[-1, 0]) if len(self.rows) == self.k else np.inf


def search(model: CostModel, space: Enumeration, limit: float, top: int) -> SearchResult:
    """The `top` fastest configurations whose device memory is at most `limit` [bytes]."""
    if not len(space.stems):
        return SearchResult(space.stems, 0, 0, 0, space.stems)
    prepared = model.prepare(space.stems)
    best = _Best(top)
    first = np.array([choices[0] for choices in space.layer_choices], dtype=np.int32)[space.kind]
    bound = np.empty(len(first))
    fits = np.empty(len(first), dtype=np.bool_)
    least = (np.inf, 0, 0)
    costed = too_large = 0

    def look(
        stems: NDArray[np.intp], leaf: NDArray[np.intp], layers: IntColumn
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Cost the leaves (`leaf` indexes `stems`) and offer those that fit."""
        nonlocal costed, too_large, least
        cost = prepared.evaluate(stems, leaf, layers)
        good = cost.device_memory <= limit
        costed += len(leaf)
        too_large += int((~good).sum())
        low = int(cost.device_memory.argmin())
        if cost.device_memory[low] < least[0]:
            least = (float(cost.device_memory[low]), int(stems[leaf[low]]), int(layers[low]))
        promising = np.flatnonzero(good & (cost.step_time <= best.threshold))
        if len(promising):
            columns = (cost.step_time, cost.device_memory, stems[leaf], layers)
            best.offer(np.stack([column[promising].astype(float) for column in columns], axis=1))
        return cost.step_time, good

    for start in range(0, len(first), BATCH_ROWS):
        stems = np.arange(start, min(start + BATCH_ROWS, len(first)))
        bound[stems], fits[stems] = look(stems, stems - start, first[stems])
    counts = space.counts
    waiting = np.flatnonzero(~fits & (counts > 1))
    waiting = waiting[np.argsort(bound[waiting], kind="stable")]
    for start in range(0, len(waiting), BATCH_STEMS):
        stems = waiting[start : start + BATCH_STEMS]
        stems = stems[bound[stems] <= best.threshold]
        if not len(stems):
            break
        leaf = np.repeat(np.arange(len(stems)), counts[stems] - 1)
        look(stems, leaf, np.concatenate([space.layer_choices[space.kind[stem]][1:] for stem in stems]))
    chosen = _rows(space, best.rows[:, 2].astype(np.intp), best.rows[:, 3].astype(np.int32))
    smallest = _rows(space, np.array([least[1]]), np.array([least[2]], dtype=np.int32))
    return SearchResult(chosen, costed, len(space) - costed, too_large, smallest)


def _rows(space: Enumeration, stems: NDArray[np.intp], layers: IntColumn) -> ConfigTable:
    return with_recomputed_layers(space.stems.take(stems), layers)

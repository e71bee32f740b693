"""What does a rank of one configuration need to hold some layers, whatever the others hold?

Exact, from the cost of ranks side by side (`cost.held`); what was asked before is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.held import RankContents, rank_bytes
from planner.cost.pipeline.stages import ChunkKinds
from planner.solve.splits.dealt import with_recomputed
from planner.solve.splits.layers import LayerCosts
from planner.spec.config import Schedule

Array = NDArray[np.float64]
Index = NDArray[np.intp]

ROUNDING = 1e-12  # of memory, in which sums in another order may differ


@dataclass(frozen=True)
class _Rank:
    """A rank with kinds of the layers of its `chunks`, of each of which the `first` so many are recomputed, where the
    configuration says `stated`."""

    rank: int
    chunks: ChunkKinds
    first: int
    stated: int


class Room:
    """`limit`: memory of a device [bytes]."""

    def __init__(self, costs: LayerCosts, limit: float) -> None:
        self.costs, self.limit = costs, limit
        self.number = len(costs.spec.layer_kinds)
        one_hot = costs.kinds[:, None] == np.arange(self.number)
        self.before = np.concatenate([np.zeros((1, self.number), dtype=np.int64), one_hot.cumsum(axis=0)])
        self.known, self.asked = dict[_Rank, float](), 0

    def runs_fit(
        self, rank: Index, first: Index, layers: Index, stated: int, count: int
    ) -> NDArray[np.bool_]:
        """Whether `layers` from the layer `first` on fit on a rank with one chunk that recomputes the first `count` of
        them where the configuration says `stated` (n,)."""
        if np.isinf(self.limit) or not len(rank):
            return np.ones(len(rank), dtype=np.bool_)
        held = self.before[first + layers] - self.before[first]
        again = self.before[first + np.minimum(layers, count)] - self.before[first]
        rows, inverse = np.unique(np.column_stack([rank, held, again]), axis=0, return_inverse=True)
        ranks, held, again = np.split(rows, [1, 1 + self.number], axis=1)
        contents = RankContents(ranks[:, 0], held.astype(float), again.astype(float))
        needed = rank_bytes(self.costs.model, with_recomputed(self.costs.config, stated), contents)
        return np.asarray((needed <= self.limit * (1 + ROUNDING))[inverse.ravel()])

    def needed(self, splits: NDArray[np.int64], stated: int, count: NDArray[np.int64]) -> Array:
        """Device memory of every rank of some splits where the chunks of each recompute their first `count` (p,) and
        the configuration says `stated`: (splits, p) [bytes]."""
        costs, ends, kinds = self.costs, np.cumsum(splits, axis=1).tolist(), self.costs.kinds.tolist()
        chunks_of = [np.flatnonzero(costs.rank_of == rank).tolist() for rank in range(costs.p)]
        found = [
            [
                _Rank(
                    rank,
                    tuple(tuple(kinds[past[c] - row[c] : past[c]]) for c in chunks),
                    int(count[rank]),
                    stated,
                )
                for rank, chunks in enumerate(chunks_of)
            ]
            for row, past in zip(splits.tolist(), ends, strict=True)
        ]
        new = [
            one
            for one in dict.fromkeys(one for of_split in found for one in of_split)
            if one not in self.known
        ]
        if new:
            self.asked += len(new)
            self.known.update(zip(new, self._cost(new).tolist(), strict=True))
        return np.array([[self.known[one] for one in of_split] for of_split in found])

    def _cost(self, ranks: list[_Rank]) -> Array:
        """Device memory of some ranks, all under what the configuration says of the first [bytes]."""
        costs = self.costs
        rounds = costs.schedule is Schedule.INTERLEAVED
        contents = RankContents(
            np.array([one.rank for one in ranks]),
            np.array([self._count(one.chunks) for one in ranks]),
            np.array([self._count(tuple(chunk[: one.first] for chunk in one.chunks)) for one in ranks]),
            [one.chunks for one in ranks] if rounds else (),
            [one.first for one in ranks] if rounds else (),
        )
        return rank_bytes(costs.model, with_recomputed(costs.config, ranks[0].stated), contents)

    def _count(self, chunks: ChunkKinds) -> Array:
        """Layers of each kind in some chunks."""
        together = [kind for chunk in chunks for kind in chunk]
        return np.bincount(np.array(together, dtype=np.intp), minlength=self.number).astype(float)

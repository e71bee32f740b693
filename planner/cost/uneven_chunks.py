"""How much does an interleaved rank keep in flight where its chunks differ in layers?

The chunks of a rank hold different numbers of micro-batches, and which of them hold many changes as a step goes on
(`schedule.held.interleaved_moments`), so that their mean would be wrong by as much as they differ. Left out: schedules
other than interleaved 1F1B, whose chunks of a rank count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.cost.stages import ChunkKinds, StageClasses
from planner.schedule.formulas import in_flight
from planner.schedule.held import SATURATED, Counts, interleaved_moments
from planner.spec.config import ConfigTable, Schedule, distinct

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class UnevenChunks:
    """Layers in flight over micro-batches in flight, of U pipelines, C classes of stages and K kinds of layers, where a
    rank recomputes n < N layers, at J moments of which one is the worst [layers].

    `of_key` (q,): the row of a pipeline, -1 where all chunks of a rank are alike. `peak` (U, N, C, J, 2 K): layers that
    keep all, then layers that keep their input. `loss` (U, N, H, J, 2 K): of the classes that hold the head, in their
    order, while their last chunk runs backward.
    """

    of_key: Index
    peak: Array
    loss: Array

    def kept(
        self, q_row: Index, recompute_layers: NDArray[np.int32], each: Array, mean: Array, head: Index
    ) -> tuple[Array, Array]:
        """Activations over micro-batches in flight: at the worst moment (n, C), and at the loss on the classes `head`
        (n, H) that hold the head, a pipeline's one as often as needed [bytes].

        `q_row` (n,): pipeline keys. `each` (q, 2 K): bytes of a layer by kind, kept whole and recomputed. `mean`
        (n, C): of a micro-batch, which rows of even pipelines keep at all moments.
        """
        rows = np.flatnonzero(self.of_key[q_row] >= 0)
        if not len(rows):
            return mean, np.take_along_axis(mean, head, axis=1)
        q, peak, loss = q_row[rows], mean.copy(), np.take_along_axis(mean, head, axis=1)
        at, bytes_ = (self.of_key[q], np.minimum(recompute_layers[rows], self.peak.shape[1] - 1)), each[q]
        peak[rows] = np.einsum("ncjk,nk->ncj", self.peak[at], bytes_).max(axis=2)
        loss[rows] = np.einsum("nhjk,nk->nhj", self.loss[at], bytes_).max(axis=2)
        return peak, loss


def uneven_chunks(
    keys: ConfigTable, stage: Index, classes: StageClasses, behind: tuple[int, ...]
) -> UnevenChunks | None:
    """The uneven among interleaved pipelines (q,) of the rows `stage` of `classes`; None where there are none.

    `behind`: layers of each kind in prediction modules behind the last layer; they are never recomputed.
    """
    p, v, m = keys["pp"], keys["vpp"], keys["num_microbatches"]
    asked = (v > 1) & (keys["schedule"] <= Schedule.INTERLEAVED)
    if not asked.any() or not classes.chunks:
        return None
    uneven = np.array([any(len(set(of)) > 1 for of in chunks) for chunks in classes.chunks])
    asked &= uneven[stage] | any(behind)
    if not asked.any():
        return None
    enough = np.where(m % p == 0, np.minimum(m, SATURATED * p), m)  # more micro-batches hold no more
    first, inverse = distinct(np.where(asked, enough, 0).astype(np.int32), stage.astype(np.int32))
    wanted = np.flatnonzero(asked[first])
    of_first = np.full(len(first), -1)
    of_first[wanted] = np.arange(len(wanted))
    peaks: list[list[Array]] = []
    losses: list[Array] = []
    kinds = classes.layers.shape[2]
    for row in first[wanted]:
        s, shape = int(stage[row]), (int(p[row]), int(v[row]), int(enough[row]))
        peaks.append([])
        for j, chunks in enumerate(classes.chunks[s]):
            last = classes.last[s, j] > 0
            made = _of_class(*shape, int(classes.stage[s, j]), chunks, behind if last else (0,) * kinds)
            again = classes.again_of_chunk[s][j]
            peaks[-1].append(made[0][np.minimum(again, len(made[0]) - 1)])
            if last:
                losses.append(made[1][np.minimum(again, len(made[1]) - 1)])
    width, none = classes.count.shape[1], np.zeros_like(peaks[0][0])
    flat = padded([one for of in peaks for one in [*of, *[none] * (width - len(of))]])
    peak = flat.reshape(len(peaks), width, *flat.shape[1:]).swapaxes(1, 2)
    return UnevenChunks(of_first[inverse], np.ascontiguousarray(peak), padded(losses)[:, :, None])


@lru_cache(maxsize=8192)
def _of_class(
    p: int, v: int, m: int, rank: int, chunks: ChunkKinds, behind: tuple[int, ...]
) -> tuple[Array, Array]:
    """Layers in flight (x, J, 2 K), as `UnevenChunks` has them, where every chunk of a rank recomputes its first x."""
    deepest = max(map(len, chunks))
    layer = np.zeros((deepest + 1, v, len(behind)))
    for c, of_chunk in enumerate(chunks):
        layer[np.arange(1, len(of_chunk) + 1), c, of_chunk] = 1
    recomputed = np.cumsum(layer, axis=0)
    kept = recomputed[-1] - recomputed
    kept[:, -1] += behind
    whole = float(np.asarray(in_flight(rank, p, v, m)))
    peak, loss = (_weighed(held, kept, recomputed) / whole for held in interleaved_moments(p, v, m, rank))
    return peak, loss


def _weighed(held: Counts, kept: Array, recomputed: Array) -> Array:
    """Layers times the micro-batches of their chunk, at those moments that no other exceeds in layers of any kind that
    keep all and in layers together, recomputed ones keeping less."""
    both = np.stack([held @ kept, held @ recomputed], axis=2)  # (x, J, 2, K)
    both = both.reshape(*both.shape[:2], -1)
    together = np.stack([held @ kept, held @ (kept + recomputed)], axis=2).reshape(both.shape)
    # [x, i, j]: j holds as much as i
    as_much: NDArray[np.bool_] = np.logical_and.reduce(together[:, None] >= together[:, :, None], axis=3)
    earlier = np.tri(len(held), k=-1, dtype=np.bool_)
    exceeded = (as_much & (earlier | ~as_much.swapaxes(1, 2))).any(axis=2)
    order = np.argsort(exceeded, axis=1, kind="stable")[:, : int((~exceeded).sum(axis=1).max())]
    return np.take_along_axis(both, order[:, :, None], axis=1)


def padded(tables: Sequence[Array]) -> Array:
    """Tables (n, J, 2 K) of several numbers of moments as one, those of fewer repeating their last."""
    most = max(table.shape[1] for table in tables)
    return np.stack([table[:, np.minimum(np.arange(most), table.shape[1] - 1)] for table in tables])

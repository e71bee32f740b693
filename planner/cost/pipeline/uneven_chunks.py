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

from planner.cost.pipeline.stages import ChunkKinds, StageClasses
from planner.schedule.formulas import in_flight
from planner.schedule.held import SATURATED, Counts, interleaved_moments
from planner.spec.config import ConfigTable, Schedule, distinct

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Moments:
    """Layers in flight over micro-batches in flight, of U pipelines, C classes of stages and K kinds of layers, where
    every chunk recomputes its first x < X layers, at J moments of which one is the worst [layers].

    `of_key` (q,): the row of a pipeline key, -1 where it is none of these. `peak` (U, X, C, J, 2 K): layers that keep
    all, then layers that keep their input; `loss` (U, X, H, J, 2 K): of the classes that hold the head, in their
    order, while their last chunk runs backward. `at_peak` (U, N, C), `at_loss` (U, N): x where a rank recomputes
    n < N layers.
    """

    of_key: Index
    peak: Array
    loss: Array
    at_peak: Index
    at_loss: Index


@dataclass(frozen=True)
class UnevenChunks:
    """Pipelines whose ranks have chunks that differ, those with about as many classes and moments together."""

    groups: tuple[Moments, ...]

    def kept(
        self, q_row: Index, recompute_layers: NDArray[np.int32], each: Array, mean: Array, head: Index
    ) -> tuple[Array, Array]:
        """Activations over micro-batches in flight: at the worst moment (n, C), and at the loss on the classes `head`
        (n, H) that hold the head, a pipeline's one as often as needed [bytes].

        `q_row` (n,): pipeline keys. `each` (q, 2 K): bytes of a layer by kind, kept whole and recomputed. `mean`
        (n, C): of a micro-batch, which rows of even pipelines keep at all moments.
        """
        peak, loss = mean.copy(), np.take_along_axis(mean, head, axis=1)
        for group in self.groups:
            rows = np.flatnonzero(group.of_key[q_row] >= 0)
            if not len(rows):
                continue
            own, bytes_ = group.of_key[q_row[rows]], each[q_row[rows]]
            layers = np.minimum(recompute_layers[rows], group.at_loss.shape[1] - 1)
            classes = np.arange(group.peak.shape[2])
            held = group.peak[own[:, None], group.at_peak[own, layers], classes]
            peak[rows] = 0.0
            peak[rows[:, None], classes] = np.einsum("ncjk,nk->ncj", held, bytes_).max(axis=2)
            held = group.loss[own, group.at_loss[own, layers]]
            loss[rows] = np.einsum("nhjk,nk->nhj", held, bytes_).max(axis=2)
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
    alike: dict[tuple[int, int], list[tuple[int, list[tuple[Array, Array]]]]] = {}
    none = (0,) * classes.layers.shape[2]
    for at in np.flatnonzero(asked[first]).tolist():
        row = first[at]
        s, shape = int(stage[row]), (int(p[row]), int(v[row]), int(enough[row]))
        made = [
            _of_class(*shape, int(classes.stage[s, j]), chunks, behind if classes.last[s, j] > 0 else none)
            for j, chunks in enumerate(classes.chunks[s])
        ]
        size = (len(made), max(peak.shape[1] for peak, _ in made))
        alike.setdefault((size[0].bit_length(), size[1].bit_length()), []).append((at, made))
    return UnevenChunks(tuple(_together(of, stage[first], inverse, classes) for of in alike.values()))


def _together(
    of: list[tuple[int, list[tuple[Array, Array]]]], stage: Index, inverse: Index, classes: StageClasses
) -> Moments:
    """Pipelines `of` (`stage`, `inverse`: of all), given with what `_of_class` found of their classes, as one table."""
    width, depth = max(len(made) for _, made in of), classes.leading.shape[2]
    most = np.arange(max(len(peak) for _, made in of for peak, _ in made))
    of_first, at_peak = np.full(len(stage), -1), np.zeros((len(of), depth, width), dtype=np.intp)
    at_loss, peaks, losses = np.zeros((len(of), depth), dtype=np.intp), [], []
    for i, (at, made) in enumerate(of):
        of_first[at], again = i, classes.again_of_chunk[stage[at]]
        for j, (peak, loss) in enumerate(made):
            at_peak[i, :, j] = np.minimum(again[j], len(peak) - 1)
            peaks.append(peak[np.minimum(most, len(peak) - 1)])
            if classes.last[stage[at], j] > 0:
                at_loss[i] = at_peak[i, :, j]
                losses.append(loss[np.minimum(most, len(loss) - 1)])
        peaks += [np.zeros_like(peaks[-1])] * (width - len(made))
    flat = padded(peaks)
    peak = flat.reshape(len(of), width, *flat.shape[1:]).swapaxes(1, 2)
    tables = np.ascontiguousarray(peak), padded(losses)[:, :, None]
    return Moments(of_first[inverse], *tables, at_peak, at_loss)


def side_by_side(
    shape: tuple[int, int, int], ranks: Sequence[tuple[int, ChunkKinds, int]], behind: tuple[int, ...]
) -> UnevenChunks:
    """The chunks of ranks that are no pipeline together, as classes of one: of each its number, the kinds of the layers
    of its chunks, and how many of every chunk's layers, its first ones, are recomputed. `shape`: ranks, chunks of each
    and micro-batches; `behind`: see `uneven_chunks`."""
    p, v, m = shape
    enough = m if m % p else min(m, SATURATED * p)
    none, peaks, losses = (0,) * len(behind), [], []
    for rank, chunks, first in ranks:
        peak, loss = _of_class(p, v, enough, rank, chunks, behind if rank == p - 1 else none)
        peaks.append(peak[[min(first, len(peak) - 1)]])
        if rank == p - 1:
            losses.append(loss[[min(first, len(loss) - 1)]])
    return as_one_pipeline(peaks, losses)


def as_one_pipeline(peaks: Sequence[Array], losses: Sequence[Array]) -> UnevenChunks:
    """Layers in flight, (1, J, 2 K) of every class, and of those that hold the head while their last chunk runs
    backward, as one pipeline that recomputes some number of layers."""
    peak = padded(peaks).swapaxes(0, 1)[None]
    loss = padded(losses).swapaxes(0, 1)[None] if losses else peak[:, :, :0]
    at = np.zeros((1, 1, len(peaks)), dtype=np.intp)
    return UnevenChunks((Moments(np.zeros(1, dtype=np.intp), peak, loss, at, at[:, :, 0]),))


@lru_cache(maxsize=8192)
def _of_class(
    p: int, v: int, m: int, rank: int, chunks: ChunkKinds, behind: tuple[int, ...]
) -> tuple[Array, Array]:
    """Layers in flight (x, J, 2 K), as `Moments` has them, where every chunk of a rank recomputes its first x."""
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

"""How little can an interleaved rank keep in flight with some number of layers, however they lie in its chunks?

What a solver asks before it has a split (`cost/probe.py`). Left out: which chunks the layers of several kinds come to
lie in by their order in the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.pipeline.uneven_chunks import Moments, UnevenChunks, padded
from planner.schedule.formulas import in_flight
from planner.schedule.held import Counts, interleaved_moments
from planner.spec.config import ParallelConfig

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ChunkSizes:
    """Layers that a chunk holds at least and at most; the first and the last of a pipeline may hold none."""

    fewest: float
    most: float


@dataclass(frozen=True)
class RankLayers:
    """Layers of each of K kinds that ranks may hold, (ranks, L, K), and those of them that are recomputed where a
    configuration says n < N, (ranks, L, N, K), all from `whole` on. `order`: kinds by what they keep, most first.
    `behind`: layers of each kind in prediction modules behind the last layer."""

    held: Array
    recomputed: Array
    whole: int
    order: tuple[int, ...]
    behind: tuple[int, ...]


def least_in_chunks(
    config: ParallelConfig, layers: RankLayers, asked: tuple[int, ...], sizes: ChunkSizes
) -> UnevenChunks:
    """A lower bound of the layers in flight of ranks that hold `layers`, a class each, and recompute one of `asked`.

    As if layers lay, and those that keep all were, where fewest micro-batches are in flight; exact for one kind where
    every chunk holds as many as it recomputes.
    """
    p, v, m = config.pp, config.vpp, config.num_microbatches
    number, deep = layers.recomputed.shape[2], layers.held.shape[1]
    asked = tuple(sorted({min(n, number - 1) for n in asked}))
    peaks = []
    for rank in range(p):
        held, ahead = interleaved_moments(p, v, m, rank), float(np.asarray(in_flight(rank, p, v, m)))
        peaks.append(_of_rank(held[0], rank, p, layers, asked, sizes) / ahead)
    loss = _of_rank(held[1], p - 1, p, layers, asked, sizes) / ahead
    peak = padded([table.reshape(-1, *table.shape[2:]) for table in peaks])
    peak = peak.reshape(p * deep, len(asked), *peak.shape[2:]).swapaxes(0, 1)
    at = np.zeros((1, number), dtype=np.intp)
    at[0, list(asked)] = np.arange(len(asked))
    at_peak = np.broadcast_to(at[:, :, None], (1, number, p * deep))
    return UnevenChunks(
        (Moments(np.zeros(1, dtype=np.intp), peak[None], loss.swapaxes(0, 1)[None], at_peak, at),)
    )


def _of_rank(
    held: Counts, rank: int, p: int, layers: RankLayers, asked: tuple[int, ...], sizes: ChunkSizes
) -> Array:
    """Least layers of a rank times the micro-batches of their chunk in flight at each of J moments, where it recomputes
    each of the numbers `asked` (L, A, J, 2 K)."""
    counts, again, v = layers.held[rank], layers.recomputed[rank], held.shape[1]
    kinds, one = counts.shape[1], len(layers.order) == 1
    fewest = np.full(v, sizes.fewest if one else 0)
    fewest[0] *= rank > 0
    fewest[-1] *= rank < p - 1
    found = np.zeros((len(counts), len(asked), len(held), 2, kinds))
    for i, n in enumerate(asked):
        share, kept = n // v, counts - again[:, n]
        low, room = (
            (0 * fewest, 0.0) if n >= layers.whole else (np.maximum(fewest - share, 0), sizes.most - share)
        )
        least = _placed(held, kept, layers.order, low, room)
        found[:, i, :, 0] = least
        if one:
            found[:, i, :, 1] = _placed(held, counts, layers.order, fewest, sizes.most) - least
        else:
            found[:, i, :, 1] = _placed(held, again[:, n], layers.order, fewest, sizes.most)
    if rank == p - 1:
        found[:, :, :, 0] += held[:, -1, None] * np.array(layers.behind)
    return found.reshape(len(counts), len(asked), len(held), 2 * kinds)


def _placed(held: Counts, counts: Array, order: tuple[int, ...], low: Array, room: float) -> Array:
    """Layers by kind (L, K) times the micro-batches of the chunks in which they weigh least (L, J, K): `low` in every
    chunk and at most `room`, kinds in their order."""
    ranked = np.argsort(held, axis=1, kind="stable")
    least, low = np.take_along_axis(held, ranked, axis=1), low[ranked].astype(float)  # (J, v)

    def of(total: Array) -> Array:
        """(L,) layers of any kind: (L, J)."""
        enough = total[:, None] >= low.sum(axis=1)
        base = np.where(enough[:, :, None], low, 0.0)
        free = (
            np.full_like(base, room) - base
            if np.isfinite(room)
            else np.full_like(base, max(total.max(), 1.0))
        )
        left = (total[:, None] - base.sum(axis=2))[:, :, None]
        before = np.cumsum(free, axis=2) - free
        return np.asarray(((base + np.clip(left - before, 0.0, free)) * least).sum(axis=2))

    found = np.zeros((len(counts), len(held), counts.shape[1]))
    done, done_of = np.zeros(len(counts)), np.zeros((len(counts), len(held)))
    for kind in order:
        if not counts[:, kind].any():
            continue
        done = done + counts[:, kind]
        now = of(done)
        found[:, :, kind], done_of = now - done_of, now
    return found

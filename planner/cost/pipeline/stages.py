"""Which layers does every pipeline stage hold?

Layers are dealt once per distinct (pp, vpp, placement); stages with the same layers form a class, because they take the
same time and differ in memory only by how many micro-batches are in flight, most in the earliest. Left out:
splits that a solver finds, which replace these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.space.split import deal_layers
from planner.spec.config import IntColumn, Placement, Schedule, distinct, ranks_of_chunks
from planner.spec.stack.kinds import PipelineSplit

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ChunkKinds = tuple[tuple[int, ...], ...]  # of a rank: kinds of the layers of every chunk, in pipeline order
_PLACEMENTS = np.array([int(schedule.placement) for schedule in Schedule], dtype=np.int32)


@dataclass(frozen=True)
class StageClasses:
    """Classes of stages per distinct (pp, vpp, placement): P pipelines, C classes (padded with `count` 0), K kinds of
    layers.

    `of_row`: for each row of the table, its pipeline. `count` (P, C): stages in the class. `stage` (P, C): the
    earliest of them. `first`, `last` (P, C): 1.0 where the class holds the embedding, the head.
    `layers` (P, C, K): layers by kind that a micro-batch passes on the rank; of two copies in opposite directions it
    passes either, so that these and `first`, `last` are means, and `copies` (P,), 2.0, times them is what a rank holds.
    `leading` (P, C, N, K): layers by kind that are recomputed where a configuration says N, the first of every chunk
    (`recomputed_of_chunk`).
    `run_class`, `run_length` (P, R): the pipeline as runs of neighbouring stages of one class, in order (padded with
    length 0). `members[P][C]`: the stages of each class. `chunks[P][C]`: kinds of the layers of every chunk, and
    `again_of_chunk[P][C]` (N,) how many of each chunk are recomputed; both empty where a rank holds one chunk or chunks
    are not dealt in rounds.
    """

    of_row: NDArray[np.intp]
    count: FloatArray
    stage: FloatArray
    first: FloatArray
    last: FloatArray
    layers: FloatArray
    leading: FloatArray
    run_class: NDArray[np.intp]
    run_length: FloatArray
    copies: FloatArray
    members: tuple[tuple[tuple[int, ...], ...], ...] = ()
    chunks: tuple[tuple[ChunkKinds, ...], ...] = ()
    again_of_chunk: tuple[tuple[IntArray, ...], ...] = ()

    def without_ends(self) -> StageClasses:
        """The same without embedding and head."""
        return replace(self, first=0.0 * self.first, last=0.0 * self.last)

    def padded(self, kinds: int) -> StageClasses:
        """The same for so many kinds of layers, of which the last are prediction modules' alone, and on no stage."""
        more = kinds - self.layers.shape[-1]
        if not more:
            return self
        layers, leading = (
            np.concatenate([each, np.zeros((*each.shape[:-1], more))], axis=-1)
            for each in (self.layers, self.leading)
        )
        return replace(self, layers=layers, leading=leading)


def mean_classes(pp: IntColumn, layers: FloatArray) -> StageClasses:
    """Of pipelines of so many ranks the mean stage of any split: of `layers` (K,) of each kind, of the embedding and of
    the head a pp-th part each. Some stage of every split holds as much or more of whatever adds up over stages."""
    first_rows, of_row = distinct(pp)
    ranks = pp[first_rows].astype(float)[:, None]
    one = np.ones_like(ranks)
    return StageClasses(
        of_row, ranks, ranks - 1.0, one / ranks, one / ranks, layers / ranks[:, :, None],
        np.zeros((len(ranks), 1, 1, len(layers))), np.zeros((len(ranks), 1), dtype=np.intp), ranks, one[:, 0],
    )  # fmt: skip


def recomputed_of_chunk(layers: IntArray, vpp: int, most: int, deepest: int) -> IntArray:
    """How many of its first layers does each chunk of a rank recompute where the rank is said to recompute `layers`?

    layers / vpp [layers]: Megatron-LM counts anew in every virtual stage (`--recompute-num-layers` with the method
    "block", core/transformer/transformer_block.py). From `most` = layers / pp of the model, rounded up, on all of them,
    since that is how a configuration says "all" (`space.enumerate`): `deepest`, the largest chunk. Where one of so many
    layers of a rank (`Limits.recompute_every`) gives chunks different numbers, up to v - 1 layers are left out.
    """
    return np.where(layers >= most, deepest, layers // vpp)


def _chunks_of_ranks(
    counts: list[int], pp: int, kind_of: tuple[int, ...], placement: Placement
) -> list[ChunkKinds]:
    """Kinds of the layers of every chunk of every rank."""
    ends = np.cumsum(counts)
    on_rank: list[list[tuple[int, ...]]] = [[] for _ in range(pp)]
    ranks = ranks_of_chunks(pp, len(counts) // pp, placement)
    for rank, end, count in zip(ranks, ends, counts, strict=True):
        on_rank[rank].append(kind_of[end - count : end])
    return [tuple(chunks) for chunks in on_rank]


def stage_classes(
    pp: IntColumn,
    vpp: IntColumn,
    schedule: IntColumn,
    kind_of: tuple[int, ...],
    split: PipelineSplit | tuple[int, ...],
    embedding: float,
    head: float,
    recomputed: tuple[int, ...] = (),
) -> StageClasses:
    """Deal the layers of a model to stages for every distinct pp, vpp and placement of a schedule.

    `kind_of`: the kind of each layer. `embedding`, `head`: their cost in layers [1]. Stages that hold equally many
    layers of each kind, and of interleaved pipelines the same layers in every chunk, are one class; the order within a
    stage is that of its earliest member. `recomputed`: layers that each rank recomputes where a configuration
    recomputes any, if not what the configuration says.
    """
    placement = _PLACEMENTS[schedule]
    first_rows, of_row = distinct(pp, vpp, placement)
    dealt = [
        _dealt(int(pp[row]), int(vpp[row]), int(placement[row]), kind_of, split, embedding, head, recomputed)
        for row in first_rows
    ]
    width = max(len(one.members) for one in dealt)
    depth = max(one.leading.shape[1] for one in dealt)
    shape, kinds = (len(dealt), width), max(kind_of) + 1
    count, stage, first, last = (np.zeros(shape) for _ in range(4))
    layers, leading = np.zeros((*shape, kinds)), np.zeros((*shape, depth, kinds))
    again: list[tuple[IntArray, ...]] = []
    for i, one in enumerate(dealt):
        used, own = len(one.members), one.leading.shape[1]
        count[i, :used], stage[i, :used] = [len(ranks) for ranks in one.members], [r[0] for r in one.members]
        layers[i, :used], first[i, :used] = one.held[:, :kinds], one.held[:, kinds]
        last[i, :used] = one.held[:, kinds + 1]
        steps = np.minimum(np.arange(depth), own - 1)  # from its own depth on a stage recomputes all it holds
        leading[i, :used] = one.leading[:, steps]
        again.append(tuple(of_chunk[steps] for of_chunk in one.again))
    run_class, run_length = _runs([one.members for one in dealt])
    copies = np.array([2.0 if place == Placement.MIRRORED else 1.0 for place in placement[first_rows]])
    members, chunks = tuple(one.members for one in dealt), tuple(one.chunks for one in dealt)
    return StageClasses(
        of_row, count, stage, first, last, layers, leading, run_class, run_length, copies, members, chunks,
        tuple(again),
    )  # fmt: skip


@dataclass(frozen=True)
class _Dealt:
    """One pipeline's classes: `members` of each, what a rank has (`held`, (C, K + 2): layers by kind, embedding and
    head), and of `StageClasses` `leading` (C, N, K), `chunks` and `again_of_chunk`."""

    members: tuple[tuple[int, ...], ...]
    held: FloatArray
    leading: FloatArray
    chunks: tuple[ChunkKinds, ...]
    again: tuple[IntArray, ...]


@lru_cache(maxsize=4096)
def _dealt(
    pp: int,
    vpp: int,
    placement: int,
    kind_of: tuple[int, ...],
    split: PipelineSplit | tuple[int, ...],
    embedding: float,
    head: float,
    recomputed: tuple[int, ...],
) -> _Dealt:
    """The layers of one pipeline, see `stage_classes`."""
    place, kinds, most = Placement(placement), max(kind_of) + 1, -(-len(kind_of) // pp)
    counts = deal_layers(len(kind_of), pp, vpp, split, embedding, head, place)
    dealt = _chunks_of_ranks(counts, pp, kind_of, place)
    depth = max(sum(map(len, chunks)) for chunks in dealt) + 1
    classes = _classes(dealt, place, kinds, recomputed)
    leading = np.zeros((len(classes), depth, kinds))
    for j, ranks in enumerate(classes.values()):
        mine = [dealt[ranks[0]]]
        if place is Placement.MIRRORED:
            mine.append(dealt[-1 - ranks[0]])
        leading[j] = np.mean([_leading(part, depth, kinds, most) for part in mine], axis=0)
        if recomputed:
            leading[j, 1:] = leading[j, min(recomputed[ranks[0]], depth - 1)]
    rounds = place is Placement.LOOPED and len(dealt[0]) > 1
    earliest = [ranks[0] for ranks in classes.values()] if rounds else []
    return _Dealt(
        tuple(tuple(ranks) for ranks in classes.values()),
        np.array([held[: kinds + 2] for held in classes]),
        leading,
        tuple(dealt[rank] for rank in earliest),
        tuple(_again(dealt[rank], depth, most, recomputed[rank : rank + 1]) for rank in earliest),
    )


def _classes(
    dealt: list[ChunkKinds], place: Placement, kinds: int, recomputed: tuple[int, ...]
) -> dict[tuple[Any, ...], list[int]]:
    """The ranks that hold the same: by layers of every kind, embedding and head, and what else tells them apart."""
    totals = np.zeros((len(dealt), kinds + 2))
    for rank, chunks in enumerate(dealt):
        totals[rank, :kinds] = np.bincount([kind for chunk in chunks for kind in chunk], minlength=kinds)
    totals[0, kinds] = totals[0 if place is Placement.FOLDED else -1, kinds + 1] = 1.0
    if place is Placement.MIRRORED:
        totals = (totals + totals[::-1]) / 2
    classes: dict[tuple[Any, ...], list[int]] = {}
    for rank, row_totals in enumerate(totals.tolist()):
        held = (*row_totals, *_told_apart(dealt, rank, place), *recomputed[rank : rank + 1])
        classes.setdefault(held, []).append(rank)
    return classes


def _told_apart(dealt: list[ChunkKinds], rank: int, placement: Placement) -> Sequence[Any]:
    """What tells the chunks of a rank from those of one with as many layers of each kind: of interleaved ranks the
    layers of each in turn, else their sizes, ascending; nothing where it has one chunk."""
    if len(dealt[rank]) == 1:
        return ()
    if placement is Placement.LOOPED:
        return dealt[rank]
    chunks = dealt[rank] + (dealt[-1 - rank] if placement is Placement.MIRRORED else ())
    return sorted(map(len, chunks))


def _again(chunks: ChunkKinds, depth: int, most: int, stated: tuple[int, ...]) -> IntArray:
    """Layers that each chunk of a stage recomputes where a configuration says n, (n,); `stated`: the rank's own."""
    steps = recomputed_of_chunk(np.arange(depth), len(chunks), most, depth)
    return np.where(np.arange(depth) > 0, steps[min(stated[0], depth - 1)], 0) if stated else steps


def _leading(chunks: ChunkKinds, depth: int, kinds: int, most: int) -> FloatArray:
    """Layers by kind that a stage recomputes where a configuration says n, (n, kinds)."""
    steps = np.zeros((depth, kinds))
    first = recomputed_of_chunk(np.arange(depth), len(chunks), most, depth)
    for chunk in chunks:
        before = np.zeros((len(chunk) + 1, kinds))  # layers by kind among the first of the chunk
        before[np.arange(1, len(chunk) + 1), chunk] = 1
        steps += np.cumsum(before, axis=0)[np.minimum(first, len(chunk))]
    return steps


def _runs(members: Sequence[tuple[tuple[int, ...], ...]]) -> tuple[NDArray[np.intp], FloatArray]:
    """Runs of neighbouring stages of one class: (P, R) class and length, padded with length 0."""
    found = []
    for classes in members:
        class_of = {rank: j for j, ranks in enumerate(classes) for rank in ranks}
        runs: list[list[int]] = []
        for rank in range(len(class_of)):
            if runs and runs[-1][0] == class_of[rank]:
                runs[-1][1] += 1
            else:
                runs.append([class_of[rank], 1])
        found.append(runs)
    width = max(len(runs) for runs in found)
    run_class = np.zeros((len(found), width), dtype=np.intp)
    run_length = np.zeros((len(found), width))
    for i, runs in enumerate(found):
        run_class[i, : len(runs)] = [j for j, _ in runs]
        run_length[i, : len(runs)] = [length for _, length in runs]
    return run_class, run_length


def largest(table: FloatArray) -> FloatArray:
    """Largest of each row of a narrow table; column by column, which is several times faster than along rows."""
    return reduce(np.maximum, table.T)


def sum_of_columns(table: FloatArray) -> FloatArray:
    """Sum of each row of a narrow table, column by column."""
    return reduce(np.add, table.T)


def sum_over_kinds(counts: FloatArray | Sequence[FloatArray], values: FloatArray) -> FloatArray:
    """Layers of every kind, K times (n, C), times a value of the kind, K times (n,): (n, C)."""
    return reduce(np.add, (count * value[:, None] for count, value in zip(counts, values, strict=True)))

"""Which layers does every pipeline stage hold?

Layers are dealt once per distinct (pp, vpp); stages with the same layers form a class, because they take the
same time and differ in memory only by how many micro-batches are in flight, most in the earliest. Left out:
splits that a solver finds, which replace these.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import IntColumn, distinct
from planner.spec.stack import PipelineSplit

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StageClasses:
    """Classes of stages per distinct (pp, vpp): P pipelines, C classes (padded with `count` 0), K layer kinds.

    `of_row`: for each row of the table, its pipeline. `count` (P, C): stages in the class. `stage` (P, C): the
    earliest of them. `first`, `last` (P, C): 1.0 where the class holds the embedding, the head.
    `layers` (P, C, K): layers by kind. `leading` (P, C, N, K): layers by kind among the first N of the stage; from
    N = layers / pp, rounded up, all of them, since that is how a configuration says "all" (`space.enumerate`).
    `members[P][C]`: the stages of each class.
    """

    of_row: NDArray[np.intp]
    count: FloatArray
    stage: FloatArray
    first: FloatArray
    last: FloatArray
    layers: FloatArray
    leading: FloatArray
    members: tuple[tuple[tuple[int, ...], ...], ...] = ()


def split_evenly(num_layers: int, chunks: int) -> list[int]:
    """Layers of every chunk, all equal; `chunks` divides `num_layers`."""
    return [num_layers // chunks] * chunks


def split_balanced(num_layers: int, pp: int, vpp: int, embedding: float, head: float) -> list[int]:
    """Layers of every chunk in pipeline order, so that the heaviest rank is as light as can be.

    Every chunk gets one layer, then each further layer goes to the rank with the least load (the later one of
    equals, since early ranks hold more activations). `embedding`, `head`: cost in layers [1]. Chunk i lies on
    rank i mod pp, as Megatron-LM numbers virtual stages.
    """
    layers = [1] * (pp * vpp)
    load = [float(vpp)] * pp
    load[0] += embedding
    load[-1] += head
    heap = [(load[rank], -rank) for rank in range(pp)]
    heapq.heapify(heap)
    on_rank = [1] * pp
    for _ in range(num_layers - pp * vpp):
        cost, negative = heapq.heappop(heap)
        rank = -negative
        layers[(on_rank[rank] % vpp) * pp + rank] += 1
        on_rank[rank] += 1
        heapq.heappush(heap, (cost + 1.0, negative))
    return layers


def split_nanotron(num_layers: int, pp: int, head: float) -> list[int]:
    """Layers of every stage as nanotron deals them: the rank advances once the cumulative cost exceeds its share.

    Source: study of nanotron's pipeline blocks (cost 4 a d h + 3 f h for a layer, head V h, others 0). Trailing
    ranks can come out empty, which fails at start.
    """
    share = (num_layers + head) / pp
    layers, done, rank = [0] * pp, 0.0, 0
    for _ in range(num_layers):
        layers[rank] += 1
        done += 1.0
        if done > share * (rank + 1) and rank < pp - 1:
            rank += 1
    return layers


def deal_layers(
    num_layers: int, pp: int, vpp: int, split: PipelineSplit, embedding: float, head: float
) -> list[int]:
    """Layers of every chunk in pipeline order under the stack's way to split."""
    if pp == 1:
        return [num_layers]
    if split is PipelineSplit.NANOTRON and vpp == 1:
        return split_nanotron(num_layers, pp, head)
    if split is PipelineSplit.EVEN and num_layers % (pp * vpp) == 0:
        return split_evenly(num_layers, pp * vpp)
    return split_balanced(num_layers, pp, vpp, embedding, head)


def _stage_sequences(counts: list[int], pp: int, kind_of: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Kinds of the layers of every rank, its chunks one after another."""
    ends = np.cumsum(counts)
    chunk = [kind_of[end - count : end] for end, count in zip(ends, counts, strict=True)]
    return [tuple(kind for part in chunk[rank::pp] for kind in part) for rank in range(pp)]


def stage_classes(
    pp: IntColumn,
    vpp: IntColumn,
    kind_of: tuple[int, ...],
    split: PipelineSplit,
    embedding: float,
    head: float,
) -> StageClasses:
    """Deal the layers of a model to stages for every distinct pair of two columns.

    `kind_of`: the kind of each layer. `embedding`, `head`: their cost in layers [1]. Stages that hold equally
    many layers of each kind are one class; the order within a stage is that of its earliest member.
    """
    first_rows, of_row = distinct(pp, vpp)
    kinds = max(kind_of) + 1
    pipelines = []
    for row in first_rows:
        stages = int(pp[row])
        counts = deal_layers(len(kind_of), stages, int(vpp[row]), split, embedding, head)
        sequences = _stage_sequences(counts, stages, kind_of)
        classes: dict[tuple[int, ...], list[int]] = {}
        for rank, sequence in enumerate(sequences):
            totals = (*np.bincount(sequence, minlength=kinds).tolist(), rank == 0, rank == stages - 1)
            classes.setdefault(totals, []).append(rank)
        pipelines.append((sequences, classes))
    width = max(len(classes) for _, classes in pipelines)
    depth = max(len(seq) for sequences, _ in pipelines for seq in sequences) + 1
    shape = (len(pipelines), width)
    count, stage, first, last = (np.zeros(shape) for _ in range(4))
    layers, leading = np.zeros((*shape, kinds)), np.zeros((*shape, depth, kinds))
    for i, (sequences, classes) in enumerate(pipelines):
        for j, (totals, ranks) in enumerate(classes.items()):
            count[i, j], stage[i, j] = len(ranks), ranks[0]
            layers[i, j], (first[i, j], last[i, j]) = totals[:kinds], totals[kinds:]
            steps = np.zeros((depth, kinds))
            for position, kind in enumerate(sequences[ranks[0]], start=1):
                steps[position:, kind] += 1
            # as many as the average stage has stands for all of a stage, however many it was dealt
            steps[-(-len(kind_of) // len(sequences)) :] = steps[-1]
            leading[i, j] = steps
    members = tuple(tuple(tuple(ranks) for ranks in classes.values()) for _, classes in pipelines)
    return StageClasses(of_row, count, stage, first, last, layers, leading, members)

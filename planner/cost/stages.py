"""Which layers does every pipeline stage hold?

Layers are dealt once per distinct (pp, vpp); stages with the same layers form a class, because they take the
same time and differ in memory only by how many micro-batches are in flight, most in the earliest. Left out:
splits that a solver finds, which replace these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from planner.space.split import deal_layers
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
    `run_class`, `run_length` (P, R): the pipeline as runs of neighbouring stages of one class, in order (padded with
    length 0). `members[P][C]`: the stages of each class.
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
    members: tuple[tuple[tuple[int, ...], ...], ...] = ()


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
    run_class, run_length = _runs(members)
    return StageClasses(of_row, count, stage, first, last, layers, leading, run_class, run_length, members)


def _runs(members: tuple[tuple[tuple[int, ...], ...], ...]) -> tuple[NDArray[np.intp], FloatArray]:
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

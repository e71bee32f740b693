"""Which time of a pipeline can no simulation of it beat, chunk by chunk and with its messages?

What a search ranks by, so that what it leaves out is no faster once simulated. Left out of folded and mirrored
pipelines: all but the work of their slowest rank.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.cost.levels import Layers, Pipelines
from planner.cost.pipeline.stages import ChunkKinds, StageClasses
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.schedule.paths import LOOPED, looped_path
from planner.spec.config import IntColumn, Schedule, distinct

Array = NDArray[np.float64]
Index = NDArray[np.intp]


def least_pipeline_time(
    layers: Layers, pipelines: Pipelines, classes: StageClasses, behind: tuple[tuple[int, int], ...], p_row: Index,
    recompute_layers: IntColumn, schedule: IntColumn, v: IntColumn, m: Array,
) -> Array:  # fmt: skip
    """Seconds that the passes and messages of rows take at least; -inf where no path is known (n,).

    `p_row`: of rows in `pipelines`; `behind`: kinds of layers in prediction modules behind the last, and how many.
    """
    found, c_row = np.full(len(p_row), -np.inf), pipelines.stage_key[p_row]
    rows = np.flatnonzero(np.isin(schedule, LOOPED))
    if not len(rows):
        return found
    first, group = distinct(c_row[rows].astype(np.int32), schedule[rows])
    order = np.argsort(group, kind="stable")
    for i, part in enumerate(np.split(order, np.cumsum(np.bincount(group))[:-1])):
        mine, one = rows[part], rows[first[i]]
        kind, c = Schedule(int(schedule[one])), int(c_row[one])
        held, leading = _dealt(classes, c, int(v[one]), behind)
        times = _chunk_times(layers, pipelines.layer_key[p_row[mine]], held, leading, recompute_layers[mine])
        forward, backward, weight = times
        if kind not in (Schedule.ZB_H1, Schedule.ZB_H2):
            backward, weight = backward + weight, np.zeros((1, *weight.shape[1:]))
        found[mine] = looped_path(kind, forward, backward, weight, pipelines.way[p_row[mine]], m[mine])
    return found


def _chunk_times(
    layers: Layers, l_row: Index, held: Array, leading: Array, recompute_layers: IntColumn
) -> tuple[Array, Array, Array]:
    """Forward passes, input gradients with recomputation, and weight gradients of every chunk (n, v, p) [s], as
    `cost.chunks` has them of one configuration."""

    def of(values: Array, counts: Array) -> Array:
        return np.asarray(np.einsum("kn,vpk->nvp", values[:, l_row], counts))

    forward, whole = of(layers.forward_time, held), of(layers.time, held)
    weight, again = of(layers.weight_gradient, held), of(layers.again, held)
    if recompute_layers.any():
        full = leading[np.minimum(recompute_layers, len(leading) - 1)]
        for sums, more in (
            (whole, layers.time_full - layers.time),
            (again, layers.again_full - layers.again),
        ):
            sums += np.einsum("kn,nvpk->nvp", more[:, l_row], full)
    for seconds, at in ((layers.embedding[l_row], (0, 0)), (layers.head[l_row], (-1, -1))):
        whole[:, at[0], at[1]] += seconds
        forward[:, at[0], at[1]] += FORWARD_SHARE * seconds
        weight[:, at[0], at[1]] += FORWARD_SHARE * seconds
    backward = whole - forward
    weight = np.minimum(weight, np.maximum(backward - again, 0.0))
    return forward, backward - weight, weight


def _dealt(classes: StageClasses, c: int, v: int, behind: tuple[tuple[int, int], ...]) -> tuple[Array, Array]:
    """Layers of every chunk by kind (v, p, K), and those it recomputes where a configuration says n (n, v, p, K)."""
    members, kinds = classes.members[c], classes.layers.shape[2]
    if v == 1:
        class_of = np.empty(sum(map(len, members)), dtype=np.intp)
        for j, ranks in enumerate(members):
            class_of[list(ranks)] = j
        return classes.layers[c, class_of][None], classes.leading[c, class_of].swapaxes(0, 1)[:, None]
    again = tuple(tuple(of_chunk.tolist()) for of_chunk in classes.again_of_chunk[c])
    return _dealt_in_rounds(classes.chunks[c], again, members, behind, kinds)


@lru_cache(maxsize=4096)
def _dealt_in_rounds(
    chunks: tuple[ChunkKinds, ...], again: tuple[tuple[int, ...], ...], members: tuple[tuple[int, ...], ...],
    behind: tuple[tuple[int, int], ...], kinds: int,
) -> tuple[Array, Array]:  # fmt: skip
    """`_dealt` where ranks hold several chunks."""
    v, p = len(chunks[0]), sum(map(len, members))
    held, leading = np.zeros((v, p, kinds)), np.zeros((len(again[0]), v, p, kinds))
    for of_rank, steps, ranks in zip(chunks, again, members, strict=True):
        for j, chunk in enumerate(of_rank):
            first = np.zeros((len(chunk) + 1, kinds))  # layers by kind among the first of the chunk
            first[np.arange(1, len(chunk) + 1), chunk] = 1
            first = np.cumsum(first, axis=0)
            held[j, list(ranks)] = first[-1]
            leading[:, j, list(ranks)] = first[np.minimum(steps, len(chunk))][:, None]
    for kind, extra in behind:
        held[-1, -1, kind] += extra
    return held, leading

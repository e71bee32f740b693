"""How much device memory does a pipeline rank take with some layers, whatever the other ranks hold?

What a solver asks before it has a split. Ranks are costed side by side as the classes of a pipeline that is no split.
Left out: schedules whose order adapts to memory, and mirrored pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.levels import layer_level, pipeline_level
from planner.cost.model import CostModel
from planner.cost.pipeline.stages import ChunkKinds, StageClasses
from planner.cost.pipeline.uneven_chunks import UnevenChunks, side_by_side
from planner.cost.prepared import PreparedCosts
from planner.spec.config import ConfigTable, ParallelConfig, Placement, Schedule

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RankContents:
    """`rank` (W,): of every one; `layers`, `recomputed` (W, K): layers of each kind, prediction modules left out, and
    of them those that are recomputed. `chunks` (W): kinds of the layers of each of several chunks, in pipeline order,
    of which each recomputes its `first` (W,); both empty where ranks hold one chunk."""

    rank: NDArray[np.int64]
    layers: Array
    recomputed: Array
    chunks: Sequence[ChunkKinds] = ()
    first: Sequence[int] = ()


def rank_bytes(model: CostModel, config: ParallelConfig, contents: RankContents) -> Array:
    """Device memory of ranks of a configuration with some layers (W,) [bytes]."""
    if not contents.chunks:
        return _bytes(model, config, contents, None)
    shape = config.pp, config.vpp, config.num_microbatches
    ranks = list(zip(contents.rank.tolist(), contents.chunks, contents.first, strict=True))
    return _bytes(model, config, contents, side_by_side(shape, ranks, model.problem.model.last_stage_layers))


def _bytes(
    model: CostModel, config: ParallelConfig, contents: RankContents, uneven: UnevenChunks | None
) -> Array:
    table = ConfigTable.of([config])
    classes = _classes(model, config, contents)
    layers = layer_level(model.layers, table)
    pipelines = replace(pipeline_level(model.layers, table, layers, classes), uneven=uneven)
    shards = model.shards.shards(table, classes)
    prepared = PreparedCosts(model.layers, table, classes, layers, pipelines, shards)
    return prepared.device_memory(table["recompute_layers"])[0]


def _classes(model: CostModel, config: ParallelConfig, contents: RankContents) -> StageClasses:
    """Every rank's contents as a class of one stage."""
    rank, stated = contents.rank, config.recompute_layers
    folded = Schedule(config.schedule).placement is Placement.FOLDED
    last = rank == (0 if folded else config.pp - 1)
    layers = contents.layers + np.outer(last, model.problem.model.last_stage_layers)
    leading = np.zeros((1, len(rank), stated + 1, layers.shape[1]))
    leading[0, :, stated] = contents.recomputed
    return StageClasses(
        of_row=np.zeros(1, dtype=np.intp),
        count=np.ones((1, len(rank))),
        stage=rank[None, :].astype(float),
        first=(rank == 0)[None, :].astype(float),
        last=last[None, :].astype(float),
        layers=layers[None],
        leading=leading,
        run_class=np.zeros((1, 1), dtype=np.intp),
        run_length=np.full((1, 1), float(config.pp)),
        copies=np.ones(1),
        members=(tuple((one,) for one in rank.tolist()),),
    )

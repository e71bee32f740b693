"""How much memory would a pipeline rank need with some number of layers, whatever the other ranks hold?

What a solver asks before it has a split. Left out: schedules other than 1F1B and interleaved, whose ranks do not hold
micro-batches by their place alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from planner.cost.least_chunks import ChunkSizes, RankLayers, least_in_chunks
from planner.cost.levels import layer_level, pipeline_level
from planner.cost.model import CostModel
from planner.cost.prepared import PreparedCosts
from planner.cost.stages import StageClasses
from planner.cost.uneven_chunks import UnevenChunks
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.model import ModelSpec

Array = NDArray[np.float64]


def rank_memory(
    model: CostModel, config: ParallelConfig, recomputed: tuple[int, ...], deepest: int, sizes: ChunkSizes
) -> Array:
    """Least device memory of every rank with 0 .. `deepest` layers, of which it recomputes `recomputed[i]`: (choices,
    ranks, deepest + 1) [bytes].

    Exact for layers of one kind, of an interleaved rank as far as they can lie in chunks of `sizes` that recompute so
    many together and have fewest micro-batches in flight; of several, in every moment of a step that of the mix which
    needs least, of those that a rank can hold where every chunk but the first of an interleaved pipeline has the fewest
    layers or more. From layers / pp on, rounded up, a choice means all of a rank's layers.
    """
    kinds, whole = len(model.problem.model.layer_kinds), -(-model.problem.model.num_layers // config.pp)
    in_order = kinds == 1 or _in_order(model.problem.model)
    mixes, orders = (
        _mixes(model.problem.model, config, deepest, sizes.fewest),
        _orders(model.problem.model, config),
    )
    # of mixes between those tried, only what is the same in every chunk is least at one of these
    sizes = sizes if in_order else ChunkSizes(0, np.inf)
    phases = _least_of(model, config, recomputed, product(mixes, orders, orders), sizes)
    if not in_order:
        pairs, held = list(permutations(range(kinds), 2)), np.arange(deepest + 1)
        for row, count in enumerate(recomputed):
            if not 0 < count < whole:  # all kept or all recomputed: one kind alone needs least
                continue
            ways = [
                (_recomputed_of_one(config.pp, held, count, kinds, pair), list(pair), list(range(kinds)))
                for pair in pairs
            ]
            for phase, least in _least_of(model, config, (count,), ways, sizes).items():
                phases[phase][row] = np.minimum(phases[phase][row], least[0])
    shape = (len(recomputed), config.pp, deepest + 1)
    return np.asarray(np.maximum.reduce(list(phases.values())).reshape(shape))


def _least_of(
    model: CostModel, config: ParallelConfig, recomputed: tuple[int, ...],
    ways: Iterable[tuple[Array, list[int], list[int]]], sizes: ChunkSizes,
) -> dict[str, Array]:  # fmt: skip
    """By phase of a step the memory of the way that needs least, of ranks whose layers by kind (ranks, deepest + 1,
    kinds) are recomputed in one order of kinds and lie in chunks in another: (choices, ranks x (deepest + 1))
    [bytes]."""
    table = ConfigTable.of([config] * len(recomputed))
    table.columns["recompute_layers"][:] = recomputed
    layers, phases = layer_level(model.layers, table), dict[str, Array]()
    for counts, order, placed in ways:
        deepest = counts.shape[1] - 1
        classes = _ranks(config.pp, deepest, counts, order, model.problem.model, len(recomputed))
        pipelines = pipeline_level(model.layers, table, layers, classes)
        if config.vpp > 1:
            uneven = _in_chunks(model.problem.model, config, counts, classes, recomputed, placed, sizes)
            pipelines = replace(pipelines, uneven=uneven)
        shards = model.shards.shards(table, classes)
        prepared = PreparedCosts(model.layers, table, classes, layers, pipelines, shards)
        detail = prepared.evaluate(
            slice(0, len(recomputed)), np.arange(len(recomputed)), table["recompute_layers"], keep_terms=True
        ).detail
        assert detail is not None, "costed with keep_terms"
        for phase, terms in detail.memory.items():
            held = sum(terms.values(), np.zeros_like(detail.by_class)) + detail.outside[:, None]
            phases[phase] = np.minimum(phases.get(phase, np.inf), held)
    return phases


def _in_chunks(
    spec: ModelSpec, config: ParallelConfig, counts: Array, classes: StageClasses, recomputed: tuple[int, ...],
    order: list[int], sizes: ChunkSizes,
) -> UnevenChunks:  # fmt: skip
    """The least that the ranks of `_ranks` keep in flight."""
    again = classes.leading[0].reshape(*counts.shape[:2], *classes.leading.shape[2:])
    behind, whole = (spec.layer_kind_of[-1], spec.mtp_layers), -(-spec.num_layers // config.pp)
    return least_in_chunks(config, RankLayers(counts, again, whole, tuple(order), behind), recomputed, sizes)


def _in_order(spec: ModelSpec) -> bool:
    """Are there at most two kinds of layers, all of the first before all of the second?"""
    return len(spec.layer_kinds) <= 2 and list(spec.layer_kind_of) == sorted(spec.layer_kind_of)


def _recomputed_of_one(
    pp: int, held: NDArray[np.int64], count: int, kinds: int, pair: tuple[int, int]
) -> Array:
    """Layers by kind (ranks, deepest + 1, kinds) of ranks with `held` layers, of which the `count` that are recomputed
    are of the first of a pair of kinds and the others of the second.

    Memory adds up over recomputed and over kept layers, and what is at work grows with the kinds present: of all mixes
    with so many of each, such a pair or a kind alone needs least.
    """
    layers = np.zeros((pp, len(held), kinds))
    layers[:, :, pair[0]] = np.minimum(held, count)
    layers[:, :, pair[1]] = np.maximum(held - count, 0)
    return layers


def _mixes(spec: ModelSpec, config: ParallelConfig, deepest: int, fewest: float) -> list[Array]:
    """Layers of each kind (ranks, deepest + 1, kinds) of ranks with 0 .. `deepest` layers, in each of the ways to think
    of; where all layers of one kind come before those of another, with as many of the first as can be, one less ..;
    else all of one kind (`_recomputed_of_one` has the others)."""
    kinds, held = len(spec.layer_kinds), np.arange(deepest + 1)
    first = spec.layer_kind_of.count(0)
    if kinds == 1 or not _in_order(spec):
        pure = np.zeros((kinds, config.pp, deepest + 1, kinds))
        for kind in range(kinds):
            pure[kind, :, :, kind] = held
        return list(pure)
    rank = np.arange(config.pp)[:, None]
    before = fewest * (rank if config.vpp == 1 else np.maximum(rank - 1, 0))
    most = np.minimum(np.maximum(first - before, 0), held)
    alone = (config.vpp == 1) & (rank == 0)  # the first stage begins with the first layer
    mixes = []
    for fewer in range(int(most.max()) + 1):
        early = np.where(alone, most, np.maximum(most - fewer, 0))
        mixes.append(np.stack([early, held - early], axis=2).astype(float))
    return mixes


def _orders(spec: ModelSpec, config: ParallelConfig) -> list[list[int]]:
    """In which orders a rank may recompute its layers, by kind: that of the model; where the first layers of each of
    several chunks are recomputed, whichever frees more, which is that or its reverse."""
    kinds = list(range(len(spec.layer_kinds)))
    return [kinds] if config.vpp == 1 or len(kinds) == 1 else [kinds, kinds[::-1]]


def _ranks(
    pp: int, deepest: int, counts: Array, order: list[int], spec: ModelSpec, rows: int
) -> StageClasses:
    """A pipeline's classes that are no split: every rank with 0 .. `deepest` layers, `counts` of each kind, which are
    recomputed in the `order` of kinds."""
    width, depth, kinds = pp * (deepest + 1), deepest + 1, counts.shape[2]
    rank = np.repeat(np.arange(pp), deepest + 1)
    layers = counts.reshape(1, width, kinds).copy()
    leading, left = np.zeros((1, width, depth, kinds)), np.repeat(np.arange(depth)[None, :], width, axis=0)
    for kind in order:
        leading[0, :, :, kind] = np.minimum(left, layers[0, :, kind, None])
        left = left - leading[0, :, :, kind].astype(left.dtype)
    whole = -(-spec.num_layers // pp)
    leading[0, :, whole:] = layers[0, :, None]
    layers[0, :, spec.layer_kind_of[-1]] += spec.mtp_layers * (rank == pp - 1)
    return StageClasses(
        of_row=np.zeros(rows, dtype=np.intp),
        count=np.ones((1, width)),
        stage=rank[None, :].astype(float),
        first=(rank == 0)[None, :].astype(float),
        last=(rank == pp - 1)[None, :].astype(float),
        layers=layers,
        leading=leading,
        run_class=np.zeros((1, 1), dtype=np.intp),
        run_length=np.full((1, 1), float(pp)),
        copies=np.ones(1),
    )

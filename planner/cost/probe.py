"""How much memory would a pipeline rank need with some number of layers, whatever the other ranks hold?

What a solver asks before it has a split. Left out: schedules other than 1F1B and interleaved, whose ranks do not hold
micro-batches by their place alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from planner.cost.levels import layer_level, pipeline_level
from planner.cost.model import CostModel
from planner.cost.pipeline.least_chunks import ChunkSizes, RankLayers, least_in_chunks
from planner.cost.pipeline.stages import StageClasses
from planner.cost.pipeline.uneven_chunks import UnevenChunks
from planner.cost.prepared import PreparedCosts
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.layer import Layer
from planner.spec.model import ModelSpec

Array = NDArray[np.float64]


def rank_memory(
    model: CostModel, config: ParallelConfig, recomputed: tuple[int, ...], deepest: int, sizes: ChunkSizes
) -> Array:
    """Least device memory of every rank with 0 .. `deepest` layers, of which it recomputes `recomputed[i]`: (choices,
    ranks, deepest + 1) [bytes].

    Exact for layers of one kind, of an interleaved rank as far as they can lie in chunks of `sizes` that recompute so
    many together and have fewest micro-batches in flight; of two in order, in every moment of a step that of the mix
    which needs least, of those that a rank can hold where every chunk but the first of an interleaved pipeline has the
    fewest layers or more; else see `_scattered`. From layers / pp on, rounded up, a choice means all.
    """
    spec = model.problem.model
    ways: Iterable[tuple[Array, Array, list[int]]]
    if _in_order(spec):
        orders = _orders(spec, config)
        found = product(_mixes(spec, config, deepest, sizes.fewest), orders, orders)
        ways = ((counts, _leading(counts, order, spec, config), placed) for counts, order, placed in found)
    else:  # of mixes between those tried, only what is the same in every chunk is least at one of these
        sizes, ways = ChunkSizes(0, np.inf), _scattered(spec, config, deepest)
    phases = _least_of(model, config, recomputed, ways, sizes)
    shape = (len(recomputed), config.pp, deepest + 1)
    return np.asarray(np.maximum.reduce(list(phases.values())).reshape(shape))


def _least_of(
    model: CostModel, config: ParallelConfig, recomputed: tuple[int, ...],
    ways: Iterable[tuple[Array, Array, list[int]]], sizes: ChunkSizes,
) -> dict[str, Array]:  # fmt: skip
    """By phase of a step the memory of the way that needs least, of ranks whose layers by kind (ranks, deepest + 1,
    kinds), of which (ranks, deepest + 1, n, kinds) are recomputed, lie in chunks in an order of kinds: (choices,
    ranks x (deepest + 1)) [bytes]."""
    table = ConfigTable.of([config] * len(recomputed))
    table.columns["recompute_layers"][:] = recomputed
    layers, phases = layer_level(model.layers, table), dict[str, Array]()
    for counts, again, placed in ways:
        classes = _ranks(config.pp, counts, again, model.problem.model, len(recomputed))
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
    behind, whole = spec.last_stage_layers, -(-spec.num_layers // config.pp)
    return least_in_chunks(config, RankLayers(counts, again, whole, tuple(order), behind), recomputed, sizes)


def _in_order(spec: ModelSpec) -> bool:
    """Are there at most two kinds of layers, all of the first before all of the second?"""
    return len(spec.layer_kinds) <= 2 and list(spec.layer_kind_of) == sorted(spec.layer_kind_of)


def fewest_of_kinds(kind_of: Sequence[int], kinds: int, runs: int) -> Array:
    """Least layers of each kind among n layers that lie in so many runs of the model, in none of them any or many:
    (layers + 1, kinds) [1]."""
    of_kind = np.array(kind_of)[:, None] == np.arange(kinds)
    before, length = np.vstack([np.zeros(kinds), of_kind.cumsum(axis=0)]), len(kind_of)
    one = np.array([(before[n:] - before[: length + 1 - n]).min(axis=0) for n in range(length + 1)])
    found = one
    for _ in range(runs - 1):
        found = np.array([(found[: n + 1] + one[n::-1]).min(axis=0) for n in range(length + 1)])
    return np.asarray(found)


def _scattered(
    spec: ModelSpec, config: ParallelConfig, deepest: int
) -> Iterator[tuple[Array, Array, list[int]]]:
    """Ways to hold kinds of layers that take turns, of which one needs no more memory than any that can be.

    A chunk is a run of the model: among n layers of a rank at least so many are of each kind, among those that it keeps
    likewise. Memory adds up over layers and what is at work grows with the kinds present, so the rest is least as
    layers of one kind; kept ones never exceed a kind's layers, else both are taken as fewer than they are.
    """
    kinds, held = len(spec.layer_kinds), np.arange(deepest + 1)
    whole = -(-spec.num_layers // config.pp)
    fewest = fewest_of_kinds(spec.layer_kind_of, kinds, config.vpp)
    kept = np.maximum(held[:, None] - held, 0)  # (held, recomputed)
    for total, left in product(_least_kinds(spec.layer_kinds), repeat=2):
        counts = fewest[held].copy()
        counts[:, total] += held - counts.sum(axis=1)
        staying = fewest[kept].copy()
        staying[:, :, left] += kept - staying.sum(axis=2)
        again = np.maximum(counts[:, None] - staying, 0.0)
        again[:, whole:] = counts[:, None]
        yield (
            np.broadcast_to(counts, (config.pp, *counts.shape)),
            np.broadcast_to(again, (config.pp, *again.shape)),
            list(range(kinds)),
        )


def _least_kinds(kinds: Sequence[Layer]) -> list[int]:
    """Kinds of layers in which no other one is contained: all else needs as much memory or more."""
    return [
        i for i, layer in enumerate(kinds) if not any(_lies_within(o, layer) for o in kinds if o != layer)
    ]


def _lies_within(one: Layer, other: Layer) -> bool:
    """Has one layer an MLP like the other's and no wider, its attention or none, and nothing else?"""
    if one.mlp is None or other.mlp is None or one.mlp.ffn > other.mlp.ffn or one.norms > other.norms:
        return False
    if one.attention not in (None, other.attention) or one.state_space != other.state_space:
        return False
    mlp = replace(one.mlp, ffn=other.mlp.ffn)
    return replace(one, mlp=mlp, attention=other.attention, norms=other.norms) == other


def _mixes(spec: ModelSpec, config: ParallelConfig, deepest: int, fewest: float) -> list[Array]:
    """Layers of each kind (ranks, deepest + 1, kinds) of ranks with 0 .. `deepest` layers, in each of the ways to think
    of: with as many of the first kind as can be, one less .."""
    held, first = np.arange(deepest + 1), spec.layer_kind_of.count(0)
    if len(spec.layer_kinds) == 1:
        return [np.broadcast_to(held[:, None], (config.pp, deepest + 1, 1)).astype(float)]
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


def _leading(counts: Array, order: list[int], spec: ModelSpec, config: ParallelConfig) -> Array:
    """Of `counts` layers by kind those that are recomputed where a configuration says n, kinds in their `order`:
    (ranks, deepest + 1, n, kinds)."""
    depth, whole = counts.shape[1], -(-spec.num_layers // config.pp)
    leading = np.zeros((*counts.shape[:2], depth, counts.shape[2]))
    left = np.broadcast_to(np.arange(float(depth)), leading.shape[:3])
    for kind in order:
        leading[..., kind] = np.minimum(left, counts[:, :, None, kind])
        left = left - leading[..., kind]
    leading[:, :, whole:] = counts[:, :, None]
    return leading


def _ranks(pp: int, counts: Array, again: Array, spec: ModelSpec, rows: int) -> StageClasses:
    """A pipeline's classes that are no split: every rank with `counts` layers of each kind, of which those of `again`
    are recomputed."""
    depth, kinds = counts.shape[1:]
    width, rank = pp * depth, np.repeat(np.arange(pp), depth)
    layers = counts.reshape(1, width, kinds).copy()
    leading = again.reshape(1, width, again.shape[2], kinds)
    layers[0] += np.outer(rank == pp - 1, spec.last_stage_layers)
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

"""What do layers and pipelines cost, once per distinct way to cut a micro-batch and to deal layers to stages?

Levels one and two of the evaluation; a row gathers from them. Left out: parameters and their collectives
(`cost/shards.py`), and what depends on a row's recomputed layers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.graphs import LayerGraphs, no_graphs
from planner.cost.layer import LayerModel
from planner.cost.layer_cost import TIME_TERMS
from planner.cost.messages.exposure import pass_seconds
from planner.cost.messages.pipeline import boundary_messages, gathers_behind_boundary
from planner.cost.network.traffic import BoundaryLinks, pipeline_links
from planner.cost.operations.embedding_and_loss import HeadActivations
from planner.cost.pipeline.stages import StageClasses, largest, sum_of_columns, sum_over_kinds
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.cost.pipeline.uneven_chunks import UnevenChunks, uneven_chunks
from planner.schedule.formulas import hop_time, in_flight
from planner.schedule.held import Point, most_held, worst_moments
from planner.spec.config import FOLDED_SCHEDULES, ConfigTable, IntColumn, Schedule, distinct

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class LayerColumns:
    """Costs of every kind of layer (K,), of the embedding and of the head, per layer key (l,)."""

    terms: Array  # (K, T, l) forward and backward seconds by term
    time: Array  # (K, l)
    forward_time: Array  # (K, l)
    time_full: Array  # (K, l)
    weight_gradient: Array  # (K, l) a part of time
    saved: Array  # (K, l) seconds, by overlapped pairs
    due: Array  # (K, l) bytes held between the two gradients
    again: Array  # (K, l)
    again_full: Array  # (K, l)
    kept: Array  # (K, l)
    kept_full: Array
    working: Array  # (l,) the largest over kinds
    working_full: Array
    ahead: (
        Array  # (l,) bytes alive in a layer's forward pass that keeps its input alone, the largest over kinds
    )
    embedding: Array
    head: Array
    stream: Array  # (l,) bytes of a layer's input
    hidden: Array  # (l,) values of the stream on a rank
    head_memory: HeadActivations
    graphs: LayerGraphs  # of every kind, stacked as the others


@dataclass(frozen=True)
class Layers(LayerColumns):
    """Level one: these, and the key of every row. `captures`: has any key graphs?"""

    of_row: Index
    captures: bool


@dataclass(frozen=True)
class Apart:
    """What schedules with a time or memory of their own need, per pipeline key (q,) and stage class (C,); rows of
    1F1B and interleaved pipelines have zeros.

    `schedule` (q,). `weight`: seconds of weight gradients. `hidden`: seconds that overlapped pairs save. `moments`:
    pairs of micro-batches before their input gradient and bytes between the two gradients, one pair per moment.
    """

    schedule: IntColumn
    weight: Array
    hidden: Array
    moments: tuple[tuple[Array, Array], ...]


@dataclass(frozen=True)
class Pipelines:
    """Level two, per pipeline key (q,) and stage class (C,)."""

    of_row: Index
    layer_key: Index
    stage_key: Index
    time: Array  # (q, C) one micro-batch, forward and backward, before full recomputation
    forward: Array  # (q, C) its forward share, which recomputation does not touch
    slowest: Array  # (q,) the longest of them
    total: Array  # (q,) their sum over stages
    kept: Array  # (q, C)
    in_flight: Array  # (q, C)
    hops: Array  # (q,) seconds of point-to-point on the critical path
    way: Array  # (q,) of one micro-batch from the first chunk to the last, as far as messages count
    apart: Apart | None = None  # None: no row has such a schedule
    uneven: UnevenChunks | None = None  # None: no rank has chunks that differ
    pooled: Array | None = None  # (q, C) of kept, in pools of CUDA graphs; None: no row captures any
    copied: Array | None = None  # (q, C) of a micro-batch, in buffers of graphs beside what is kept


def layer_level(model: LayerModel, table: ConfigTable) -> Layers:
    """Costs of every kind of layer for the distinct cuts of a table."""
    columns = model.columns(table)
    first, inverse = distinct(*columns)
    keys = table.take(first)
    found = model.known.of(
        [column[first] for column in columns], lambda rows: _columns(model, keys.take(rows))
    )
    of_field = {field.name: getattr(found, field.name) for field in fields(found)}
    return Layers(**of_field, of_row=inverse, captures=bool(table["cuda_graph_impl"].any()))


def _columns(model: LayerModel, keys: ConfigTable) -> LayerColumns:
    """The same of distinct keys."""
    costs = [model.layer(kind, keys) for kind in model.problem.model.layer_kinds]
    edges = model.edges(keys)
    return LayerColumns(
        terms=np.array([[c.forward[t] + c.backward[t] for t in TIME_TERMS] for c in costs]),
        time=np.array([c.time for c in costs]),
        forward_time=np.array([c.forward_time for c in costs]),
        time_full=np.array([c.time_full for c in costs]),
        weight_gradient=np.array([c.weight_gradient for c in costs]),
        saved=np.array([c.hidden for c in costs]),
        due=np.array([c.due for c in costs]),
        again=np.array([c.again for c in costs]),
        again_full=np.array([c.again_full for c in costs]),
        kept=np.array([c.kept for c in costs]),
        kept_full=np.array([c.kept_full for c in costs]),
        working=np.max([c.working for c in costs], axis=0),
        working_full=np.max([c.working_full for c in costs], axis=0),
        ahead=np.max([c.ahead for c in costs], axis=0),
        embedding=edges.embedding,
        head=edges.head,
        stream=edges.stream,
        hidden=edges.stream / model.recipe.activation_bytes,
        head_memory=edges.memory,
        graphs=_graphs([c.graphs or no_graphs(len(keys)) for c in costs]),
    )


def _graphs(found: list[LayerGraphs]) -> LayerGraphs:
    """Memory of graphs of all kinds of layers: what is kept and copied by kind (K, l), of the rest the most (l,)."""
    return LayerGraphs(
        kept=np.array([graphs.kept for graphs in found]),
        working=np.max([graphs.working for graphs in found], axis=0),
        buffers=np.array([graphs.buffers for graphs in found]),
        gradients=np.max([graphs.gradients for graphs in found], axis=0),
        whole=found[0].whole,
    )


def pipeline_level(model: LayerModel, table: ConfigTable, layers: Layers, classes: StageClasses) -> Pipelines:
    """Stages, in-flight counts and messages of the distinct pipelines of a table."""
    columns = (layers.of_row.astype(np.int32), classes.of_row.astype(np.int32))
    schedule = np.where(table["schedule"] > Schedule.INTERLEAVED, table["schedule"], 0)
    first, inverse = distinct(*columns, table["num_microbatches"], table["dp"], schedule)
    keys, key, stage = table.take(first), layers.of_row[first], classes.of_row[first]
    counts = np.moveaxis(classes.layers[stage], 2, 0)  # (K, q, C)
    embedding = classes.first[stage] * layers.embedding[key][:, None]
    edges = embedding + classes.last[stage] * layers.head[key][:, None]
    time = sum_over_kinds(counts, layers.time[:, key]) + edges
    forward = sum_over_kinds(counts, layers.forward_time[:, key]) + FORWARD_SHARE * edges
    kept = sum_over_kinds(counts, layers.kept[:, key])
    p, v, m = (keys[axis].astype(float) for axis in ("pp", "vpp", "num_microbatches"))
    held = np.asarray(in_flight(classes.stage[stage], p[:, None], v[:, None], m[:, None]))
    apart, work = None, time
    if schedule.any():
        weight = sum_over_kinds(counts, layers.weight_gradient[:, key]) + FORWARD_SHARE * edges
        due = sum_over_kinds(counts, layers.due[:, key])
        mine = schedule[first]
        pairs = np.isin(mine, (Schedule.DUALPIPE, Schedule.DUALPIPE_V))[:, None]
        hidden = np.where(pairs, sum_over_kinds(counts, layers.saved[:, key]), 0.0)
        apart = Apart(
            mine, np.minimum(weight, time - forward), hidden, _moments(keys, mine, stage, classes, held, due)
        )
        work, held = time - hidden, apart.moments[0][0]
    slowest, total = largest(work), sum_of_columns(classes.count[stage] * work)
    (hops, way), spec = _hops(model, keys, p, v, m), model.problem.model
    uneven = uneven_chunks(keys, stage, classes, spec.last_stage_layers)
    pooled = copied = None
    if layers.captures:
        pooled = sum_over_kinds(counts, layers.graphs.kept[:, key])
        copied = sum_over_kinds(counts, layers.graphs.buffers[:, key])
    return Pipelines(
        inverse,
        key,
        stage,
        time,
        forward,
        slowest,
        total,
        kept,
        held,
        hops,
        way,
        apart,
        uneven,
        pooled,
        copied,
    )


def _moments(
    keys: ConfigTable, schedule: IntColumn, stage: Index, classes: StageClasses, held: Array, due: Array
) -> tuple[tuple[Array, Array], ...]:
    """Micro-batches before their input gradient and bytes between the two gradients, at the moments that can bind.

    `held`: the micro-batches of 1F1B or interleaved rows, `due`: bytes of one micro-batch between its gradients.
    Chunks of a rank are counted as equal. Rows with fewer moments than others repeat their last.
    """
    first, inverse = distinct(
        keys["num_microbatches"], keys["pp"], keys["vpp"], schedule, stage.astype(np.int32)
    )
    found: list[dict[int, tuple[Point, ...]]] = []
    for row in first:
        kind, p, v = Schedule(int(schedule[row])), int(keys["pp"][row]), int(keys["vpp"][row])
        mine: dict[int, tuple[Point, ...]] = {}
        if kind > Schedule.INTERLEAVED and kind is not Schedule.GPIPE:
            of_rank = most_held(kind, p, v, int(keys["num_microbatches"][row]))
            for j, ranks in enumerate(classes.members[stage[row]]):
                mine[j] = worst_moments(point for rank in ranks for point in of_rank[rank])
        found.append(mine)
    number = max((len(points) for mine in found for points in mine.values()), default=1)
    width = classes.count.shape[1]
    chunks = np.zeros((number, 2, len(first), width))
    for i, mine in enumerate(found):
        for j, points in mine.items():
            for k in range(number):
                chunks[k, :, i, j] = points[min(k, len(points) - 1)]
    chunks /= np.maximum(keys["vpp"][first], 1)[None, None, :, None]
    gpipe = (schedule == Schedule.GPIPE)[:, None]
    plain = np.where(gpipe, keys["num_microbatches"][:, None].astype(float), held)
    own = ~gpipe & (schedule > Schedule.INTERLEAVED)[:, None]
    return tuple(
        (np.where(own, before[inverse], plain), np.where(own, between[inverse], 0.0) * due)
        for before, between in chunks
    )


def _hops(model: LayerModel, keys: ConfigTable, p: Array, v: Array, m: Array) -> tuple[Array, Array]:
    """Seconds of point-to-point messages on the critical path of a step, and of those that lengthen it at least where
    one micro-batch's way from the first chunk to the last is on it."""
    problem, exposed = model.problem, model.problem.stack.communication.p2p_exposed
    t, c, d = (keys[axis].astype(float) for axis in ("tp", "cp", "dp"))
    links = pipeline_links(t * c * d, p, problem.cluster)
    hops = boundary_seconds(model, keys, links)
    total = reduce(np.add, (count * hop for count, hop in zip(links.count, hops, strict=True)))
    largest_hop = reduce(
        np.maximum, (np.where(count > 0, hop, 0.0) for count, hop in zip(links.count, hops, strict=True))
    )
    wrap = np.choose(links.wrap, hops)
    time = hop_time(total, largest_hop, wrap, p, v, m)
    schedule = keys["schedule"]
    if (schedule > Schedule.INTERLEAVED).any():  # estimates; simulated where they matter
        through = np.isin(schedule, (Schedule.GPIPE, Schedule.DUALPIPE, *FOLDED_SCHEDULES))
        time = np.where(through, 2 * v * total, time)
    looped = ~np.isin(schedule, (Schedule.DUALPIPE, *FOLDED_SCHEDULES))
    way = np.where(looped, v * total + (v - 1) * wrap, total)
    return np.asarray(exposed * time), np.asarray(min(exposed, 1.0) * way)


def boundary_seconds(model: LayerModel, keys: ConfigTable, links: BoundaryLinks) -> list[Array]:
    """From a stage's send until the next has what it needs, by the outermost tier of links between them (n,) [s]."""
    behind = gathers_behind_boundary(model.problem, model.links, keys)
    gather = pass_seconds(behind, len(keys)).total[0]
    sends = boundary_messages(model.problem, model.links, keys, links)
    return [np.asarray(one.seconds + gather) for one in sends]

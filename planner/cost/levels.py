"""What do layers and pipelines cost, once per distinct way to cut a micro-batch and to deal layers to stages?

Levels one and two of the evaluation; a row gathers from them. Left out: parameters and their collectives
(`cost/shards.py`), and what depends on a row's recomputed layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from planner.cost.activations import HeadActivations
from planner.cost.collectives import p2p_time
from planner.cost.layer import TIME_TERMS, LayerModel
from planner.cost.stages import StageClasses, largest, sum_of_columns, sum_over_kinds
from planner.cost.step import FORWARD_SHARE
from planner.cost.traffic import pipeline_links
from planner.schedule.formulas import in_flight, uneven_hop_time
from planner.spec.config import ConfigTable, distinct

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Layers:
    """Level one, per layer key (l,) and layer kind (K,): stacked costs."""

    of_row: Index
    terms: Array  # (K, T, l) forward and backward seconds by term
    time: Array  # (K, l)
    forward_time: Array  # (K, l)
    time_full: Array  # (K, l)
    again: Array  # (K, l)
    again_full: Array  # (K, l)
    kept: Array  # (K, l)
    kept_full: Array
    working: Array  # (l,) the largest over kinds
    working_full: Array
    embedding: Array
    head: Array
    stream: Array  # (l,) bytes of a layer's input
    hidden: Array  # (l,) values of the stream on a rank
    head_memory: HeadActivations


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


def layer_level(model: LayerModel, table: ConfigTable) -> Layers:
    """Costs of every kind of layer for the distinct cuts of a table."""
    pipelined = (table["pp"] > 1).astype(np.int32)
    first, inverse = distinct(
        table["tp"], table["sp"], table["cp"], table["cp_kind"], table["ep"], table["etp"],
        table["micro_batch"], table["recompute_modules"], pipelined,
    )  # fmt: skip
    keys = table.take(first)
    costs = [model.layer(kind, keys) for kind in model.problem.model.layer_kinds]
    edges = model.edges(keys)
    return Layers(
        of_row=inverse,
        terms=np.array([[c.forward[t] + c.backward[t] for t in TIME_TERMS] for c in costs]),
        time=np.array([c.time for c in costs]),
        forward_time=np.array([c.forward_time for c in costs]),
        time_full=np.array([c.time_full for c in costs]),
        again=np.array([c.again for c in costs]),
        again_full=np.array([c.again_full for c in costs]),
        kept=np.array([c.kept for c in costs]),
        kept_full=np.array([c.kept_full for c in costs]),
        working=np.max([c.working for c in costs], axis=0),
        working_full=np.max([c.working_full for c in costs], axis=0),
        embedding=edges.embedding,
        head=edges.head,
        stream=edges.stream,
        hidden=edges.stream / model.recipe.activation_bytes,
        head_memory=edges.memory,
    )


def pipeline_level(model: LayerModel, table: ConfigTable, layers: Layers, classes: StageClasses) -> Pipelines:
    """Stages, in-flight counts and messages of the distinct pipelines of a table."""
    columns = (layers.of_row.astype(np.int32), classes.of_row.astype(np.int32))
    first, inverse = distinct(*columns, table["num_microbatches"], table["dp"])
    keys, key, stage = table.take(first), layers.of_row[first], classes.of_row[first]
    counts = np.moveaxis(classes.layers[stage], 2, 0)  # (K, q, C)
    embedding = classes.first[stage] * layers.embedding[key][:, None]
    edges = embedding + classes.last[stage] * layers.head[key][:, None]
    time = sum_over_kinds(counts, layers.time[:, key]) + edges
    forward = sum_over_kinds(counts, layers.forward_time[:, key]) + FORWARD_SHARE * edges
    kept = sum_over_kinds(counts, layers.kept[:, key])
    slowest, total = largest(time), sum_of_columns(classes.count[stage] * time)
    p, v, m = (keys[axis].astype(float) for axis in ("pp", "vpp", "num_microbatches"))
    held = np.asarray(in_flight(classes.stage[stage], p[:, None], v[:, None], m[:, None]))
    hops = _hops(model, keys, p, v, m)
    return Pipelines(inverse, key, stage, time, forward, slowest, total, kept, held, hops)


def _hops(model: LayerModel, keys: ConfigTable, p: Array, v: Array, m: Array) -> Array:
    """Seconds of point-to-point messages on the critical path of a step."""
    problem, cluster = model.problem, model.problem.cluster
    t, c, d = (keys[axis].astype(float) for axis in ("tp", "cp", "dp"))
    links = pipeline_links(t * c * d, p, cluster)
    tokens = keys["micro_batch"] * float(problem.job.seq_len) / c
    size = model.recipe.activation_bytes * tokens * problem.model.hidden / np.where(keys["sp"] > 0, t, 1.0)
    nvlink = cluster.tiers[0].bandwidth
    hops = [
        np.asarray(p2p_time(size, tier > 0, nvlink, bandwidth, model.links))
        for tier, bandwidth in enumerate(links.bandwidth)
    ]
    total = reduce(np.add, (count * hop for count, hop in zip(links.count, hops, strict=True)))
    largest_hop = reduce(
        np.maximum, (np.where(count > 0, hop, 0.0) for count, hop in zip(links.count, hops, strict=True))
    )
    wrap = np.choose(links.wrap, hops)
    exposed = problem.stack.communication.p2p_exposed
    return np.asarray(exposed * uneven_hop_time(total, largest_hop, wrap, p, v, m))

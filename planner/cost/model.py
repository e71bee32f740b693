"""What does each candidate cost? Binds a problem to its measured rates and evaluates tables of candidates.

The evaluation has three levels, each on its distinct keys only: a layer (how a micro-batch is cut), a pipeline
(layers per stage and micro-batches), a row (sharding and recomputation). One text serves one candidate and a
million. Left out: interleaved pipelines of uneven stages, for which the form of equal ones stands in;
`cost/simulated.py` simulates those of a short table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from planner.cost.activations import HeadActivations
from planner.cost.collectives import all_gather_time, all_reduce_time, p2p_time, reduce_scatter_time
from planner.cost.flops import Shard, gemm_flops, head_gemm, layer_gemms
from planner.cost.kernels import memory_bound_time
from planner.cost.layer import TIME_TERMS, LayerModel, padded_vocabulary
from planner.cost.memory import MemoryInputs, frozen, memory_cost, on_device, state_bytes
from planner.cost.params import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    outer_norm_parameters,
    position_parameters,
)
from planner.cost.pipeline import bubble_time, least_makespan
from planner.cost.stages import StageClasses, stage_classes
from planner.cost.step import FORWARD_SHARE, exposed_data_parallel, straggling
from planner.cost.traffic import group_links, pipeline_links
from planner.schedule.formulas import in_flight, uneven_hop_time
from planner.space.split import nanotron_head
from planner.spec.config import ConfigTable, IntColumn, distinct
from planner.spec.job import FROZEN_BYTES, OPTIMIZERS
from planner.spec.links import LinkRates
from planner.spec.rates import KernelRates
from planner.spec.rule import Problem
from planner.spec.stack import CrossEntropy, PipelineSplit, StateEngine

Array = NDArray[np.float64]
Index = NDArray[np.intp]

CHUNK_ROWS = 16384
STAGE_TERMS = (*TIME_TERMS, "recompute", "host_bound", "embedding_and_loss")


@dataclass(frozen=True)
class CostDetail:
    """The terms behind a table. `time`: by term, sums to the step time (n,) [s]. `memory[phase][term]` (n, C)
    [bytes]. `by_class` (n, C): the allocator's peaks; `outside` (n,): bytes beside the allocator. `stage_class`
    (n,): the binding class of `classes`, of which `class_row` (n,) is the pipeline of a row."""

    time: dict[str, Array]
    memory: dict[str, dict[str, Array]]
    by_class: Array
    outside: Array
    stage_class: NDArray[np.intp]
    class_row: NDArray[np.intp]
    classes: StageClasses


@dataclass(frozen=True)
class CostTable:
    """Cost of every candidate (n,). `step_time` [s]; `peak_memory`: what the stack's counter logs, `device_memory`:
    with everything outside the allocator [bytes]. `stage`: earliest stage of the binding class, `phase`: index
    into `cost.memory.PHASES`. `detail` only where it was asked for."""

    step_time: Array
    peak_memory: Array
    device_memory: Array
    stage: NDArray[np.intp]
    phase: NDArray[np.intp]
    detail: CostDetail | None = None


@dataclass(frozen=True)
class _Layers:
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
class _Pipelines:
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


@dataclass(frozen=True)
class _Shards:
    """Per (tp, cp, pp, vpp, dp, ep, etp) (k,): parameters by stage class and their collectives."""

    of_row: Index
    dense: Array  # (k, C)
    expert: Array  # (k, C)
    most_dense: Array  # (k,) of the heaviest stage
    most_expert: Array  # (k,)
    scatter: Array  # (k,) seconds, ZeRO 1 to 3
    reduce: Array  # (k,) seconds, ZeRO 0
    gather: Array  # (k,)
    widest: Array  # (k,) parameters of the largest layer
    outer: Array  # (k, C) parameters outside the layers
    head: Array  # (k, C) the head's among them
    adapters: Array  # (k, C) parameters of LoRA adapters
    buckets: Array  # (k,)


def largest(table: Array) -> Array:
    """Largest of each row of a narrow table; column by column, which is several times faster than along rows."""
    return reduce(np.maximum, table.T)


def sum_of_columns(table: Array) -> Array:
    """Sum of each row of a narrow table, column by column."""
    return reduce(np.add, table.T)


def sum_over_kinds(counts: Array | Sequence[Array], values: Array) -> Array:
    """Layers of every kind, K times (n, C), times a value of the kind, K times (n,): (n, C)."""
    return reduce(np.add, (count * value[:, None] for count, value in zip(counts, values, strict=True)))


class CostModel:
    """Evaluates candidates of one problem. Pure: the same table gives the same bytes."""

    def __init__(self, problem: Problem, kernels: KernelRates, links: LinkRates) -> None:
        self.problem, self.kernels, self.links = problem, kernels, links
        self.layers = LayerModel(problem, kernels, links)
        model = problem.model
        self.kinds = model.layer_kinds
        self.parameters = [layer_parameters(kind, model.hidden) for kind in self.kinds]
        linear = [sum(gemm_flops(g, 1.0) for g in layer_gemms(kind, model.hidden)) for kind in self.kinds]
        mean = float(np.mean([linear[kind] for kind in model.layer_kind_of]))
        self.head_in_layers = gemm_flops(head_gemm(model), 1.0) / mean + model.mtp_layers
        if problem.stack.split is PipelineSplit.NANOTRON:
            self.head_in_layers = nanotron_head(model)
        self.embedding_in_layers = 0.05

    def prepare(self, stems: ConfigTable) -> PreparedCosts:
        """Evaluate everything that does not depend on the number of fully recomputed layers."""
        classes = self._stage_classes(stems)
        layers = self._layer_level(stems)
        pipelines = self._pipeline_level(stems, layers, classes)
        return PreparedCosts(self, stems, classes, layers, pipelines, self._shard_level(stems, classes))

    def lower_bound(self, stems: ConfigTable) -> Array:
        """A step time that no completion of a stem beats, from the work of its layers alone [s].

        Left out: embedding and loss, point-to-point, data-parallel collectives, the optimizer.
        """
        layers, classes = self._layer_level(stems), self._stage_classes(stems)
        counts = np.moveaxis(classes.layers[classes.of_row], 2, 0)
        time = sum_over_kinds(counts, layers.time[:, layers.of_row])
        total = sum_of_columns(classes.count[classes.of_row] * time)
        v, m = (stems[axis].astype(float) for axis in ("vpp", "num_microbatches"))
        stack, nodes = self.problem.stack, float(self.problem.cluster.num_nodes)
        least = least_makespan(time, classes, classes.of_row, total, m, v) + stack.host.step_overhead
        rounding = 1.0 - 1e-9
        return rounding * (least + straggling(least, nodes, stack.communication))

    def evaluate(self, table: ConfigTable, keep_terms: bool = False) -> CostTable:
        """Cost of every row of `table`; a row's cost does not depend on the other rows."""
        if not len(table):
            empty, none = np.zeros(0), np.zeros(0, dtype=np.intp)
            return CostTable(empty, empty, empty, none, none)
        prepared = self.prepare(table)
        step = len(table) if keep_terms else CHUNK_ROWS
        parts = []
        for start in range(0, len(table), step):
            part = slice(start, min(start + step, len(table)))
            rows = np.arange(part.stop - part.start)
            parts.append(prepared.evaluate(part, rows, table["recompute_layers"][part], keep_terms))
        return parts[0] if len(parts) == 1 else join(parts)

    def _stage_classes(self, table: ConfigTable) -> StageClasses:
        stack = self.problem.stack
        classes = stage_classes(
            table["pp"], table["vpp"], self.problem.model.layer_kind_of, stack.split,
            self.embedding_in_layers, self.head_in_layers,
        )  # fmt: skip
        extra = self.problem.model.mtp_layers
        if extra:
            classes.layers[:, :, self.problem.model.layer_kind_of[-1]] += extra * classes.last
        return classes

    def _layer_level(self, table: ConfigTable) -> _Layers:
        pipelined = (table["pp"] > 1).astype(np.int32)
        first, inverse = distinct(
            table["tp"], table["sp"], table["cp"], table["cp_kind"], table["ep"], table["etp"],
            table["micro_batch"], table["recompute_modules"], pipelined,
        )  # fmt: skip
        keys = table.take(first)
        costs = [self.layers.layer(kind, keys) for kind in self.kinds]
        edges = self.layers.edges(keys)
        return _Layers(
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
            hidden=edges.stream / self.layers.recipe.activation_bytes,
            head_memory=edges.memory,
        )

    def _pipeline_level(self, table: ConfigTable, layers: _Layers, classes: StageClasses) -> _Pipelines:
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
        hops = self._hops(keys, p, v, m)
        return _Pipelines(inverse, key, stage, time, forward, slowest, total, kept, held, hops)

    def _hops(self, keys: ConfigTable, p: Array, v: Array, m: Array) -> Array:
        """Seconds of point-to-point messages on the critical path of a step."""
        model, cluster = self.problem.model, self.problem.cluster
        t, c, d = (keys[axis].astype(float) for axis in ("tp", "cp", "dp"))
        links = pipeline_links(t * c * d, p, cluster)
        tokens = keys["micro_batch"] * float(self.problem.job.seq_len) / c
        size = self.layers.recipe.activation_bytes * tokens * model.hidden / np.where(keys["sp"] > 0, t, 1.0)
        nvlink = cluster.tiers[0].bandwidth
        hops = [
            np.asarray(p2p_time(size, tier > 0, nvlink, bandwidth, self.links))
            for tier, bandwidth in enumerate(links.bandwidth)
        ]
        total = reduce(np.add, (count * hop for count, hop in zip(links.count, hops, strict=True)))
        largest_hop = reduce(
            np.maximum, (np.where(count > 0, hop, 0.0) for count, hop in zip(links.count, hops, strict=True))
        )
        wrap = np.choose(links.wrap, hops)
        exposed = self.problem.stack.communication.p2p_exposed
        return np.asarray(exposed * uneven_hop_time(total, largest_hop, wrap, p, v, m))

    def _shard_level(self, table: ConfigTable, classes: StageClasses) -> _Shards:
        first, inverse = distinct(
            classes.of_row.astype(np.int32), table["tp"], table["cp"], table["dp"], table["ep"], table["etp"]
        )
        keys, stage = table.take(first), classes.of_row[first]
        t, c, d = (keys[axis].astype(float) for axis in ("tp", "cp", "dp"))
        e, et = keys["ep"].astype(float), keys["etp"].astype(float)
        dense_of_kind, expert_of_kind = self._parameters_by_kind(t, e, et)
        counts = np.moveaxis(classes.layers[stage], 2, 0)
        dense = sum_over_kinds(counts, dense_of_kind)
        expert = sum_over_kinds(counts, expert_of_kind)
        in_layers = dense
        dense = dense + classes.first[stage] * self._first_stage_parameters(t)[:, None]
        alone = classes.first[stage] * classes.last[stage]
        dense += classes.last[stage] * self._last_stage_parameters(t)[:, None]
        if self.problem.model.tied_embeddings:
            dense += (classes.last[stage] - alone) * self._first_stage_parameters(t)[:, None]
        adapters = sum_over_kinds(counts, self._adapters_by_kind(t))
        lora = self.problem.job.lora_rank is not None
        heaviest, experts = largest(adapters if lora else dense), largest(expert * (not lora))
        gathered = (largest(dense), largest(expert)) if lora else (heaviest, experts)
        comm = self.problem.stack.communication
        replicas, expert_replicas = d * c, t * c * d / (e * et)
        half = self.layers.recipe.activation_bytes
        gradient = comm.gradient_bytes
        dense_links = (replicas, group_links(t, replicas, self.problem.cluster))
        expert_links = (expert_replicas, group_links(e * et, expert_replicas, self.problem.cluster))
        scatter = reduce = gather = np.zeros(len(keys))
        sizes = zip((heaviest, experts), gathered, (dense_links, expert_links), strict=True)
        for size, whole, (ranks, links) in sizes:
            where = (ranks, links.local, self.problem.cluster.tiers[0].bandwidth, links.fabric, self.links)
            scatter = scatter + comm.dp_time * reduce_scatter_time(gradient * size, *where)
            reduce = reduce + comm.dp_time * all_reduce_time(gradient * size, *where)
            gather = gather + comm.dp_time * all_gather_time(half * whole, *where)
        widest = np.max(dense_of_kind + expert_of_kind, axis=0)
        head = classes.last[stage] * self._head_parameters(t)[:, None]
        buckets = (
            gradient * (heaviest + experts) / comm.bucket_bytes if comm.bucket_bytes else np.zeros(len(keys))
        )
        return _Shards(
            inverse, dense, expert, heaviest, experts, scatter, reduce, gather, widest, dense - in_layers, head,
            adapters, buckets,
        )  # fmt: skip

    def _parameters_by_kind(self, t: Array, e: Array, et: Array) -> tuple[Array, Array]:
        """Parameters of one layer of each kind on a rank: (K, k) dense, (K, k) expert."""
        dense, expert = [], []
        for kind, count in zip(self.kinds, self.parameters, strict=True):
            kv = count.kv / np.minimum(t, kind.attention.kv_heads)
            dense.append((count.column_row + count.shared) / t + kv + count.replicated + count.router)
            expert.append(count.expert / (e * et) + count.expert_replicated / e)
        return np.array(dense), np.array(expert)

    def _adapters_by_kind(self, t: Array) -> Array:
        """Parameters of LoRA adapters of one layer of each kind on a rank (K, k): r (in + out) of each dense product,
        the side that tensor parallelism divides divided."""
        rank = float(self.problem.job.lora_rank or 0)
        found = []
        for kind in self.kinds:
            total = np.zeros(len(t))
            for gemm in layer_gemms(kind, self.problem.model.hidden):
                if gemm.expert or gemm.name == "router":
                    continue
                wide, narrow = float(gemm.out_features + gemm.kv_out_features), float(gemm.in_features)
                total = total + rank * (wide / np.where(gemm.shard is Shard.COLUMN, t, 1.0))
                total = total + rank * (narrow / np.where(gemm.shard is Shard.ROW, t, 1.0))
            found.append(total)
        return np.array(found)

    def largest_tensor(self, t: Array) -> Array:
        """Parameters of the largest single tensor of a rank: of the head or of a layer's output projections [1]."""
        model = self.problem.model
        gemms = [g for kind in self.kinds for g in layer_gemms(kind, model.hidden) if g.shard is Shard.ROW]
        wide = float(max((g.out_features * g.in_features for g in gemms), default=0))
        return np.maximum(self._head_parameters(t), wide / t)

    def _first_stage_parameters(self, t: Array) -> Array:
        model = self.problem.model
        padding = padded_vocabulary(self.problem, t) / model.vocab
        return embedding_parameters(model) * padding / t + position_parameters(model)

    def _head_parameters(self, t: Array) -> Array:
        """Parameters of the matrix that makes logits, tied or not."""
        return padded_vocabulary(self.problem, t) * float(self.problem.model.hidden) / t

    def _last_stage_parameters(self, t: Array) -> Array:
        model = self.problem.model
        padding = padded_vocabulary(self.problem, t) / model.vocab
        extra = mtp_parameters(model) - model.mtp_layers * self.parameters[model.layer_kind_of[-1]].total
        return head_parameters(model) * padding / t + outer_norm_parameters(model) + max(extra, 0)


@dataclass(frozen=True)
class _Stems:
    """Columns of a batch of stems that its leaves share; C stage classes."""

    microbatches: Array
    v: Array
    zero: Array
    replicas: Array
    scatter: Array
    gather: Array
    layers: Array
    buckets: Array
    once: Array  # optimizer update [s]
    memory: MemoryInputs


class PreparedCosts:
    """Costs of stems, ready to be completed by their leaves. See `CostModel.prepare`."""

    def __init__(
        self, model: CostModel, stems: ConfigTable, classes: StageClasses, layers: _Layers, pipelines: _Pipelines,
        shards: _Shards,
    ) -> None:  # fmt: skip
        self.model, self.stems, self.classes = model, stems, classes
        self.layers, self.pipelines, self.shards = layers, pipelines, shards
        # what full recomputation of one layer adds and frees, per kind and layer key: (K, l)
        self.slower = layers.time_full - layers.time
        self.again = layers.again_full - layers.again
        self.freed = layers.kept - layers.kept_full
        # layers of kind k among the first n of a stage, as rows (pipeline, n): K times (P N, C)
        pipelines_, width, self.depth, kinds = classes.leading.shape
        shape = (pipelines_ * self.depth, width)
        self.leading = [classes.leading[..., k].transpose(0, 2, 1).reshape(shape) for k in range(kinds)]
        self.layers_of = classes.layers.sum(axis=2)
        self.deepest = largest(self.layers_of)

    def _stem_batch(self, part: slice | Index) -> _Stems:
        """Everything of a batch of stems that needs no leaf."""
        problem, shards = self.model.problem, self.shards
        table, s_row = self.stems.take(part), shards.of_row[part]
        p_row = self.pipelines.of_row[part]
        c_row = self.pipelines.stage_key[p_row]
        t, c, d = (table[axis].astype(float) for axis in ("tp", "cp", "dp"))
        zero, replicas = table["zero"].astype(float), c * d
        expert_replicas = t * replicas / (table["ep"].astype(float) * table["etp"])
        sharded = zero >= 1
        dense = shards.most_dense[s_row] / np.where(sharded, replicas, 1.0)
        expert = shards.most_expert[s_row] / np.where(sharded, expert_replicas, 1.0)
        moved = OPTIMIZERS[problem.job.optimizer].step_bytes * (dense + expert)
        groups = sum(((table[a] > 1).astype(float) for a in ("tp", "cp", "pp", "ep")), (replicas > 1) * 1.0)
        memory = self._memory_inputs(table, s_row, p_row, groups)
        return _Stems(
            microbatches=table["num_microbatches"].astype(float),
            v=table["vpp"].astype(float),
            zero=zero,
            replicas=replicas,
            scatter=np.where(zero == 0, shards.reduce[s_row], shards.scatter[s_row]),
            # only ZeRO-3 gathers frozen weights; adapters are too small to count
            gather=shards.gather[s_row] * np.where((zero >= 3) | (problem.job.lora_rank is None), 1.0, 0.0),
            layers=self.deepest[c_row],
            buckets=shards.buckets[s_row],
            once=memory_bound_time(moved, self.model.layers.bandwidth, self.model.kernels),
            memory=memory,
        )

    def _memory_inputs(self, table: ConfigTable, s_row: Index, p_row: Index, groups: Array) -> MemoryInputs:
        """What the memory of a batch of stems is made of."""
        problem, shards, layers = self.model.problem, self.shards, self.layers
        stack, job, classes = problem.stack, problem.job, self.classes
        l_row, c_row = self.pipelines.layer_key[p_row], self.pipelines.stage_key[p_row]
        t, zero = table["tp"].astype(float), table["zero"].astype(float)
        replicas = table["dp"].astype(float) * table["cp"].astype(float)
        expert_replicas = t * replicas / (table["ep"].astype(float) * table["etp"])
        hybrid = table["hsdp"].astype(float)
        shared = np.where(hybrid > 0, np.minimum(hybrid, replicas), replicas)
        expert_shared = np.where(hybrid > 0, np.minimum(hybrid, expert_replicas), expert_replicas)
        last, head = classes.last[c_row], layers.head_memory
        torch = stack.states.engine is StateEngine.TORCH
        whole = torch and stack.kernels.cross_entropy is CrossEntropy.EAGER
        offload, engine = table["offload"], stack.states.engine
        held = self.pipelines.in_flight[p_row]
        depth = classes.layers[c_row].sum(axis=2)
        # activations on the host leave two layers' worth on the device: one at work, one on its way
        copied = ((offload & 4) > 0)[:, None]
        held = np.where(copied, np.minimum(held, 2.0 / np.maximum(depth, 1.0)), held)
        dense = state_bytes(zero, shared, replicas, stack, job)
        experts = state_bytes(zero, expert_shared, expert_replicas, stack, job)
        outer, adapters = shards.outer[s_row], np.zeros_like(shards.outer[s_row])
        if job.lora_rank is not None:
            bytes_, half = FROZEN_BYTES[job.frozen_bits], self.model.layers.recipe.weight_bytes
            unquantised = np.where(zero >= 3, (half - bytes_) / shared, half - bytes_)
            adapters = shards.adapters[s_row] * dense.total[:, None] + outer * unquantised[:, None]
            dense, experts = (
                frozen(*of, bytes_) for of in ((dense, zero, shared), (experts, zero, expert_shared))
            )
        return MemoryInputs(
            dense=shards.dense[s_row],
            expert=shards.expert[s_row],
            outer=outer,
            head=shards.head[s_row],
            head_excess=shards.head[s_row] * ((t - 1.0) * whole)[:, None],
            unit=shards.widest[s_row],
            layers=self.layers_of[c_row],
            alive=classes.count[c_row],
            in_flight=held,
            # every prediction module has logits of its own, kept until the backward pass
            head_inputs=last * (1 + problem.model.mtp_layers) * head.inputs[l_row][:, None],
            head_kept=last * (1 + problem.model.mtp_layers) * head.kept[l_row][:, None],
            head_transient=last * head.transient[l_row][:, None],
            logit_gradient=last * head.gradient[l_row][:, None],
            boundary=self.pipelines.in_flight[p_row]
            * (stack.kernels.boundary_bytes * layers.hidden[l_row] * (table["pp"] > 1))[:, None],
            adapters=adapters,
            stream=layers.stream[l_row],
            states=on_device(dense, offload, engine),
            expert_states=on_device(experts, offload, engine),
            zero=zero,
            shards=shared,
            expert_shards=expert_shared,
            accumulates=(table["num_microbatches"] > 1).astype(float),
            weight_bytes=self.model.layers.recipe.weight_bytes,
            largest_tensor=self.model.largest_tensor(t),
            groups=groups,
        )

    def evaluate(
        self, part: slice | Index, stem: Index, recompute_layers: IntColumn, keep_terms: bool = False
    ) -> CostTable:
        """Complete the stems `part`: row i is the `stem[i]`-th of them with `recompute_layers[i]` layers."""
        model, pipelines, stack = self.model, self.pipelines, self.model.problem.stack
        batch = self._stem_batch(part)
        p_row = pipelines.of_row[part][stem]
        l_row, c_row = pipelines.layer_key[p_row], pipelines.stage_key[p_row]
        leading = self._leading(c_row, recompute_layers)
        if leading:
            time = pipelines.time[p_row] + sum_over_kinds(leading, self.slower[:, l_row])
            slowest, total = largest(time), sum_of_columns(self.classes.count[c_row] * time)
        else:
            time = pipelines.time[p_row]
            slowest, total = pipelines.slowest[p_row], pipelines.total[p_row]
        m, v = batch.microbatches[stem], batch.v[stem]
        of_step: dict[str, Array] = {
            "pipeline_bubble": bubble_time(
                pipelines.forward[p_row], time, self.classes, c_row, slowest, total, m, v
            ),
            "pp_comm": pipelines.hops[p_row],
            "dp_comm": exposed_data_parallel(
                batch.scatter[stem], batch.gather[stem], slowest, m, batch.zero[stem], batch.layers[stem],
                batch.buckets[stem], batch.replicas[stem], stack.communication,
            ),
            "optimizer": batch.once[stem],
            "step_overhead": np.full(len(stem), stack.host.step_overhead),
        }  # fmt: skip
        subtotal = sum(of_step.values(), m * slowest)
        of_step["stragglers"] = straggling(
            subtotal, float(model.problem.cluster.num_nodes), stack.communication
        )
        kept = pipelines.kept[p_row]
        if leading:
            kept = kept - sum_over_kinds(leading, self.freed[:, l_row])
        working = np.where(recompute_layers > 0, self.layers.working_full[l_row], self.layers.working[l_row])
        # a stage that keeps nothing but layer inputs reaches the loss with one layer's blocks unused
        cached = np.where(recompute_layers >= batch.layers[stem], working, 0.0)
        memory = memory_cost(batch.memory, stem, kept, working, stack, keep_terms, cached)
        stage = self.classes.stage[c_row, memory.stage_class].astype(np.intp)
        detail = None
        if keep_terms:
            terms = {**self._stage_terms(p_row, leading, time, m), **of_step}
            where = (memory.by_class, memory.outside, memory.stage_class, c_row, self.classes)
            detail = CostDetail(terms, memory.terms, *where)
        step_time = subtotal + of_step["stragglers"]
        return CostTable(step_time, memory.peak, memory.device, stage, memory.phase, detail)

    def _leading(self, c_row: Index, recompute_layers: IntColumn) -> list[Array]:
        """Recomputed layers by kind (rows, C); an empty list where no row recomputes whole layers."""
        if not recompute_layers.any():
            return []
        at = c_row * self.depth + np.minimum(recompute_layers, self.depth - 1)
        return [kind[at] for kind in self.leading]

    def _stage_terms(self, p_row: Index, leading: list[Array], time: Array, m: Array) -> dict[str, Array]:
        """The terms of the slowest stage's `time`, over all micro-batches."""
        layers, pipelines, classes = self.layers, self.pipelines, self.classes
        l_row, c_row, index = pipelines.layer_key[p_row], pipelines.stage_key[p_row], np.arange(len(p_row))
        binding = np.where(classes.count[c_row] > 0, time, -1.0).argmax(axis=1)
        counts = classes.layers[c_row, binding].T  # (K, rows)
        terms = {
            name: (counts * layers.terms[:, i][:, l_row]).sum(axis=0) for i, name in enumerate(TIME_TERMS)
        }
        terms["recompute"] = (counts * layers.again[:, l_row]).sum(axis=0)
        for kind, again in zip(leading, self.again, strict=False):
            terms["recompute"] = terms["recompute"] + kind[index, binding] * again[l_row]
        ends = classes.first[c_row, binding] * layers.embedding[l_row]
        ends = ends + classes.last[c_row, binding] * layers.head[l_row]
        terms["host_bound"] = time[index, binding] - ends - sum(terms.values())
        terms["embedding_and_loss"] = ends
        return {name: m * terms[name] for name in STAGE_TERMS}


def join(parts: Sequence[CostTable]) -> CostTable:
    """Consecutive tables as one, without terms."""
    return CostTable(
        np.concatenate([part.step_time for part in parts]),
        np.concatenate([part.peak_memory for part in parts]),
        np.concatenate([part.device_memory for part in parts]),
        np.concatenate([part.stage for part in parts]),
        np.concatenate([part.phase for part in parts]),
    )

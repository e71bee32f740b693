"""How long does one layer take and what does it keep, for every way its micro-batch can be cut?

One value per distinct key (tp, sp, cp, ep, etp, micro-batch, recomputed modules), for one kind of layer, or for
the embedding and the head. Left out: what depends on the pipeline, data parallelism or the number of layers.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import AdapterModel, adapter_launches
from planner.cost.device.graphs import (
    Capture,
    HostFloor,
    LayerGraphs,
    capture_of,
    dense_launches,
    layer_graphs,
    mixer_launches,
    relaunched,
)
from planner.cost.device.kernels import memory_bound_time
from planner.cost.device.mixing import MixingModel
from planner.cost.device.passes import PassModel
from planner.cost.device.products import Groups, ProductModel, key_groups
from planner.cost.device.rates import DeviceRates
from planner.cost.eager import EXPERT_LAUNCHES as LOOPED_EXPERT_LAUNCHES
from planner.cost.eager import loss_bytes, side_bytes
from planner.cost.exposed import CommunicationModel
from planner.cost.flops import layer_gemms, outer_gemms
from planner.cost.layer_memory import layer_memory, layer_parts, weight_gradient_bytes
from planner.cost.memory.activations import HeadActivations, LayerShape, head_activations
from planner.cost.network.context import context_kinds
from planner.cost.network.overlap import paired_time, soft_maximum
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ContextKind, CudaGraphs, IntColumn
from planner.spec.layer import Layer
from planner.spec.machine.accelerator import HostProcessor
from planner.spec.machine.links import LinkRates
from planner.spec.machine.rates import KernelRates
from planner.spec.precision import RECIPES, Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import CrossEntropy, Dispatcher

Array = NDArray[np.float64]

TIME_TERMS = ("gemm", "attention", "indexer", "memory_bound", "tp_comm", "cp_comm", "ep_comm")

# Loss, forward and backward: logits cast to fp32 (read 2, write 4), maximum and sum of exponents (read 4 + 4),
# gradient (read 4, write 4), cast back (write 2): bytes per logit.
LOSS_PASSES_BYTES = 24.0
# Launches of the embedding, and of head and loss, in units of a layer's: an unfused loss is about as many kernels as
# a layer. vTrain's toy models, whose times are exact sums over layers and ends, give 0.3 and 1.0 at tp 2 to 8.
EMBEDDING_LAUNCHES = 0.3
LOSS_LAUNCHES = {
    CrossEntropy.EAGER: 1.0, CrossEntropy.VOCAB_PARALLEL: 1.0, CrossEntropy.FUSED: 0.5, CrossEntropy.CHUNKED: 1.0,
}  # fmt: skip
# Host time of routing, permuting and dispatching by a fused dispatcher against NCCL's all-to-all: the same mixture of
# experts on two H100 nodes took 14.9 ms a layer with the one, permuting unfused, and 9.5 ms with the other
# (Megatron-Bridge skills, 26.04); an upper bound of what the dispatcher alone saves.
FUSED_DISPATCH_LAUNCHES = 0.7
# Launches for every expert of a rank where grouped products are launched one by one (Transformer Engine's grouped
# linear): 3 products of 2 matrices; in 8 and 4 bits inputs and output gradients of both are quantised, and scales per
# block of either operand of every product were rearranged one by one. From 2.7 on one kernel does that for all experts
# (TransformerEngine#2019), which leaves 10; but PyTorch's own work for every expert is not counted either
# (TransformerEngine#1499), and counted so, mixtures of experts of megatron-2026 on groups left out were off by 8.8 % in
# the median where 22 gave 7.8.
EXPERT_LAUNCHES = {
    Precision.FP32: 6.0, Precision.FP16: 6.0, Precision.BF16: 6.0, Precision.FP8: 10.0, Precision.FP8_CS: 10.0,
}  # fmt: skip
BLOCK_SCALED_LAUNCHES = 22.0
# Share of a layer's forward launches that recomputing a module repeats, counted on a fused layer of 12: norm, qkv,
# rotary of q and k, attention, projection, add, norm, fc1, activation, fc2, add; with experts about as many again
# for routing, permutation and grouped products. Not a share of time, which faster links would change.
RELAUNCHED = {
    "core_attn": 1 / 12, "layernorm": 2 / 12, "mla_up_proj": 3 / 12, "mlp": 3 / 12, "moe_act": 1 / 12,
    "moe": 8 / 12, "shared_experts": 3 / 12,
}  # fmt: skip

# Launches that an eager softmax adds to those of a layer with a softmax kernel, about 16 a pass: a cast to fp32,
# scaling, a cast of the mask, masking, a cast back (microsoft/Megatron-DeepSpeed, megatron/model/fused_softmax.py).
EAGER_SOFTMAX_LAUNCHES = 5 / 16

# Launches of one more step of ring attention against those of a fused layer, forward (12) and backward (24): the
# exchange, two copies of halves, attention, two corrections; backward one more (the classes and functions of
# TransformerEngine 2.x, context_parallel.py).
RING_LAUNCHES = (6 / 12, 7 / 24)


# fields of `LayerCost` that blocks of a layer add to
_ADDED = (
    "host",
    "again",
    "again_full",
    "time",
    "time_full",
    "forward_time",
    "weight_gradient",
    "hidden",
    "due",
    "kept",
)


@dataclass(frozen=True)
class LayerCost:
    """One kind of layer, one value per key.

    `forward`, `backward`: exposed device seconds by term of `TIME_TERMS`. `host`: launch floor of forward and
    backward [s]. `again`: seconds to recompute the key's modules, `again_full` the whole layer.
    `time`, `time_full`: forward and backward including recomputation and the host's floor, `forward_time` its
    forward share [s]. `weight_gradient`: device seconds of the weight gradients, a part of backward.
    `hidden`: seconds of `time` that an overlapped pair of two micro-batches saves. `due`: bytes held from the input
    gradient to a weight gradient that runs apart. `kept`, `kept_full`: bytes held from forward to backward.
    `working`: bytes alive only while the layer's own backward runs, beside what is kept; `working_full` when the
    layer was recomputed. `graphs`: memory of its CUDA graphs, None where no key captures any.
    """

    forward: dict[str, Array]
    backward: dict[str, Array]
    host: Array
    again: Array
    again_full: Array
    time: Array
    time_full: Array
    forward_time: Array
    weight_gradient: Array
    hidden: Array
    due: Array
    kept: Array
    kept_full: Array
    working: Array
    working_full: Array
    graphs: LayerGraphs | None = None


def _chained(first: LayerCost, then: LayerCost) -> LayerCost:
    """The cost of a layer of two blocks: of both, except that the second one's tensors are gone when the first runs
    backward, and that one that is recomputed keeps its own input alone and makes all of both again."""
    total: dict[str, Any] = {name: getattr(first, name) + getattr(then, name) for name in _ADDED}
    for side in ("forward", "backward"):
        ahead, behind = getattr(first, side), getattr(then, side)
        total[side] = {term: ahead[term] + behind[term] for term in ahead}
    remade = first.working_full - first.working
    return LayerCost(
        **total,
        kept_full=first.kept_full,
        working=np.maximum(then.working, first.working - then.kept),
        working_full=np.maximum(first.working_full, remade + then.working_full + then.kept_full),
    )


@dataclass(frozen=True)
class EdgeCost:
    """Embedding and head with loss. `embedding`, `head`: forward and backward seconds; `head_gemm`: the share in
    matrix products; `memory`: bytes that head and loss keep and need; `stream`: bytes of a layer's input."""

    embedding: Array
    head: Array
    head_gemm: Array
    memory: HeadActivations
    stream: Array


@dataclass(frozen=True)
class _Passes:
    """A layer's passes on the device: seconds by term; of these the weight gradients, exposed tensor parallelism
    (forward, backward) and exposed exchanges with experts; forward of the modules that are recomputed [s]."""

    forward: dict[str, Array]
    backward: dict[str, Array]
    weight_gradient: Array
    tensor: tuple[Array, Array]
    exchanged: Array
    recomputed: Array


def normed_apart(layer: Layer) -> float:
    """Share of a layer's norms that recomputation of norms reaches: none before a state space (Megatron-Core,
    ssm/mamba_layer.py) [1]."""
    return 1.0 - float(layer.state_space is not None) / layer.sublayers


def padded_vocabulary(problem: Problem, t: Array) -> Array:
    """Vocabulary rounded up to the stack's multiple times t (Megatron-LM --make-vocab-size-divisible-by) [1]."""
    multiple = problem.stack.limits.pads_vocabulary
    if multiple <= 1:
        return np.full(np.shape(t), float(problem.model.vocab))
    return np.ceil(problem.model.vocab / (multiple * t)) * multiple * t


def layer_columns(table: ConfigTable) -> list[IntColumn]:
    """The columns on which the cost of a layer, of the embedding and of the head depends."""
    axes = ("tp", "sp", "cp", "cp_kind", "ep", "etp", "micro_batch", "recompute_modules", "cuda_graph_impl",
            "cuda_graph_modules")  # fmt: skip
    return [*(table[axis] for axis in axes), (table["pp"] > 1).astype(np.int32)]


class LayerModel:
    """Binds a problem and its measured rates; evaluates layers for a table of distinct keys."""

    def __init__(self, problem: Problem, kernels: KernelRates, links: LinkRates) -> None:
        self.problem, self.kernels, self.links = problem, kernels, links
        self._layers: dict[tuple[object, ...], LayerCost] = {}
        self._edges: dict[tuple[int, ...], EdgeCost] = {}
        self.recomputed: tuple[int, ...] = ()  # layers of every rank, see `CostModel.with_split`
        self.rates = DeviceRates(problem, kernels)
        self.products, self.adapters = ProductModel(self.rates), AdapterModel(self.rates)
        self.mixing, self.passes = MixingModel(self.rates), PassModel(self.rates)
        self.communication = CommunicationModel(problem, links)
        self.recipe, self.bandwidth, self.gemm_peak = (
            self.rates.recipe,
            self.rates.bandwidth,
            self.rates.gemm_peak,
        )

    def shape(self, keys: ConfigTable, layer: Layer | None, longest: bool = False) -> LayerShape:
        """The cut of a micro-batch for every key; `layer` decides how key/value heads split.

        As computed on average, or the `longest`, which memory must hold.
        """
        job = self.problem.job
        t, c = keys["tp"].astype(float), keys["cp"].astype(float)
        batch = keys["micro_batch"].astype(float)
        tokens = batch * (float(job.seq_len) if longest else job.timed_length(batch)) / c
        kv_heads = float(layer.attention.kv_heads) if layer and layer.attention else 1.0
        split = np.where(keys["sp"] > 0, t, 1.0)
        et = keys["etp"].astype(float)
        return LayerShape(
            tokens=tokens,
            t=t,
            kv_split=np.minimum(t, kv_heads),
            sequence_split=split,
            expert_tokens=tokens / t,
            e=keys["ep"].astype(float),
            et=et,
            c=c,
            seq_kv=np.full(len(keys), float(job.seq_len)),
            imbalance=job.imbalance(keys["ep"].astype(float)),
        )

    def _recomputed(
        self,
        layer: Layer,
        keys: ConfigTable,
        gemms: dict[str, Array],
        attention: Array,
        memory: dict[str, Array],
        experts: Array,
    ) -> Array:
        """Forward seconds of the modules that a key recomputes."""
        zero = np.zeros(len(keys))
        seconds = {
            "core_attn": attention,
            "layernorm": memory["layernorm"] * normed_apart(layer),
            "moe_act": memory.get("moe_act", zero),
            "mla_up_proj": gemms.get("kv_b", zero) + gemms.get("q_b", zero) + memory.get("qkv", zero),
            "mlp": gemms.get("mlp_fc1", zero) + gemms.get("mlp_fc2", zero) + memory.get("mlp_act", zero),
            "moe": gemms.get("expert_fc1", zero)
            + gemms.get("expert_fc2", zero)
            + memory.get("moe_act", zero)
            + memory.get("moe_permute", zero)
            + experts,
            "shared_experts": gemms.get("shared_fc1", zero) + memory.get("shared", zero),
        }
        mask = keys["recompute_modules"]
        total = zero
        for bit, name in enumerate(RECOMPUTE_MODULES):
            total = total + np.where(mask & (1 << bit) > 0, seconds[name], 0.0)
        return total

    def _host_floor(self, layer: Layer, keys: ConfigTable) -> HostFloor:
        """Seconds the host needs to launch a layer's forward and backward kernels one by one."""
        host, cluster = self.problem.stack.host, self.problem.cluster
        t = keys["tp"].astype(float)
        crossing = (keys["pp"] > 1) & (cluster.num_devices > cluster.tiers[0].size) & (t > 1)
        pipeline = np.where(crossing, host.pipeline_tp_floor * np.maximum(t - 1, 0.0) ** 0.92, 0.0)
        fused = self.problem.stack.communication.dispatcher is not Dispatcher.ALL_TO_ALL
        lone = self.problem.job.seq_len, self.problem.stack.kernels.single_operations
        worth, mixer = dense_launches(layer, *lone), mixer_launches(layer, *lone)
        dense, none, slower = self._dense_floor(t) * worth, np.zeros(len(t)), self.host_slowdown
        pipeline = slower * pipeline
        if layer.moe is None:
            return HostFloor(dense, none, none, pipeline, worth, mixer)
        routing = slower * host.moe_layer_floor * (FUSED_DISPATCH_LAUNCHES if fused else 1.0)
        precision = Precision.BF16 if layer.wide else self.problem.job.precision
        launches = EXPERT_LAUNCHES.get(precision, BLOCK_SCALED_LAUNCHES)
        if self.problem.stack.kernels.single_operations:
            launches = float(LOOPED_EXPERT_LAUNCHES)
        experts = slower * host.expert_launch * launches * layer.moe.experts / keys["ep"]
        return HostFloor(dense, none + routing, experts, pipeline, worth, mixer)

    def _dense_floor(self, t: Array) -> Array:
        """The same of a dense layer without a pipeline."""
        host = self.problem.stack.host
        beyond = np.maximum(np.log2(t / self.problem.cluster.tiers[0].size), 0.0)
        one = np.where(t > 1, host.layer_floor_tp, host.layer_floor) + beyond * host.layer_floor_tp_nodes
        return self.host_slowdown * one

    @property
    def host_slowdown(self) -> float:
        """Time of a launch by the cluster's hosts over that by the stack's x86 ones [1]."""
        grace = self.problem.cluster.accelerator.host is HostProcessor.GRACE
        return self.problem.stack.host.grace if grace else 1.0

    def layer(self, layer: Layer, keys: ConfigTable) -> LayerCost:
        """Cost of one kind of layer for every key; of single keys, which are asked for again and again, kept."""
        if len(keys) > 1:
            return self._layer(layer, keys)
        key = (layer, *(int(column[0]) for column in layer_columns(keys)))
        if key not in self._layers:
            self._layers[key] = self._layer(layer, keys)
        return self._layers[key]

    def dealt(self, problem: Problem, recomputed: tuple[int, ...]) -> LayerModel:
        """The same layers of a problem that differs in its split alone; `recomputed`: see `CostModel.with_split`."""
        other = copy(self)
        other.problem, other.recomputed = problem, recomputed
        return other

    def _layer(self, layer: Layer, keys: ConfigTable) -> LayerCost:
        if layer.then is not None:
            return _chained(*(self._layer(block, keys) for block in layer.blocks))
        x, groups = self.shape(keys, layer), key_groups(keys)
        longest = x if self.problem.job.mean_length is None else self.shape(keys, layer, longest=True)
        capture, recipe = capture_of(layer, keys), RECIPES[Precision.BF16] if layer.wide else self.recipe
        times = self._with_host(layer, keys, x, self._passes(layer, keys, x, groups), capture)
        parts = layer_parts(self.problem, recipe, layer, longest)
        held = layer_memory(self.problem, recipe, layer, longest, keys, parts)
        kept, kept_full, working, working_full = held
        graphs = (
            None if capture is None else layer_graphs(capture, layer.sublayers, parts, keys, kept, working)
        )
        return LayerCost(
            **times, due=weight_gradient_bytes(self.problem, recipe, layer, longest, kept),
            kept=kept, kept_full=kept_full, working=working, working_full=working_full, graphs=graphs,
        )  # fmt: skip

    def _passes(self, layer: Layer, keys: ConfigTable, x: LayerShape, groups: Groups) -> _Passes:
        """What the device does in both passes, and what of communication its computation does not hide [s]."""
        products = {
            g.name: self.adapters.with_adapter(
                self.products.gemm(g, x, groups, narrow=not layer.wide), g, layer, x, groups
            )
            for g in layer_gemms(layer, self.problem.model.hidden)
        }
        attention, indexer, context, tensor = self._attention(layer, x, keys, groups)
        scan = self.mixing.scan(layer, x, keys)
        memory, memory_behind = self.passes.memory_bound(layer, x)
        first, inverse = groups.expert
        experts = self.communication.expert_parallel(layer, x.take(first))[inverse]
        zero = np.zeros(len(keys))
        passes = sum(memory.values(), zero)
        moved = passes + scan[0], memory_behind + scan[1]
        weight_gradient = sum((g.weight_gradient for g in products.values()), zero)
        linear = (
            sum((g.forward for g in products.values()), zero),
            sum((g.input_gradient for g in products.values()), zero) + weight_gradient,
        )
        # no more is hidden than a pass has in matrix products
        tensor = np.maximum(tensor[1], tensor[0] - linear[0]), np.maximum(tensor[1], tensor[0] - linear[1])
        gathered = self.communication.indexer(layer, x)
        tensor = tensor[0] + gathered[0], tensor[1] + gathered[1]
        hides = self.problem.stack.communication.ep_overlap
        mixed = attention[0] + indexer[0], attention[1] + indexer[1]
        exposed = [np.maximum(experts - hides * (linear[i] + mixed[i] + moved[i]), 0.0) for i in (0, 1)]
        ahead = (linear[0], attention[0], indexer[0], moved[0], tensor[0], context[0], exposed[0])
        back = (linear[1], attention[1], indexer[1], moved[1], tensor[1], context[1], exposed[1])
        gemms = {name: g.forward for name, g in products.items()}
        return _Passes(
            forward=dict(zip(TIME_TERMS, ahead, strict=True)),
            backward=dict(zip(TIME_TERMS, back, strict=True)),
            weight_gradient=weight_gradient,
            tensor=tensor,
            exchanged=exposed[0] + exposed[1],
            recomputed=self._recomputed(layer, keys, gemms, mixed[0], memory, experts),
        )

    def _with_host(
        self, layer: Layer, keys: ConfigTable, x: LayerShape, passes: _Passes, capture: Capture | None
    ) -> dict[str, Any]:
        """Times of a layer, of which the host's launches may take longer than the device: fields of `LayerCost`."""
        zero = np.zeros(len(keys))
        composed, softness = self.problem.stack.composed, self.problem.stack.host.softness
        eager = np.asarray(
            1.0 + EAGER_SOFTMAX_LAUNCHES * self.mixing.softmax_is_eager(layer, x, keys), dtype=np.float64
        )
        beside = adapter_launches(layer, self.problem.model.hidden, self.problem.job, self.problem.stack)
        floor = self._host_floor(layer, keys)
        floor = floor.times(eager + beside / floor.launches)
        ahead_host, behind_host, repeated = self._launches(layer, floor, capture, keys, x.c)
        again, again_full = passes.recomputed, sum(passes.forward.values(), zero)
        behind = sum(passes.backward.values(), zero)
        if composed:
            again = repeated = zero
        late = passes.tensor if composed else (zero, zero)  # what no launch hides
        forward_time = late[0] + soft_maximum(again_full - late[0], ahead_host, softness)
        time = (
            forward_time + late[1] + soft_maximum(behind - late[1] + again, behind_host + repeated, softness)
        )
        time_full = forward_time + soft_maximum(behind + again_full, behind_host + ahead_host, softness)
        again_full, time_full = (zero, time) if composed else (again_full, time_full)
        exchanged, comm = passes.exchanged, self.problem.stack.communication
        paired = paired_time(again_full + behind - exchanged, exchanged, comm)
        host = floor.total if capture is None else ahead_host + behind_host
        paired = soft_maximum(paired + again, host + repeated, softness)
        return {
            "forward": passes.forward, "backward": passes.backward, "weight_gradient": passes.weight_gradient,
            "host": host, "again": again, "again_full": again_full,
            "time": time, "time_full": time_full, "forward_time": forward_time,
            "hidden": np.maximum(time - paired, 0.0) * comm.pair_overlap,
        }  # fmt: skip

    def _attention(
        self, layer: Layer, x: LayerShape, keys: ConfigTable, groups: Groups
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        """Attention, its indexer and exposed context parallelism, forward and backward, and tensor parallelism
        (`CommunicationModel.tensor_parallel`) for every key [s], evaluated once per distinct cut of attention."""
        first, inverse = groups.attention
        x, keys = x.take(first), keys.take(first)
        attention, indexer = self.mixing.attention(layer, x, keys), self.mixing.indexer(layer, x, keys)
        context = self.communication.context_parallel(layer, x, keys, attention)
        of_cut = (attention, indexer, context, self.communication.tensor_parallel(layer, x))
        attention, indexer, context, tensor = ((ahead[inverse], back[inverse]) for ahead, back in of_cut)
        return attention, indexer, context, tensor

    def _launches(
        self, layer: Layer, floor: HostFloor, capture: Capture | None, keys: ConfigTable, c: Array
    ) -> tuple[Array, Array, Array]:
        """Seconds of the host's launches ahead, behind, and of what recomputed modules repeat behind.

        Each pass takes the longer of device and host; a third of the launches are forward ones. A ring's steps launch
        attention again, not routing or experts, and are in attention's graph.
        """
        kinds = context_kinds(self.problem.stack.communication, keys["cp_kind"])
        ring = (kinds == ContextKind.P2P) & (layer.attention is not None)
        steps = np.where(ring, c - 1, 0.0)
        fused = floor.dense / floor.launches  # what a step of the ring is counted in
        plain = FORWARD_SHARE * (floor.total + RING_LAUNCHES[0] * steps * fused)
        routed = float(layer.moe is not None)
        worth = (1.0 + routed) / (floor.launches + routed)  # of an attention layer over those of this one
        repeated = np.minimum(relaunched(keys, capture, RELAUNCHED) * worth, 1.0) * plain
        if capture is not None:
            steps = np.where((capture.module["attn"] > 0) | capture.whole, 0.0, steps)
        forward, backward = floor.captured(capture)
        ahead = FORWARD_SHARE * (forward + RING_LAUNCHES[0] * steps * fused)
        return ahead, (1 - FORWARD_SHARE) * (backward + RING_LAUNCHES[1] * steps * fused), repeated

    def edges(self, keys: ConfigTable) -> EdgeCost:
        """Cost of the embedding, and of the head with the loss, for every key; of single keys kept."""
        if len(keys) > 1:
            return self._edge(keys)
        key = tuple(int(column[0]) for column in layer_columns(keys))
        if key not in self._edges:
            self._edges[key] = self._edge(keys)
        return self._edges[key]

    def _edge(self, keys: ConfigTable) -> EdgeCost:
        model, act = self.problem.model, self.recipe.activation_bytes
        x, groups = self.shape(keys, None), key_groups(keys)
        vocabulary = padded_vocabulary(self.problem, x.t)
        products = np.zeros(len(keys))
        for gemm in outer_gemms(model):
            outputs = vocabulary / x.t if gemm.name == "head" else None
            seconds = self.products.gemm(gemm, x, groups, narrow=False, outputs=outputs)
            products = products + seconds.forward + seconds.input_gradient + seconds.weight_gradient
        factor = self.problem.stack.compute.memory_bound
        kernels = self.problem.stack.kernels
        single = kernels.single_operations and kernels.cross_entropy is CrossEntropy.EAGER
        multiplied = any(layer.multiplied for layer in model.layer_kinds)
        per_logit = loss_bytes(act, multiplied) if single else LOSS_PASSES_BYTES
        logits = per_logit * x.tokens * vocabulary / x.t
        loss = factor * memory_bound_time(logits, self.bandwidth, self.kernels)
        stream = act * x.tokens * model.hidden / x.sequence_split
        own = x.tokens * model.side_width
        read = 8.0 * (stream + act * own) + (side_bytes(act) if single else 12.0 * act) * own
        table = factor * memory_bound_time(read, self.bandwidth, self.kernels)
        stack = self.problem.stack
        host, softness = self._dense_floor(x.t), stack.host.softness
        host = np.where(keys["cuda_graph_impl"] == CudaGraphs.FULL_ITERATION, 0.0, host)
        embedding = soft_maximum(table, EMBEDDING_LAUNCHES * host, softness)
        head = soft_maximum(products + loss, LOSS_LAUNCHES[stack.kernels.cross_entropy] * host, softness)
        longest = x if self.problem.job.mean_length is None else self.shape(keys, None, longest=True)
        trained = self.problem.job.lora_rank is None
        memory = head_activations(vocabulary, model, longest, stack.kernels, self.recipe, trained)
        held = act * longest.tokens * model.hidden * model.streams / longest.sequence_split
        return EdgeCost(embedding, head, products, memory, held)

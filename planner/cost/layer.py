"""How long does one layer take and what does it keep, for every way its micro-batch can be cut?

One value per distinct key (tp, sp, cp, ep, etp, micro-batch, recomputed modules), for one kind of layer, or for
the embedding and the head. Left out: what depends on the pipeline, data parallelism or the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.activations import (
    HeadActivations,
    LayerShape,
    head_activations,
    layer_activations,
    linear_input_bytes,
)
from planner.cost.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    dispatch_time,
    p2p_time,
    reduce_scatter_time,
)
from planner.cost.flops import Gemm, Shard, layer_gemms, outer_gemms
from planner.cost.kernels import (
    attention_time,
    gemm_backward_time,
    gemm_time,
    grouped_gemm_backward_time,
    grouped_gemm_time,
    memory_bound_time,
)
from planner.cost.messages import key_value_bytes, query_output_bytes, stream_bytes, tensor_parallel_regions
from planner.cost.step import FORWARD_SHARE
from planner.cost.traffic import group_links
from planner.errors import UnsupportedError
from planner.spec.accelerator import Architecture
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ContextKind, distinct
from planner.spec.links import LinkRates
from planner.spec.model import Layer, QkNorm
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.spec.rates import KernelRates
from planner.spec.rule import Problem
from planner.spec.stack import AttentionKernel, Dispatcher

Array = NDArray[np.float64]

TIME_TERMS = ("gemm", "attention", "memory_bound", "tp_comm", "cp_comm", "ep_comm")

# Passes over the s^2 scores of unfused attention, forward: scores written, scaled and masked (read, write),
# softmax (read, write), read by the product with V; a fused softmax kernel saves the middle pair.
SQUARE_PASSES = {AttentionKernel.EAGER: 6.0, AttentionKernel.FUSED_SOFTMAX: 4.0}
# FlashAttention-2 against the tables' kernels on Hopper and later, forward and backward: FlashAttention-3 is 1.5
# to 2.0 and 1.5 to 1.75 times as fast (Shah 2024, arXiv 2407.08608, section 4.1); the middles.
FLASH_2_SLOWDOWN = (1.75, 1.62)
# Backward of an unfused softmax: gradients of its output and input in fp32 and 16 bits.
SCORE_GRADIENT_BYTES = 12.0
# Unfused RMSNorm in fp32: upcast, square and mean, scale, downcast, weight: passes over the stream in units of
# its 2-byte size, against one read and one write when fused.
NORM_PASSES = {True: 2.0, False: 12.0}
# Loss, forward and backward: logits cast to fp32 (read 2, write 4), maximum and sum of exponents (read 4 + 4),
# gradient (read 4, write 4), cast back (write 2): bytes per logit.
LOSS_PASSES_BYTES = 24.0
# Share of a layer's forward launches that recomputing a module repeats, counted on a fused layer of 12: norm, qkv,
# rotary of q and k, attention, projection, add, norm, fc1, activation, fc2, add; with experts about as many again
# for routing, permutation and grouped products. Not a share of time, which faster links would change.
RELAUNCHED = {
    "core_attn": 1 / 12, "layernorm": 2 / 12, "mla_up_proj": 3 / 12, "mlp": 3 / 12, "moe_act": 1 / 12,
    "moe": 8 / 12, "shared_experts": 3 / 12,
}  # fmt: skip


@dataclass(frozen=True)
class LayerCost:
    """One kind of layer, one value per key.

    `forward`, `backward`: exposed device seconds by term of `TIME_TERMS`. `host`: launch floor of forward and
    backward [s]. `again`: seconds to recompute the key's modules, `again_full` the whole layer.
    `time`, `time_full`: forward and backward including recomputation and the host's floor, `forward_time` its
    forward share [s]. `weight_gradient`: device seconds of the weight gradients, a part of backward.
    `kept`, `kept_full`: bytes held from forward to backward. `working`: bytes alive only while the layer's own
    backward runs, beside what is kept; `working_full` when the layer was recomputed.
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
    kept: Array
    kept_full: Array
    working: Array
    working_full: Array


class Products(NamedTuple):
    """Seconds of a matrix product and of its two gradients."""

    forward: Array
    input_gradient: Array
    weight_gradient: Array


@dataclass(frozen=True)
class Groups:
    """Keys that share the shapes of their products: (first rows, inverse) of dense and of expert products."""

    dense: tuple[NDArray[np.intp], NDArray[np.intp]]
    expert: tuple[NDArray[np.intp], NDArray[np.intp]]


def key_groups(keys: ConfigTable) -> Groups:
    """Number the distinct (tp, cp, micro-batch, sp) and (tp, cp, micro-batch, ep, etp) of a table."""
    cut = (keys["tp"], keys["cp"], keys["micro_batch"])
    return Groups(distinct(*cut, keys["sp"]), distinct(*cut, keys["ep"], keys["etp"]))


@dataclass(frozen=True)
class EdgeCost:
    """Embedding and head with loss. `embedding`, `head`: forward and backward seconds; `head_gemm`: the share in
    matrix products; `memory`: bytes that head and loss keep and need; `stream`: bytes of a layer's input."""

    embedding: Array
    head: Array
    head_gemm: Array
    memory: HeadActivations
    stream: Array


def padded_vocabulary(problem: Problem, t: Array) -> Array:
    """Vocabulary rounded up to the stack's multiple times t (Megatron-LM --make-vocab-size-divisible-by) [1]."""
    multiple = problem.stack.limits.pads_vocabulary
    if multiple <= 1:
        return np.full(np.shape(t), float(problem.model.vocab))
    return np.ceil(problem.model.vocab / (multiple * t)) * multiple * t


def soft_maximum(a: Array, b: Array | float, softness: float) -> Array:
    """(a^q + b^q)^(1/q): the longer of two overlapping times, a little more where they are close [s].

    Source: fitted on nanotron's runs (q = 6.6 against a hard maximum: 5.5 to 5.9 % median error).
    """
    high = np.maximum(a, b)
    low = np.minimum(a, b)
    ratio = np.divide(low, high, out=np.zeros_like(high), where=high > 0)
    return high * (1.0 + ratio**softness) ** (1.0 / softness)


class LayerModel:
    """Binds a problem and its measured rates; evaluates layers for a table of distinct keys."""

    def __init__(self, problem: Problem, kernels: KernelRates, links: LinkRates) -> None:
        self.problem, self.kernels, self.links = problem, kernels, links
        self.recipe = RECIPES[problem.job.precision]
        device = problem.cluster.accelerator
        self.gemm_key: Dtype | Precision = problem.job.precision
        if self.gemm_key not in kernels.gemm:
            self.gemm_key = self._table_key(self.recipe.gemm)
        self.gemm_peak = device.peak_flops(self.recipe.gemm)
        self.attention_peak = device.peak_flops(self._half_dtype())
        self.bandwidth = device.memory_bandwidth

    def _half_dtype(self) -> Dtype:
        peaks = dict(self.problem.cluster.accelerator.peak)
        return Dtype.BF16 if peaks.get(Dtype.BF16) else Dtype.FP16

    def _has_async_attention(self) -> bool:
        """Is the tables' attention kernel newer than FlashAttention-2?"""
        return self.problem.cluster.accelerator.architecture in (Architecture.HOPPER, Architecture.BLACKWELL)

    def _table_key(self, wanted: Dtype) -> Dtype:
        """The format whose table stands for `wanted`: 16- and 32-bit formats reach like fractions of their peaks."""
        wide = (Dtype.BF16, Dtype.FP16, Dtype.TF32, Dtype.FP32)
        for kin in (wanted, *(wide if wanted in wide else ())):
            if kin in self.kernels.gemm:
                return kin
        raise UnsupportedError(
            f"GEMM rates are needed for {wanted}",
            f"none for {self.problem.cluster.accelerator.name}",
            "use bf16",
        )

    def shape(self, keys: ConfigTable, layer: Layer | None) -> LayerShape:
        """The cut of a micro-batch for every key; `layer` decides how key/value heads split."""
        job = self.problem.job
        t, c = keys["tp"].astype(float), keys["cp"].astype(float)
        tokens = keys["micro_batch"] * float(job.seq_len) / c
        kv_heads = float(layer.attention.kv_heads) if layer else 1.0
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
            pipelined=(keys["pp"] > 1).astype(float),
        )

    def _gemm(self, gemm: Gemm, x: LayerShape, groups: Groups, narrow: bool = True) -> Products:
        """Seconds of one product for every key, evaluated once per distinct shape.

        `narrow`: in the recipe's format; else in bf16, as the head and the router are.
        """
        first, inverse = groups.expert if gemm.expert else groups.dense
        t, et = x.t[first], x.et[first]
        split = et if gemm.expert else t
        n = np.full(len(first), float(gemm.out_features))
        k = np.full(len(first), float(gemm.in_features))
        n = n / split if gemm.shard is Shard.COLUMN else n
        k = k / split if gemm.shard is Shard.ROW else k
        n = n + gemm.kv_out_features / x.kv_split[first]
        m = x.tokens[first] / (x.sequence_split[first] if gemm.shard is Shard.NONE else 1.0)
        half = self._half_dtype()
        narrow = narrow and gemm.name != "router"
        key, peak = (
            (self.gemm_key, self.gemm_peak) if narrow else (self._table_key(half), self.attention_peak)
        )
        rates = (key, peak, self.bandwidth, self.kernels)
        factor = self.problem.stack.compute.gemm_factor(self.recipe.gemm if narrow else half)
        if gemm.expert:
            m = x.expert_tokens[first] * gemm.rows_per_token * et
            local = gemm.groups / x.e[first]
            forward = grouped_gemm_time(m, n, k, local, *rates)
            dgrad, wgrad = grouped_gemm_backward_time(m, n, k, local, *rates)
        else:
            forward = gemm_time(m, n, k, *rates)
            dgrad, wgrad = gemm_backward_time(m, n, k, *rates)
        if self.problem.job.lora_rank is not None:  # frozen weights have no gradient
            wgrad = np.zeros_like(wgrad)
        return Products(*(factor * seconds[inverse] for seconds in (forward, dgrad, wgrad)))

    def _attention(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array]:
        """Forward and backward seconds of attention itself; context parallelism divides the causal work evenly."""
        a = layer.attention
        batch, seq = keys["micro_batch"].astype(float), float(self.problem.job.seq_len)
        heads = a.heads / (x.t * x.c)
        kv = np.maximum(a.kv_heads / (x.kv_split * x.c), 1e-3)
        window = float(a.window) if a.window else np.inf
        forward, backward = attention_time(
            batch, seq, seq, heads, kv, float(a.head_dim), float(a.v_head_dim), True,
            self.attention_peak, self.bandwidth, self.kernels, window,
        )  # fmt: skip
        stack = self.problem.stack
        factor = stack.compute.attention
        if stack.kernels.attention is AttentionKernel.FLASH:
            return factor * forward, factor * backward
        if stack.kernels.attention is AttentionKernel.FLASH_2:
            slower = FLASH_2_SLOWDOWN if self._has_async_attention() else (1.0, 1.0)
            return factor * slower[0] * forward, factor * slower[1] * backward
        square = batch * heads * seq * seq
        products = 2 * square * (a.head_dim + a.v_head_dim) / (0.6 * self.attention_peak)
        width = self.recipe.activation_bytes
        passes = SQUARE_PASSES[stack.kernels.attention] + (2.0 if stack.kernels.dropout else 0.0)
        moved = memory_bound_time(width * passes * square, self.bandwidth, self.kernels)
        return factor * (products + moved), factor * 2 * (products + moved)

    def _memory_bound(self, layer: Layer, x: LayerShape) -> dict[str, Array]:
        """Forward seconds of norms, residuals, rotary, activation and permutation, by module."""
        h, act = float(self.problem.model.hidden), self.recipe.activation_bytes
        kernels = self.problem.stack.kernels
        a = layer.attention
        stream = act * x.tokens * h / x.sequence_split
        moved = {
            "layernorm": NORM_PASSES[kernels.fused_norm] * stream * max(layer.norms, 1),
            "residual": 3.0 * stream * 2 + (2.0 * stream if kernels.dropout else 0.0),
        }
        q, k = a.heads * a.head_dim / x.t, a.kv_heads * a.head_dim / x.kv_split
        rotations = (2.0 if self.problem.model.position_rows == 0 else 0.0) + (
            2.0 if a.qk_norm is not QkNorm.NONE else 0.0
        )
        moved["qkv"] = act * x.tokens * rotations * (q + k)
        if layer.mlp is not None:
            reads = 3.0 if layer.mlp.gated else 2.0
            eager = 2.0 if layer.mlp.gated and not kernels.fused_activation else 0.0
            moved["mlp_act"] = act * x.tokens * (reads + eager) * layer.mlp.ffn / x.t
        if layer.moe is not None:
            rows = x.expert_tokens * layer.moe.top_k
            moved["moe_permute"] = act * rows * x.et * h * 4.0
            moved["moe_act"] = act * rows * layer.moe.expert_ffn * (3.0 if layer.moe.gated else 2.0)
            moved["router"] = 16.0 * x.expert_tokens * layer.moe.experts
            moved["shared"] = act * x.tokens * 3.0 * layer.moe.shared_ffn / x.t
        factor = self.problem.stack.compute.memory_bound
        return {
            name: factor * memory_bound_time(b, self.bandwidth, self.kernels) for name, b in moved.items()
        }

    def _tensor_parallel(self, layer: Layer, x: LayerShape) -> Array:
        """Exposed forward seconds of tensor parallelism: an all-gather and a reduce-scatter around attention and
        around the MLP (with experts only around their shared part), all-reduces without sequence parallelism
        (Korthikanti 2022, arXiv 2205.05198, section 4.2.2). The backward pass has the same."""
        cluster, links = self.problem.cluster, self.links
        group = group_links(1.0, x.t, cluster)
        size = stream_bytes(x.tokens, self.problem.model.hidden, self.recipe.activation_bytes)
        where = (size, x.t, group.local, cluster.tiers[0].bandwidth, group.fabric, links)
        pair = np.where(
            x.sequence_split > 1,
            all_gather_time(*where) + reduce_scatter_time(*where),
            all_reduce_time(*where),
        )
        regions = tensor_parallel_regions(layer)
        comm = self.problem.stack.communication
        exposed = np.where(x.t > group.local, comm.tp_exposed_nodes, comm.tp_exposed)
        return regions * exposed * pair

    def _context_parallel(
        self, layer: Layer, x: LayerShape, keys: ConfigTable, attention: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Exposed forward and backward seconds of context parallelism.

        Ring: c - 1 steps that each pass on keys and values (backward also their gradients) while attention works
        on the last ones. All-gather: keys and values before attention, gradients reduce-scattered after.
        All-to-all: q, k, v before and the output after.
        """
        cluster = self.problem.cluster
        group = group_links(x.t, x.c, cluster)
        act, nvlink = self.recipe.activation_bytes, cluster.tiers[0].bandwidth
        crosses = x.c > group.local
        kv = key_value_bytes(layer, x.tokens, x.t, x.kv_split, act)
        step = p2p_time(kv, crosses, nvlink, group.fabric * group.local, self.links)
        step_back = p2p_time(2 * kv, crosses, nvlink, group.fabric * group.local, self.links)
        overlap = self.problem.stack.communication.cp_overlap
        ring = (x.c - 1) * np.maximum(step - overlap * attention[0] / x.c, 0.0)
        ring_back = (x.c - 1) * np.maximum(step_back - overlap * attention[1] / x.c, 0.0)
        where = (x.c, group.local, nvlink, group.fabric, self.links)
        gather, scatter = all_gather_time(kv * x.c, *where), reduce_scatter_time(kv * x.c, *where)
        q_out = query_output_bytes(layer, x.tokens, x.t, act)
        exchange = all_to_all_time(q_out, *where) + all_to_all_time(kv, *where)
        kind = keys["cp_kind"]
        forward = np.select(
            [kind == ContextKind.P2P, kind == ContextKind.ALL_GATHER], [ring, gather], exchange
        )
        backward = np.select(
            [kind == ContextKind.P2P, kind == ContextKind.ALL_GATHER], [ring_back, gather + scatter], exchange
        )
        alone = x.c <= 1
        return np.where(alone, 0.0, forward), np.where(alone, 0.0, backward)

    def _expert_parallel(self, layer: Layer, x: LayerShape) -> Array:
        """Exposed forward seconds of dispatch and combine over e, and of gathering tokens over et.

        Plain all-to-all: K copies of every token, wherever they go. Fused dispatch (DeepEP): a token crosses once
        per node and once per rank that holds one of its experts.
        """
        moe = layer.moe
        if moe is None:
            return np.zeros(len(x.t))
        cluster, act, h = self.problem.cluster, self.recipe.activation_bytes, float(self.problem.model.hidden)
        nvlink = cluster.tiers[0].bandwidth
        across = group_links(x.et, x.e, cluster)
        where = (x.e, across.local, nvlink, across.fabric, self.links)
        token_bytes = stream_bytes(x.expert_tokens, h, act)
        comm = self.problem.stack.communication
        if comm.dispatcher is Dispatcher.DEEPEP:
            exchange = dispatch_time(token_bytes, float(moe.top_k), float(moe.experts), *where)
        else:
            exchange = all_to_all_time(token_bytes * moe.top_k, *where)
        inside = group_links(1.0, x.et, cluster)
        rows = token_bytes * moe.top_k * x.et
        spread = (rows, x.et, inside.local, nvlink, inside.fabric, self.links)
        both = all_gather_time(*spread) + reduce_scatter_time(*spread)
        return np.asarray(comm.ep_exposed * (2 * exchange + both))

    def _recomputed(
        self,
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
            "layernorm": memory["layernorm"],
            "moe_act": memory.get("moe_act", zero),
            "mla_up_proj": gemms.get("kv_b", zero) + gemms.get("q_b", zero) + memory["qkv"],
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

    def _relaunched(self, keys: ConfigTable) -> Array:
        """Share of a layer's forward launches that a key's recomputed modules repeat [1]."""
        share = np.zeros(len(keys))
        for bit, name in enumerate(RECOMPUTE_MODULES):
            share = share + np.where(keys["recompute_modules"] & (1 << bit) > 0, RELAUNCHED[name], 0.0)
        return np.minimum(share, 1.0)

    def _host_floor(self, layer: Layer, keys: ConfigTable) -> Array:
        """Seconds the host needs to launch a layer's forward and backward kernels."""
        host, cluster = self.problem.stack.host, self.problem.cluster
        t = keys["tp"].astype(float)
        floor = np.where(t > 1, host.layer_floor_tp, host.layer_floor)
        beyond = np.maximum(np.log2(t / cluster.tiers[0].size), 0.0)
        crossing = (keys["pp"] > 1) & (cluster.num_devices > cluster.tiers[0].size) & (t > 1)
        pipeline = np.where(crossing, host.pipeline_tp_floor * np.maximum(t - 1, 0.0) ** 0.92, 0.0)
        routing = host.moe_layer_floor if layer.moe else 0.0
        return floor + beyond * host.layer_floor_tp_nodes + pipeline + routing

    def layer(self, layer: Layer, keys: ConfigTable) -> LayerCost:
        """Cost of one kind of layer for every key."""
        x, groups = self.shape(keys, layer), key_groups(keys)
        products = {g.name: self._gemm(g, x, groups) for g in layer_gemms(layer, self.problem.model.hidden)}
        attention = self._attention(layer, x, keys)
        memory = self._memory_bound(layer, x)
        tensor = self._tensor_parallel(layer, x)
        context = self._context_parallel(layer, x, keys, attention)
        experts = self._expert_parallel(layer, x)
        zero = np.zeros(len(keys))
        moved = sum(memory.values(), zero)
        weight_gradient = sum((g.weight_gradient for g in products.values()), zero)
        linear = (
            sum((g.forward for g in products.values()), zero),
            sum((g.input_gradient for g in products.values()), zero) + weight_gradient,
        )
        hides = self.problem.stack.communication.ep_overlap
        exposed = [
            np.maximum(experts - hides * (linear[i] + attention[i] + (1 + i) * moved), 0.0) for i in (0, 1)
        ]
        ahead = (linear[0], attention[0], moved, tensor, context[0], exposed[0])
        back = (linear[1], attention[1], 2 * moved, tensor, context[1], exposed[1])
        forward = dict(zip(TIME_TERMS, ahead, strict=True))
        backward = dict(zip(TIME_TERMS, back, strict=True))
        again = self._recomputed(
            keys, {n: g.forward for n, g in products.items()}, attention[0], memory, experts
        )
        again_full = sum(forward.values(), zero)
        behind = sum(backward.values(), zero)
        host, softness = self._host_floor(layer, keys), self.problem.stack.host.softness
        # each pass takes the longer of device and host; a third of the launches are forward ones
        ahead_host, behind_host = FORWARD_SHARE * host, (1 - FORWARD_SHARE) * host
        repeated = self._relaunched(keys) * ahead_host
        forward_time = soft_maximum(again_full, ahead_host, softness)
        time = forward_time + soft_maximum(behind + again, behind_host + repeated, softness)
        time_full = forward_time + soft_maximum(behind + again_full, behind_host + ahead_host, softness)
        kept, kept_full, working, working_full = self._memory(layer, x, keys)
        return LayerCost(
            forward=forward, backward=backward, host=host, again=again, again_full=again_full,
            time=time, time_full=time_full, forward_time=forward_time, weight_gradient=weight_gradient,
            kept=kept, kept_full=kept_full, working=working, working_full=working_full,
        )  # fmt: skip

    def _memory(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array, Array, Array]:
        """Bytes kept and bytes at work in the backward pass: with a key's modules recomputed, with all of them."""
        kernels, zero = self.problem.stack.kernels, np.zeros(len(keys))
        parts = layer_activations(layer, self.problem.model, x, kernels, self.recipe)
        if self.problem.job.lora_rank is not None:
            # the inputs of frozen layers are those of the adapters, and stay; each adapter keeps its narrow middle
            count = sum(not g.expert for g in layer_gemms(layer, self.problem.model.hidden))
            width = count * self.problem.job.lora_rank * self.recipe.activation_bytes
            parts["adapters"] = x.tokens * width / x.sequence_split
        everything, freed = sum(parts.values(), zero), zero
        for bit, name in enumerate(RECOMPUTE_MODULES):
            extra = parts.get("moe_act", zero) if name == "moe" else zero
            part = parts.get(name, zero) + extra
            freed = freed + np.where(keys["recompute_modules"] & (1 << bit) > 0, part, 0.0)
        freed = np.minimum(freed, everything - parts["input"])
        beside = kernels.checkpoint_extra * x.tokens * self.problem.model.hidden / x.sequence_split
        least = np.minimum(parts["input"] + beside, everything)
        working = self._working(layer, x)
        return everything - freed, least, working + freed, working + everything - least

    def _score_gradients(self, layer: Layer, x: LayerShape) -> Array:
        """Alive in the backward pass of unfused attention, the MLP's tensors gone: fp32 and 16-bit gradients of the
        softmax's input and output, 12 bytes a score, less what the MLP had kept [bytes]."""
        kernels = self.problem.stack.kernels
        if kernels.attention in (AttentionKernel.FLASH, AttentionKernel.FLASH_2) or layer.mlp is None:
            return np.zeros(len(x.t))
        square = layer.attention.heads / x.t * x.tokens * x.seq_kv
        kept = layer_activations(layer, self.problem.model, x, kernels, self.recipe)["mlp"]
        return np.maximum(SCORE_GRADIENT_BYTES * square - kept, 0.0)

    def _working(self, layer: Layer, x: LayerShape) -> Array:
        """Gradients alive at the widest point of a layer's backward, where the activation's begins [bytes].

        Gradients of the stream (gathered, and the shard with sequence parallelism), of fc2's input, of fc1's output;
        fc2's own input is free by then, its weight's gradient is there unless the product accumulates it in place.
        """
        act, h = self.recipe.activation_bytes, float(self.problem.model.hidden)
        saved = linear_input_bytes(self.recipe, self.problem.stack.kernels)
        stream = act * x.tokens * h * (1.0 + np.where(x.sequence_split > 1, 1.0 / x.sequence_split, 0.0))
        fused = self.problem.stack.states.fused_weight_gradient
        weight = 0.0 if fused else self.recipe.weight_bytes
        if layer.mlp is not None:
            width = (3.0 if layer.mlp.gated else 2.0) * act - saved
            wide = stream + layer.mlp.ffn * (x.tokens * width + weight * h) / x.t
            return np.maximum(wide, stream + self._score_gradients(layer, x))
        assert layer.moe is not None
        rows = x.expert_tokens * layer.moe.top_k
        width = (3.0 if layer.moe.gated else 2.0) * act - saved
        local = weight * h * layer.moe.expert_ffn * layer.moe.experts / (x.e * x.et)
        return stream + rows * (act * h * x.et + layer.moe.expert_ffn * width) + local

    def edges(self, keys: ConfigTable) -> EdgeCost:
        """Cost of the embedding, and of the head with the loss, for every key."""
        model, act = self.problem.model, self.recipe.activation_bytes
        x, groups = self.shape(keys, None), key_groups(keys)
        vocabulary = padded_vocabulary(self.problem, x.t)
        products = np.zeros(len(keys))
        for gemm in outer_gemms(model):
            seconds = self._gemm(gemm, x, groups, narrow=False)
            products = products + seconds.forward + seconds.input_gradient + seconds.weight_gradient
        factor = self.problem.stack.compute.memory_bound
        loss_bytes = LOSS_PASSES_BYTES * x.tokens * vocabulary / x.t
        loss = factor * memory_bound_time(loss_bytes, self.bandwidth, self.kernels)
        stream = act * x.tokens * model.hidden / x.sequence_split
        table = factor * memory_bound_time(8.0 * stream, self.bandwidth, self.kernels)
        memory = head_activations(vocabulary, model, x, self.problem.stack.kernels, self.recipe)
        return EdgeCost(table, products + loss, products, memory, stream)

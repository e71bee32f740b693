"""How long does the device compute a layer: its matrix products, attention, and operations that move bytes?

One value per distinct key (how a micro-batch is cut). Left out: communication (`cost/exposed.py`), launches by the
host, and what a layer keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.flash import MEMORY_EFFICIENT_SLOWDOWN, TRITON_SLOWDOWN, flash_2_slowdown
from planner.cost.device.kernels import (
    attended_pairs,
    attention_time,
    gemm_backward_time,
    gemm_time,
    grouped_gemm_backward_time,
    grouped_gemm_time,
    memory_bound_time,
    misaligned_slowdown,
)
from planner.cost.device.quantise import OPERANDS
from planner.cost.device.torchao import CASTS, ROW_RATE, Casts, cast_bytes, operands
from planner.cost.eager import Moved, expert_bytes, layer_bytes
from planner.cost.flops import Gemm, Shard
from planner.cost.memory.activations import LayerShape
from planner.cost.mixers.kinds import mixer_time
from planner.cost.mixers.sparse_attention import (
    Device,
    Sight,
    absorbed_bytes,
    compressed_bytes,
    core_time,
    loss_time,
    score_time,
    sight_of,
)
from planner.cost.mixers.state_space import cut_of
from planner.cost.network.context import context_kinds, gathers_in_ring, merged_bytes
from planner.cost.network.messages import gathered_width
from planner.cost.params_fp8 import gathers_float8
from planner.errors import UnsupportedError
from planner.spec.attention import Attention, QkNorm
from planner.spec.config import ConfigTable, ContextKind, distinct
from planner.spec.layer import Layer
from planner.spec.machine.accelerator import Architecture
from planner.spec.machine.rates import KernelRates
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import AttentionKernel, Dispatcher, Float8Scales

Array = NDArray[np.float64]

# 16-bit passes over the s^2 scores of unfused attention, forward: written by one product and read by the other, with
# a scaling, masking softmax kernel between them (read, write), or an eager one on an fp32 copy: cast (read, write
# twice as wide), softmax (both twice as wide), cast back.
SQUARE_PASSES = {AttentionKernel.EAGER: 12.0, AttentionKernel.FUSED_SOFTMAX: 4.0}
# Masking softmax kernels of Megatron take a micro-batch whose heads on a rank are a multiple of 4, and 4,096 keys at
# most; else the softmax runs eagerly in fp32 (megatron/core/fusions/fused_softmax.py, is_kernel_available; 2,048 keys
# in microsoft/Megatron-DeepSpeed, megatron/model/fused_softmax.py).
SOFTMAX_HEADS, SOFTMAX_KEYS = 4.0, 4096.0
# The same of Transformer Engine's (transformer_engine/pytorch/attention/dot_product_attention/softmax.py).
ENGINE_SOFTMAX_KEYS = 16384.0
# Unfused RMSNorm in fp32: upcast, square and mean, scale, downcast, weight: passes over the stream in units of
# its 2-byte size, against one read and one write when fused.
NORM_PASSES = {True: 2.0, False: 12.0}
# Passes over the rows of experts: gathered before their products and put back behind them, each read and written.
# Around NCCL's all-to-all a rank that holds several experts also sorts what arrives by expert, and back (Megatron-Core,
# transformer/moe/token_dispatcher.py, sort_chunks_by_idxs).
PERMUTE_PASSES = 4.0
# Passes of fused kernels over residual streams, of a branch and stream: read by the product that weighs them, read for
# the branch's input, read and written as its output is added; and over what the branch reads and returns, once each.
# Left out: the 20 rounds that normalise a token's mixture, 64 bytes each.
STREAM_PASSES = (3.0, 2.0)
CHUNK_PASSES = 4.0


_HALF = (Dtype.FP16, Dtype.BF16)
# XLA pads the operands of such products itself (openxla/xla@fde6a3f xla/service/gpu/cublas_padding_requirements.h)
_PADDED_INSIDE = ("maxtext",)


class Products(NamedTuple):
    """Seconds of a matrix product and of its two gradients."""

    forward: Array
    input_gradient: Array
    weight_gradient: Array


@dataclass(frozen=True)
class Groups:
    """Keys that share the shapes of their products: (first rows, inverse) of dense and of expert products; `attention`:
    those of dense ones that share the kind of context parallelism, too."""

    dense: tuple[NDArray[np.intp], NDArray[np.intp]]
    expert: tuple[NDArray[np.intp], NDArray[np.intp]]
    attention: tuple[NDArray[np.intp], NDArray[np.intp]]


def residual_passes(layer: Layer) -> float:
    """Passes over the residual stream, one of several counted alike, forward [1]."""
    if layer.streams > 1:  # the product reads them itself
        return layer.sublayers * (STREAM_PASSES[0] * layer.streams + STREAM_PASSES[1])
    return 3.0 * (layer.sublayers + (layer.side > 0))


def key_groups(keys: ConfigTable) -> Groups:
    """Number the distinct (tp, cp, micro-batch, sp), the same with the kind of context parallelism, and (tp, cp,
    micro-batch, ep, etp) of a table."""
    cut = (keys["tp"], keys["cp"], keys["micro_batch"])
    dense, expert = (*cut, keys["sp"]), (*cut, keys["ep"], keys["etp"])
    return Groups(distinct(*dense), distinct(*expert), distinct(*dense, keys["cp_kind"]))


def gemm_extents(gemm: Gemm, x: LayerShape, rows: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
    """Tokens, outputs, inputs and number of one device's share of a product, for these rows of `x` [1].

    Of an expert product the tokens are those of all `number` groups together.
    """
    t, et = x.t[rows], x.et[rows]
    split = et if gemm.expert else t
    n = np.full(len(rows), float(gemm.out_features))
    k = np.full(len(rows), float(gemm.in_features))
    n = n / split if gemm.shard is Shard.COLUMN else n
    k = k / split if gemm.shard is Shard.ROW else k
    n = n + gemm.kv_out_features / x.kv_split[rows]
    if gemm.expert:
        return x.routed_tokens[rows] * gemm.rows_per_token * et, n, k, gemm.groups / x.e[rows]
    m = x.tokens[rows] / (x.sequence_split[rows] if gemm.shard is Shard.NONE else 1.0)
    return m, n, k, np.ones(len(rows))


def casts_of(problem: Problem) -> Casts | None:
    """What torchao moves around the products of a problem; None where it is not torchao that casts."""
    kernels = problem.stack.kernels
    if kernels.float8_scales is None or problem.job.precision is not Precision.FP8_CS:
        return None
    casts = CASTS[kernels.float8_scales, kernels.fused_norm]  # torch.compile fuses both
    return casts.gathered() if gathers_float8(problem) else casts


class ComputeModel:
    """Binds a problem to its kernel rates; device seconds for a table of distinct keys."""

    def __init__(self, problem: Problem, kernels: KernelRates) -> None:
        self.problem, self.kernels = problem, kernels
        self.recipe = RECIPES[problem.job.precision]
        device = problem.cluster.accelerator
        self.gemm_key: Dtype | Precision = problem.job.precision
        if self.gemm_key not in kernels.gemm:
            self.gemm_key = self._table_key(self.recipe.gemm)
        self.gemm_peak = device.peak_flops(self.recipe.gemm)
        self.attention_peak = device.peak_flops(self.half_dtype())
        self.bandwidth = device.memory_bandwidth
        self.casts = casts_of(problem)
        self.device_factor = problem.stack.compute.accelerator.get(device.name, 1.0)

    def half_dtype(self) -> Dtype:
        """The 16-bit format that the accelerator multiplies in."""
        peaks = dict(self.problem.cluster.accelerator.peak)
        return Dtype.BF16 if peaks.get(Dtype.BF16) else Dtype.FP16

    def half_rates(self) -> tuple[Dtype, float, float, KernelRates]:
        """What times 16-bit products: their table, peak, bandwidth and rates."""
        return self._table_key(self.half_dtype()), self.attention_peak, self.bandwidth, self.kernels

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

    def _meets_rows(self) -> bool:
        """Do 16-bit products reach cuBLAS with rows as long as the model makes them?"""
        plain = self.problem.stack.framework not in _PADDED_INSIDE
        return plain and self.problem.cluster.accelerator.architecture.is_nvidia

    def table_of(self, gemm: Gemm, narrow: bool = True) -> Dtype | Precision:
        """The table that a product's rate is read from; see `gemm`."""
        return self.gemm_key if narrow and not gemm.wide else self._table_key(self.half_dtype())

    def gemm(
        self, gemm: Gemm, x: LayerShape, groups: Groups, narrow: bool = True, outputs: Array | None = None
    ) -> Products:
        """Seconds of one product for every key, evaluated once per distinct shape.

        `narrow`: in the recipe's format; else in bf16, as the head, the router and layers that the job keeps so are.
        `outputs`: of a device's share where it is padded.
        """
        first, inverse = groups.expert if gemm.expert else groups.dense
        m, n, k, local = gemm_extents(gemm, x, first)
        n = n if outputs is None else outputs[first]
        half = self.half_dtype()
        narrow = narrow and not gemm.wide
        key = self.table_of(gemm, narrow)
        peak = self.gemm_peak if narrow else self.attention_peak
        rates = (key, peak, self.bandwidth, self.kernels)
        form = self.recipe.gemm if narrow else half
        factor = self.device_factor * self.problem.stack.compute.gemm_factor(form)
        if form in _HALF and self._meets_rows():
            factor = factor * misaligned_slowdown(n, k)
        states = self.problem.stack.states
        traffic = 2.0 * states.gradient if states.fused_weight_gradient else None
        if gemm.expert:
            factor = factor * self.problem.stack.compute.grouped_gemm
            forward = grouped_gemm_time(m, n, k, local, *rates)
            dgrad, wgrad = grouped_gemm_backward_time(m, n, k, local, *rates, traffic)
        else:
            forward = gemm_time(m, n, k, *rates)
            dgrad, wgrad = gemm_backward_time(m, n, k, *rates, traffic)
        if self.problem.job.lora_rank is not None or gemm.frozen:  # frozen weights have no gradient
            wgrad = np.zeros_like(wgrad)
        if gemm.detached:
            dgrad = np.zeros_like(dgrad)
        forward, dgrad, wgrad = factor * forward, factor * dgrad, factor * wgrad
        if narrow and self.problem.job.precision in OPERANDS:
            if self.casts is not None and self._multiplies_rows_slowly():
                forward = forward / ROW_RATE
            ahead, back = self._quantising(gemm, x.sequence_split[first], m, n, k, local)
            forward, dgrad = forward + ahead, dgrad + back
        return Products(*(seconds[inverse] for seconds in (forward, dgrad, wgrad)))

    def _multiplies_rows_slowly(self) -> bool:
        """Do products whose operands have a scale a row run slower than those of one a tensor? On Hopper."""
        rows = self.problem.stack.kernels.float8_scales is Float8Scales.ROW
        return rows and self.problem.cluster.accelerator.architecture is Architecture.HOPPER

    def _quantising(
        self, gemm: Gemm, split: Array, m: Array, n: Array, k: Array, local: Array
    ) -> tuple[Array, Array]:
        """Seconds of quantising a product's input, forward, and the gradient of its output, backward.

        Under sequence parallelism the ranks gather the input of a product split by columns, and the gradient of the
        output of one split by rows. The kernels do nothing but move bytes: no factor of the stack.
        """
        if self.casts is not None:
            narrow = gathered_width(self.problem) < self.recipe.activation_bytes
            values = operands(gemm, (m * k, m * n, local * n * k), split, narrow)
            ahead, back = cast_bytes(self.casts, values, self.problem.job.lora_rank is None)
            return (
                memory_bound_time(ahead, self.bandwidth, self.kernels),
                memory_bound_time(back, self.bandwidth, self.kernels),
            )
        operand = OPERANDS[self.problem.job.precision]
        architecture = self.problem.cluster.accelerator.architecture
        trained = self.problem.job.lora_rank is None
        gathers = (gemm.shard is Shard.COLUMN, gemm.shard is Shard.ROW)
        each = [
            operand.bytes_moved(split if gathered and not gemm.expert else np.ones_like(split), architecture, trained)
            for gathered in gathers
        ]  # fmt: skip
        moved = each[0] * m * k, each[1] * m * n
        if self.fuses_experts and gemm.expert:  # the product of the other one writes them narrow
            moved = moved[0] * (gemm.shard is Shard.COLUMN), moved[1] * (gemm.shard is Shard.ROW)
        ahead, back = (memory_bound_time(b, self.bandwidth, self.kernels) for b in moved)
        return ahead, back

    @property
    def fuses_experts(self) -> bool:
        """Do grouped products apply the experts' gated activation and quantise what they write? In MXFP8 on Blackwell
        (TransformerEngine#2769, in 2.15)."""
        job, accelerator = self.problem.job, self.problem.cluster.accelerator
        narrow = job.precision is Precision.FP8_MX and accelerator.architecture is Architecture.BLACKWELL
        return self.problem.stack.kernels.fused_experts and narrow and self.problem.model.fusable_experts

    def scan(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array]:
        """Forward and backward seconds of a state space between its projections; 0 where a layer has none."""
        s, job = layer.state_space, self.problem.job
        if s is None:
            return np.zeros(len(keys)), np.zeros(len(keys))
        cut, act = cut_of(s, x.tokens, x.t, x.c), self.recipe.activation_bytes
        interleaved = (keys["micro_batch"] > 1).astype(float)
        seq = job.timed_length(keys["micro_batch"].astype(float))
        if job.packed:  # texts of a sequence run side by side
            seq = np.full_like(seq, job.attended_length)
        fused = not self.problem.stack.kernels.single_operations
        return mixer_time(s, cut, act, interleaved, seq, self.bandwidth, self.attention_peak, fused)

    def attention(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array]:
        """Forward and backward seconds of attention itself; context parallelism divides the causal work evenly.

        A ring works in c steps on short blocks (`_ring`); the other kinds see the whole sequence in one kernel.
        """
        a = layer.attention
        if a is None:
            return np.zeros(len(keys)), np.zeros(len(keys))
        if (seen := self._sight(layer, x, keys)) is not None:
            factor = self.device_factor * self.problem.stack.compute.attention
            ahead, behind = core_time(a, *seen)
            return factor * ahead, factor * behind
        job, batch = self.problem.job, keys["micro_batch"].astype(float)
        seq = job.timed_length(batch)
        if job.packed:  # texts end to end, each attending to itself
            batch, seq = batch * seq / job.attended_length, np.full_like(seq, job.attended_length)
        heads = a.heads / (x.t * x.c)
        kv = np.maximum(a.kv_heads / (x.kv_split * x.c), 1e-3)
        window = float(a.window) if a.window else np.inf
        forward, backward = attention_time(
            batch, seq, seq, heads, kv, float(a.head_dim), float(a.v_head_dim), True,
            self.attention_peak, self.bandwidth, self.kernels, window,
        )  # fmt: skip
        kinds = context_kinds(self.problem.stack.communication, keys["cp_kind"])
        ring = (x.c > 1) & (kinds == ContextKind.P2P)
        merged: tuple[Array, Array] = (np.zeros(len(keys)), np.zeros(len(keys)))
        if a.window is None and ring.any():
            steps, moved = self._ring(a, x, batch, seq)
            forward, backward = np.where(ring, steps[0], forward), np.where(ring, steps[1], backward)
            merged = np.where(ring, moved[0], 0.0), np.where(ring, moved[1], 0.0)
        stack = self.problem.stack
        factor = self.device_factor * stack.compute.attention
        kernel = stack.kernels.attention_of(a)
        if kernel is AttentionKernel.FLASH:
            return factor * forward + merged[0], factor * backward + merged[1]
        slower = self._flash_2_slowdown(a, np.where(ring, seq / x.c, seq))
        if kernel is AttentionKernel.MEMORY_EFFICIENT:
            forward, backward, copies = self._masked(a, x, batch, seq)
            forward, backward = (MEMORY_EFFICIENT_SLOWDOWN * seconds for seconds in (forward, backward))
            return factor * slower[0] * forward + copies, factor * slower[1] * backward + copies
        if kernel is AttentionKernel.FLASH_TRITON:
            slower = slower[0] * TRITON_SLOWDOWN[0], slower[1] * TRITON_SLOWDOWN[1]
        if kernel.is_flash:
            return factor * slower[0] * forward + merged[0], factor * slower[1] * backward + merged[1]
        square = batch * heads * seq * seq
        passes = np.where(
            self.softmax_is_eager(layer, x, keys),
            SQUARE_PASSES[AttentionKernel.EAGER],
            SQUARE_PASSES[kernel],
        )
        passes = passes + (2.0 if stack.kernels.dropout else 0.0)
        products = 2 * square * (a.head_dim + a.v_head_dim) / (0.6 * self.attention_peak)
        if self.half_dtype() in _HALF and self._meets_rows():
            products = products * misaligned_slowdown(float(a.v_head_dim), float(a.head_dim))
        width = self.recipe.activation_bytes
        moved = memory_bound_time(width * passes * square, self.bandwidth, self.kernels)
        return factor * (products + moved), factor * 2 * (products + moved)

    def _sight(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Sight, Device] | None:
        """What a rank's queries see behind an indexer, and what limits its kernels; None without one."""
        a, kernel, job = layer.attention, self.problem.stack.kernels.sparse_attention, self.problem.job
        if a is None or not a.sparse or kernel is None:
            return None
        batch = keys["micro_batch"].astype(float)
        seq = job.timed_length(batch)
        if job.packed:
            batch, seq = batch * seq / job.attended_length, np.full_like(seq, job.attended_length)
        chip = self.problem.cluster.accelerator
        see = sight_of(a, batch, seq, x.t, x.c, job.packed)
        return see, Device.of(kernel, chip, self.attention_peak, self.bandwidth)

    def indexer(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array]:
        """Forward and backward seconds of choosing keys and of learning to; 0 where a layer does not."""
        a, seen = layer.attention, self._sight(layer, x, keys)
        if a is None or a.indexer is None or a.indexer.shared or seen is None:
            return np.zeros(len(keys)), np.zeros(len(keys))
        factor = self.device_factor * self.problem.stack.compute.attention
        return factor * score_time(a.indexer, *seen), factor * loss_time(a, a.indexer, *seen)

    def _masked(self, a: Attention, x: LayerShape, batch: Array, seq: Array) -> tuple[Array, Array, Array]:
        """Forward and backward seconds of fused attention to every key, masked ones too, and of copying keys and values
        for every query head that shares them, either way (transformers' repeat_kv)."""
        heads, shared = a.heads / (x.t * x.c), np.maximum(a.kv_heads / (x.kv_split * x.c), 1e-3)
        forward, backward = attention_time(
            batch, seq, seq, heads, heads, float(a.head_dim), float(a.v_head_dim), False,
            self.attention_peak, self.bandwidth, self.kernels,
        )  # fmt: skip
        values = batch * seq * (a.head_dim + a.v_head_dim) * (heads + shared) * (heads > shared)
        moved = self.recipe.activation_bytes * values
        return forward, backward, memory_bound_time(moved, self.bandwidth, self.kernels)

    def _flash_2_slowdown(self, a: Attention, length: Array) -> tuple[Array, Array]:
        """Time of FlashAttention-2 over that of the tables' kernels on blocks of a length, forward and backward [1]."""
        if not self._has_async_attention():
            return np.ones(len(length)), np.ones(len(length))
        masked = self.problem.stack.kernels.attention_of(a) is AttentionKernel.MEMORY_EFFICIENT
        window = float(a.window) if a.window and not masked else np.inf
        pairs = attended_pairs(length, length, not masked, window)
        return flash_2_slowdown(2.0 * pairs / length, (a.head_dim + a.v_head_dim) / 2.0)

    def softmax_is_eager(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> NDArray[np.bool_]:
        """Where a stack with softmax kernels falls back to single operations: see `SOFTMAX_HEADS`."""
        kernels, a = self.problem.stack.kernels, layer.attention
        if a is None or kernels.attention_of(a) is not AttentionKernel.FUSED_SOFTMAX:
            return np.zeros(len(keys), dtype=np.bool_)
        most = SOFTMAX_KEYS if kernels.attention is AttentionKernel.FUSED_SOFTMAX else ENGINE_SOFTMAX_KEYS
        return (keys["micro_batch"] * a.heads / x.t % SOFTMAX_HEADS > 0) | (x.seq_kv > most)

    def _ring(
        self, a: Attention, x: LayerShape, batch: Array, seq: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Forward and backward seconds of attention passed around a ring of c ranks, and of merging what its steps
        return, which no factor of attention reaches.

        A rank holds two of 2c chunks. One causal block of s/c by s/c, then c - 1 blocks of s/c by s/2c without a
        mask; each adds its outputs to the running ones (read, read, write, for three quarters of the queries on
        average), in backward the gradients of queries, keys and values. Source: TransformerEngine 2.x,
        attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P. torch's has the same blocks and
        merges in fp32 (`network/context.py`).
        """
        own, again = seq / x.c, x.c - 1
        gathers = gathers_in_ring(self.problem.stack.communication)
        heads = a.heads / x.t
        kv = heads if gathers else a.kv_heads / x.kv_split
        first, later = (
            attention_time(
                batch, own, keys, heads, kv, float(a.head_dim), float(a.v_head_dim), causal,
                self.attention_peak, self.bandwidth, self.kernels,
            )
            for keys, causal in ((own, True), (own / 2, False))
        )  # fmt: skip
        if gathers:
            moves = merged_bytes(a, batch * own, x.t, x.c)
        else:
            passes = again * 3.0 * self.recipe.activation_bytes * batch * own
            moved = 0.75 * heads * a.head_dim + kv * (a.head_dim + a.v_head_dim)
            moves = 0.75 * passes * heads * a.v_head_dim, passes * moved
        ahead, back = (memory_bound_time(moved, self.bandwidth, self.kernels) for moved in moves)
        return (first[0] + again * later[0], first[1] + again * later[1]), (ahead, back)

    def memory_bound(self, layer: Layer, x: LayerShape) -> tuple[dict[str, Array], Array]:
        """Forward seconds of norms, residuals, rotary, activation and permutation, by module; backward ones of all.

        Backward twice the forward bytes, but of single operations, which are counted.
        """
        ahead = self._moved(layer, x)
        back = {name: 2.0 * moved for name, moved in ahead.items()}
        if self.problem.stack.kernels.single_operations:
            counted = self._single_operations(layer, x)
            ahead |= {name: moved.forward for name, moved in counted.items()}
            back |= {name: moved.backward for name, moved in counted.items()}
        if self.fuses_experts and layer.moe is not None:
            # the product behind reads gate and input again: 2 of 6 passes
            ahead["moe_act"], back["moe_act"] = 0.0 * ahead["moe_act"], back["moe_act"] / 3.0
        factor = self.problem.stack.compute.memory_bound
        seconds = {
            name: factor * memory_bound_time(b, self.bandwidth, self.kernels) for name, b in ahead.items()
        }
        behind = sum(back.values(), np.zeros(len(x.tokens)))
        return seconds, factor * memory_bound_time(behind, self.bandwidth, self.kernels)

    def _single_operations(self, layer: Layer, x: LayerShape) -> dict[str, Moved]:
        """Bytes of the modules whose operations are single kernels: not of those with fused ones (Liger)."""
        a, hidden = layer.attention, float(self.problem.model.hidden)
        stream = x.tokens * hidden / x.sequence_split
        queries, keys = (
            (a.heads * a.head_dim / x.t, a.rotated_kv_heads * a.head_dim / x.kv_split) if a else (0.0, 0.0)
        )
        gates = a.heads * a.v_head_dim * (a.gate_width > 0) / x.t if a else 0.0
        ffn = layer.mlp.ffn / x.t if layer.mlp else 0.0
        width, trained = self.recipe.activation_bytes, self.problem.job.lora_rank is None
        each = (queries, keys, gates, ffn)
        moved = layer_bytes(layer, self.problem.model, stream, x.tokens, *each, width, trained)
        if layer.moe is not None:
            rows, experts = x.routed_tokens * layer.moe.mean_k, layer.moe.experts / x.e
            moved |= expert_bytes(
                layer.moe, hidden, stream, rows, experts, float(layer.moe.expert_ffn), width
            )
        kernels = self.problem.stack.kernels
        fused = {
            "layernorm": kernels.fused_norm,
            "qkv": kernels.fused_rotary,
            "mlp_act": kernels.fused_activation,
        }
        return {name: each for name, each in moved.items() if not fused.get(name)}

    def _moved(self, layer: Layer, x: LayerShape) -> dict[str, Array]:
        """Forward bytes of the same, where kernels are fused as the stack says."""
        h, act = float(self.problem.model.hidden), self.recipe.activation_bytes
        kernels = self.problem.stack.kernels
        a = layer.attention
        stream = act * x.tokens * h / x.sequence_split
        moved = {
            "layernorm": NORM_PASSES[kernels.fused_norm] * stream * max(layer.norms, 1),
            "residual": residual_passes(layer) * stream + (2.0 * stream if kernels.dropout else 0.0),
        }
        if a is not None:
            q, k = a.heads * a.head_dim / x.t, a.rotated_kv_heads * a.head_dim / x.kv_split
            rotations = (2.0 if self.problem.model.position_rows == 0 else 0.0) + (
                2.0 if a.qk_norm is not QkNorm.NONE else 0.0
            )
            gated = (a.gate_width + 2.0 * a.heads * a.v_head_dim * (a.gate_width > 0)) / x.t
            values = 2.0 * a.own_kv_heads * a.v_head_dim / x.kv_split * a.value_norm
            moved["qkv"] = act * x.tokens * (rotations * (q + k) + values + gated)
            if a.compression is not None:
                moved["qkv"] = moved["qkv"] + compressed_bytes(a, x.tokens, x.t, act)
            elif a.indexer is not None:
                moved["qkv"] = moved["qkv"] + absorbed_bytes(a, x.tokens, x.t, act)
        if layer.side:
            moved["side"] = 3.0 * act * x.tokens * layer.side
        if layer.mlp is not None:
            reads = 3.0 if layer.mlp.gated else 2.0
            eager = 2.0 if layer.mlp.gated and not kernels.fused_activation else 0.0
            moved["mlp_act"] = act * x.tokens * (reads + eager) * layer.mlp.ffn / x.t
        if layer.moe is not None:
            rows = x.routed_tokens * layer.moe.mean_k
            passes: Array | float = PERMUTE_PASSES
            if self.problem.stack.communication.dispatcher is Dispatcher.ALL_TO_ALL:
                passes = np.where(layer.moe.experts / x.e > 1, passes + CHUNK_PASSES, passes)
            moved["moe_permute"] = act * rows * x.et * layer.moe.width(int(h)) * passes
            moved["moe_act"] = act * rows * layer.moe.expert_ffn * (3.0 if layer.moe.gated else 2.0)
            moved["router"] = 16.0 * x.expert_tokens * layer.moe.choices
            moved["shared"] = act * x.tokens * (3.0 if layer.moe.gated else 2.0) * layer.moe.shared_ffn / x.t
        return moved

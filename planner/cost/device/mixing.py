"""How long does a device mix tokens: by attention, its indexer, and state spaces?

One value per distinct key (how a micro-batch is cut). Left out: communication (`cost/messages`), launches by the
host, projections (`products.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.cut import LayerShape
from planner.cost.device.flash import (
    MEMORY_EFFICIENT_SLOWDOWN,
    TRITON_SLOWDOWN,
    flash_2_rates,
    flash_2_slowdown,
)
from planner.cost.device.kernels import (
    BACKWARD_FLOPS_RATIO,
    attended_pairs,
    attention_time,
    misaligned_slowdown,
)
from planner.cost.device.rates import HALF, DeviceRates
from planner.cost.network.context import gathers_in_ring, merged_bytes
from planner.cost.operations.lists import gathering_of, scan_of
from planner.cost.operations.sparse import Device, Sight, sight_of
from planner.cost.operations.state_space import cut_of
from planner.spec.attention import Attention
from planner.spec.config import ConfigTable, ContextKind
from planner.spec.layer import Layer
from planner.spec.machine.accelerator import Architecture
from planner.spec.precision import Dtype
from planner.spec.stack.kinds import AttentionKernel

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


class MixingModel:
    """Device seconds of what mixes tokens, for a table of distinct keys."""

    def __init__(self, rates: DeviceRates) -> None:
        self.rates, self.factor = rates, rates.device_factor * rates.problem.stack.compute.attention

    def scan(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array]:
        """Forward and backward seconds of a state space between its projections; 0 where a layer has none."""
        s, job = layer.state_space, self.rates.problem.job
        if s is None:
            return np.zeros(len(keys)), np.zeros(len(keys))
        cut, act = cut_of(s, x.tokens, x.t, x.c), self.rates.recipe.activation_bytes
        interleaved = (keys["micro_batch"] > 1).astype(float)
        seq = job.timed_length(keys["micro_batch"].astype(float))
        if job.packed:  # texts of a sequence run side by side
            seq = np.full_like(seq, job.attended_length)
        fused = not self.rates.problem.stack.kernels.code.single
        return scan_of(s).seconds(
            s, cut, act, interleaved, seq, self.rates.bandwidth, self.rates.wide_peak, fused
        )

    def attention(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array]:
        """Forward and backward seconds of attention itself; context parallelism divides the causal work evenly.

        A ring works in c steps on short blocks (`_ring`); the other kinds see the whole sequence in one kernel.
        """
        a = layer.attention
        if a is None:
            return np.zeros(len(keys)), np.zeros(len(keys))
        if (seen := self._sight(a, x, keys)) is not None:
            ahead, behind = gathering_of(a).core_time(a, *seen)
            return self.factor * ahead, self.factor * behind
        batch, seq = self._texts(keys)
        stack = self.rates.problem.stack
        kernel = stack.kernels.attention_of(a)
        ring = (x.c > 1) & (x.context == ContextKind.P2P)
        slower = self._slowdown(a, kernel, np.where(ring, seq / x.c, seq))
        if kernel is AttentionKernel.MEMORY_EFFICIENT:
            return self._masked(a, x, batch, seq, slower)
        heads = a.heads / (x.t * x.c)
        if not kernel.is_flash:
            return self._unfused(layer, a, x, keys, batch * heads * seq * seq)
        kv = np.maximum(a.kv_heads / (x.kv_split * x.c), 1e-3)
        window = float(a.window) if a.window else np.inf
        forward, backward = attention_time(
            batch, seq, seq, heads, kv, float(a.head_dim), float(a.v_head_dim), True,
            self.rates.roofline(self.rates.attention_peak), window,
        )  # fmt: skip
        if self._issues_amperes(kernel):
            slower = self._by_units(a, batch, np.where(ring, seq / x.c, seq), heads, window)
        merged: tuple[Array, Array] = (np.zeros(len(keys)), np.zeros(len(keys)))
        if a.window is None and ring.any():
            steps, moved = self._ring(a, x, batch, seq)
            forward, backward = np.where(ring, steps[0], forward), np.where(ring, steps[1], backward)
            merged = np.where(ring, moved[0], 0.0), np.where(ring, moved[1], 0.0)
        return self.factor * slower[0] * forward + merged[0], self.factor * slower[1] * backward + merged[1]

    def _texts(self, keys: ConfigTable) -> tuple[Array, Array]:
        """Texts of a micro-batch, each attending to itself, and their length [1]; packed, they lie end to end."""
        job, batch = self.rates.problem.job, keys["micro_batch"].astype(float)
        seq = job.timed_length(batch)
        if job.packed:
            return batch * seq / job.attended_length, np.full_like(seq, job.attended_length)
        return batch, seq

    def _unfused(
        self, layer: Layer, a: Attention, x: LayerShape, keys: ConfigTable, square: Array
    ) -> tuple[Array, Array]:
        """Forward and backward seconds of attention by two products with a softmax between them, on `square` scores."""
        kernels = self.rates.problem.stack.kernels
        passes = np.where(
            self.softmax_is_eager(layer, x, keys),
            SQUARE_PASSES[AttentionKernel.EAGER],
            SQUARE_PASSES[kernels.attention_of(a)],
        )
        passes = passes + (2.0 if kernels.dropout else 0.0)
        products = 2 * square * (a.head_dim + a.v_head_dim) / (0.6 * self.rates.wide_peak)
        if self.rates.wide_dtype() in HALF and self.rates.meets_rows():
            products = products * misaligned_slowdown(float(a.v_head_dim), float(a.head_dim))
        width = self.rates.recipe.activation_bytes
        moved = self.rates.moving(width * passes * square)
        return self.factor * (products + moved), self.factor * 2 * (products + moved)

    def _sight(self, a: Attention, x: LayerShape, keys: ConfigTable) -> tuple[Sight, Device] | None:
        """What a rank's queries see behind an indexer, and what limits its kernels; None without one."""
        problem, rates = self.rates.problem, self.rates
        kernel = problem.stack.kernels.sparse_attention
        if not a.sparse or kernel is None:
            return None
        see = sight_of(a, *self._texts(keys), x.t, x.c, problem.job.packed)
        return see, Device.of(kernel, problem.cluster.accelerator, rates.wide_peak, rates.bandwidth)

    def indexer(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> tuple[Array, Array]:
        """Forward and backward seconds of choosing keys and of learning to; 0 where a layer does not."""
        a = layer.attention
        seen = None if a is None else self._sight(a, x, keys)
        if a is None or a.indexer is None or a.indexer.shared or seen is None:
            return np.zeros(len(keys)), np.zeros(len(keys))
        kernels, index = gathering_of(a), a.indexer
        return (
            self.factor * kernels.score_time(a, index, *seen),
            self.factor * kernels.loss_time(a, index, *seen),
        )

    def _masked(
        self,
        a: Attention,
        x: LayerShape,
        batch: Array,
        seq: Array,
        slower: tuple[Array | float, Array | float],
    ) -> tuple[Array, Array]:
        """Forward and backward seconds of fused attention to every key, masked ones too, with copies of keys and values
        for every query head that shares them, either way (transformers' repeat_kv)."""
        heads, shared = a.heads / (x.t * x.c), np.maximum(a.kv_heads / (x.kv_split * x.c), 1e-3)
        passes = attention_time(
            batch, seq, seq, heads, heads, float(a.head_dim), float(a.v_head_dim), False,
            self.rates.roofline(self.rates.attention_peak),
        )  # fmt: skip
        values = batch * seq * (a.head_dim + a.v_head_dim) * (heads + shared) * (heads > shared)
        moved = self.rates.recipe.activation_bytes * values
        copies = self.rates.moving(moved)
        forward, backward = (MEMORY_EFFICIENT_SLOWDOWN * seconds for seconds in passes)
        return self.factor * slower[0] * forward + copies, self.factor * slower[1] * backward + copies

    def _slowdown(
        self, a: Attention, kernel: AttentionKernel, length: Array
    ) -> tuple[Array | float, Array | float]:
        """Time of the kernel that runs over that of the tables' on blocks of a length, forward and backward [1]; of the
        memory-efficient one, which attends to every key, that of FlashAttention-2.

        In fp32 that one runs whatever the stack's (`DeviceRates.attention_peak`), on causal blocks, by the instructions
        of Ampere too. Beside three products for one what else makes it slower than FlashAttention-2 in 16 bits weighs
        little, and is left out.
        """
        instructions = self.rates.problem.cluster.accelerator.instructions
        newer = instructions in (Architecture.HOPPER, Architecture.BLACKWELL)  # than FlashAttention-2
        slower: tuple[Array | float, Array | float] = (1.0, 1.0)
        if newer and (kernel is not AttentionKernel.FLASH or self.rates.recipe.other is Dtype.FP32):
            masked = kernel is AttentionKernel.MEMORY_EFFICIENT
            window = float(a.window) if a.window and not masked else np.inf
            pairs = attended_pairs(length, length, not masked, window)
            slower = flash_2_slowdown(2.0 * pairs / length, (a.head_dim + a.v_head_dim) / 2.0)
        if kernel is AttentionKernel.FLASH_TRITON:
            slower = slower[0] * TRITON_SLOWDOWN[0], slower[1] * TRITON_SLOWDOWN[1]
        return slower

    def _issues_amperes(self, kernel: AttentionKernel) -> bool:
        """Does a Blackwell run FlashAttention-2, whose tables say nothing of Ampere's instructions?"""
        blackwell = self.rates.problem.cluster.accelerator.instructions is Architecture.BLACKWELL
        return blackwell and kernel is AttentionKernel.FLASH_2 and self.rates.recipe.other is not Dtype.FP32

    def _by_units(
        self, a: Attention, batch: Array, length: Array, heads: Array | float, window: float
    ) -> tuple[Array | float, Array | float]:
        """Time of FlashAttention-2 by the device's multiprocessors over that of the tables' kernel [1]."""
        pairs = attended_pairs(length, length, True, window)
        width = a.head_dim + a.v_head_dim
        work = 2.0 * batch * heads * pairs * width
        rates = flash_2_rates(2.0 * pairs / length, width / 2.0)
        tables = attention_time(
            batch, length, length, heads, heads, float(a.head_dim), float(a.v_head_dim), True,
            self.rates.roofline(self.rates.attention_peak), window,
        )  # fmt: skip
        units = self.rates.problem.cluster.accelerator.compute_units
        ahead, behind = work / (rates[0] * units), BACKWARD_FLOPS_RATIO * work / (rates[1] * units)
        return np.maximum(ahead / tables[0], 1.0), np.maximum(behind / tables[1], 1.0)

    def softmax_is_eager(self, layer: Layer, x: LayerShape, keys: ConfigTable) -> NDArray[np.bool_]:
        """Where a stack with softmax kernels falls back to single operations: see `SOFTMAX_HEADS`."""
        kernels, a = self.rates.problem.stack.kernels, layer.attention
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
        gathers = gathers_in_ring(self.rates.problem.stack.communication)
        heads = a.heads / x.t
        kv = heads if gathers else a.kv_heads / x.kv_split
        first, later = (
            attention_time(
                batch, own, keys, heads, kv, float(a.head_dim), float(a.v_head_dim), causal,
                self.rates.roofline(self.rates.attention_peak),
            )
            for keys, causal in ((own, True), (own / 2, False))
        )  # fmt: skip
        if gathers:
            moves = merged_bytes(a, batch * own, x.t, x.c)
        else:
            passes = again * 3.0 * self.rates.recipe.activation_bytes * batch * own
            moved = 0.75 * heads * a.head_dim + kv * (a.head_dim + a.v_head_dim)
            moves = 0.75 * passes * heads * a.v_head_dim, passes * moved
        ahead, back = (self.rates.moving(moved) for moved in moves)
        return (first[0] + again * later[0], first[1] + again * later[1]), (ahead, back)

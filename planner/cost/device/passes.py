"""How long do operations take that only move bytes: norms, residuals, rotary embedding, activation, permutation?

One value per distinct key (how a micro-batch is cut). Left out: quantising (`products.py`), the loss (`cost/edges.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.rates import DeviceRates
from planner.cost.eager import Moved, expert_bytes, layer_bytes
from planner.cost.memory.activations import LayerShape
from planner.cost.mixers.sparse_attention import (
    absorbed_bytes,
    compressed_bytes,
)
from planner.spec.attention import QkNorm
from planner.spec.layer import Layer
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.time import Kernels

Array = NDArray[np.float64]


# Unfused RMSNorm in fp32: upcast, square and mean, scale, downcast, weight: passes over the stream in units of
# its 2-byte size, against one read and one write when fused.
NORM_PASSES = {True: 2.0, False: 12.0}
# Passes over the rows of experts: gathered before their products and put back behind them, each read and written.
# Around NCCL's all-to-all a rank that holds several experts also sorts what arrives by expert, and back (Megatron-Core,
# transformer/moe/token_dispatcher.py, sort_chunks_by_idxs).
PERMUTE_PASSES = 4.0
# Weighing the outputs of experts by separate operations, in units of their 2 bytes: to fp32, a product, back to 16 bits
# (6 + 8 + 6 bytes; backward to fp32, a product for the outputs, one summed for the weights, back: 6 + 8 + 16 + 6).
WEIGHING_PASSES = 10.0
# Passes of fused kernels over residual streams, of a branch and stream: read by the product that weighs them, read for
# the branch's input, read and written as its output is added; and over what the branch reads and returns, once each.
# Left out: the 20 rounds that normalise a token's mixture, 64 bytes each.
STREAM_PASSES = (3.0, 2.0)
CHUNK_PASSES = 4.0
# Forward passes of single operations over the width of experts with clamped gates: two clamps that read both halves
# (6), a scale, a sigmoid, a product and a sum (2 + 2 + 3 + 4); and of their first biases, laid out by row and added
# (2 + 6; torchtitan 0.3.0 models/gpt_oss/moe.py). The second biases are left out.
CLAMPED_PASSES, BIAS_PASSES = 17.0, 8.0
# Bytes that PyTorch moves of every value of the sums that a branch attends to by attention residuals: put side by side,
# cast to fp32, squared, averaged, normed, multiplied by the query, summed, weighed, summed; backward twice as many
# (Megatron-Bridge models/kimi/kimi_k3_ops.py attn_res_aggregate; torchtitan 002c4cc models/kimi_k3/model.py alike).
RESIDUAL_BYTES = 54.0


def residual_passes(layer: Layer) -> float:
    """Passes over the residual stream, one of several counted alike, forward [1]."""
    if layer.streams > 1:  # the product reads them itself
        return layer.sublayers * (STREAM_PASSES[0] * layer.streams + STREAM_PASSES[1])
    return 3.0 * (layer.sublayers + (layer.side > 0))


def _activation_passes(gated: bool, kernels: Kernels) -> float:
    """Passes of an activation over its output, forward, in one kernel or by single operations [1]."""
    return (3.0 if gated else 2.0) + 2.0 * (gated and not kernels.fused_activation)


class PassModel:
    """Device seconds of operations bound by memory, for a table of distinct keys."""

    def __init__(self, rates: DeviceRates) -> None:
        self.rates = rates

    def memory_bound(self, layer: Layer, x: LayerShape) -> tuple[dict[str, Array], Array]:
        """Forward seconds of norms, residuals, rotary, activation and permutation, by module; backward ones of all.

        Backward twice the forward bytes, but of single operations, which are counted.
        """
        ahead = self._moved(layer, x)
        back = {name: 2.0 * moved for name, moved in ahead.items()}
        if self.rates.problem.stack.kernels.single_operations:
            counted = self._single_operations(layer, x)
            ahead |= {name: moved.forward for name, moved in counted.items()}
            back |= {name: moved.backward for name, moved in counted.items()}
        if self.rates.fuses_experts and layer.moe is not None:
            # the product behind reads gate and input again: 2 of 6 passes
            ahead["moe_act"], back["moe_act"] = 0.0 * ahead["moe_act"], back["moe_act"] / 3.0
        factor = self.rates.problem.stack.compute.memory_bound
        seconds = {name: factor * self.rates.moving(b) for name, b in ahead.items()}
        behind = sum(back.values(), np.zeros(len(x.tokens)))
        return seconds, factor * self.rates.moving(behind)

    def _single_operations(self, layer: Layer, x: LayerShape) -> dict[str, Moved]:
        """Bytes of the modules whose operations are single kernels: not of those with fused ones (Liger)."""
        a, hidden = layer.attention, float(self.rates.problem.model.hidden)
        stream = x.tokens * hidden / x.sequence_split
        queries, keys = (
            (a.heads * a.head_dim / x.t, a.rotated_kv_heads * a.head_dim / x.kv_split) if a else (0.0, 0.0)
        )
        gates = a.heads * a.v_head_dim * (a.gate_width > 0) / x.t if a else 0.0
        ffn = layer.mlp.ffn / x.t if layer.mlp else 0.0
        width, trained = self.rates.recipe.activation_bytes, self.rates.problem.job.lora_rank is None
        each = (queries, keys, gates, ffn)
        moved = layer_bytes(layer, self.rates.problem.model, stream, x.tokens, *each, width, trained)
        if layer.moe is not None:
            rows, experts = x.routed_tokens * layer.moe.mean_k, layer.moe.experts / x.e
            moved |= expert_bytes(
                layer.moe, hidden, stream, rows, experts, float(layer.moe.expert_ffn), width
            )
        kernels = self.rates.problem.stack.kernels
        fused = {
            "layernorm": kernels.fused_norm,
            "qkv": kernels.fused_rotary,
            "mlp_act": kernels.fused_activation,
        }
        return {name: each for name, each in moved.items() if not fused.get(name)}

    def _moved(self, layer: Layer, x: LayerShape) -> dict[str, Array]:
        """Forward bytes of the same, where kernels are fused as the stack says."""
        h, act = float(self.rates.problem.model.hidden), self.rates.recipe.activation_bytes
        kernels = self.rates.problem.stack.kernels
        a = layer.attention
        stream = act * x.tokens * h / x.sequence_split
        moved = {
            "layernorm": NORM_PASSES[kernels.fused_norm] * stream * max(layer.norms, 1),
            "residual": residual_passes(layer) * stream + (2.0 * stream if kernels.dropout else 0.0),
        }
        if layer.sources:
            moved["residual_attention"] = RESIDUAL_BYTES / act * stream * sum(layer.sources)
        if a is not None:
            q, k = a.heads * a.head_dim / x.t, a.rotated_kv_heads * a.head_dim / x.kv_split
            rotations = (2.0 if self.rates.problem.model.position_rows == 0 else 0.0) + (
                2.0 if a.qk_norm is not QkNorm.NONE else 0.0
            )
            gated = (a.gate_width + 2.0 * a.heads * a.v_head_dim * (a.gate_width > 0)) / x.t
            values = 2.0 * a.own_kv_heads * a.v_head_dim / x.kv_split * a.value_norm
            rotated = 2.0 * a.qk_rope_dim * a.rotated_norm
            moved["qkv"] = (
                act * x.tokens * (rotations * (q + k) + 2.0 * q * a.scaled + values + gated + rotated)
            )
            if a.compression is not None:
                moved["qkv"] = moved["qkv"] + compressed_bytes(a, x.tokens, x.t, act)
            elif a.indexer is not None and a.chooses_blocks:
                index = (a.indexer.heads / x.t + 1.0) * a.indexer.head_dim
                moved["qkv"] = moved["qkv"] + act * x.tokens * rotations * index
            elif a.indexer is not None:
                moved["qkv"] = moved["qkv"] + absorbed_bytes(a, x.tokens, x.t, act)
        if layer.side:
            moved["side"] = 3.0 * act * x.tokens * layer.side
        if layer.mlp is not None:
            moved["mlp_act"] = (
                act * x.tokens * _activation_passes(layer.mlp.gated, kernels) * layer.mlp.ffn / x.t
            )
        if layer.moe is not None:
            rows = x.routed_tokens * layer.moe.mean_k
            # a rank alone in its group has nothing to send and keeps NCCL's dispatcher
            plain = self.rates.problem.stack.communication.dispatcher is Dispatcher.ALL_TO_ALL
            sorts = (layer.moe.experts / x.e > 1) & (plain | (x.e * x.et <= 1))
            passes = PERMUTE_PASSES + np.where(sorts, CHUNK_PASSES, 0.0)
            passes = passes + WEIGHING_PASSES * kernels.weighs_outputs_apart
            moved["moe_permute"] = act * rows * x.et * layer.moe.width(int(h)) * passes
            if self.rates.problem.stack.communication.dispatcher is Dispatcher.ALL_GATHER:
                # zeros for all tokens of the group, to which those of the experts here are added
                group = np.where(x.e * x.et > 1, x.e * x.et, 0.0)
                zeros = act * group * x.expert_tokens * layer.moe.width(int(h))
                moved["moe_permute"] = moved["moe_permute"] + zeros
            activated = _activation_passes(layer.moe.gated, kernels)
            clamps = layer.moe.clamped and not kernels.fused_activation
            apart = CLAMPED_PASSES + BIAS_PASSES * layer.moe.expert_bias if clamps else activated
            moved["moe_act"] = act * rows * layer.moe.expert_ffn * apart
            moved["router"] = 16.0 * x.expert_tokens * layer.moe.choices
            moved["shared"] = act * x.tokens * activated * layer.moe.shared_ffn / x.t
        return moved

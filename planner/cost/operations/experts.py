"""What does a mixture of experts cost: the router, permutation, routed and shared experts?

Expert parallelism exchanges tokens and does not remove them: balanced routing leaves K n rows per rank, times etp,
which gathers them (Megatron-LM issue 6782); the busiest rank gets `imbalance` times as many. As single operations of
PyTorch experts run in a loop, as in transformers 4.x (models/mixtral/modeling_mixtral.py MixtralSparseMoeBlock); 5.x
has grouped products. Left out of it: waiting for the number of an expert's tokens, sorting of indices.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.operations import mlp
from planner.cost.operations.norms import STATISTIC_BYTES
from planner.cost.operations.operation import (
    Amount,
    Array,
    Gemm,
    Operation,
    Run,
    SecondHalf,
    Shard,
    Weights,
    product,
)
from planner.cost.operations.residual import gradient_stream
from planner.spec.layer import Moe
from planner.spec.stack.kinds import Dispatcher

# Passes over the rows of experts: gathered before their products and put back behind them, each read and written.
# Around NCCL's all-to-all a rank that holds several experts also sorts what arrives by expert, and back (Megatron-Core,
# transformer/moe/token_dispatcher.py, sort_chunks_by_idxs).
PERMUTE_PASSES, CHUNK_PASSES = 4.0, 4.0
# Weighing the outputs of experts by separate operations, in units of their 2 bytes: to fp32, a product, back to 16 bits
# (6 + 8 + 6 bytes; backward to fp32, a product for the outputs, one summed for the weights, back: 6 + 8 + 16 + 6).
WEIGHING_PASSES = 10.0
# Of every value of them, alive in the backward pass of that: their gradient as it comes, that of the outputs and the
# product that is summed to that of the weights.
WEIGHING_BYTES = 12.0
# Forward passes of single operations over the width of experts with clamped gates: two clamps that read both halves
# (6), a scale, a sigmoid, a product and a sum (2 + 2 + 3 + 4); and of their first biases, laid out by row and added
# (2 + 6; torchtitan 0.3.0 models/gpt_oss/moe.py). The second biases are left out.
CLAMPED_PASSES, BIAS_PASSES = 17.0, 8.0
# Tensors as wide as experts that a clamped gate of single operations keeps, its input and output left out: the clamped
# gate, its sigmoid, their product and the clamped up (torchtitan 0.3.0 models/gpt_oss/moe.py swiglu).
CLAMPED_KEPT = 4.0
# Rows of an expert in a loop: gathered 2, weighed 2, added to the output 3; backward gathered 2, weighed 2, the
# weight's gradient product and sum 4, the gate's and the input's summed 3, written back 1. And of the whole stream, in
# the backward pass of every expert: zeros 1, copied with its rows put in 2, added to the others' 3.
ROW_PASSES: Final = (7.0, 12.0)
STREAM_PASSES_PER_EXPERT: Final = 6.0
# Operations of one expert in a loop, forward and backward, three products and six among them.
LOOPED_LAUNCHES: Final = 10 + 20


def inactive_parameters(moe: Moe, hidden: int) -> int:
    """Parameters of routed experts that one token does not meet, a mean with experts that compute nothing
    [parameters]."""
    weights = sum((op.weights for op in _routed(moe, Run(hidden))), Weights())
    one = (weights.expert + weights.expert_replicated) // moe.experts
    return round(one * (moe.experts - moe.mean_k))


def operations(moe: Moe, run: Run) -> tuple[Operation, ...]:
    """Router, shared experts, and routed ones between permutation and its inverse."""
    h = run.hidden
    weights = moe.choices * (h + moe.router_bias) + (h + moe.experts) * moe.router_scale
    router = Operation(
        "router", "router", Gemm("router", h, moe.choices, Shard.NONE, wide=True), Weights(router=weights),
        tensors=1 + moe.router_bias + 2 * moe.router_scale,
        graph="moe_router", moved=lambda x: 16.0 * x.expert_tokens * moe.choices,
        kept={"moe": lambda x: x.expert_tokens * (STATISTIC_BYTES * moe.choices + 32.0 * moe.top_k)},
    )  # fmt: skip
    return (router, *_shared(moe, run), *_routed(moe, run))


def _shared(moe: Moe, run: Run) -> tuple[Operation, ...]:
    """Experts that every token visits, and a gate on them."""
    h, ffn, inputs = run.hidden, moe.shared_ffn, 2 if moe.gated else 1
    first = Gemm("shared_fc1", h, inputs * ffn, Shard.COLUMN, linear=inputs)
    second = Gemm("shared_fc2", ffn, h, Shard.ROW)
    passes, width = mlp.activation_passes(moe.gated, run)[0], mlp.kept_width(moe.gated, run, second)
    weights = Weights(shared=inputs * ffn * (h + moe.shared_bias))
    biased = Weights(shared=ffn * h, replicated=h * moe.shared_bias)
    return (
        Operation(
            "shared_fc1", "shared_experts", first, weights, 1 + moe.shared_bias, modules={"shared_experts": 1.0}
        ),
        Operation(
            "shared", graph="moe_router", modules={"shared_experts": 1.0},
            moved=lambda x: run.act * x.tokens * passes * ffn / x.t,
            kept={"shared_experts": lambda x: x.tokens * ffn * width / x.t},
        ),
        Operation("shared_fc2", "shared_experts", second, biased, 1 + moe.shared_bias),
        product(Gemm("shared_gate", h, int(moe.shared_gate), Shard.NONE), "shared_experts"),
    )  # fmt: skip


def _routed(moe: Moe, run: Run) -> tuple[Operation, ...]:
    """Permutation, the grouped products and the activation between them, K copies of every token; around them
    projections into the experts' width and back, whole on every rank (Megatron-Core moe/moe_layer.py)."""
    ffn, k, n, act, kernels = moe.expert_ffn, moe.mean_k, moe.experts, run.act, run.kernels
    width, inputs = moe.width(run.hidden), 2 if moe.gated else 1
    first = Gemm("expert_fc1", width, inputs * ffn, Shard.COLUMN, n, k, expert=True, linear=inputs)
    second = Gemm("expert_fc2", ffn, width, Shard.ROW, n, k, expert=True)
    back, biased = Gemm("latent_up", moe.latent, run.hidden, Shard.NONE), moe.expert_bias or moe.shared_bias
    returned = run.saved * run.keeps_input(back) * moe.latent  # read by the projection back
    weighed = 4.0 if kernels.code.eager else act
    weighed = 0.0 if kernels.probs_in_activation else weighed
    eager = (CLAMPED_KEPT if moe.clamped else 1.0) if moe.gated and not kernels.code.fused_activation else 0.0
    around = run.saved * run.keeps_input(first) + weighed
    behind = act * eager + mlp.second_input(run, second)

    def kept_rows(x: LayerShape) -> Array:
        return x.rows_for_experts(k, kernels.kept_rows)

    def rows(x: LayerShape) -> Array:
        return x.rows_for_experts(k, kernels.received_rows)

    def inner(x: LayerShape) -> Array:
        return act * rows(x) * ffn

    def entering(x: LayerShape) -> Array:
        return act * rows(x) * width * x.et

    def alive(x: LayerShape) -> Array:
        """Gradients of the experts' input, of fc2's input, of fc1's output, and of the largest weights."""
        weights = run.weight_gradient * width * ffn * n / (x.e * x.et)
        wide = entering(x) + rows(x) * ffn * mlp.inner_gradients(moe.gated, run) + weights
        if kernels.code.eager:
            wide = np.maximum(wide, WEIGHING_BYTES * rows(x) * x.et * width)
        if run.dispatcher is Dispatcher.ALL_GATHER:
            # gradients of the tokens of all ranks of the group, gathered and, by the experts here, made
            group = 2.0 * act * width * x.e * x.et * x.expert_tokens
            wide = wide + np.where(x.e * x.et > 1, group, 0.0)
        return gradient_stream(run, x) + wide

    permuted, activated = _permuted(moe, run), _activated(moe, run)
    return (
        product(Gemm("latent_down", run.hidden, moe.latent, Shard.NONE), "experts", biased),
        Operation(
            "moe_permute", graph="moe_preprocess", modules={"moe": 1.0},
            moved=permuted[0], moved_back=permuted[1],
            kept={"moe": lambda x: kept_rows(x) * x.et * width * around},
        ),
        product(first, "experts", moe.expert_bias, modules={"moe": 1.0}),
        Operation(
            "moe_act", graph="moe", modules={"moe": 1.0, "moe_act": 1.0},
            launches=run.launches(*mlp.LAUNCHES), moved=activated[0], moved_back=activated[1],
            kept={
                "moe": lambda x: kept_rows(x) * ffn * mlp.activation_input(moe.gated, run),
                "moe_act": lambda x: kept_rows(x) * ffn * behind,
            },
            ahead=lambda x: inner(x) * (3.0 if moe.gated else 2.0) + entering(x), alive=alive,
            half=SecondHalf(entering, inner, moe.gated),
        ),
        product(second, "experts", moe.expert_bias, modules={"moe": 1.0}),
        product(
            back, "experts", biased, Weights(replicated=moe.latent * moe.latent_norm), int(moe.latent_norm),
            kept={"moe": lambda x: x.expert_tokens * returned},
        ),
    )  # fmt: skip


def _permuted(moe: Moe, run: Run) -> tuple[Amount, Amount]:
    """Bytes moved to gather the rows of experts and to put them back, forward and backward."""
    act, width, n = run.act, moe.width(run.hidden), moe.experts

    def fused(x: LayerShape) -> Array:
        # a rank alone in its group has nothing to send and keeps NCCL's dispatcher
        sorts = (n / x.e > 1) & (run.dispatcher.exchanges_all | (x.e * x.et <= 1))
        passes = PERMUTE_PASSES + np.where(sorts, CHUNK_PASSES, 0.0)
        passes = passes + WEIGHING_PASSES * run.kernels.code.eager
        moved = act * x.routed_tokens * moe.mean_k * x.et * width * passes
        if run.dispatcher is Dispatcher.ALL_GATHER:
            # zeros for all tokens of the group, to which those of the experts here are added
            moved = moved + act * np.where(x.e * x.et > 1, x.e * x.et, 0.0) * x.expert_tokens * width
        return np.asarray(moved)

    def looped(x: LayerShape, passes: float) -> Array:
        return act * passes * x.routed_tokens * moe.mean_k * run.hidden

    if not run.single():
        return fused, lambda x: 2.0 * fused(x)
    whole = STREAM_PASSES_PER_EXPERT * act
    return (
        lambda x: looped(x, ROW_PASSES[0]),
        lambda x: looped(x, ROW_PASSES[1]) + whole * n / x.e * run.stream(x),
    )


def _activated(moe: Moe, run: Run) -> tuple[Amount, Amount]:
    """Bytes moved by the experts' activation, forward and backward."""
    if run.single():
        ahead, back = mlp.ACTIVATION_PASSES[moe.gated]
    else:
        ahead = mlp.activation_passes(moe.gated, run)[0]
        if moe.clamped and not run.kernels.code.fused_activation:
            ahead = CLAMPED_PASSES + BIAS_PASSES * moe.expert_bias
        back = 2.0 * ahead
    if run.fused_experts:  # the product behind reads gate and input again: 2 of 6 passes
        ahead, back = 0.0, back / 3.0

    def values(x: LayerShape) -> Array:
        return run.act * x.routed_tokens * moe.mean_k * moe.expert_ffn

    return lambda x: ahead * values(x), lambda x: back * values(x)

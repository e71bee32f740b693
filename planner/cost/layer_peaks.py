"""How much is alive at the widest points of a layer's own passes, under PyTorch's autograd?

A point is a moment between two operations: what the layer has kept until then, tensors on their way, and weight
gradients that are there already. Left out: normalisations and rotations of queries and keys, gates beside attention,
and state spaces, whose backward pass `layer_memory.py` sets beside these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.flops import Gemm, Shard, layer_gemms
from planner.cost.memory.activations import NORM_WORKING, STATISTIC_BYTES, LayerShape, wide_norm_bytes
from planner.spec.attention import Attention, AttentionKind
from planner.spec.layer import Layer
from planner.spec.precision import PrecisionRecipe
from planner.spec.rule import Problem

Array = NDArray[np.float64]

# parts of what a layer keeps that its second half frees
SECOND_HALF = ("mlp", "moe", "moe_act", "shared_experts")
_SECOND_NAMES = ("mlp_", "expert_", "shared_", "latent_", "router")  # names of its products begin so


def attention_widths(a: Attention, x: LayerShape) -> tuple[Array, Array]:
    """Values a token of queries and attention's output, and of keys and values, on a rank [1]."""
    shared = a.heads / x.t if a.kind is AttentionKind.MLA else a.kv_heads / x.kv_split
    return a.heads / x.t * (a.head_dim + a.v_head_dim), shared * (a.head_dim + a.v_head_dim)


def forward_bytes(problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape) -> Array:
    """Alive in the forward pass of a layer that keeps its input alone, as the second half's product or attention ends
    [bytes].

    The layer's input, the second half's, its norm; of an MLP gate, up and their product: 3 x 2 T h + 3 x 2 T f.
    """
    act, h = recipe.activation_bytes, float(problem.model.hidden)
    stream, gathered = act * x.tokens * h / x.sequence_split, act * x.tokens * h
    width, inner, gated = _second_half(problem, recipe, layer, x)
    inner = inner * (3.0 if gated else 2.0) + width * (layer.moe is not None)
    mixed = np.zeros(len(x.t))
    if layer.attention is not None:
        mixed = act * x.tokens * sum(attention_widths(layer.attention, x)) - stream
    return np.asarray(2.0 * stream + gathered + np.maximum(inner, mixed))


def backward_peak(
    problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape, parts: dict[str, Array]
) -> Array:
    """The most that is alive in a layer's backward pass behind its activation, less all that it keeps [bytes].

    Autograd walks the operations backwards; a weight's gradient stays from its product on, what an operation has kept
    goes with it. In the notation of an MLP with q, k, v apart, T tokens:
    - gate's product: the gradient of its input, those of gate and up (eager: and the other factor), 2 FFN gradients
    - up's product: gradients of both inputs, one of f, all FFN gradients
    - attention: gradients of queries, keys, values and output, all FFN gradients and the projection's
    - the last product: its input, gradients of two products' inputs and of queries, all weight gradients
    - norms of single operations: what they kept of the stream in fp32 and five more of it
    each beside the gradient of the stream. Weights are in `weight_bytes`, none where they get no gradient of their own.
    """
    act, h = recipe.activation_bytes, float(problem.model.hidden)
    stream, gathered = act * x.tokens * h / x.sequence_split, act * x.tokens * h
    gradient = stream + np.where(x.sequence_split > 1, gathered, 0.0)
    gemms = layer_gemms(layer, problem.model.hidden)
    ffn, others = _weights(problem, recipe, gemms, x, True), _weights(problem, recipe, gemms, x, False)
    rows = [g for g in gemms if g.shard is Shard.ROW]
    projection = _weights(problem, recipe, rows, x, False)
    second = sum((parts[name] for name in SECOND_HALF if name in parts), np.zeros(len(x.t)))
    points = []
    width, inner, gated = _second_half(problem, recipe, layer, x)
    if gated is not None:
        eager = gated and not problem.stack.kernels.fused_activation
        first, last = ffn * (2.0 / 3.0 if gated else 1.0), (2.0 if gated else 1.0) * width + inner
        points = [width + inner * (2.0 + eager) + first, last + ffn] if gated else [last + ffn]
    halves = (gated is not None) and (layer.attention is not None or layer.state_space is not None)
    norm = np.zeros(len(x.t))
    if halves and not layer.parallel:  # the second norm's input, statistics and output
        norm = stream + STATISTIC_BYTES * stream / (act * h) + parts["layernorm"] / 2.0
    behind = parts["input"] + parts["residual"] + parts["layernorm"] - norm
    queries = np.zeros(len(x.t))
    if layer.attention is not None:
        a, each = layer.attention, act * x.tokens
        wide, pairs = attention_widths(a, x)
        queries = each * a.heads * a.head_dim / x.t
        points.append(each * (wide + pairs) + ffn + projection - norm)
    total = sum(parts.values(), np.zeros(len(x.t)))
    wide_norm = wide_norm_bytes(problem.model, problem.stack.kernels, recipe) * stream / act
    if wide_norm.any():
        kept = wide_norm + STATISTIC_BYTES * stream / (act * h) + NORM_WORKING * wide_norm
        points += [kept + ffn - norm] if halves else []
        points.append(kept + ffn + others - (total - second))
    points.append(behind + 2.0 * gathered + queries + ffn + others - (total - second))
    return np.asarray(gradient + np.maximum.reduce(points) - second)


def _second_half(
    problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape
) -> tuple[Array, Array, bool | None]:
    """Bytes of the input of a layer's second half and of one of its inner tensors, and whether it is gated (None: there
    is none)."""
    act, none = recipe.activation_bytes, np.zeros(len(x.t))
    if layer.mlp is not None:
        inner = act * x.tokens * layer.mlp.ffn / x.t
        return act * x.tokens * float(problem.model.hidden), inner, layer.mlp.gated
    if layer.moe is None:
        return none, none, None
    rows = act * x.rows_for_experts(layer.moe.mean_k, problem.stack.kernels.expert_capacity)
    return rows * layer.moe.width(problem.model.hidden) * x.et, rows * layer.moe.expert_ffn, layer.moe.gated


def _weights(
    problem: Problem, recipe: PrecisionRecipe, gemms: Sequence[Gemm], x: LayerShape, second: bool
) -> Array:
    """Bytes of the gradients of the weights of products, those of the `second` half or of what lies before it."""
    total = np.zeros(len(x.t))
    if problem.stack.engine.fused_weight_gradient or problem.job.lora_rank is not None:
        return total
    for gemm in gemms:
        if gemm.frozen or gemm.name.startswith(_SECOND_NAMES) is not second:
            continue
        ranks = x.e * x.et if gemm.expert else x.t
        split = ranks if gemm.expert or gemm.shard in (Shard.COLUMN, Shard.ROW) else np.ones(len(x.t))
        columns = gemm.out_features / split + gemm.kv_out_features / x.kv_split
        total = total + recipe.weight_bytes * gemm.groups * gemm.in_features * columns
    return total

"""How much is alive at the widest points of a layer's own passes, under PyTorch's autograd?

A point is a moment between two operations: what the layer has kept until then, tensors on their way, and weight
gradients that are there already. Left out: normalisations and rotations of queries and keys, gates beside attention,
and state spaces, whose backward pass `layer_memory.py` sets beside these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.activations import LayerShape
from planner.spec.attention import Attention, AttentionKind
from planner.spec.layer import Layer
from planner.spec.precision import PrecisionRecipe
from planner.spec.rule import Problem

Array = NDArray[np.float64]


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
    stream, gathered = x.tokens * h / x.sequence_split, x.tokens * h
    inner, mixed = np.zeros(len(x.t)), np.zeros(len(x.t))
    if layer.mlp is not None:
        inner = x.tokens * layer.mlp.ffn / x.t * (3.0 if layer.mlp.gated else 2.0)
    elif layer.moe is not None:
        rows = x.rows_for_experts(layer.moe.mean_k, problem.stack.kernels.expert_capacity)
        width = layer.moe.width(problem.model.hidden) * x.et
        inner = rows * (width + layer.moe.expert_ffn * (3.0 if layer.moe.gated else 2.0))
    if layer.attention is not None:
        mixed = x.tokens * sum(attention_widths(layer.attention, x)) - stream
    return np.asarray(act * (2.0 * stream + gathered + np.maximum(inner, mixed)))

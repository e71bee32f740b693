"""What does a layer hold from its forward to its backward pass, and what while its backward runs?

One value per distinct key. Left out: what the parts are made of (`memory/activations.py`) and everything that depends
on the pipeline.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import linear_layers
from planner.cost.flops import Shard, layer_gemms
from planner.cost.layer_peaks import SECOND_HALF, attention_widths, backward_peak
from planner.cost.memory.activations import (
    RESIDUAL_WORKING,
    LayerShape,
    frozen_inputs,
    layer_activations,
    linear_input_bytes,
    sparse_sight,
    wide_norm_bytes,
)
from planner.cost.messages.sizes import whole_qkv_bytes
from planner.cost.mixers import block_attention, sparse_attention
from planner.cost.mixers.kinds import working_bytes
from planner.cost.mixers.state_space import cut_of
from planner.cost.network.context import context_kinds
from planner.cost.selective import by_operations, kept_bytes
from planner.spec.attention import Attention
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ContextKind
from planner.spec.layer import Layer
from planner.spec.precision import PrecisionRecipe
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Dispatcher, SparseKernel

Array = NDArray[np.float64]

# Backward of an unfused softmax: gradients of its output and input in fp32 and 16 bits.
SCORE_GRADIENT_BYTES = 12.0
# Of every value of experts' outputs that are weighed in fp32 by an operation of their own, alive in its backward pass:
# their gradient as it comes, that of the outputs and the product that is summed to that of the weights.
WEIGHING_BYTES = 12.0


def layer_parts(problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape) -> dict[str, Array]:
    """Bytes a layer keeps for its backward pass without recomputation, by part."""
    kernels = problem.stack.kernels
    parts = layer_activations(layer, problem.model, x, kernels, recipe)
    if problem.job.lora_rank is not None:
        # the input of a frozen product is that of its adapter, and stays; each adapter keeps its narrow middle
        for name, unread in frozen_inputs(layer, problem.model, x, kernels, recipe, problem.job).items():
            parts[name] = parts[name] - unread
        gemms = layer_gemms(layer, problem.model.hidden)
        adapted = (g for g in gemms if not g.expert and problem.job.adapts(g.name))
        count = sum(linear_layers(g, layer, problem.stack) for g in adapted)
        width = count * problem.job.lora_rank * recipe.activation_bytes
        parts["adapters"] = x.tokens * width / x.sequence_split
    return parts


def layer_memory(
    problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape, keys: ConfigTable, parts: dict[str, Array],
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Bytes kept and bytes at work in the backward pass: with a key's modules recomputed, with all of them."""
    kernels, zero = problem.stack.kernels, np.zeros(len(keys))
    everything, freed = sum(parts.values(), zero), zero
    for bit, name in enumerate(RECOMPUTE_MODULES):
        extra = parts.get("moe_act", zero) if name == "moe" else zero
        part = parts.get(name, zero) + extra
        freed = freed + np.where(keys["recompute_modules"] & (1 << bit) > 0, part, 0.0)
    if (operations := by_operations(keys)).any():
        held = kept_bytes(problem, recipe, layer, x, parts)
        freed = np.where(operations, everything - held, freed)
    freed = np.minimum(freed, everything - parts["input"])
    least = parts["input"]
    working = _working(problem, recipe, layer, x) + dequantised_bytes(problem, recipe, layer, x)
    released = sum((parts.get(name, zero) for name in SECOND_HALF), zero)
    if problem.stack.engine.plain_autograd:
        working = np.maximum(working, backward_peak(problem, recipe, layer, x, parts))
    a = layer.attention
    if a is not None and (see := sparse_sight(a, x)) is not None:
        act, kernel = recipe.activation_bytes, kernels.sparse_attention or SparseKernel.NONE
        stream = act * x.tokens * problem.model.hidden / x.sequence_split
        if a.chooses_blocks:
            needed = block_attention.working_bytes(a, see, kernel, act, x.kv_split)
        else:
            needed = sparse_attention.working_bytes(a, see, kernel, act)
        working = np.maximum(working, stream + needed - released)
    elif layer.attention is not None and (keys["cp"] > 1).any():
        kinds = context_kinds(problem, keys["cp_kind"])
        attention = context_working(layer.attention, x, kinds, recipe) - released
        working = np.where(keys["cp"] > 1, np.maximum(working, attention), working)
    if layer.sources:
        stream = x.tokens * problem.model.hidden / x.sequence_split
        alive = RESIDUAL_WORKING * stream * max(layer.sources) - released
        working = np.maximum(working, recipe.activation_bytes * stream + alive)
    if layer.state_space is not None:
        stream = recipe.activation_bytes * x.tokens * problem.model.hidden / x.sequence_split
        s, act = layer.state_space, recipe.activation_bytes
        cut = cut_of(s, x.tokens, x.t, x.c)
        working = np.maximum(working, stream + working_bytes(s, cut, act) - released)
    remade = working + everything - least
    if problem.stack.engine.plain_autograd and wide_norm_bytes(problem.model, kernels, recipe):
        remade = remade + least  # the upcast stands for the input, which the checkpoint keeps all the same
    return everything - freed, least, working + freed, remade


def dequantised_bytes(problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape) -> Array:
    """The largest weight of a layer in 16 bits, one at a time, where weights are frozen in fewer [bytes]."""
    largest = np.zeros(len(x.t))
    if problem.job.frozen_bits < 16:
        for gemm in layer_gemms(layer, problem.model.hidden):
            outputs = (gemm.out_features + gemm.kv_out_features) / linear_layers(gemm, layer, problem.stack)
            whole = gemm.shard in (Shard.COLUMN, Shard.ROW)
            split = np.where(whole, x.et if gemm.expert else x.t, 1.0)
            largest = np.maximum(largest, gemm.in_features * outputs / split)
    return recipe.weight_bytes * largest


def context_working(a: Attention, x: LayerShape, kind: NDArray[np.int32], recipe: PrecisionRecipe) -> Array:
    """Alive in the backward pass of context-parallel attention, the layer's second half not subtracted [bytes].

    Gradients of q, k, v and the output, and buffers: the ring holds keys, values and their gradients twice, one pair
    at work and one on its way; all-gather holds those of the whole sequence; all-to-all a second layout of q, k, v,
    the output and their gradients (Transformer Engine, attention/dot_product_attention/context_parallel.py). Left
    out: the ring's outputs of every step, which the forward pass alone holds.
    """
    queries, pairs = _attention_gradients(a, x, recipe)
    buffers = np.select(
        [kind == ContextKind.P2P, kind == ContextKind.ALL_GATHER],
        [4.0 * pairs, 2.0 * x.c * pairs],
        2.0 * (queries + pairs),
    )
    return np.asarray(queries + pairs + buffers)


def _attention_gradients(a: Attention, x: LayerShape, recipe: PrecisionRecipe) -> tuple[Array, Array]:
    """Bytes of gradients of queries and of attention's output, and of keys and values."""
    queries, pairs = attention_widths(a, x)
    each = recipe.activation_bytes * x.tokens
    return each * queries, each * pairs


def weight_gradient_bytes(
    problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape, kept: Array
) -> Array:
    """Held from a layer's input gradient to its weight gradient: inputs and output gradients of its products [bytes].

    A dense layer without gates, 4 h wide: 32 s b h (Qi 2023, arXiv 2401.10241, section 5.1), against 34 s b h before
    the input gradient. In 8-bit and 4-bit recipes both are kept as the product reads them. A stack that splits
    autograd's own backward frees nothing in between.
    """
    inputs, total = linear_input_bytes(recipe, problem.stack.kernels), np.zeros(len(x.t))
    for gemm in layer_gemms(layer, problem.model.hidden):
        rows = x.expert_tokens * gemm.rows_per_token if gemm.expert else x.tokens
        columns = x.et if gemm.expert else x.t
        wide = np.where(gemm.shard is Shard.COLUMN, columns, 1.0)
        narrow = np.where(gemm.shard is Shard.ROW, columns, 1.0)
        rows = rows * (x.et if gemm.expert else 1.0)
        stream = 1.0 if gemm.expert else x.sequence_split
        read = inputs * gemm.in_features / np.where(gemm.shard is Shard.ROW, narrow, stream)
        written = inputs * (gemm.out_features / np.where(gemm.shard is Shard.ROW, stream, wide))
        total = total + rows * (read + written + inputs * gemm.kv_out_features / x.kv_split)
    if not problem.stack.engine.plain_autograd:
        return total
    saved = 0.5 * total  # inputs of products are a part of what the graph keeps
    return np.maximum(kept + total - saved, total)


def _score_gradients(problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape) -> Array:
    """Alive in the backward pass of unfused attention, the MLP's tensors gone: fp32 and 16-bit gradients of the
    softmax's input and output, 12 bytes a score, less what the MLP had kept [bytes]."""
    kernels = problem.stack.kernels
    if layer.attention is None or kernels.attention_of(layer.attention).tiled:
        return np.zeros(len(x.t))
    square = layer.attention.heads / x.t * x.tokens * x.seq_kv
    kept = layer_activations(layer, problem.model, x, kernels, recipe).get("mlp", np.zeros(len(x.t)))
    return np.maximum(SCORE_GRADIENT_BYTES * square - kept, 0.0)


def _working(problem: Problem, recipe: PrecisionRecipe, layer: Layer, x: LayerShape) -> Array:
    """Gradients alive at the widest point of a layer's backward, where the activation's begins [bytes].

    Gradients of the stream (gathered, and the shard with sequence parallelism), of fc2's input, of fc1's output;
    fc2's own input is free by then, its weight's gradient is there unless the product accumulates it in place. Or in
    attention's: gradients of scores, or of the queries, keys and values of all heads with a copy of them by ranks, to
    be scattered (Megatron-LM d98e8a6 core/tensor_parallel/mappings.py _reduce_scatter_along_last_dim).
    """
    act, h = recipe.activation_bytes, float(problem.model.hidden)
    saved = linear_input_bytes(recipe, problem.stack.kernels)
    stream = act * x.tokens * h * (1.0 + np.where(x.sequence_split > 1, 1.0 / x.sequence_split, 0.0))
    none = problem.stack.engine.fused_weight_gradient or problem.job.lora_rank is not None
    weight = 0.0 if none else recipe.weight_bytes
    whole = 2.0 * whole_qkv_bytes(problem, layer, x.tokens, x.t, act)
    if layer.mlp is not None:
        width = (3.0 if layer.mlp.gated else 2.0) * act - saved
        wide = layer.mlp.ffn * (x.tokens * width + weight * h) / x.t
        return stream + np.maximum(np.maximum(wide, whole), _score_gradients(problem, recipe, layer, x))
    if layer.moe is None:
        if layer.attention is None:
            return stream
        gradients = whole + sum(_attention_gradients(layer.attention, x, recipe))
        return stream + np.maximum(gradients, _score_gradients(problem, recipe, layer, x))
    rows = x.rows_for_experts(layer.moe.mean_k, problem.stack.kernels.expert_capacity)
    width = (3.0 if layer.moe.gated else 2.0) * act - saved
    routed = float(layer.moe.width(problem.model.hidden))
    local = weight * routed * layer.moe.expert_ffn * layer.moe.experts / (x.e * x.et)
    if problem.stack.communication.dispatcher is Dispatcher.ALL_GATHER:
        # gradients of the tokens of all ranks of the group, gathered and, by the experts here, made
        stream = stream + np.where(x.e * x.et > 1, 2.0 * act * routed * x.e * x.et * x.expert_tokens, 0.0)
    wide = rows * (act * routed * x.et + layer.moe.expert_ffn * width) + local
    if problem.stack.kernels.weighs_outputs_apart:
        wide = np.maximum(wide, WEIGHING_BYTES * rows * x.et * routed)
    return stream + np.maximum(wide, whole)

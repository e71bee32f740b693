"""What does a layer hold from its forward to its backward pass, and what while its passes run?

Sums and largest values over its list of operations, one value per distinct key. A moment is one between two operations:
what the layer has kept until then, tensors on their way, and weight gradients that are there already. Left out:
everything that depends on the pipeline; allocator rounding and tensors of a few bytes per layer; at the widest points
normalisations and rotations of queries and keys, and gates beside attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import linear_layers
from planner.cost.cut import LayerShape
from planner.cost.messages.sizes import whole_qkv_bytes
from planner.cost.operations.norms import NORM_WORKING, STATISTIC_BYTES, wide_norm_bytes
from planner.cost.operations.operation import Amount, Operation, Run, Shard
from planner.cost.operations.residual import gradient_stream
from planner.cost.selective import by_operations, kept_bytes
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable
from planner.spec.layer import Layer
from planner.spec.rule import Problem

Array = NDArray[np.float64]


class LayerMemory(NamedTuple):
    """Bytes kept, and at work in the backward pass: with a key's modules recomputed, and with all of them."""

    kept: Array
    kept_full: Array
    working: Array
    working_full: Array


def kept_by_part(ops: Iterable[Operation], x: LayerShape) -> dict[str, Array]:
    """Bytes that operations keep for their backward pass, by part [bytes], one value per key.

    Op by op as autograd saves them (torch eager, checked against saved tensors of real blocks), for one micro-batch on
    one rank. Dense Llama block, bf16: 8h + 4ad + 4kd + 8f + 4a + 8 bytes per token (6f with a fused activation); GPT
    block with dropout and eager attention: 34 s b h + 5 a s^2 b (Korthikanti 2022, arXiv 2205.05198, eq. 1-2). Checked
    against saved tensors in tests/cost/memory/test_activations.py.
    """
    parts: dict[str, Array] = {}
    for op in ops:
        for part, amount in op.kept.items():
            parts[part] = parts[part] + amount(x) if part in parts else amount(x)
    return parts


def layer_parts(problem: Problem, run: Run, ops: tuple[Operation, ...], x: LayerShape) -> dict[str, Array]:
    """Bytes a layer keeps for its backward pass without recomputation, by part; each adapter its narrow middle."""
    parts, job = kept_by_part(ops, x), problem.job
    if job.lora_rank is not None:
        gemms = [op.product for op in ops if op.product and not op.product.expert and job.adapts(op.name)]
        width = sum(linear_layers(gemm, problem.stack) for gemm in gemms) * job.lora_rank
        parts["adapters"] = x.tokens * width * run.act / x.sequence_split
    return parts


def layer_memory(
    problem: Problem, run: Run, layer: Layer, ops: tuple[Operation, ...], x: LayerShape, keys: ConfigTable,
    parts: dict[str, Array],
) -> LayerMemory:  # fmt: skip
    """What a layer holds whose operations keep `parts`."""
    zero, torch = np.zeros(len(keys)), problem.stack.engine.plain_autograd
    everything, freed, least = sum(parts.values(), zero), zero, parts["input"]
    for bit, name in enumerate(RECOMPUTE_MODULES):
        extra = parts.get("moe_act", zero) if name == "moe" else zero
        part = parts.get(name, zero) + extra
        freed = freed + np.where(keys["recompute_modules"] & (1 << bit) > 0, part, 0.0)
    if (operations := by_operations(keys)).any():
        freed = np.where(operations, everything - kept_bytes(problem, run, layer, ops, x, parts), freed)
    freed = np.minimum(freed, everything - least)
    released = sum(kept_by_part((op for op in ops if op.second), x).values(), zero)
    # queries, keys and values of all heads with a copy of them by ranks, to be scattered (Megatron-LM d98e8a6
    # core/tensor_parallel/mappings.py _reduce_scatter_along_last_dim)
    qkv = 2.0 * whole_qkv_bytes(problem, layer, x.tokens, x.t, run.act)
    if layer.sublayers == 1:  # or those of queries, keys, values and the output
        qkv = qkv + run.act * x.tokens * sum((sum(op.mixing(x)) for op in ops if op.mixing), zero)
    working = _largest((op.alive for op in ops), x, gradient_stream(run, x) + qkv) + dequantised_bytes(
        problem, run, ops, x
    )
    if torch:
        working = np.maximum(working, backward_peak(run, layer, ops, x, parts, released))
    working = np.maximum(working, _largest((op.alive_late for op in ops), x, released) - released)
    remade = working + everything - least
    if torch and wide_norm_bytes(run):
        remade = remade + least  # the upcast stands for the input, which the checkpoint keeps all the same
    return LayerMemory(everything - freed, least, working + freed, remade)


def _largest(amounts: Iterable[Amount | None], x: LayerShape, least: Array) -> Array:
    """The largest amount, at least `least`."""
    for amount in amounts:
        if amount is not None:
            least = np.maximum(least, amount(x))
    return least


def dequantised_bytes(problem: Problem, run: Run, ops: tuple[Operation, ...], x: LayerShape) -> Array:
    """The largest weight of a layer in 16 bits, one at a time, where weights are frozen in fewer [bytes]."""
    largest = np.zeros(len(x.t))
    if problem.job.frozen_bits < 16:
        for gemm in (op.product for op in ops if op.product is not None):
            outputs = (gemm.out_features + gemm.kv_out_features) / linear_layers(gemm, problem.stack)
            whole = gemm.shard in (Shard.COLUMN, Shard.ROW)
            split = np.where(whole, x.et if gemm.expert else x.t, 1.0)
            largest = np.maximum(largest, gemm.in_features * outputs / split)
    return run.recipe.weight_bytes * largest


def weight_gradient_bytes(
    problem: Problem, run: Run, ops: tuple[Operation, ...], x: LayerShape, kept: Array
) -> Array:
    """Held from a layer's input gradient to its weight gradient: inputs and output gradients of its products [bytes].

    A dense layer without gates, 4 h wide: 32 s b h (Qi 2023, arXiv 2401.10241, section 5.1), against 34 s b h before
    the input gradient. In 8-bit and 4-bit recipes both are kept as the product reads them. A stack that splits
    autograd's own backward frees nothing in between.
    """
    total = np.zeros(len(x.t))
    for gemm in (op.product for op in ops if op.product is not None):
        rows = x.routed_tokens * gemm.rows_per_token * x.et if gemm.expert else x.tokens
        (read, written), stream = gemm.local(x), 1.0 if gemm.expert else x.sequence_split
        read, written = (read, written / stream) if gemm.shard is Shard.ROW else (read / stream, written)
        total = total + run.saved * rows * (read + written)
    if not problem.stack.engine.plain_autograd:
        return total
    saved = 0.5 * total  # inputs of products are a part of what the graph keeps
    return np.maximum(kept + total - saved, total)


def forward_bytes(run: Run, ops: tuple[Operation, ...], x: LayerShape) -> Array:
    """Alive in the forward pass of a layer that keeps its input alone, as the second half's product or attention ends
    [bytes].

    The layer's input, the second half's, its norm; of an MLP gate, up and their product: 3 x 2 T h + 3 x 2 T f.
    """
    streams = 2.0 * run.act * run.stream(x) + run.act * x.tokens * run.hidden
    return streams + _largest((op.ahead for op in ops), x, np.zeros(len(x.t)))


def backward_peak(
    run: Run, layer: Layer, ops: tuple[Operation, ...], x: LayerShape, parts: dict[str, Array], second: Array
) -> Array:
    """The most that is alive in a layer's backward pass behind its activation, less all that it keeps, under PyTorch's
    autograd [bytes]. `second`: kept by its second half.

    Autograd walks the operations backwards; a weight's gradient stays from its product on, what an operation has kept
    goes with it. In the notation of an MLP with q, k, v apart, T tokens:
    - gate's product: the gradient of its input, those of gate and up (eager: and the other factor), 2 FFN gradients
    - up's product: gradients of both inputs, one of f, all FFN gradients
    - attention: gradients of queries, keys, values and output, all FFN gradients and the projection's
    - the last product: its input, gradients of two products' inputs and of queries, all weight gradients
    - norms of single operations: what they kept of the stream in fp32 and five more of it
    each beside the gradient of the stream. Weights are in `weight_bytes`, none where they get no gradient of their own.
    """
    act, values = run.act, run.stream(x)
    stream, gathered = act * values, act * x.tokens * run.hidden
    gradient = stream + np.where(x.sequence_split > 1, gathered, 0.0)
    half = next((op.half for op in ops if op.half is not None), None)
    mixing = next((op.mixing for op in ops if op.mixing is not None), None)
    ffn = _weights(run, (op for op in ops if op.second), x)
    first = [op for op in ops if not op.second]
    others = _weights(run, first, x)
    projection = _weights(run, (op for op in first if op.product and op.product.shard is Shard.ROW), x)
    points, norm, queries = [], np.zeros(len(x.t)), np.zeros(len(x.t))
    halves = half is not None and layer.mixes
    if half is not None:
        width, inner = half.width(x), half.inner(x)
        points.append((2.0 if half.gated else 1.0) * width + inner + ffn)
        if half.gated:
            points.append(width + inner * (3.0 - run.kernels.code.fused_activation) + ffn * (2.0 / 3.0))
    if halves and not layer.parallel:  # the second norm's input, statistics and output
        norm = stream + STATISTIC_BYTES * values / run.hidden + parts["layernorm"] / 2.0
    if mixing is not None:
        queries, outputs, pairs = (act * x.tokens * width for width in mixing(x))
        points.append(queries + outputs + pairs + ffn + projection - norm)
    total = sum(parts.values(), np.zeros(len(x.t)))
    if wide_norm_bytes(run):
        wide = (1.0 + NORM_WORKING) * wide_norm_bytes(run) * values
        kept = wide + STATISTIC_BYTES * values / run.hidden
        points += [kept + ffn - norm] if halves else []
        points.append(kept + ffn + others - (total - second))
    behind = parts["input"] + parts["residual"] + parts["layernorm"] - norm
    points.append(behind + 2.0 * gathered + queries + ffn + others - (total - second))
    return np.asarray(gradient + np.maximum.reduce(points) - second)


def _weights(run: Run, ops: Iterable[Operation], x: LayerShape) -> Array:
    """Bytes of the gradients of the weights of products."""
    total = np.zeros(len(x.t))
    for gemm in (op.product for op in ops if op.product is not None and not op.product.frozen):
        inputs, outputs = gemm.local(x)
        here = gemm.groups / x.e if gemm.expert else 1.0
        total = total + run.weight_gradient * here * inputs * outputs
    return total

"""What does the residual stream of a layer cost: one or several, sums of earlier layers, an input of the layer's own?

The sums of both branches are one operation, which stands first in a layer's list with the norms; a layer's own input
stands last. Single operations of PyTorch are counted as those of norms are (`norms.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.operations.norms import STATISTIC_BYTES
from planner.cost.operations.operation import Amount, Array, Gemm, Operation, Run, Shard, Weights, product
from planner.spec.layer import Layer, NormKind

MASK_BYTES = 1.0
SUM_PASSES: Final = 3.0
# Passes of fused kernels over residual streams, of a branch and stream: read by the product that weighs them, read for
# the branch's input, read and written as its output is added; and over what the branch reads and returns, once each.
# Left out: the 20 rounds that normalise a token's mixture, 64 bytes each.
STREAM_PASSES = (3.0, 2.0)
# Bytes that PyTorch moves of every value of the sums that a branch attends to by attention residuals: put side by side,
# cast to fp32, squared, averaged, normed, multiplied by the query, summed, weighed, summed; backward twice as many
# (Megatron-Bridge models/kimi/kimi_k3_ops.py attn_res_aggregate; torchtitan 002c4cc models/kimi_k3/model.py alike).
RESIDUAL_BYTES = 54.0
# Kept of every value of these sums: itself and normed, in fp32; and alive backward: gradients of both, of their product
# and of their sum (the same file).
RESIDUAL_KEPT = 8.0
RESIDUAL_WORKING = 16.0
# Constants of muP multiply one tensor after another, 2 passes each, forward and backward: inputs of attention and of
# the state space, keys, the state space's projections, both outputs; the gate and the MLP's output (models/falcon_h1/
# modeling_falcon_h1.py). What both mixers write is summed before the residual.
MULTIPLIED_PASSES: Final = 2.0
MULTIPLIED_LAUNCHES: Final = 4.0  # of either mixer


def gradient_stream(run: Run, x: LayerShape) -> Array:
    """Bytes of the stream's gradient, gathered, and the shard of it under sequence parallelism [bytes]."""
    return (
        run.act * x.tokens * run.hidden * (1.0 + np.where(x.sequence_split > 1, 1.0 / x.sequence_split, 0.0))
    )


def multiplied(run: Run, stream: float, values: Amount, launches: float = 0.0) -> tuple[Operation, ...]:
    """Multiplying `stream` tensors as wide as the stream, and `values` (of the cut, a token), by constants; part of
    other kernels unless operations are single."""
    if not run.single():
        return ()

    def moved(x: LayerShape) -> Array:
        return MULTIPLIED_PASSES * run.act * (stream * run.stream(x) + x.tokens * values(x))

    graph = "attn" if launches else ""
    return (Operation("multiplied", graph=graph, moved=moved, moved_back=moved, launches=launches),)


def summed_gradients(run: Run, sums: float) -> tuple[Operation, ...]:
    """Sums of the gradients of an input that several products read, pair by pair, by single operations."""
    if not run.single() or not sums:
        return ()
    passes = SUM_PASSES * run.act * sums
    return (Operation("summed", moved=lambda x: 0.0 * x.tokens, moved_back=lambda x: passes * run.stream(x)),)


def operations(layer: Layer, run: Run) -> tuple[Operation, ...]:
    """Streams of a layer of one block, what adds to them, and sums of earlier layers that its branches attend to."""
    return (*_weighed_streams(layer, run), _added(layer, run), *_attended_sums(layer, run))


def _added(layer: Layer, run: Run) -> Operation:
    """Adding the branches' outputs to the stream; keeps the layer's input and those of its further norms."""
    act, n, norms = run.act, layer.streams, max(layer.norms, 1)
    statistics = STATISTIC_BYTES * (1 if run.norm_kind is NormKind.RMS else 2)
    # of several streams all, what each branch reads of them, and what it returns, for the weights it is added with
    beside = 2.0 * layer.sublayers if n > 1 else 0.0
    each = act * (n * (norms - 1) + beside) + statistics * norms / run.hidden + run.kernels.code.stream_extra
    # an input of the layer's own, a slice of all layers' that the model makes once, and the sums that it puts side by
    # side for later layers outlast the recomputation of a whole layer
    lasting = act * n * (1 + layer.starts_stretch)
    kept: dict[str, Amount] = {
        "input": lambda x: lasting * run.stream(x) + act * x.tokens * layer.side,
        "residual": lambda x: each * run.stream(x),
    }
    if run.kernels.dropout:
        kept["dropout"] = lambda x: 2 * MASK_BYTES * run.stream(x)
    branches = layer.sublayers + (layer.side > 0)
    passes = SUM_PASSES * branches
    if n > 1 and not run.single():  # the product reads them itself
        passes = layer.sublayers * (STREAM_PASSES[0] * n + STREAM_PASSES[1])
    passes += 2.0 * run.kernels.dropout if not run.single() else SUM_PASSES * layer.mixes_twice
    back = passes if run.single() else 2.0 * passes
    return Operation(
        "residual", kept=kept, alive=lambda x: gradient_stream(run, x),
        moved=lambda x: act * passes * run.stream(x), moved_back=lambda x: act * back * run.stream(x),
    )  # fmt: skip


def _weighed_streams(layer: Layer, run: Run) -> tuple[Operation, ...]:
    """What weighs and mixes several streams at every branch: a projection of all of them in 16 bits under every recipe,
    its biases, a scale of the input's weights, of the output's and of the mixture's."""
    weights = Gemm("streams", layer.streams * run.hidden, layer.stream_weights, Shard.NONE, wide=True)
    scales = Weights(replicated=3 - layer.streams_apart)
    return (product(weights, "residual_streams", True, scales, 3 - layer.streams_apart),) * layer.sublayers


def _attended_sums(layer: Layer, run: Run) -> tuple[Operation, ...]:
    """Attention residuals: a query and a norm of the keys for every branch, over the sums of earlier layers."""
    if not layer.earlier:
        return ()
    sums, most = sum(layer.sources), max(layer.sources, default=0)
    return (
        Operation(
            "residual_attention", "attention_residuals",
            weights=Weights(replicated=2 * run.hidden * len(layer.earlier)), tensors=2 * len(layer.earlier),
            moved=lambda x: RESIDUAL_BYTES * sums * run.stream(x),
            kept={"residual": lambda x: RESIDUAL_KEPT * sums * run.stream(x)},
            alive_late=(lambda x: (run.act + RESIDUAL_WORKING * most) * run.stream(x)) if most else None,
        ),
    )  # fmt: skip

"""What do several residual streams cost that every branch sums up, mixes and adds its output to?

Left out: the 20 rounds that normalise a token's mixture, 64 bytes each.
"""

from __future__ import annotations

from typing import Final

from planner.cost.cut import LayerShape
from planner.cost.operations.operation import Array, Gemm, Operation, Run, Shard, Weights, product
from planner.cost.operations.residual import SUM_PASSES, branches
from planner.spec.layer import Layer
from planner.spec.residual import HyperConnections

# Passes of fused kernels over residual streams, of a branch and stream: read by the product that weighs them, read for
# the branch's input, read and written as its output is added; and over what the branch reads and returns, once each.
STREAM_PASSES: Final = (3.0, 2.0)


def operations(r: HyperConnections, layer: Layer, run: Run) -> tuple[Operation, ...]:
    """What weighs and mixes the streams at every branch: a projection of all of them in 16 bits under every recipe, its
    biases, a scale of the input's weights, of the output's and of the mixture's. Kept beside one stream are the others,
    what each branch reads of them, and what it returns, for the weights it is added with."""
    n, act, norms = r.count, run.act, max(layer.norms, 1)
    weights = Gemm("streams", n * run.hidden, r.weights, Shard.NONE, wide=True)
    scales = 2 + r.mixed
    beside = (n - 1) * (norms - 1) + 2.0 * layer.sublayers
    passes = 0.0  # of single operations the product reads them itself
    if not run.single():
        passes = layer.sublayers * (STREAM_PASSES[0] * n + STREAM_PASSES[1]) - SUM_PASSES * branches(layer)
    streams = Operation(
        "residual", moved=lambda x: act * passes * run.stream(x),
        kept={"input": lambda x: act * (n - 1) * run.stream(x), "residual": lambda x: act * beside * run.stream(x)},
    )  # fmt: skip
    weighed = product(weights, "residual_streams", True, Weights(replicated=scales), scales)
    return (streams, *(weighed,) * layer.sublayers)


def outer(r: HyperConnections, hidden: int) -> tuple[Operation, ...]:
    """What sums up the streams before the head: a projection, its biases, a scale."""
    n = r.count
    summed = Weights(replicated=n * (n * hidden + 1) + 1)
    gemm = Gemm("last_streams", n * hidden, n, Shard.NONE)
    return (Operation("last_streams", "residual_streams", gemm, summed),)


def kept_behind(r: HyperConnections, run: Run, x: LayerShape) -> Array:
    """Bytes that it keeps."""
    return run.act * run.stream(x) * r.count

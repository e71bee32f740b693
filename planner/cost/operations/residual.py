"""What does the residual stream of a layer cost: one, to which its branches are added?

The sums of both branches are one operation, which stands first in a layer's list with the norms; a layer's own input
stands last. Single operations of PyTorch are counted as those of norms are (`norms.py`). Left out: what several
streams, or sums of earlier layers, cost beside it (a module for each of `planner.spec.residual`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.operations.norms import STATISTIC_BYTES
from planner.cost.operations.operation import Amount, Array, Operation, Run
from planner.spec.layer import Layer, NormKind

MASK_BYTES = 1.0
SUM_PASSES: Final = 3.0
# Constants of muP multiply one tensor after another, 2 passes each, forward and backward: inputs of attention and of
# the state space, keys, the state space's projections, both outputs; the gate and the MLP's output (models/falcon_h1/
# modeling_falcon_h1.py). What both mixers write is summed before the residual.
MULTIPLIED_PASSES: Final = 2.0
MULTIPLIED_LAUNCHES: Final = 4.0  # of either mixer


def gradient_stream(run: Run, x: LayerShape) -> Array:
    """Bytes of the stream's gradient, gathered, and the shard of it under sequence parallelism [bytes]."""
    return (
        run.stream_act
        * x.tokens
        * run.hidden
        * (1.0 + np.where(x.sequence_split > 1, 1.0 / x.sequence_split, 0.0))
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


def branches(layer: Layer) -> int:
    """Outputs that are added to the stream."""
    return layer.sublayers + (layer.side > 0)


def operations(layer: Layer, run: Run) -> tuple[Operation, ...]:
    """Adding the branches' outputs to the stream of a layer of one block; keeps the layer's input and those of its
    further norms. An input of the layer's own, a slice of all layers' that the model makes once, outlasts the
    recomputation of a whole layer."""
    act, norms = run.stream_act, max(layer.norms, 1)
    statistics = STATISTIC_BYTES * (1 if run.norm_kind is NormKind.RMS else 2)
    each = act * (norms - 1) + statistics * norms / run.hidden + run.kernels.code.stream_extra
    kept: dict[str, Amount] = {
        "input": lambda x: act * run.stream(x) + act * x.tokens * layer.side,
        "residual": lambda x: each * run.stream(x),
    }
    if run.kernels.dropout:
        kept["dropout"] = lambda x: 2 * MASK_BYTES * run.stream(x)
    passes = SUM_PASSES * branches(layer)
    passes += 2.0 * run.kernels.dropout if not run.single() else SUM_PASSES * layer.mixes_twice
    back = passes if run.single() else 2.0 * passes
    added = Operation(
        "residual", kept=kept, alive=lambda x: gradient_stream(run, x),
        moved=lambda x: act * passes * run.stream(x), moved_back=lambda x: act * back * run.stream(x),
    )  # fmt: skip
    return (added,)

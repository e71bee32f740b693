"""What do residual streams cost that predict one another, and a residual of low rank beside attention (Gemma 3n)?

As transformers 5.17 runs them (models/gemma3n/modeling_gemma3n.py Gemma3nTextAltUp, Gemma3nTextLaurelBlock), checked
against what PyTorch dispatches and saves (tests/cost/operations/test_altup.py). Left out: numbers of a token that are
no wider than streams are many; what bringing streams to one magnitude, before all layers and behind them, moves.
"""

from __future__ import annotations

from typing import Final

from planner.cost.cut import LayerShape
from planner.cost.operations.norms import STATISTIC_BYTES, eager_norm_bytes, run_norm_bytes
from planner.cost.operations.operation import Array, Gemm, Operation, Run, Shard, Weights, product
from planner.cost.operations.residual import SUM_PASSES
from planner.spec.layer import Layer
from planner.spec.residual import AltUp

NORMS: Final = 3  # of the stream that is predicted from, of what was made of it, of the residual of low rank
# Passes over one stream, and over every other one, beside these norms. In single operations, forward: routers' inputs
# scaled 4, the error 3 and a copy 2, the corrected stream copied and scaled 4, the residual of low rank 3 and both sums
# 5, less what a side input adds to one stream; of each stream the product of all 2, sums 3 and 3, its layout 2, the
# error's copy 1 and product 2, the side input 3 and a copy 2; backward as PyTorch dispatches them. Fused: every stream
# read to be predicted, written, read to be corrected, written, read and written for the side input; twice as many
# backward.
PASSES: Final = {True: ((26.0, 18.0), (78.0, 82.0)), False: ((9.0, 6.0), (18.0, 12.0))}
LAUNCHES: Final = (12.0, 57.0)  # forward
# Streams of gradients at work where streams are corrected: of what comes out, of the error times its weights, of it.
GRADIENTS: Final = 3.0


def operations(r: AltUp, layer: Layer, run: Run) -> tuple[Operation, ...]:
    """A router of the stream that is computed on, before and behind the branches, coefficients of predictions and
    corrections, the product that predicts, a scale of the corrected stream; the residual of low rank.

    Kept beside one stream are the others, the error once for each, what routers and their norms read, the corrected
    stream before its scale, what the norm of low rank reads, and its narrow middle.
    """
    n, h, act = r.count, run.hidden, run.act
    ahead, back = PASSES[run.single()]
    norm = run_norm_bytes(run) if run.single() else (SUM_PASSES * act, 2.0 * SUM_PASSES * act)
    each = NORMS * (act + STATISTIC_BYTES / h + eager_norm_bytes(run)) + act * (n + 2 + 1)

    def moved(x: LayerShape, i: int, passes: tuple[float, float]) -> Array:
        return (act * (passes[0] + (n - 1) * passes[1]) + NORMS * norm[i]) * run.stream(x)

    streams = Operation(
        "residual", "residual_streams", weights=Weights(replicated=3 * h), tensors=3,
        flops=lambda batch, seq: batch * seq * 2 * h * n * n, launches=run.launches(*LAUNCHES),
        moved=lambda x: moved(x, 0, ahead), moved_back=lambda x: moved(x, 1, back),
        kept={
            "input": lambda x: act * (n - 1) * run.stream(x),
            "residual": lambda x: each * run.stream(x) + act * r.rank * x.tokens,
        },
        alive=lambda x: act * GRADIENTS * n * run.stream(x),
    )  # fmt: skip
    kind = "residual_streams"
    return (
        streams,
        product(Gemm("altup_router", h, n, Shard.NONE, rows_per_token=2), kind),
        product(Gemm("altup_predict", n, n * n, Shard.NONE), kind),
        product(Gemm("altup_correct", n, n, Shard.NONE), kind),
        product(Gemm("laurel_left", h, r.rank, Shard.NONE), kind),
        product(Gemm("laurel_right", r.rank, h, Shard.NONE), kind),
    )


def outer(r: AltUp, hidden: int) -> tuple[Operation, ...]:
    """What makes the other streams of the embedding, and brings them back before the head."""
    made = Gemm("altup_streams", hidden, (r.count - 1) * hidden, Shard.NONE)
    back = Gemm("altup_last", hidden, (r.count - 1) * hidden, Shard.NONE)
    return product(made, "embedding"), product(back, "residual_streams")


def kept_behind(r: AltUp, run: Run, x: LayerShape) -> Array:
    """Bytes kept: streams behind all layers, and what both ends made of the others, before and behind their division by
    a magnitude."""
    return run.act * run.stream(x) * (r.count + 4 * (r.count - 1))

"""What does an input of a layer's own cost, which multiplies a narrow projection behind the MLP (Gemma 4)?

Left out: how the model makes it (`embedding_and_loss.py`).
"""

from __future__ import annotations

from planner.cost.operations.mlp import ACTIVATION_PASSES, LAUNCHES
from planner.cost.operations.operation import Gemm, Operation, Run, Shard, product


def operations(side: int, run: Run) -> tuple[Operation, ...]:
    """A gate, the product with the input, `side` wide, and the projection back, whole on every rank.

    Kept are the gate's input, its output, the product; activated, if eager.
    """
    act, saved = run.act, run.saved
    width = act * (1.0 + (not run.kernels.code.fused_activation)) + saved
    passes = ACTIVATION_PASSES[True] if run.single() else (3.0, 6.0)
    return (
        product(
            Gemm("side_gate", run.hidden, side, Shard.NONE), "layer_inputs", launches=run.launches(*LAUNCHES)
        ),
        Operation(
            "side",
            moved=lambda x: act * passes[0] * x.tokens * side,
            moved_back=lambda x: act * passes[1] * x.tokens * side,
            kept={"side": lambda x: saved * run.stream(x) + x.tokens * side * width},
        ),
        product(Gemm("side_out", side, run.hidden, Shard.NONE), "layer_inputs"),
    )

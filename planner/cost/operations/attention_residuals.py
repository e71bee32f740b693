"""What does attention cost by which a branch reads the sums of earlier stretches of layers?"""

from __future__ import annotations

from planner.cost.cut import LayerShape
from planner.cost.operations.operation import Array, Operation, Run, Weights
from planner.spec.layer import Layer
from planner.spec.residual import AttentionResiduals

# Bytes that PyTorch moves of every value of the sums that a branch attends to by attention residuals: put side by side,
# cast to fp32, squared, averaged, normed, multiplied by the query, summed, weighed, summed; backward twice as many
# (Megatron-Bridge models/kimi/kimi_k3_ops.py attn_res_aggregate; torchtitan 002c4cc models/kimi_k3/model.py alike).
RESIDUAL_BYTES = 54.0
# Kept of every value of these sums: itself and normed, in fp32; and alive backward: gradients of both, of their product
# and of their sum (the same file).
RESIDUAL_KEPT = 8.0
RESIDUAL_WORKING = 16.0


def operations(r: AttentionResiduals, layer: Layer, run: Run) -> tuple[Operation, ...]:
    """A query and a norm of the keys for every branch. Sums that a layer puts side by side for later ones outlast its
    recomputation."""
    sums, most, lasting, count = sum(r.sources), max(r.sources, default=0), r.starts_stretch, len(r.earlier)
    return (
        Operation(
            "residual_attention", "attention_residuals",
            weights=Weights(replicated=2 * run.hidden * count), tensors=2 * count,
            moved=lambda x: RESIDUAL_BYTES * sums * run.stream(x),
            kept={
                "input": lambda x: run.act * lasting * run.stream(x),
                "residual": lambda x: RESIDUAL_KEPT * sums * run.stream(x),
            },
            alive_late=(lambda x: (run.act + RESIDUAL_WORKING * most) * run.stream(x)) if most else None,
        ),
    )  # fmt: skip


def outer(r: AttentionResiduals, hidden: int) -> tuple[Operation, ...]:
    """What sums up the stretches of layers before the head: a query, a norm of keys."""
    kind = "attention_residuals"
    return (Operation(kind, kind, weights=Weights(replicated=2 * hidden)),)


def kept_behind(r: AttentionResiduals, run: Run, x: LayerShape) -> Array:
    """Bytes that it keeps."""
    return RESIDUAL_KEPT * run.stream(x) * max(r.sources, default=0)

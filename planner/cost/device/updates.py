"""Of how many tensors does a rank hold a part that its optimizer updates?

The host handles them one by one: Megatron-Core's distributed optimizer keeps an fp32 shard of every tensor that reaches
into the rank's part of a bucket, sets its gradient, lists it for the update and copies it back (d98e8a6
core/optimizer/distrib_optimizer.py `_copy_model_grads_to_main_grads`, `_copy_main_params_to_model_params`; Transformer
Engine's FusedAdam.step). Left out: loops over all of a rank's parameters that launch nothing; which tensors the stages
of an uneven split hold (the mean counts); that experts and the rest have buckets of their own where both are few.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.operations.lists import layer_gemms, model_operations
from planner.spec.layer import Layer
from planner.spec.rule import Problem

Array = NDArray[np.float64]

# Parameters of a bucket: 40 million, or a million times the data-parallel degree where that is more (core/distributed/
# distributed_data_parallel.py).
BUCKET: Final = 40e6
BUCKET_PER_RANK: Final = 1e6
OUTER_TENSORS: Final = 3  # embedding, the norm before the head, the head


def layer_tensors(layer: Layer, hidden: int) -> tuple[int, int]:
    """Trained tensors of one layer, as Megatron-Core's modules hold them, queries, keys and values being one product:
    of all experts, and the rest [1]."""
    ops = model_operations(layer, hidden)
    experts = sum(op.tensors for op in ops if op.product is not None and op.product.expert)
    return experts, sum(op.tensors for op in ops) - experts


def trained_tensors(problem: Problem) -> tuple[int, int]:
    """Trained tensors of the model: of experts, and the rest; of adapters two a linear layer [1]."""
    model, kinds = problem.model, problem.model.layer_kinds
    if problem.job.lora_rank is not None:
        adapted = [
            sum(2 for gemm in layer_gemms(kind, model.hidden) if problem.adapts(gemm.name, gemm.expert))
            for kind in kinds
        ]
        return 0, sum(adapted[kind] for kind in model.layer_kind_of)
    each = [layer_tensors(kind, model.hidden) for kind in kinds]
    counts = [*((kind, 1) for kind in model.layer_kind_of), *model.mtp_kinds]
    outer = OUTER_TENSORS + (model.rotary_scales > 0)
    return sum(n * each[kind][0] for kind, n in counts), outer + sum(n * each[kind][1] for kind, n in counts)


def pieces(tensors: Array, ranks: Array, buckets: Array) -> Array:
    """Tensors, or parts of one, that a rank updates where `ranks` share each of so many buckets of them [1].

    n/r + min(B, n) (1 - 1/r): every r-th tensor, and at either end of its part of a bucket half a tensor that it shares
    with a neighbour. All n alone (r = 1) and where every tensor has its own bucket (B = n).
    """
    return tensors / ranks + np.minimum(buckets, tensors) * (1.0 - 1.0 / ranks)


def buckets_of(parameters: Array, dp: Array, chunks: Array, overlapped: bool) -> Array:
    """Buckets of so many parameters of a first stage [1]: its first chunk is cut where reductions start under the
    backward pass, every other chunk is one (DistributedDataParallel, disable_bucketing)."""
    size = np.maximum(BUCKET, BUCKET_PER_RANK * dp)
    first = np.maximum(parameters / chunks / size, 1.0) if overlapped else np.ones_like(parameters)
    return first + chunks - 1.0

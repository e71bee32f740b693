"""How long does a step take: which exposed terms, summed?

`step_time` is by definition the sum of its named terms. Rows are candidates. Left out: input pipeline and
evaluation; checkpoints and failures belong to the whole run.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.stack import Communication

Array = NDArray[np.float64]

STEP_TERMS: Final = (
    "gemm", "attention", "memory_bound", "tp_comm", "cp_comm", "ep_comm", "recompute", "host_bound",
    "embedding_and_loss", "pipeline_bubble", "pp_comm", "dp_comm", "optimizer", "host_transfer", "step_overhead",
    "stragglers",
)  # fmt: skip

FORWARD_SHARE: Final = 1 / 3


def exposed_data_parallel(
    scatter: Array, gather: Array, stage_time: Array, microbatches: Array, zero: Array, layers: Array,
    buckets: Array, ranks: Array, comm: Communication,
) -> Array:  # fmt: skip
    """Seconds of gradient and parameter collectives that compute does not hide.

    ZeRO 0 and 1: once a step, gradients hidden by the last micro-batch's backward (2/3 of `stage_time`) and
    parameters by the first forward (1/3), each as far as `dp_overlap` says; the last of `layers` pieces never
    is. ZeRO 2 likewise where the stack accumulates first. Else ZeRO 2 and 3: in every micro-batch, layer by layer:
    gather under forward, gather (ZeRO 3) and scatter under backward, as far as `fsdp_overlap` says, the first
    layer's gather never. Plus `bucket_latency` per bucket and
    rank. `scatter`, `gather`: seconds for all of a stage's gradients, parameters.
    """
    forward, backward = FORWARD_SHARE * stage_time, (1 - FORWARD_SHARE) * stage_time
    once = np.maximum(scatter - comm.dp_overlap * backward, scatter / layers)
    once = once + np.where(zero >= 1, np.maximum(gather - comm.dp_overlap * forward, gather / layers), 0.0)
    again = gather * (zero >= 3)
    each = np.maximum(gather - comm.fsdp_overlap * forward, gather / layers)
    each = each + np.maximum(again + scatter - comm.fsdp_overlap * backward, scatter / layers)
    exposed = np.where(zero >= (2 if comm.reduce_per_microbatch else 3), microbatches * each, once)
    return np.where(ranks > 1, exposed + comm.bucket_latency * buckets * (ranks - 1), 0.0)


def straggling(subtotal: Array, nodes: float, comm: Communication) -> Array:
    """Seconds lost to the slowest of many nodes: a fixed share of the step per doubling of nodes.

    0.9 % per doubling fitted on Megatron runs; 0 to 5 % from the smallest run to 2,048 GPUs measured in bf16.
    """
    return subtotal * comm.slowdown_per_doubling * np.log2(max(nodes, 1.0))

"""Which cached blocks lie idle at the peak, so that a counter of reserved memory shows more than is in use?

Short of memory the allocator returns them (torch c10/cuda/CUDACachingAllocator.cpp, malloc: release_cached_blocks and
another try), so that no verdict counts them. Left out: blocks that fit badly, a share of what is in use
(`Overhead.fragmentation`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.levels import Layers
from planner.cost.operations.lists import layer_gemms
from planner.cost.pipeline.stages import StageClasses
from planner.spec.config import ConfigTable
from planner.spec.rule import Problem
from planner.spec.stack import Stack

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Launches that a stream takes before the host waits: about a thousand (measured by users: NVIDIA's developer forum,
# topic 68937, and Stack Overflow 53970187).
LAUNCH_QUEUE: Final = 1024.0
# Of a layer, of 2 h bytes a token: outputs of row-parallel products and, back, gradients of the inputs of
# column-parallel ones, all whole; and what collectives left of them or read, in shards of tp.
WHOLE_BLOCKS: Final = 2.0
SHARDS_AHEAD: Final = 1.0
SHARDS_BACK: Final = 3.0
# A host this much slower than its device by the soft maximum of both [1]; equal ones give 1.11.
HOST_BEHIND: Final = 1.25


def idle_blocks(
    stack: Stack, table: ConfigTable, layers: Layers, l_row: Index, held: Array, depth: Array, gathered: Array,
) -> Array:  # fmt: skip
    """Blocks that wait for the communication stream (n, C) [bytes].

    A block that a collective read is free once the collective is over (record_stream); until then every further layer
    that the host launches takes new ones. Reserved memory never shrinks, so that one wait of the device, as for a
    slower rank in the first step, shows for good: as many layers as the launch queue holds. With a pipeline the host
    waits for messages too: it runs that far ahead only of a device that is slower than it, else by the forward passes
    that fill the pipeline. `held`: micro-batches in flight, `depth`: layers of a stage (n, C); `gathered` (n,): values
    of the gathered stream where tp > 1. Checked on nanotron's published peaks: 44 to 54 whole blocks on 1B to 80B.
    """
    kernels = stack.kernels
    if not kernels.deferred_bytes:
        return np.zeros_like(held)
    t, many = table["tp"].astype(float)[:, None], table["num_microbatches"][:, None] > 1
    ahead, back = WHOLE_BLOCKS + SHARDS_AHEAD / t, WHOLE_BLOCKS + SHARDS_BACK / t
    forward, both = kernels.launches_forward, kernels.launches_forward + kernels.launches_backward
    rest = np.maximum(LAUNCH_QUEUE - forward * depth, 0.0) / kernels.launches_backward
    alone = ahead * np.minimum(LAUNCH_QUEUE / forward, depth) + many * back * np.minimum(rest, depth)
    filling = ahead * np.minimum(np.maximum(held - 2.0, 0.0) * depth, LAUNCH_QUEUE / forward)
    pairs = np.minimum(LAUNCH_QUEUE / both, (held + 1.0) / 2.0 * depth)
    busy = np.where(many, (ahead + back) * pairs, ahead * depth)
    device = layers.terms.sum(axis=(0, 1))
    behind = (layers.time.sum(axis=0) > HOST_BEHIND * device)[l_row]
    piped = np.where(behind[:, None], filling, busy)
    count = np.where(table["pp"][:, None] > 1, piped, alone)
    return np.asarray(count * (kernels.deferred_bytes * gathered)[:, None])


def lone_gradient(
    problem: Problem, table: ConfigTable, values: Array, outer: Array, classes: StageClasses, c_row: Index, width: float
) -> Array:  # fmt: skip
    """The embedding's gradient on a first stage without logits (n, C) [bytes].

    It comes and goes with every micro-batch, and no block of activations is large enough for it where the vocabulary
    is larger than what a layer writes at once, so that its own lies idle at the peak. `values` (n,): of the whole
    stream, `outer` (n, C): parameters outside layers. `width`: of a gradient [bytes].
    """
    if not problem.stack.states.late_gradient:
        return np.zeros_like(outer)
    hidden = problem.model.hidden
    columns = max((gemm.out_features + gemm.kv_out_features for kind in problem.model.layer_kinds
                   for gemm in layer_gemms(kind, hidden)), default=0)  # fmt: skip
    largest = values / hidden * columns / table["tp"]
    there = (classes.first[c_row] > 0) & (classes.last[c_row] == 0)
    embedding = np.where(there, outer, 0.0)
    return np.where(embedding > largest[:, None], width * embedding, 0.0)

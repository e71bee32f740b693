"""What do ranks under nanotron hold: fp32 gradients beside bf16 ones, and which cached blocks lie idle at the peak?

A counter of reserved memory shows idle blocks too. Short of memory the allocator returns them (torch
c10/cuda/CUDACachingAllocator.cpp, malloc: release_cached_blocks and another try), so that no verdict counts them. Left
out: blocks that fit badly, a share of what is in use (`Overhead.fragmentation`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.contiguous import LastingEngine
from planner.cost.levels import Layers
from planner.cost.memory.moments import MemoryInputs
from planner.cost.operations.lists import layer_gemms
from planner.cost.pipeline.stages import StageClasses
from planner.spec.config import ConfigTable
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem
from planner.spec.stack.engines import Nanotron

Array = NDArray[np.float64]
Index = NDArray[np.intp]

ACCUMULATED: Final = 4.0  # bytes of the fp32 gradient
LATE: Final = 2.0  # bytes of bf16 gradients and weights
GATHER_BUFFERS: Final = 4.0  # MemoryBuffer "allgather" and "allgather2" in bf16 [bytes per hidden value]
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


class NanotronEngine(LastingEngine[Nanotron]):
    """Gradients in bf16 grow through a micro-batch's backward pass, lie in buckets of PyTorch's DDP
    (gradient_as_bucket_view off) and are added to the fp32 ones behind it (FP32GradientAccumulator.backward). Updated
    weights are gathered into a copy of all (all_gather_coalesced flattens them). Read in huggingface/nanotron, branch
    nouamane/bench2."""

    logs_first_stage = True
    logs_fragmentation = False  # runs that returned their idle blocks show none
    gather_buffer_bytes = GATHER_BUFFERS

    @property
    def second_gradient(self) -> float:
        return ACCUMULATED

    def reduction_buffer(self, zero: Array) -> Array | float:
        return LATE

    def late_gradients(self, x: MemoryInputs) -> dict[str, Array]:
        unreduced = x.trained * LATE
        return {"late_gradients": unreduced * (x.dense + x.expert)} if unreduced else {}

    def gathered_copies(self, x: MemoryInputs) -> Array | None:
        copies = ((x.zero >= 1) & (x.zero <= 2) & (x.shards > 1))[:, None] * LATE
        return np.asarray(copies * (x.dense + x.expert))

    def waiting_blocks(
        self, table: ConfigTable, layers: Layers, l_row: Index, held: Array, depth: Array, gathered: Array
    ) -> Array:
        """Blocks that wait for the communication stream (n, C) [bytes].

        A block that a collective read is free once the collective is over (record_stream); until then every further
        layer that the host launches takes new ones. Reserved memory never shrinks, so that one wait of the device, as
        for a slower rank in the first step, shows for good: as many layers as the launch queue holds. With a pipeline
        the host waits for messages too: it runs that far ahead only of a device that is slower than it, else by the
        forward passes that fill the pipeline. `held`: micro-batches in flight, `depth`: layers of a stage (n, C);
        `gathered` (n,): values of the gathered stream where tp > 1. Checked on nanotron's published peaks: 44 to 54
        whole blocks on 1B to 80B.
        """
        states = self.states
        if not states.deferred_bytes:
            return np.zeros_like(held)
        t, many = table["tp"].astype(float)[:, None], table["num_microbatches"][:, None] > 1
        ahead, back = WHOLE_BLOCKS + SHARDS_AHEAD / t, WHOLE_BLOCKS + SHARDS_BACK / t
        forward, both = states.launches_forward, states.launches_forward + states.launches_backward
        rest = np.maximum(LAUNCH_QUEUE - forward * depth, 0.0) / states.launches_backward
        alone = ahead * np.minimum(LAUNCH_QUEUE / forward, depth) + many * back * np.minimum(rest, depth)
        filling = ahead * np.minimum(np.maximum(held - 2.0, 0.0) * depth, LAUNCH_QUEUE / forward)
        pairs = np.minimum(LAUNCH_QUEUE / both, (held + 1.0) / 2.0 * depth)
        busy = np.where(many, (ahead + back) * pairs, ahead * depth)
        device = layers.terms.sum(axis=(0, 1))
        behind = (layers.time.sum(axis=0) > HOST_BEHIND * device)[l_row]
        piped = np.where(behind[:, None], filling, busy)
        count = np.where(table["pp"][:, None] > 1, piped, alone)
        return np.asarray(count * (states.deferred_bytes * gathered)[:, None])

    def lone_gradient(
        self, problem: Problem, table: ConfigTable, classes: StageClasses, c_row: Index, values: Array,
        outer: Array,
    ) -> Array:  # fmt: skip
        """The embedding's gradient on a first stage without logits (n, C) [bytes].

        It comes and goes with every micro-batch, and no block of activations is large enough for it where the
        vocabulary is larger than what a layer writes at once, so that its own lies idle at the peak. `values` (n,): of
        the whole stream, `outer` (n, C): parameters outside layers.
        """
        hidden = problem.model.hidden
        columns = max((gemm.out_features + gemm.kv_out_features for kind in problem.model.layer_kinds
                       for gemm in layer_gemms(kind, hidden)), default=0)  # fmt: skip
        largest = values / hidden * columns / table["tp"]
        there = (classes.first[c_row] > 0) & (classes.last[c_row] == 0)
        embedding = np.where(there, outer, 0.0)
        return np.where(
            embedding > largest[:, None], RECIPES[problem.job.precision].weight_bytes * embedding, 0.0
        )

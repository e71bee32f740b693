"""What does every engine answer? Bytes between steps, moments of a step, what is gathered and updated when.

The defaults are those of an engine that does nothing of its own. Left out: seconds of collectives (`cost/shards.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from planner.cost.levels import Layers
from planner.cost.memory.moments import MemoryInputs, Moment
from planner.cost.memory.state_bytes import StateBytes
from planner.cost.pipeline.stages import StageClasses
from planner.spec.config import ConfigTable
from planner.spec.job import Job, Optimizer
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.engines import States

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Settings = TypeVar("Settings", bound=States)


class Engine(ABC, Generic[Settings]):
    """Binds the engine of a stack to its settings."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.states = stack, cast(Settings, stack.engine)

    def state_bytes(self, zero: Array, shards: Array, replicas: Array, job: Job) -> StateBytes:
        """Bytes per parameter that a rank holds between steps [bytes/parameter].

        weights w, gradients g, master and moments o; `shards` N ranks share what ZeRO shards:
        stage 0: w + g + o; 1: w + g + o/N; 2: w + (g + o)/N; 3: (w + g + o)/N (Rajbhandari 2020, arXiv 1910.02054,
        figure 1). Megatron with bf16 and fp32 gradients: 18, or 6 + 12/N with the distributed optimizer. An engine
        that shards fp32 weights and casts them when it gathers keeps no low-precision shard (FSDP2: 16/N), and gathers
        weights in stage 2 too, from forward to backward. Pure bf16 has no master: 2 + 2 + 4 with AdamW.
        """
        states, weight = self.states, RECIPES[job.precision].weight_bytes
        moments, master = states.moment_bytes(job.optimizer), states.master_bytes(weight)
        one = np.ones_like(shards)
        kept = weight if states.low_precision_shard or not master else 0.0
        gradient = states.gradient + self.second_gradient
        return StateBytes(
            np.where(states.weights_sharded(zero), kept / shards, weight * one),
            np.where(zero >= 2, gradient / shards, gradient * one),
            np.where(zero >= 1, (master + moments) / shards, (master + moments) * one),
            np.where(replicas > 1, self.reduction_buffer(zero), 0.0) * one,
        )

    @property
    def second_gradient(self) -> float:
        """A gradient kept beside the one that is updated [bytes/parameter]."""
        return 0.0

    def reduction_buffer(self, zero: Array) -> Array | float:
        """What stays of buckets between steps where replicas sum gradients [bytes/parameter]."""
        return 0.0

    def on_device(self, x: StateBytes, offload: NDArray[np.int32]) -> StateBytes:
        """What remains of the states on the device when others live on the host: `offload`, bit 1 optimizer states, bit
        2 parameters (those gathered are counted apart)."""
        optimizer, parameters = (offload & 1) > 0, (offload & 2) > 0
        return StateBytes(
            np.where(parameters, 0.0, x.weights),
            np.where(self.gradients_follow(optimizer, parameters), 0.0, x.gradients),
            np.where(optimizer, 0.0, x.optimizer),
            x.buffers,
        )

    def gradients_follow(
        self, optimizer: NDArray[np.bool_], parameters: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Where gradients leave the device too, with optimizer states or parameters that do (n,)."""
        return np.zeros_like(optimizer)

    @abstractmethod
    def moments(self, x: MemoryInputs, every: bool) -> list[Moment]:
        """The moments of a step at which memory can peak, or `every` one that a report names."""

    # Is the first stage's memory logged? Does reserved memory show what fits badly? Not where idle blocks are counted
    # one by one, so that it tells only what cannot be used once they are returned.
    logs_first_stage = False
    logs_fragmentation = True
    gather_buffer_bytes = 0.0  # per hidden value of the gathered stream in buffers made once (tp > 1)

    def waiting_blocks(
        self, table: ConfigTable, layers: Layers, l_row: Index, held: Array, depth: Array, gathered: Array
    ) -> Array:
        """Blocks that wait for the communication stream, which a counter of reserved memory shows (n, C) [bytes].
        `held`: micro-batches in flight, `depth`: layers of a stage (n, C); `gathered` (n,): values of the gathered
        stream where tp > 1."""
        return np.zeros_like(held)

    def lone_gradient(
        self, problem: Problem, table: ConfigTable, classes: StageClasses, c_row: Index, values: Array,
        outer: Array,
    ) -> Array:  # fmt: skip
        """An embedding's gradient whose block lies idle at the peak (n, C) [bytes]. `values` (n,): of the whole stream,
        `outer` (n, C): parameters outside layers."""
        return np.zeros_like(outer)

    def stage_buffers(
        self, table: ConfigTable, layers: Layers, l_row: Index, ends: tuple[Array, Array], in_flight: Array
    ) -> Array:
        """Buffers between stages of a pipeline beyond a layer's own input, made once (n, C) [bytes]. `ends`: whether a
        stage is the first, and the last."""
        return np.zeros_like(in_flight)

    def gradients_wait(self, table: ConfigTable, in_flight: Array) -> NDArray[np.bool_]:
        """Where gradients exist with most micro-batches in flight (n, C): of earlier ones, so not where all are."""
        return np.asarray(table["num_microbatches"][:, None] > in_flight * (1 + 1e-9))

    def idle_gathers(self, x: MemoryInputs) -> Array | float:
        """Blocks of gathers and of the last step's gradients that lie idle at the loss (n, C) [bytes]."""
        return 0.0

    def whole_at_work(self, problem: Problem, table: ConfigTable) -> tuple[Array, NDArray[np.bool_]] | None:
        """What a parameter takes at least beyond shards while a layer's backward pass runs with as many micro-batches
        in flight as ever, and where sharded gradients are there then (n,) [bytes/parameter]; None: nothing of its own.
        """
        return None

    def update_bytes(self, job: Job) -> float:
        """Temporaries of the update per parameter of a rank [bytes/parameter]."""
        return self.states.optimizer_transient

    def update_traffic(self, optimizer: Optimizer) -> float:
        """Device memory that an update moves [bytes per locally updated parameter]."""
        return self.states.step_bytes(optimizer)

    def host_traffic(self, optimizer: Optimizer) -> float:
        """Host memory that an update there moves [bytes/parameter]."""
        return self.states.step_bytes(optimizer)

    def copied_to_host(self, weight_bytes: float) -> float:
        """Copied over the host's link for an update there: the gradient out, the weight back, each as wide as the
        device has it [bytes per locally updated parameter] (Megatron-LM d98e8a6 core/optimizer/cpu_offloading/
        hybrid_optimizer.py)."""
        return self.states.gradient + weight_bytes

    def sums_on_host(self, microbatches: Array, reduces_last: NDArray[np.bool_]) -> Array:
        """How often in a step a host adds a gradient to those that it holds (n,) [1]."""
        return np.zeros_like(microbatches)

    def collectives(self, table: ConfigTable, again: Array) -> tuple[Array, Array]:
        """Reductions of gradients and gathers of sharded weights in a step (n,); `again`: gathers for the backward pass
        over those for the forward pass [1]."""
        zero, m = table["zero"], table["num_microbatches"].astype(float)
        every = zero >= self.states.reduced_in_each_from
        return np.where(every, m, 1.0), np.where(zero >= 3, (1.0 + again) * m, 0.0)

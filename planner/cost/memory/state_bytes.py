"""How many bytes does a parameter cost a rank between steps: weights, gradients, optimizer states, buffers?

Left out: parameters in 8 bits (`cost/params_fp8.py`) and what exists only within a step (`memory/moments.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.spec.job import Job
from planner.spec.precision import RECIPES
from planner.spec.stack import Stack
from planner.spec.stack.kinds import StateEngine

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StateBytes:
    """Bytes that one parameter of a rank costs, per candidate (n,): see `state_bytes`."""

    weights: Array
    gradients: Array
    optimizer: Array
    buffers: Array

    @property
    def total(self) -> Array:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def weights_sharded(zero: Array, engine: StateEngine) -> NDArray[np.bool_]:
    """Where parameters lie in shards between steps: from stage 3 on, FSDP2's from stage 2."""
    return np.asarray(zero >= (2 if engine is StateEngine.TORCH else 3))


def shard_groups(hybrid: Array, replicas: Array, expert_replicas: Array) -> tuple[Array, Array]:
    """Ranks that share what ZeRO shards of dense and of expert parameters (n,) [1].

    All replicas, or groups of `hybrid` of them where it is above 0 (hybrid sharding), with as many copies of either
    kind: N and N_e/(R/N), at least 1 (torchtitan's mesh of experts within a replica; Megatron-LM
    --num-distributed-optimizer-instances, core/parallel_state.py).
    """
    shared = np.where(hybrid > 0, np.minimum(hybrid, replicas), replicas)
    return shared, np.where(hybrid > 0, np.maximum(expert_replicas * shared / replicas, 1.0), expert_replicas)


def state_bytes(
    zero: Array, shards: Array, replicas: Array, stack: Stack, job: Job, casts_listed: bool = False
) -> StateBytes:
    """Bytes per parameter that a rank holds between steps [bytes/parameter].

    weights w, gradients g, master and moments o; `shards` N ranks share what ZeRO shards:
    stage 0: w + g + o; 1: w + g + o/N; 2: w + (g + o)/N; 3: (w + g + o)/N (Rajbhandari 2020, arXiv 1910.02054,
    figure 1). Megatron with bf16 and fp32 gradients: 18, or 6 + 12/N with the distributed optimizer. A stack
    that shards fp32 weights and casts them when it gathers keeps no low-precision shard (FSDP2: 16/N), and gathers
    weights in stage 2 too, from forward to backward. Pure bf16 has no master: 2 + 2 + 4 with AdamW. PyTorch's DDP sums
    copies of the gradients, in buckets that stay (torch nn/parallel/distributed.py gradient_as_bucket_view=False).
    `casts_listed`: copies in low precision are counted with activations.
    """
    states, recipe = stack.states, RECIPES[job.precision]
    moments = states.moment_bytes(job.optimizer)
    weight = recipe.weight_bytes
    one = np.ones_like(shards)
    master = states.master if weight < 4 else 0.0
    shard_weight = weight if states.low_precision_shard or not master else 0.0
    weights = np.where(
        weights_sharded(zero, states.engine), shard_weight / shards, weight * one * (not casts_listed)
    )
    gradient = states.gradient + states.gradient_accumulator
    gradients = np.where(zero >= 2, gradient / shards, gradient * one)
    optimizer = np.where(zero >= 1, (master + moments) / shards, (master + moments) * one)
    buckets = (zero == 0) * states.gradient if states.engine is StateEngine.TORCH else 0.0
    buffers = np.where(replicas > 1, states.dp_buffer + buckets, 0.0) * one
    return StateBytes(weights, gradients, optimizer, buffers)


def on_device(x: StateBytes, offload: NDArray[np.int32], engine: StateEngine) -> StateBytes:
    """What remains of the states on the device when others live on the host.

    `offload`: bit 1 optimizer states (DeepSpeed offload_optimizer takes the gradients along, as its bucket is copied
    out when it is full; FSDP's CPU offload takes everything), bit 2 parameters (offload_param; those gathered are
    counted apart).
    """
    optimizer, parameters = (offload & 1) > 0, (offload & 2) > 0
    follows = optimizer & ((engine is StateEngine.DEEPSPEED) | parameters & (engine is StateEngine.TORCH))
    return StateBytes(
        np.where(parameters, 0.0, x.weights),
        np.where(follows, 0.0, x.gradients),
        np.where(optimizer, 0.0, x.optimizer),
        x.buffers,
    )


def frozen(x: StateBytes, sharded: NDArray[np.bool_], shards: Array, frozen_bytes: float) -> StateBytes:
    """States of frozen parameters: weights alone, `sharded` or whole."""
    none = np.zeros_like(x.weights)
    return StateBytes(np.where(sharded, frozen_bytes / shards, frozen_bytes), none, none, none)

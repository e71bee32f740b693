"""How much memory does every stage need in every phase of a step?

Rows are candidates, columns classes of stages. Each phase is a sum of named terms; the peak is the largest
over stages and phases. Left out: the first step (before optimizer states exist), host memory, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.job import OPTIMIZERS, Job
from planner.spec.precision import RECIPES
from planner.spec.stack import Stack

Array = NDArray[np.float64]

PHASES: Final = ("loss", "backward", "optimizer")
OPTIMIZER_PHASE: Final = 2


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


def state_bytes(zero: Array, shards: Array, replicas: Array, stack: Stack, job: Job) -> StateBytes:
    """Bytes per parameter that a rank holds between steps [bytes/parameter].

    weights w, gradients g, master and moments o; `shards` N ranks share what ZeRO shards:
    stage 0: w + g + o; 1: w + g + o/N; 2: w + (g + o)/N; 3: (w + g + o)/N (Rajbhandari 2020, arXiv 1910.02054,
    figure 1). Megatron with bf16 and fp32 gradients: 18, or 6 + 12/N with the distributed optimizer. A stack
    that shards fp32 weights and casts them when it gathers keeps no low-precision shard (FSDP2: 16/N).
    """
    states, recipe = stack.states, RECIPES[job.precision]
    moments = OPTIMIZERS[job.optimizer].moment_bytes
    weight = recipe.weight_bytes
    one = np.ones_like(shards)
    shard_weight = weight if states.low_precision_shard else 0.0
    weights = np.where(zero >= 3, shard_weight / shards, weight * one)
    gradient = states.gradient + states.gradient_accumulator
    gradients = np.where(zero >= 2, gradient / shards, gradient * one)
    master = states.master if weight < 4 else 0.0
    optimizer = np.where(zero >= 1, (master + moments) / shards, (master + moments) * one)
    buffers = np.where(replicas > 1, states.dp_buffer, 0.0) * one
    return StateBytes(weights, gradients, optimizer, buffers)


@dataclass(frozen=True)
class MemoryInputs:
    """What the peak is made of, before recomputation. (n, C) unless said; C classes of stages.

    `dense`, `expert`: parameters on a rank. `alive`: stages of the class (0: padding). `in_flight`:
    micro-batches. `head_kept`, `head_transient`: bytes of the loss, zero but on the last stage. `gathered` (n,):
    parameters that ZeRO-3 gathers [bytes]. `states`, `expert_states` (n,): bytes per parameter. `groups` (n,):
    process groups of a rank.
    """

    dense: Array
    expert: Array
    alive: Array
    in_flight: Array
    head_kept: Array
    head_transient: Array
    gathered: Array
    states: StateBytes
    expert_states: StateBytes
    groups: Array


@dataclass(frozen=True)
class MemoryCost:
    """Peak of every candidate. `peak` (n,): what the stack's counter logs [bytes]; `device` (n,): with everything
    outside the allocator, `outside` (n,) alone. `stage_class`, `phase` (n,): where it is reached. `terms`: named
    (n, C) arrays of every phase. `by_class` (n, C): the allocator's peak of every class, fragmentation included."""

    peak: Array
    device: Array
    outside: Array
    stage_class: NDArray[np.intp]
    phase: NDArray[np.intp]
    by_class: Array
    terms: dict[str, dict[str, Array]]


def _per_class(dense: Array, expert: Array, dense_bytes: Array, expert_bytes: Array) -> Array:
    return dense * dense_bytes[:, None] + expert * expert_bytes[:, None]


def memory_cost(
    x: MemoryInputs,
    stem: NDArray[np.intp],
    kept: Array,
    working: Array,
    stack: Stack,
    keep_terms: bool = True,
) -> MemoryCost:
    """Terms and peak of memory for every candidate, stage class and phase [bytes].

    Row i has the stem `stem[i]` of `x`, keeps `kept[i]` (C,) bytes of a micro-batch and works in `working[i]`.
    `terms` is empty unless `keep_terms`.
    loss: states + activations in flight + what the loss keeps and its transient.
    backward: states + activations in flight + working set of a layer.
    optimizer: states + temporaries of the update.
    """
    static = {
        "weights": _per_class(x.dense, x.expert, x.states.weights, x.expert_states.weights),
        "gradients": _per_class(x.dense, x.expert, x.states.gradients, x.expert_states.gradients),
        "optimizer": _per_class(x.dense, x.expert, x.states.optimizer, x.expert_states.optimizer),
        "dp_buffers": _per_class(x.dense, x.expert, x.states.buffers, x.expert_states.buffers),
        "gathered_parameters": x.gathered[:, None] * np.ones_like(x.dense),
        "workspace": np.full_like(x.dense, stack.overhead.workspace),
    }
    share = stack.states.optimizer_transient / (stack.states.master + 8.0)
    base = sum(static.values(), np.zeros_like(x.dense))
    # a padded class must never bind
    base = np.where(x.alive > 0, base, -np.inf)
    update, logits = share * static["optimizer"], x.head_kept + x.head_transient
    activations = x.in_flight[stem] * kept
    wasted = stack.overhead.fragmentation * np.maximum(activations, 0.0)
    logits_row = logits[stem]
    during = base[stem] + activations + wasted
    updating = (base + update)[stem]
    by_class = np.maximum(during + np.maximum(logits_row, working[:, None]), updating)
    stage_class = by_class.argmax(axis=1)
    rows = np.arange(len(stem))
    reserved = by_class[rows, stage_class]
    at_backward = (during[rows, stage_class] + working >= reserved).astype(np.intp)
    phase = np.where(updating[rows, stage_class] >= reserved, OPTIMIZER_PHASE, at_backward)
    unused = np.where(phase == OPTIMIZER_PHASE, 0.0, wasted[rows, stage_class])
    peak = reserved - (0.0 if stack.overhead.logs_reserved else unused)
    outside = stack.overhead.context + stack.overhead.per_group * x.groups[stem]
    if not keep_terms:
        return MemoryCost(peak, reserved + outside, outside, stage_class, phase, by_class, {})
    static = {name: value[stem] for name, value in static.items()}
    terms = {
        "loss": {**static, "activations": activations, "fragmentation": wasted, "logits": logits_row},
        "backward": {
            **static, "activations": activations, "fragmentation": wasted,
            "working_set": working[:, None] * np.ones_like(kept),
        },
        "optimizer": {**static, "optimizer_temporaries": update[stem]},
    }  # fmt: skip
    return MemoryCost(peak, reserved + outside, outside, stage_class, phase, by_class, terms)

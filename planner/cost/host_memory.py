"""How much memory of a node's host does a configuration take, and does the host have it?

Offloaded states and activations, and the copy of the states that an asynchronous checkpoint holds on its way to
storage. Left out: the operating system, data loaders, and what the allocator of pinned memory rounds up to powers of
two; a cluster that does not say what its hosts have is not held to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.campaign.run import checkpoint_sizes
from planner.cost.model import CostModel
from planner.spec.config import OFFLOAD_ACTIVATIONS, OFFLOAD_PARAMETERS, ConfigTable, ParallelConfig, distinct
from planner.spec.precision import RECIPES

Array = NDArray[np.float64]

HOST_GRADIENT: Final = 4.0  # bytes of a gradient that an update on the host reads


@dataclass(frozen=True)
class HostUse:
    """Host memory of one node, (n,) each [bytes]. `states`, `activations`: offloaded; `staging`: of a checkpoint, what
    lies on the host already not counted again."""

    states: Array
    activations: Array
    staging: Array

    @property
    def total(self) -> Array:
        """All of them."""
        return self.states + self.activations + self.staging


def host_use(model: CostModel, table: ConfigTable) -> HostUse:
    """Host memory that every row of `table` takes on a node whose ranks are all of the stage that takes most [bytes].

    Beside what leaves the device the host holds the gradient that its update reads in fp32, whatever width the device
    had: Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py, cpu_copy_map_grad; DeepSpeed's estimate of
    ZeRO-2 with offload, 16 bytes a parameter, and of ZeRO-3, 18 with the parameters (runtime/zero/stage_1_and_2.py,
    stage3.py, estimate_zero2_model_states_mem_needs, estimate_zero3_model_states_mem_needs). Activations: of all
    micro-batches in flight, but two layers. A checkpoint: an equal part of the whole on every node; none of adapters,
    nor where training waits for storage.
    """
    problem, cluster = model.problem, model.problem.cluster
    ranks = min(cluster.devices_per_node, cluster.num_devices)
    states, stored, activations = (np.zeros(len(table)) for _ in range(3))
    offloading = np.flatnonzero(table["offload"])
    if len(offloading):
        asked = _without_recomputation(table.take(offloading))
        first, inverse = distinct(*asked.columns.values())
        asked = asked.take(first)
        here, there = (_held(model, asked, asked["offload"] & ~mask) for mask in (7, 0))
        weights, optimizer, kept = (a - b for a, b in zip(here, there, strict=True))
        if (
            model.shards.narrow is not None
        ):  # weights that are wide because the optimizer left have not left with it
            stay = asked["offload"] & ~OFFLOAD_PARAMETERS
            weights = _held(model, asked, stay)[0] - there[0]
        held = problem.stack.engine
        each = held.master_bytes(RECIPES[problem.job.precision].weight_bytes)
        each = each + held.moment_bytes(problem.job.optimizer)
        gradients = HOST_GRADIENT * optimizer / each if each else np.zeros_like(optimizer)
        states[offloading] = ranks * (weights + optimizer + gradients).max(axis=1)[inverse]
        stored[offloading] = ranks * (weights + optimizer).max(axis=1)[inverse]
        activations[offloading] = ranks * kept.max(axis=1)[inverse]
    staged = problem.job.checkpoint_staged and problem.job.lora_rank is None
    whole = checkpoint_sizes(problem)[0] / cluster.num_nodes if staged else 0.0
    return HostUse(states, activations, np.maximum(whole - stored, 0.0))


def _without_recomputation(table: ConfigTable) -> ConfigTable:
    """Rows of which only states are offloaded as if they recomputed nothing, which is all the same to the host."""
    kept = (table["offload"] & OFFLOAD_ACTIVATIONS) > 0
    names = ("recompute", "recompute_layers", "recompute_modules")
    nothing = {name: np.where(kept, table[name], 0).astype(np.int32) for name in names}
    return ConfigTable({**table.columns, **nothing})


def _held(model: CostModel, table: ConfigTable, offload: NDArray[np.int32]) -> tuple[Array, Array, Array]:
    """Weights, optimizer states and activations on devices of every class of stages, (n, C) each [bytes]."""
    detail = model.evaluate(ConfigTable({**table.columns, "offload": offload}), keep_terms=True).detail
    assert detail is not None, "costed with keep_terms"
    start, backward = detail.memory["after_init"], detail.memory["backward"]
    return start["weights"], start["optimizer"], backward["activations"]


def on_host(model: CostModel, table: ConfigTable) -> NDArray[np.bool_]:
    """Do the hosts have room for every row? True where the cluster does not say what they have."""
    room = model.problem.cluster.host_memory
    return np.ones(len(table), dtype=np.bool_) if room is None else host_use(model, table).total <= room


def always_on_host(model: CostModel, table: ConfigTable) -> bool:
    """Have the hosts room for all rows, as can be told without costing them?"""
    room = model.problem.cluster.host_memory
    return room is None or (
        not table["offload"].any() and bool(on_host(model, table.take(slice(0, 1))).all())
    )


def host_need(model: CostModel, config: ParallelConfig) -> HostUse:
    """`host_use` of one configuration."""
    return host_use(model, ConfigTable.of([config]))

"""What are the parts of the bytes that a parameter costs a rank between steps, and which ranks share them?

Left out: how many they are (`cost/engines/`), parameters in 8 bits (`cost/params_fp8.py`) and what exists only within a
step (`memory/moments.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StateBytes:
    """Bytes that one parameter of a rank costs, per candidate (n,): see `Engine.state_bytes`."""

    weights: Array
    gradients: Array
    optimizer: Array
    buffers: Array

    @property
    def total(self) -> Array:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def shard_groups(hybrid: Array, replicas: Array, expert_replicas: Array) -> tuple[Array, Array]:
    """Ranks that share what ZeRO shards of dense and of expert parameters (n,) [1].

    All replicas, or groups of `hybrid` of them where it is above 0 (hybrid sharding), with as many copies of either
    kind: N and N_e/(R/N), at least 1 (torchtitan's mesh of experts within a replica; Megatron-LM
    --num-distributed-optimizer-instances, core/parallel_state.py).
    """
    shared = np.where(hybrid > 0, np.minimum(hybrid, replicas), replicas)
    return shared, np.where(hybrid > 0, np.maximum(expert_replicas * shared / replicas, 1.0), expert_replicas)


def frozen(
    x: StateBytes, sharded: NDArray[np.bool_], shards: Array, frozen_bytes: float, in_units: bool = False
) -> StateBytes:
    """States of frozen parameters: weights, `sharded` or whole, and gradients where those of adapters `in_units` are as
    large."""
    none = np.zeros_like(x.weights)
    weights = np.where(sharded, frozen_bytes / shards, frozen_bytes)
    return StateBytes(weights, np.where(sharded & in_units, x.gradients, none), none, none)

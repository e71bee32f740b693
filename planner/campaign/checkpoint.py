"""How large are a run's checkpoints, how long do they take, and what do they fill?

Pure arithmetic for floats and columns. Left out: the optimizer's step counters and the data loader's state
(kilobytes), compression, and formats that pad.
"""

from __future__ import annotations

import numpy as np

from planner.campaign.duration import Quantity


def weights_size(parameters: float, weight_bytes: float) -> float:
    """A checkpoint of the weights alone [bytes]. parameters x bytes of one. Definition."""
    return parameters * weight_bytes


def full_state_size(
    parameters: float, weight_bytes: float, master_bytes: float, moment_bytes: float
) -> float:
    """A checkpoint from which training resumes [bytes].

    parameters x (weights + fp32 master + moments), 14 with AdamW in mixed precision (Rajbhandari 2020, arXiv
    1910.02054, without gradients). BLOOM's 2.3 TB for 176.2 B parameters (stas00/ml-engineering) is 13.1.
    Where a framework rebuilds the weights from the master it writes 12.
    """
    return parameters * (weight_bytes + master_bytes + moment_bytes)


def storage_time(size: Quantity, nodes: Quantity, per_node: float, limit: float) -> Quantity:
    """Time to write a checkpoint to storage, or to read it back [s].

    size / min(nodes x per_node, limit); bandwidths [bytes/s]. Every node moves an equal part, as with
    sharded checkpoints. BLOOM: 2.3 TB from 48 nodes in 40 s.
    """
    return size / np.minimum(nodes * per_node, limit)


def host_copy_time(size: Quantity, devices: Quantity, bandwidth: float, efficiency: float) -> Quantity:
    """Time in which each device copies its part to host memory [s].

    size / devices / (bandwidth x efficiency), bandwidth to the host [bytes/s] per device. All parts equal.
    """
    return size / devices / (bandwidth * efficiency)


def storage_size(
    full_size: float, weights: float, kept: float, run_time: Quantity, weights_every: float
) -> Quantity:
    """What a run's checkpoints fill at its end [bytes].

    kept x full_size + floor(run_time / weights_every) x weights; times [s]. Definition.
    """
    return kept * full_size + np.floor(run_time / weights_every) * weights

"""How long do copies to the host and an update there take? Seconds of a step that compute does not hide.

Left out: ranks that share a PCIe switch, and hosts whose memory other work uses.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.step import FORWARD_SHARE
from planner.spec.config import OFFLOAD_ACTIVATIONS, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS

Array = NDArray[np.float64]

PINNED_SHARE: Final = 0.85  # of PCIe's rate that pinned copies reach; from memory
# Host memory that one node's update moves per second [bytes/s]: CPU-Adam updates 1e9 parameters in about 0.24 s (Ren
# 2021, arXiv 2101.06840, table 4; from memory) at 28 bytes each
HOST_UPDATE: Final = 28 * 1e9 / 0.24


def host_seconds(
    offload: NDArray[np.int32], updated: Array, weights: Array, kept: Array, stage_time: Array, microbatches: Array,
    step_bytes: float, ranks: float, bandwidth: float, hidden: float,
) -> Array:  # fmt: skip
    """Exposed seconds of a step [s].

    Optimizer: gradients out and weights back (2 + 2 bytes a parameter; Ren 2021, section 4) once, then the update at
    the host's memory rate, shared by the node's `ranks`. Parameters: a shard comes in for the forward and for the
    backward pass of every micro-batch, hidden as far as `hidden` says. Activations: `kept` bytes go out under the
    forward pass and come back under the backward pass. `updated`: parameters of a rank; `weights`: bytes of its shard;
    `bandwidth`: PCIe per direction [bytes/s].
    """
    rate = PINNED_SHARE * bandwidth
    update = updated * (4.0 / rate + step_bytes * ranks / HOST_UPDATE)
    forward, backward = FORWARD_SHARE * stage_time, (1 - FORWARD_SHARE) * stage_time
    stream = np.maximum(2.0 * weights / rate - hidden * stage_time, 0.0)
    copies = np.maximum(kept / rate - forward, 0.0) + np.maximum(kept / rate - backward, 0.0)
    each = np.where(offload & OFFLOAD_PARAMETERS, stream, 0.0)
    each = each + np.where(offload & OFFLOAD_ACTIVATIONS, copies, 0.0)
    return np.where(offload & OFFLOAD_OPTIMIZER, update, 0.0) + microbatches * each

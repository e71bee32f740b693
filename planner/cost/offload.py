"""How long do copies to the host and an update there take? Seconds of a step that compute does not hide.

Left out: ranks that share a PCIe switch, hosts whose memory other work uses, and that a Grace has its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.pipeline.step import FORWARD_SHARE
from planner.spec.config import OFFLOAD_ACTIVATIONS, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS
from planner.spec.machine.accelerator import Accelerator, Architecture

Array = NDArray[np.float64]

# Of PCIe's rate that pinned copies reach: 26.0 GB/s to each of 8 devices that have 31 (NVIDIA/nvbandwidth 66746a3
# README.md, host_to_device_memcpy_ce); 18.6 in each direction where both are busy (host_to_device_bidirectional).
PINNED_SHARE: Final = 26.0 / 31
BOTH_WAYS_SHARE: Final = 18.6 / 31
# Of a share of NVLink-C2C, all devices of a node at work: 168.6 to 175.4 GB/s in, 181.9 to 183.9 out, of 225 each
# (nvbandwidth host_to_all and all_to_host on 4 x GB300, NVIDIA/Megatron-LM#6491).
CHIP_LINK_SHARE: Final = 177.5 / 225
# Host memory that one node's update moves per second [bytes/s]: a step of DeepSpeed takes about 10 s longer with the
# optimizer of 72.7e9 parameters on the hosts of 4 nodes of A100 (deepspeedai/DeepSpeed#6834), at 38 bytes each, of
# which 0.7 s are copies of 8 bytes to 8 devices. CPU-Adam alone, nothing else at work, reaches 117 GB/s (Ren 2021,
# arXiv 2101.06840, table 4: 1e9 in 0.24 s; from memory), and 40 in another's step (DeepSpeed#735: 11.6e9 in 8.2 s).
HOST_UPDATE: Final = 38 * 72.7e9 / 4 / 9.3
# No slower than in a fine-tuning of Qwen2.5-3B (3.09e9 parameters) whose whole step takes 2.38 s on a node of two
# devices and 128 cores (deepspeedai/DeepSpeed#7474); no faster than 16 channels of DDR4-3200.
SLOWEST_HOST_UPDATE: Final = 28 * 3.09e9 / 2.38
FASTEST_HOST_UPDATE: Final = 16 * 25.6e9
# Memory bandwidth of a usual node's two processors over that of A100's, 16 channels of DDR4-3200; the update streams
# through it. H100 and H200: 16 of DDR5-4800 (Xeon 8480C); MI300: 24 of them (EPYC 9374F; both MLPerf, inference_results
# v4.1, systems); B200: 16 of DDR5-5600 (Xeon 8570), V100: 12 of DDR4-2666 (Xeon 8168), both from memory.
HOST_MEMORY: Final = {
    Architecture.VOLTA: 12 * 2666 / (16 * 3200), Architecture.HOPPER: 4800 / 3200,
    Architecture.BLACKWELL: 5600 / 3200, Architecture.CDNA3: 1.5 * 4800 / 3200,
}  # fmt: skip


def copy_rate(device: Accelerator) -> float:
    """Rate of pinned copies between a device and its host, each way [bytes/s]."""
    if device.host_bandwidth is not None:
        return CHIP_LINK_SHARE * device.host_bandwidth
    return PINNED_SHARE * device.pcie_bandwidth


def host_update_rate(device: Accelerator) -> float:
    """Host memory that one node's update moves per second [bytes/s]."""
    return HOST_UPDATE * HOST_MEMORY.get(device.architecture, 1.0)


def host_range(offload: int, seconds: float) -> tuple[float, float]:
    """Least and most seconds that `seconds` of exposed copies and updates may be [s].

    With the optimizer on the host the update's rate decides, which is known to a factor of three alone; otherwise the
    copies', which `host_seconds` takes as going one way at a time: both ways at once they reach 18.6 of 26 GB/s each
    on PCIe, which stands for other links too.
    """
    if offload & OFFLOAD_OPTIMIZER:
        return seconds * HOST_UPDATE / FASTEST_HOST_UPDATE, seconds * HOST_UPDATE / SLOWEST_HOST_UPDATE
    return seconds * PINNED_SHARE, seconds * PINNED_SHARE / BOTH_WAYS_SHARE


def host_seconds(
    offload: NDArray[np.int32], updated: Array, weights: Array, kept: Array, stage_time: Array, microbatches: Array,
    step_bytes: float, ranks: float, rates: tuple[float, float], hidden: float, copied: float = 4.0,
    sums: Array | float = 0.0, written: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """Exposed seconds of a step, and how many of them each micro-batch takes [s].

    Optimizer: gradients out and weights back (`copied`, 2 + 2 bytes a parameter in Ren 2021, section 4) once, then the
    update at the host's memory rate, shared by the node's `ranks`. Parameters: a shard comes in for the forward and for
    the backward pass of every micro-batch, hidden as far as `hidden` says. Activations: `kept` bytes go out under the
    forward pass and come back under the backward pass. `sums`: bytes of gradients that in a step the host adds to those
    before, while training waits: they go out, are read with the sum, and it is written (torch 2.13
    distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce, `non_blocking`). `written`: bytes of a parameter
    that the device updates and its host keeps, which goes back (DeepSpeed runtime/zero/stage3.py
    _reassign_or_swap_out_partitioned_parameters). `updated`: parameters of a rank; `weights`: bytes of its shard;
    `rates`: of copies (`copy_rate`) and of a node's updates (`host_update_rate`) [bytes/s]. Left out: sums of gradients
    that DeepSpeed brings in and out again in every micro-batch, under the backward pass where memory is pinned.
    """
    rate, updating = rates
    update = updated * (copied / rate + step_bytes * ranks / updating)
    summed = sums / microbatches * (1.0 / rate + 3.0 * ranks / updating)
    forward, backward = FORWARD_SHARE * stage_time, (1 - FORWARD_SHARE) * stage_time
    stream = np.maximum(2.0 * weights / rate - hidden * stage_time, 0.0)
    copies = np.maximum(kept / rate - forward, 0.0) + np.maximum(kept / rate - backward, 0.0)
    each = np.where(offload & OFFLOAD_PARAMETERS, stream + summed, 0.0)
    each = each + np.where(offload & OFFLOAD_ACTIVATIONS, copies, 0.0)
    back = np.where(offload & OFFLOAD_PARAMETERS, updated * written / rate, 0.0)
    return np.where(offload & OFFLOAD_OPTIMIZER, update, back) + microbatches * each, each

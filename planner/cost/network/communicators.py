"""How much device memory do the communicators of a rank take outside the allocator, by axis?

Connections times buffers, as NCCL 2.29 opens them by default when an algorithm first runs (src/init.cc,
src/transport/p2p.cc, net.cc, nvls.cc, src/graph/paths.cc). Left out: registered user buffers, SHARP, groups that a
framework opens for single small messages, and settings of the environment (NCCL_BUFFSIZE, NCCL_NVLS_ENABLE=0, ...).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import ConfigTable
from planner.spec.machine.accelerator import Architecture, LinkKind
from planner.spec.machine.cluster import Cluster
from planner.spec.stack.kinds import Dispatcher

Array = NDArray[np.float64]

KIB: Final = 2.0**10
MIB: Final = 2.0**20
# Buffers of a connection by protocol: LL 8 lines x 512 threads x 8 steps x 16 B, LL128 120 x 640 x 8 x 8 B, Simple
CONNECTION: Final = 512 * KIB + 4800 * KIB + 4 * MIB
SWITCHED_CHANNELS: Final = 24  # inside an NVLink domain: 12 rings twice (A100, H100)
PCIE_CHANNELS: Final = 2
CHANNELS_PER_NIC: Final = 2  # between domains, one NIC a device
# Connections of a channel: ring 1, and between domains the tree's 2; on the domain's edge the ring's sender and the
# tree's 3 links in both directions, which the network's sender buffers too.
TREE_LINKS: Final = 2.0
EDGE_LINKS: Final = 7.0
# Channels of a peer: 2 x (path / link) = 36 between H100s, as many as there are: 32; between domains the fewest of any
# peer, 50 GB/s / 14 GB/s = 4; PCIe 2.
SWITCHED_PEER: Final = 32
CROSSING_PEER: Final = 4
PCIE_PEER: Final = 2
NET_POOL: Final = (
    2 * 32 * 16 * 128 * KIB
)  # messages beyond the domain share: both directions, channels x steps x chunk
NVLS_CHANNELS: Final = {Architecture.HOPPER: 16, Architecture.BLACKWELL: 32}
NVLS_STEPS: Final = 2 * 8 * 128 * KIB  # of a channel and head: both directions, steps x chunk
FUSED_DISPATCH: Final = 1024 * MIB  # receive buffers of DeepEP or HybridEP; start value, from memory


def communicator_bytes(
    table: ConfigTable, replicas: Array, cluster: Cluster, dispatcher: Dispatcher
) -> dict[str, Array]:
    """Bytes by axis, (n,) each, for ranks laid out tensor, context, data, pipeline; `replicas` (n,): copies x dp x cp.

    tp, cp, dp: collectives, edp those of the experts' gradients. pp: two peers. ep: every peer. A100 and H100 nodes:
    0.22 GiB for a collective group inside (H100 0.46 with NVLS), 0.54 across with all ranks of a node, against 0.53 to
    0.67 reported (NVIDIA/nccl issue 964).
    """
    if cluster.accelerator.architecture.is_compiled_for:  # what XLA's collectives hold is part of the program
        return dict.fromkeys(("tp", "cp", "dp", "pp", "ep", "edp"), np.zeros(len(table)))
    t, c, p, e = (table[axis].astype(float) for axis in ("tp", "cp", "pp", "ep"))
    width = t * replicas
    collective = [
        (name, _collective(stride, size, cluster))
        for name, stride, size in (("tp", np.ones_like(t), t), ("cp", t, c), ("dp", t, replicas))
    ]
    domain = float(cluster.tiers[0].size)
    inside = width * p <= domain
    neighbours = _peers(np.minimum(p - 1.0, 2.0), inside, cluster)
    pipeline = np.where(p > 1, np.where(inside, neighbours, NET_POOL), 0.0)
    if dispatcher.exchanges_all:
        within = e <= domain
        experts = _peers(np.minimum(e, domain) - 1.0, within, cluster) + np.where(within, 0.0, NET_POOL)
    elif dispatcher is Dispatcher.ALL_GATHER:
        experts = _collective(np.ones_like(e), e * table["etp"].astype(float), cluster)
    else:
        experts = np.full_like(e, FUSED_DISPATCH)
    apart = e * table["etp"].astype(float)
    copies = np.where(e > 1, _collective(apart, np.maximum(t * replicas / apart, 1.0), cluster), 0.0)
    return {**dict(collective), "pp": pipeline, "ep": np.where(e > 1, experts, 0.0), "edp": copies}


def _switched(cluster: Cluster) -> bool:
    return cluster.tiers[0].kind is not LinkKind.PCIE


def _collective(stride: Array, size: Array, cluster: Cluster) -> Array:
    """Bytes of a group of `size` ranks `stride` apart that reduces, gathers and scatters."""
    domain = float(cluster.tiers[0].size)
    local = np.clip(np.floor(domain / stride), 1.0, size)
    channels = SWITCHED_CHANNELS if _switched(cluster) else PCIE_CHANNELS
    across = CHANNELS_PER_NIC * (local * (1.0 + TREE_LINKS) + EDGE_LINKS)
    links = np.where(local < size, across, channels)
    nvls = NVLS_CHANNELS.get(cluster.accelerator.architecture, 0) * _switched(cluster)
    heads = np.where(local > 1, nvls * NVLS_STEPS * np.minimum(local, 8.0), 0.0)
    return np.where(size > 1, CONNECTION * links + heads, 0.0)


def _peers(number: Array, within: NDArray[np.bool_], cluster: Cluster) -> Array:
    """Bytes of point-to-point connections to so many peers inside the domain. `within`: no peer is beyond it.

    More than 8 peers share the channels, so that all of them fit into one round.
    """
    most = SWITCHED_PEER if _switched(cluster) else PCIE_PEER
    each = np.where(
        within, np.minimum(most, SWITCHED_PEER / np.ceil((number + 1.0) / 8.0)), min(most, CROSSING_PEER)
    )
    return np.asarray(number * CONNECTION * each)

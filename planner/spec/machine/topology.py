"""Through which levels of links do devices reach each other, and how much does each get at every level?

A symmetric fabric is described once per level; the tiers' bandwidths follow from it. Left out: routing
inside a level (a fat tree is taken as non-blocking up to its stated oversubscription) and failed links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.spec.findings import Finding, finding
from planner.spec.machine.cluster import Accelerator, Cluster, LinkKind, Tier
from planner.spec.machine.torus import Torus

# Nominal time of one hop [s]. NVLink, PCIe, network: hop of the LL128 ring in NCCL's own tuning model
# (NVIDIA/nccl@5067397 src/graph/tuning.cc). xGMI: ring Simple in RCCL's (ROCm/rccl@0cbce2a). EFA: the
# network hop plus the about 25 us per hop by which 2-node EFA measurements exceed that model. ICI,
# NeuronLink, UPI, Ethernet sockets: orders of magnitude from memory; Omni-Path and Slingshot as InfiniBand.
HOP_LATENCY: Final[Mapping[LinkKind, float]] = {
    LinkKind.NVLINK: 1.9e-6,
    LinkKind.XGMI: 2.1e-6,
    LinkKind.PCIE: 2.5e-6,
    LinkKind.ICI: 1e-6,
    LinkKind.NEURONLINK: 2e-6,
    LinkKind.UPI: 1e-6,
    LinkKind.INFINIBAND: 4e-6,
    LinkKind.ROCE: 4e-6,
    LinkKind.EFA: 29e-6,
    LinkKind.ETHERNET: 30e-6,
    LinkKind.OMNIPATH: 4e-6,
    LinkKind.SLINGSHOT: 4e-6,
}


@dataclass(frozen=True)
class FabricTier:
    """A level of switches: `size` devices in one domain, `oversubscription` of the trunks that enter it."""

    name: str
    size: int
    oversubscription: float = 1.0
    latency: float | None = None


@dataclass(frozen=True)
class Wiring:
    """What is plugged into what. Bandwidths [bytes/s per direction], `nic_bandwidth` of one NIC.

    `tiers`: the switches between nodes, inner to outer, none if the cluster is one scale-up domain or node. `torus`:
    how a scale-up domain is joined, None by a switch or a mesh.
    """

    accelerator: Accelerator
    num_devices: int
    devices_per_node: int
    scale_up_domain: int
    scale_up_kind: LinkKind
    scale_up_bandwidth: float
    nics: int
    nic_bandwidth: float
    fabric: LinkKind
    tiers: tuple[FabricTier, ...]
    scale_up_latency: float | None = None
    fabric_latency: float | None = None
    torus: Torus | None = None


_SHARED_BRIDGES: Final = 4  # devices of a node from which PCIe hosts differ


@dataclass(frozen=True)
class Level:
    """One level and the links that lead up to it from the level `below`.

    `size`: devices under one vertex. `capacity` of one link [bytes/s], `multiplicity`: how many links'
    worth leads up from one vertex below. `is_tier`: a level at which groups of devices meet.
    """

    name: str
    kind: LinkKind
    size: int
    below: str
    capacity: float
    multiplicity: float
    latency: float
    is_tier: bool = True


DEVICE: Final = "device"


def levels(wiring: Wiring) -> tuple[Level, ...]:
    """The levels of a fabric, each after the one below it."""
    chip, per_node = wiring.accelerator, wiring.devices_per_node
    scale_up_latency = wiring.scale_up_latency or HOP_LATENCY[wiring.scale_up_kind]
    found = [
        Level(
            "scale-up",
            wiring.scale_up_kind,
            wiring.scale_up_domain,
            DEVICE,
            wiring.scale_up_bandwidth,
            1.0,
            scale_up_latency,
        )
    ]
    if wiring.scale_up_domain < per_node:  # pairs bridged by NVLink, the rest of the node over PCIe
        pcie = LinkKind.PCIE
        found.append(Level("node", pcie, per_node, DEVICE, chip.pcie_bandwidth, 1.0, HOP_LATENCY[pcie]))
    if wiring.tiers:
        found += _fabric_levels(wiring)
    return tuple(found)


def _fabric_levels(wiring: Wiring) -> list[Level]:
    """NIC groups, then the switches; NICs and devices of a node pair up in as many groups as possible."""
    per_node, nic, kind = wiring.devices_per_node, wiring.nic_bandwidth, wiring.fabric
    groups = math.gcd(wiring.nics, per_node)
    hop = wiring.fabric_latency or HOP_LATENCY[kind]
    # ports on the chip itself do not pass through PCIe
    to_nic = wiring.nics * nic if wiring.accelerator.integrated_nics else wiring.accelerator.pcie_bandwidth
    found = [Level("nic", kind, per_node // groups, DEVICE, to_nic, 1.0, 0.0, is_tier=False)]
    below, size, links = "nic", per_node // groups, wiring.nics / groups
    for tier in wiring.tiers:
        if below == "nic" and tier.oversubscription > 1:
            # the NICs' own cables are never oversubscribed: the trunk begins above the node
            found.append(Level("node-uplink", kind, per_node, below, nic, links, 0.0, is_tier=False))
            below, size, links = "node-uplink", per_node, float(wiring.nics)
        links /= tier.oversubscription
        found.append(Level(tier.name, kind, tier.size, below, nic, links, tier.latency or hop))
        below, links, size = tier.name, links * tier.size / size, tier.size
    return found


def _pair_bandwidth(chip: Accelerator, size: int) -> float | None:
    """What one pair gets in a mesh of `size` devices, over which each spreads its links [bytes/s]; None in a pair,
    which has them all, and where more devices than such meshes join sit behind a switch (DGX-2, GH200 NVL32)."""
    if chip.pair_bandwidth is None or size <= 2 or size > chip.scale_up_domain:
        return None
    return max(chip.pair_bandwidth, chip.scale_up_bandwidth / (size - 1))


def derive_tiers(wiring: Wiring) -> tuple[Tier, ...]:
    """The tiers of a fabric, innermost first.

    Of every trunk on the way up, the devices under it share it: bandwidth = min over the path of
    capacity x multiplicity / devices below; alone, a device has the narrowest trunk for itself [bytes/s].
    """
    shared: dict[str, float] = {DEVICE: math.inf}
    alone: dict[str, float] = {DEVICE: math.inf}
    sizes = {DEVICE: 1}
    found: list[Tier] = []
    for level in levels(wiring):
        trunk = level.capacity * level.multiplicity
        shared[level.name] = min(shared[level.below], trunk / sizes[level.below])
        alone[level.name] = min(alone[level.below], trunk)
        sizes[level.name] = level.size
        if level.is_tier:
            inner = not found
            pair = _pair_bandwidth(wiring.accelerator, level.size) if inner else None
            found.append(
                Tier(
                    level.name,
                    level.kind,
                    level.size,
                    shared[level.name],
                    alone[level.name],
                    level.latency,
                    pair,
                    wiring.torus if inner else None,
                )
            )
    return tuple(found)


def said_of_host(cluster: Cluster) -> tuple[Finding, ...]:
    """What is assumed of how a node's devices share its host's bridges, where PCIe alone joins them.

    Nothing where a calibration measured it. The figures: catalog/links_published.yaml.
    """
    joined = cluster.tiers[0]
    measured = cluster.links.scale_up_bandwidth != 1.0
    if joined.kind is not LinkKind.PCIE or joined.size < _SHARED_BRIDGES or measured:
        return ()
    return (finding("shared_bridges", devices=joined.size),)

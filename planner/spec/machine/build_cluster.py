"""Which cluster does a specification, or a handful of figures, describe?

What the input leaves open is taken from the accelerator's typical node and listed in `Cluster.assumed`. Left
out: files and names, which `load_cluster` resolves.
"""

from __future__ import annotations

import math
from typing import Final

from planner.dialect import option
from planner.errors import InputError
from planner.spec.findings import Finding, finding
from planner.spec.machine.cluster import (
    FASTEST_NIC,
    Accelerator,
    Cluster,
    ClusterSpec,
    LinkKind,
    check_device_count,
)
from planner.spec.machine.topology import HOP_LATENCY, FabricTier, Wiring, derive_tiers
from planner.spec.machine.torus import Torus

_NON_BLOCKING: Final = finding("non_blocking_fabric")


class NodeTypeError(InputError):
    """A node type, of which nobody said how many. `per_node`: its devices; `smallest`: as many as have every link."""

    def __init__(self, spec: ClusterSpec, noun: str) -> None:
        self.per_node = spec.node.accelerators
        self.smallest = smallest_size(spec) or self.per_node
        must = f"{spec.name} is a node type, so the number of {noun}s must be given"
        super().__init__(must, hint=f"add {option('gpus', self.per_node)}")


def smallest_size(spec: ClusterSpec) -> int | None:
    """Devices that show every tier of a node type: two of its largest scale-up domains; None: all it has."""
    if spec.nodes != "any":
        return None
    domain = max(spec.node.accelerators, spec.node.scale_up.domain)
    return 2 * domain if spec.fabric else spec.node.accelerators


def cluster_from_spec(spec: ClusterSpec, accelerator: Accelerator, gpus: int | None) -> Cluster:
    """The first `gpus` devices of the cluster in a file (None: all of it). Raises `InputError`."""
    per_node = spec.node.accelerators
    if spec.nodes == "any":
        if gpus is None:
            raise NodeTypeError(spec, accelerator.noun)
        check_device_count(gpus, per_node, None, spec.name, accelerator.noun)
        total = _room_for(gpus, _largest_domain(spec), _torus_of(spec, accelerator))
    else:
        total = spec.nodes * per_node
    cluster = _whole_cluster(spec, accelerator, total)
    return cluster if gpus is None else cluster.with_devices(gpus)


def _room_for(count: int, unit: int, torus: Torus | None) -> int:
    """Devices of whole domains that hold `count`: two where they are no slice of one."""
    least = -(-count // unit)
    return unit * max(least, 2 if torus is not None and torus.holding(count) is None else 1)


def _largest_domain(spec: ClusterSpec) -> int:
    """Devices of the largest domain with a size of its own; every smaller one divides it."""
    tiers = spec.fabric.tiers if spec.fabric else ()
    sizes = [tier.devices for tier in tiers if tier.devices != "all"]
    return max(spec.node.accelerators, spec.node.scale_up.domain, *sizes)


def _spec_tiers(spec: ClusterSpec, total: int) -> tuple[FabricTier, ...]:
    inside = max(spec.node.accelerators, spec.node.scale_up.domain)
    if spec.fabric is None or total <= inside:
        return ()
    stated = [
        FabricTier(t.name, total if t.devices == "all" else t.devices, t.oversubscription, t.latency)
        for t in spec.fabric.tiers
    ]
    if not stated:
        return (FabricTier("fabric", total),)
    # a node type of one domain needs no switch above it
    return tuple(t for index, t in enumerate(stated) if index == 0 or t.size > stated[index - 1].size)


def _spec_wiring(spec: ClusterSpec, accelerator: Accelerator, total: int) -> Wiring:
    node, fabric = spec.node, spec.fabric
    return Wiring(
        accelerator=accelerator,
        num_devices=total,
        devices_per_node=node.accelerators,
        scale_up_domain=node.scale_up.domain,
        scale_up_kind=node.scale_up.kind,
        scale_up_bandwidth=_scale_up_bandwidth(spec, accelerator),
        nics=node.nics or 0,
        nic_bandwidth=node.nic_bandwidth or 0.0,
        fabric=fabric.kind if fabric else node.scale_up.kind,
        tiers=_spec_tiers(spec, total),
        scale_up_latency=node.scale_up.latency,
        fabric_latency=fabric.latency if fabric else None,
        torus=_torus_of(spec, accelerator),
    )


def _torus_of(spec: ClusterSpec, accelerator: Accelerator) -> Torus | None:
    """How the devices of a domain are joined, where not by a switch or a mesh."""
    links = spec.node.scale_up
    if links.torus is not None:
        return links.torus.torus()
    if accelerator.torus is None or links.kind is not accelerator.scale_up_kind:
        return None
    return slice_of(accelerator.torus, links.domain)


def slice_of(torus: Torus, domain: int) -> Torus:
    """The slice of so many devices. Raises `InputError` where they are none."""
    part = torus.holding(domain)
    if part is None:
        must = f"a scale-up domain must be {torus.lent}"
        hint = "take a power of 2, or give the slice's own shape and links: node.scale_up.torus of a cluster file"
        raise InputError(must, str(domain), hint)
    return part


def _scale_up_bandwidth(spec: ClusterSpec, accelerator: Accelerator) -> float:
    links = spec.node.scale_up
    own = links.torus.torus().bandwidth if links.torus else accelerator.scale_up_bandwidth
    if links.kind is LinkKind.PCIE and accelerator.scale_up_kind is not LinkKind.PCIE:
        own = accelerator.pcie_bandwidth  # what joins its devices elsewhere is not there
    return links.bandwidth or own


def beyond_any_nic(bandwidth: float, of: str) -> list[Finding]:
    """That no card is so fast [bytes/s], which bits taken for bytes or a node taken for a card explain."""
    if bandwidth <= FASTEST_NIC:
        return []
    return [finding("beyond_any_nic", of=of, bandwidth=bandwidth, fastest=FASTEST_NIC)]


def _whole_cluster(spec: ClusterSpec, accelerator: Accelerator, total: int) -> Cluster:
    node, price = spec.node, spec.price
    wiring = _spec_wiring(spec, accelerator, total)
    assumed = _nominal_latencies(wiring)
    if wiring.tiers and spec.fabric and not spec.fabric.tiers:
        assumed.append(_NON_BLOCKING)
    assumed += beyond_any_nic(wiring.nic_bandwidth, "node.nic_bandwidth")
    if spec.unsourced:
        assumed.append(finding("unsourced_figures", fields=spec.unsourced))
    return Cluster(
        name=spec.name,
        accelerator=accelerator,
        num_devices=total,
        devices_per_node=node.accelerators,
        scale_up_domain=node.scale_up.domain,
        tiers=derive_tiers(wiring),
        host_memory=node.host_memory,
        price_per_device_hour=price.on_demand if price else None,
        reserved_price_per_device_hour=price.reserved if price else None,
        spot_price_per_device_hour=price.spot if price else None,
        power_per_device=node.power / node.accelerators if node.power else None,
        fabric=wiring.fabric,
        unverified=spec.unverified + _unverified(accelerator),
        assumed=tuple(assumed),
        source="; ".join(dict.fromkeys(spec.sources.values())),
        network_efficiency=spec.network_efficiency,
        rails=spec.fabric.rails if spec.fabric else None,
    )


def _nominal_latencies(wiring: Wiring) -> list[Finding]:
    """Which hop latencies the input left open."""
    kinds = [] if wiring.scale_up_latency else [wiring.scale_up_kind]
    if wiring.tiers and not wiring.fabric_latency:
        kinds.append(wiring.fabric)
    if not kinds:
        return []
    found = list(dict.fromkeys(kinds))
    latencies = [HOP_LATENCY[kind] for kind in found]
    return [finding("nominal_latencies", kinds=[str(kind) for kind in found], latencies=latencies)]


def _unverified(accelerator: Accelerator) -> tuple[str, ...]:
    return tuple(f"accelerator.{field}" for field in accelerator.unverified)


def typical_domain(accelerator: Accelerator, devices_per_node: int) -> int:
    """Devices in one scale-up domain when nodes hold `devices_per_node` of them."""
    node, domain = accelerator.typical_node, accelerator.scale_up_domain
    if accelerator.scale_up_kind is LinkKind.PCIE:  # which joins a node, whatever its size
        return devices_per_node
    spans_nodes = node is not None and domain > node.accelerators
    return (
        domain
        if spans_nodes
        else math.gcd(domain, devices_per_node)
        if domain < devices_per_node
        else devices_per_node
    )


def assemble_cluster(
    accelerator: Accelerator,
    gpus: int,
    devices_per_node: int,
    scale_up_domain: int | None = None,
    fabric_kind: LinkKind | None = None,
    node_injection_bandwidth: float | None = None,
) -> Cluster:
    """A cluster of `gpus` equal devices behind one non-blocking fabric.

    `node_injection_bandwidth`: what all NICs of one node send together, per direction [bytes/s]. What is None
    is as in the accelerator's typical node, and said in `assumed`. Raises `InputError`.
    """
    if devices_per_node <= 0:
        raise InputError("a node must hold at least one device", str(devices_per_node))
    name = f"{accelerator.name} nodes of {devices_per_node}"
    check_device_count(gpus, devices_per_node, None, name, accelerator.noun)
    domain = typical_domain(accelerator, devices_per_node) if scale_up_domain is None else scale_up_domain
    if domain <= 0 or max(domain, devices_per_node) % min(domain, devices_per_node):
        raise InputError(
            f"a scale-up domain must divide a node's {devices_per_node} devices or be whole nodes",
            str(domain),
        )
    kind, injection, nics, assumed = _typical_network(
        accelerator, devices_per_node, fabric_kind, node_injection_bandwidth
    )
    bridged = domain if accelerator.scale_up_kind is LinkKind.PCIE and domain < devices_per_node else 0
    if bridged:  # PCIe joins the node, whatever NVLink does not
        domain = devices_per_node
    inside = max(domain, devices_per_node)
    total = _room_for(gpus, inside, accelerator.torus)
    wiring = Wiring(
        accelerator=accelerator,
        num_devices=total,
        devices_per_node=devices_per_node,
        scale_up_domain=domain,
        scale_up_kind=accelerator.scale_up_kind,
        scale_up_bandwidth=accelerator.scale_up_bandwidth,
        nics=nics,
        nic_bandwidth=injection / nics,
        fabric=kind,
        tiers=(FabricTier("fabric", total),) if total > inside else (),
        torus=slice_of(accelerator.torus, domain) if accelerator.torus else None,
    )
    # what nothing crosses needs no assumption
    assumed = [*assumed, _NON_BLOCKING] if wiring.tiers else []
    if bridged > 1:
        assumed.append(finding("bridges_not_modelled", bridged=bridged, devices=devices_per_node))
    node = accelerator.typical_node
    per_node = min(gpus, devices_per_node)
    return Cluster(
        name=f"{gpus // per_node}x{per_node} {accelerator.name}",
        accelerator=accelerator,
        num_devices=total,
        devices_per_node=devices_per_node,
        scale_up_domain=domain,
        tiers=derive_tiers(wiring),
        host_memory=None,
        price_per_device_hour=None,
        power_per_device=node.power / node.accelerators if node and node.power else None,
        fabric=kind,
        unverified=_unverified(accelerator),
        assumed=(*assumed, *_nominal_latencies(wiring)),
        source=accelerator.source,
    ).with_devices(gpus)


def _typical_network(
    accelerator: Accelerator, devices_per_node: int, kind: LinkKind | None, injection: float | None
) -> tuple[LinkKind, float, int, list[Finding]]:
    """Fabric, bytes/s per node, NICs per node and what was assumed, completed from the typical node."""
    node = accelerator.typical_node
    if node is None and (kind is None or injection is None):
        raise InputError(
            f"{accelerator.name} has no typical node, so the fabric must be given", hint="add 400G-ib"
        )
    assumed = list[Finding]()
    if kind is None and node is not None:
        kind = node.fabric
        assumed.append(finding("typical_fabric", fabric=str(kind), accelerator=accelerator.name))
    assert kind is not None
    if injection is None:
        assert node is not None
        injection = node.injection_bandwidth(kind) * devices_per_node / node.accelerators
        name = accelerator.name
        assumed.append(finding("typical_node_sends", bandwidth=injection, accelerator=name, fabric=str(kind)))
    if injection <= 0 or not math.isfinite(injection):
        raise InputError("the bandwidth of a node must be above 0", f"{injection} bytes/s")
    # one NIC per device, or fewer of the usual speed, as many as pair up evenly with the devices
    usual = injection / node.nic_bandwidth if node else devices_per_node
    nics = max(
        d for d in range(1, devices_per_node + 1) if devices_per_node % d == 0 and d <= max(1.0, usual)
    )
    return kind, injection, nics, assumed

"""What does a cluster consist of: how many devices, joined by which tiers of links, at what price and power?

`ClusterSpec` is the YAML file; `Cluster` the inner form, in which every tier's bandwidth is already per
device and after sharing. Left out: pools of different accelerators in one cluster, and storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from planner.dialect import option
from planner.errors import InputError
from planner.spec.findings import Finding, finding
from planner.spec.machine.accelerator import (
    Accelerator,
    Architecture,
    Bandwidth,
    Capacity,
    Count,
    FileModel,
    Latency,
    LinkKind,
    Power,
    Price,
    Text,
    TorusSpec,
    check_torus,
)
from planner.spec.machine.links import AS_SHIPPED, LinkFactors
from planner.spec.machine.torus import Torus

# Accelerator, Architecture and LinkKind are part of what a cluster is: import them from here
__all__ = ["Accelerator", "Architecture", "Cluster", "ClusterSpec", "LinkKind", "Tier"]


_MOST_DEVICES: Final = 10_000_000


FASTEST_NIC: Final = 100e9  # bytes/s: an 800 Gbit/s port, NVIDIA ConnectX-8
MOST_OF_A_NIC: Final = 2 * FASTEST_NIC  # what a next card may send; above it bits were taken for bytes, say


class FieldError(ValueError):
    """A rule that joins several fields of a file is broken; `field` is the key to look at."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


class ScaleUpSpec(FileModel):
    """The fast links. `domain`: devices joined by them; it may span nodes (NVL72: 18 nodes of 4).

    `bandwidth` (per direction per device) and `torus` only where they differ from the accelerator's own.
    """

    kind: LinkKind
    domain: Count
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    torus: TorusSpec | None = None


class NodeSpec(FileModel):
    """One server. `power`: what it draws at most, everything in it included."""

    accelerators: Count
    host_memory: Capacity | None = None
    nics: Count | None = None
    nic_bandwidth: Bandwidth | None = None
    scale_up: ScaleUpSpec
    power: Power | None = None


class FabricTierSpec(FileModel):
    """A level of switches. `devices`: how many one domain of it joins ("all": the whole cluster).

    `oversubscription`: bandwidth into the domains below over bandwidth out of them (7 for 1:7).
    """

    name: Text
    devices: Count | Literal["all"]
    oversubscription: float = Field(ge=1, le=1000, allow_inf_nan=False)
    latency: Latency | None = None


class FabricSpec(FileModel):
    """The network between nodes. `latency`: nominal time of one message hop.

    `rails`: parallel planes, one or more NICs of a node in each. It describes and no figure rests on it: bandwidth is
    that of the NICs, and what leaves a plane is the tiers' oversubscription.
    """

    kind: LinkKind
    rails: Count | None = None
    latency: Latency | None = None
    tiers: tuple[FabricTierSpec, ...] = ()


class PriceSpec(FileModel):
    """US dollars per accelerator and hour; `date`: when it was so."""

    on_demand: Price | None = None
    reserved: Price | None = None
    spot: Price | None = None
    date: Text

    @field_validator("date", mode="before")
    @classmethod
    def _date_as_text(cls, given: Any) -> Any:
        return given if isinstance(given, str) or given is None else str(given)  # YAML reads 2026 as a number


def _without(named: set[str], fields: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Dotted fields below `above` that hold numbers and neither are `named` nor lie below a named one."""
    for key, value in fields.items():
        path = f"{above}{key}"
        if path in named:
            continue
        if isinstance(value, dict) and any(name.startswith(f"{path}.") for name in named):
            yield from _without(named, value, f"{path}.")
        elif not isinstance(value, str):  # kinds of links are words
            yield path


class ClusterSpec(FileModel):
    """One file of `cluster_specs/`. `nodes: any` makes it a node type: as many as asked for.

    `sources`: dotted field -> where its numbers come from (a field covers all below it). `unverified`: fields
    that come from memory.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    description: str = ""
    accelerator: Text
    nodes: Count | Literal["any"]
    node: NodeSpec
    fabric: FabricSpec | None = None
    price: PriceSpec | None = None
    network_efficiency: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    sources: dict[str, Text] = Field(default_factory=dict)
    unverified: tuple[Text, ...] = ()

    @property
    def num_devices(self) -> int | None:
        """Devices in the whole cluster; None for a node type."""
        return None if self.nodes == "any" else self.nodes * self.node.accelerators

    @property
    def unsourced(self) -> tuple[str, ...]:
        """Fields with numbers that have no source and are not said to be from memory; a whole part once."""
        parts = self.model_dump(exclude_unset=True, include={"node", "fabric", "price", "network_efficiency"})
        return tuple(_without({*self.sources, *self.unverified}, parts))

    @model_validator(mode="after")
    def _sources_name_fields(self) -> ClusterSpec:
        given = self.model_dump(exclude_unset=True)
        for key, paths in (("sources", tuple(self.sources)), ("unverified", self.unverified)):
            for path in paths:
                inner: Any = given
                for part in path.split("."):
                    if not isinstance(inner, dict) or part not in inner:
                        raise FieldError(
                            key, f"must name fields of this file, such as node.nics, given {path!r}"
                        )
                    inner = inner[part]
        return self

    @model_validator(mode="after")
    def _scale_up_fits(self) -> ClusterSpec:
        per_node, domain, total = self.node.accelerators, self.node.scale_up.domain, self.num_devices
        if max(per_node, domain) % min(per_node, domain):
            raise FieldError(
                "node.scale_up.domain",
                f"must divide the node's {per_node} devices or be whole nodes, given {domain}",
            )
        if total is not None and total % domain:
            raise FieldError(
                "node.scale_up.domain", f"must divide the cluster's {total} devices, given {domain}"
            )
        return self

    @model_validator(mode="after")
    def _torus_is_whole(self) -> ClusterSpec:
        links = self.node.scale_up
        if links.torus is not None:
            torus = links.torus.torus()
            try:
                check_torus(torus, links.domain, links.bandwidth or torus.bandwidth)
            except ValueError as error:
                raise FieldError("node.scale_up.torus", str(error)) from None
        return self

    @model_validator(mode="after")
    def _fabric_fits(self) -> ClusterSpec:
        inside = max(self.node.accelerators, self.node.scale_up.domain)
        total = self.num_devices
        if (self.node.nics is None) != (self.node.nic_bandwidth is None):
            raise FieldError("node.nics", "nics and nic_bandwidth must be given together")
        if total is not None and total <= inside and self.fabric is None:
            return self
        nic = self.node.nic_bandwidth
        if nic is not None and nic > MOST_OF_A_NIC:
            must = f"must be at most {MOST_OF_A_NIC * 8e-9:,g} Gbit/s, twice what the fastest NIC sends"
            how = "write Gbit/s where bits are meant, and what one NIC sends, not a whole node's"
            raise FieldError("node.nic_bandwidth", f"{must}, given {nic * 8e-9:,g} Gbit/s; {how}")
        if self.fabric is None or self.node.nics is None:
            raise FieldError(
                "fabric", "a cluster of several nodes must state fabric, node.nics and node.nic_bandwidth"
            )
        if self.fabric.rails is not None and self.node.nics % self.fabric.rails:
            raise FieldError(
                "fabric.rails", f"must divide the node's {self.node.nics} NICs, given {self.fabric.rails}"
            )
        below = inside
        for index, tier in enumerate(self.fabric.tiers):
            field = f"fabric.tiers.{index}.devices"
            size = total if tier.devices == "all" else tier.devices
            last = index == len(self.fabric.tiers) - 1
            if last and tier.devices != "all" and tier.devices != total:
                raise FieldError(field, f"the outermost tier must join all devices, given {tier.devices}")
            if tier.devices == "all" and not last:
                raise FieldError(field, "only the outermost tier joins all devices")
            if size is None:
                continue
            if size % below or (size == below and index > 0):
                raise FieldError(field, f"tiers must grow by whole domains of {below} devices, given {size}")
            if total is not None and total % size:
                hint = f"with nodes: any, {option('gpus', total)} fills such domains evenly"
                raise FieldError(field, f"must divide the cluster's {total} devices, given {size}; {hint}")
            below = size
        return self


@dataclass(frozen=True)
class Tier:
    """One level of links. `size`: devices in one domain of it (the last: the whole cluster).

    `bandwidth`: per direction per device when every device of the domain sends beyond the tier below at once,
    after oversubscription and NIC sharing; `bandwidth_alone`: what one device gets while its neighbours are
    silent [bytes/s]. `pair_bandwidth`: what one pair gets where that is less (a mesh). `latency`: nominal
    time of a hop [s]. `torus`: the slice, where its devices are linked to their neighbours alone.
    """

    name: str
    kind: LinkKind
    size: int
    bandwidth: float
    bandwidth_alone: float
    latency: float
    pair_bandwidth: float | None = None
    torus: Torus | None = None

    @property
    def hop_bandwidth(self) -> float:
        """Of a message from one device to the next: one link of a torus, a pair's of an NVLink mesh, all of a device's
        where a switch joins them [bytes/s]. What XGMI reaches between two of a mesh is said of all its links."""
        if self.torus is not None:
            return min(self.torus.links)
        return self.bandwidth if self.mesh_pair is None else min(self.bandwidth, self.mesh_pair)

    @property
    def mesh_pair(self) -> float | None:
        """What a pair gets where NVLink joins devices without a switch [bytes/s]; None elsewhere."""
        return self.pair_bandwidth if self.kind is LinkKind.NVLINK else None

    def holds(self, devices: int) -> bool:
        """Whether so many devices can be a domain of it: of a torus they must be a slice."""
        return self.torus is None or self.torus.holding(devices) is not None

    def of_size(self, devices: int) -> Tier:
        """The same level with so many devices in a domain. Raises `InputError` where they are no slice of its torus."""
        if self.torus is None:
            return replace(self, size=devices)
        part = self.torus.holding(devices)
        if part is None:
            must = f"a slice of {self.kind} must be {self.torus.lent}"
            raise InputError(must, str(devices), "take a number with small factors, such as a power of 2")
        return replace(self, size=devices, torus=part)


@dataclass(frozen=True)
class Cluster:
    """A cluster as the rest of planner sees it. `tiers`: innermost first, tier 0 the scale-up links.

    `host_memory` per node [bytes], `price_per_device_hour` on demand [$/h], `power_per_device` [W] the device's share
    of its node. `assumed`: what the input left open. `unverified`: fields that come from memory.
    `links`: what a calibration measured on its links, over what is said of such links. `products`: rate at which its
    devices multiply over that of the catalog's [1]. `described`: the keys of a user's own file. `rails`: parallel
    planes of the fabric, which change no figure.
    """

    name: str
    accelerator: Accelerator
    num_devices: int
    devices_per_node: int
    scale_up_domain: int
    tiers: tuple[Tier, ...]
    host_memory: float | None
    price_per_device_hour: float | None
    power_per_device: float | None
    fabric: LinkKind
    unverified: tuple[str, ...] = ()
    assumed: tuple[Finding, ...] = ()
    source: str = ""
    network_efficiency: float | None = None
    reserved_price_per_device_hour: float | None = None
    spot_price_per_device_hour: float | None = None
    links: LinkFactors = AS_SHIPPED
    products: float = 1.0
    rails: int | None = None
    described: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def num_nodes(self) -> int:
        """Nodes in use; a part of a node counts as one."""
        return -(-self.num_devices // self.devices_per_node)

    def with_devices(self, n: int) -> Cluster:
        """The first `n` devices: whole nodes, or a part of one. Raises `InputError`.

        Domains that `n` would leave partly filled are filled evenly instead (128 GPUs on domains of 72: 64 in
        each), which is what a scheduler's placement is asked for; said in `assumed`. So are slices of a torus that has
        no grid of `n`.
        """
        check_device_count(n, self.devices_per_node, self.num_devices, self.name, self.accelerator.noun)
        if n == self.num_devices:
            return self
        tiers: list[Tier] = []
        assumed = list(self.assumed)
        for tier in self.tiers:
            below = tiers[-1].size if tiers else 1
            whole = tier.size >= n and (tier.holds(n) or tier is self.tiers[-1])
            size = n if whole else _even_domain(n, tier, below, self.devices_per_node)
            if size == below and tiers:
                continue
            if size not in (n, tier.size):
                assumed.append(
                    finding("even_domains", devices=n, tier=tier.name, domain=tier.size, each=size)
                )
            part = tier.of_size(size)
            if part.torus is not None:
                assumed.append(finding("joined_slice", devices=size, torus=part.torus.described))
            tiers.append(part)
            if size == n:
                break
        return replace(
            self,
            num_devices=n,
            devices_per_node=min(n, self.devices_per_node),
            scale_up_domain=tiers[0].size,
            tiers=tuple(tiers),
            assumed=tuple(assumed),
        )


def _even_domain(n: int, tier: Tier, below: int, per_node: int) -> int:
    """The largest domain of a tier that divides `n` into whole domains (and whole nodes, and slices of a torus)."""
    return next(
        d
        for d in range(tier.size, 0, -1)
        if n % d == 0 and d % below == 0 and (d <= per_node or d % per_node == 0) and tier.holds(d)
    )


def check_device_count(n: int, per_node: int, available: int | None, name: str, noun: str) -> None:
    """Raise `InputError` unless `n` devices (`noun`) of `name` are above 0, whole nodes, and no more than it has."""
    if isinstance(n, bool) or not isinstance(n, int) or n <= 0:
        raise InputError(
            f"the number of {noun}s must be a whole number above 0",
            repr(n),
            f"give {option('gpus', '8')}, for example",
        )
    if n > _MOST_DEVICES:
        raise InputError(
            f"the number of {noun}s must be at most {_MOST_DEVICES:,}",
            f"{n:,}",
            f"give {option('gpus')} a smaller number",
        )
    if available is not None and n > available:
        raise InputError(
            f"{name} has {available} devices",
            f"{n} asked for",
            "use a larger spec or a shorthand such as '64x8 h100 400G-ib'",
        )
    if n > per_node and n % per_node:
        lower = n // per_node * per_node
        legal = [str(m) for m in (lower, lower + per_node) if available is None or m <= available]
        raise InputError(
            f"{option('gpus')} above one node of {name} must be a multiple of {per_node}",
            str(n),
            "nearest: " + " or ".join(legal),
        )

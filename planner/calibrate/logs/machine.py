"""Which machine is this? Reads `nvidia-smi topo -m`, `rocm-smi --showtopo`, hostfiles and Slurm node lists.

What they do not say (the device's name, the speed of a network card) comes from the cluster the user names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml

from planner.calibrate.logs.text import plain
from planner.errors import FileInputError, InputError
from planner.spec.load_file import read_text
from planner.spec.machine.cluster import Cluster

_LARGEST: Final = 5_000_000  # bytes
_MOST_NODES: Final = 1_000_000
_MOST_RANGES: Final = 8  # of a name
_BALANCED: Final = r"[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*"  # brackets of a node list, none within another
_PART: Final = r"(?:[^,\[\]]|\[[^\[\]]*\])+"
_JOINTS: Final = {"nvlink": "NVLink", "xgmi": "Infinity Fabric"}
_LINKS: Final = re.compile(r"^(?:X|NV\d+|NVL|PIX|PXB|PHB|NODE|SYS|N/A|OK|NS|CNS)$")
_SLOTS: Final = re.compile(r"(?:slots|max_slots|gpus)\s*=\s*(\d+)|:(\d+)\s*$")


@dataclass(frozen=True)
class NodeTopology:
    """One node. `links`: direct links of the best and of the worst pair of devices, 1 where only their kind is told;
    `near`: devices with a card of their own behind one PCIe switch; `joint`: kind of the direct links. A tool that
    does not tell of network cards leaves `cards` at 0."""

    devices: int
    cards: int
    links: tuple[int, int]
    worst: str
    near: int
    joint: str = "NVLink"

    @property
    def lines(self) -> tuple[str, ...]:
        """The topology in words."""
        best, least = self.links
        joined = (
            f"{self.joint} between all, {least} to {best} links"
            if least
            else f"no {self.joint} between some (worst path {self.worst})"
        )
        if not self.cards:
            return (f"{self.devices} devices: {joined}", "no network cards are told of")
        return (
            f"{self.devices} devices: {joined}",
            f"{self.cards} network cards, {self.near} of {self.devices} devices with one behind their own switch",
        )


@dataclass(frozen=True)
class Nodes:
    """Hosts by name, and devices of each where the file says."""

    names: tuple[str, ...]
    slots: int | None


def _read(path: Path, what: str) -> str:
    return read_text(path, _LARGEST, missing=f"name {what}, or check the path")


def read_topology(path: Path) -> NodeTopology:
    """The matrix of `nvidia-smi topo -m` or of `rocm-smi --showtopo`. Raises `FileInputError`."""
    return parse_topology(_read(path, "a topology"), str(path))


def parse_topology(text: str, name: str) -> NodeTopology:
    """The matrix in the output of either tool. Raises `FileInputError`."""
    lines = [plain(line)[0] for line in text.splitlines()]
    if any("Link Type between two GPUs" in line for line in lines):
        return _rocm_topology(lines, name)
    heads = next((line.split() for line in lines if re.match(r"\s*GPU0\b(?!\s+X)", line)), None)
    rows: dict[str, list[str]] = {}
    for line in lines:
        cells = line.split()
        if len(cells) > 1 and re.match(r"^(?:GPU|NIC|mlx\w*_)\d+$", cells[0]) and _LINKS.match(cells[1]):
            rows[cells[0]] = cells[1:]
    devices = [label for label in rows if label.startswith("GPU")]
    if heads is None or not devices:
        hint = "write it with: nvidia-smi topo -m > topo.txt"
        raise FileInputError(name, "must hold the matrix of nvidia-smi topo -m", "no row of GPUs", hint)
    columns = [head for head in heads if re.match(r"^(?:GPU|NIC|mlx\w*_)\d+$", head)]
    cards = [label for label in columns if not label.startswith("GPU")]
    if [column for column in columns if column.startswith("GPU")] != devices:
        given = f"{len(devices)} rows, {len(columns) - len(cards)} columns of GPUs"
        raise FileInputError(name, "the matrix must be whole", given, "keep all lines of nvidia-smi topo -m")
    order = ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS")
    least, most, worst, near = 10**6, 0, "X", 0
    for device in devices:
        paths = dict(zip(columns, rows[device], strict=False))
        if len(paths) < len(columns):
            raise FileInputError(
                name, f"the row of {device} must have {len(columns)} columns", f"{len(paths)}"
            )
        near += any(paths[card] in ("PIX", "PXB") for card in cards)
        for other in devices:
            if other == device:
                continue
            cell = paths.get(other, "SYS")
            count = int(cell[2:]) if re.match(r"^NV\d+$", cell) else 0
            least, most = min(least, count), max(most, count)
            place = "NV" if cell.startswith("NV") else cell
            if place in order and order.index(place) > order.index(worst):
                worst = place
    # a card that every device reaches across processors alone carries storage or the host's own traffic
    reached = {
        card
        for device in devices
        for card in cards
        if dict(zip(columns, rows[device], strict=False))[card] != "SYS"
    }
    of_devices = [card for card in cards if card in reached] or cards
    return NodeTopology(len(devices), len(of_devices), (most, least if len(devices) > 1 else 0), worst, near)


def _rocm_topology(lines: Sequence[str], name: str) -> NodeTopology:
    """The table of link types of `rocm-smi --showtopo`: XGMI or PCIE for each pair; the diagonal holds no word."""
    start = next(i for i, line in enumerate(lines) if "Link Type between two GPUs" in line)
    rows: dict[str, list[str]] = {}
    for line in lines[start + 1 :]:
        cells = line.split()
        if cells and cells[0].startswith("="):
            break
        if cells and re.match(r"^GPU\d+$", cells[0]) and not all(cell.startswith("GPU") for cell in cells):
            rows[cells[0]] = cells[1:]
    short = [label for label, cells in rows.items() if len(cells) != len(rows)]
    if not rows or short:
        given = f"{len(rows)} rows" + (f", {short[0]} of another length" if short else "")
        raise FileInputError(
            name, "the table of link types must be whole", given, "keep all of rocm-smi --showtopo"
        )
    pairs = [cell for i, cells in enumerate(rows.values()) for j, cell in enumerate(cells) if i != j]
    unknown = [cell for cell in pairs if cell not in ("XGMI", "PCIE")]
    if unknown:
        raise FileInputError(name, "a link type must be XGMI or PCIE", repr(unknown[0][:40]))
    direct = [int(cell == "XGMI") for cell in pairs]
    worst = "PCIE" if 0 in direct else "XGMI" if direct else "X"
    ends = (max(direct, default=0), min(direct, default=0))
    return NodeTopology(len(rows), 0, ends, worst, 0, "Infinity Fabric")


def read_nodes(text: str) -> Nodes:
    """A hostfile, or a Slurm node list such as "gpu[001-064],login1". Raises `InputError`."""
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        if "/" in text or path.suffix in (".txt", ".list"):
            raise FileInputError(text[:200], "a hostfile must exist", hint="check the path")
        return Nodes(tuple(expand_nodes(text)), None)
    names: dict[str, None] = {}
    slots: set[int] = set()
    for line in _read(path, "a hostfile").splitlines():
        bare = line.split("#")[0].strip()
        if not bare:
            continue
        match = _SLOTS.search(bare)
        if match:
            slots.add(int((match[1] or match[2])[:6]))
        first = re.split(r"[\s:](?![^\[]*\])", bare, maxsplit=1)[0]
        names |= dict.fromkeys(expand_nodes(first))
        if len(names) > _MOST_NODES:
            raise FileInputError(text, f"a hostfile must name at most {_MOST_NODES:,} nodes", "more")
    if not names:
        raise FileInputError(text, "a hostfile must name hosts", "none")
    if len(slots) > 1:
        given = ", ".join(str(n) for n in sorted(slots))
        raise FileInputError(text, "all nodes must have as many devices", given, "plan each kind on its own")
    return Nodes(tuple(names), slots.pop() if slots else None)


def expand_nodes(text: str) -> list[str]:
    """Names of a Slurm node list: "a[1-3,7],b" is a1, a2, a3, a7, b. Raises `InputError`."""
    found: list[str] = []
    parts = re.findall(_PART, text.strip()) if re.fullmatch(_BALANCED, text) else []
    for part in parts:
        if part.count("[") > _MOST_RANGES:
            raise InputError(f"a node name must hold at most {_MOST_RANGES} ranges", repr(part[:80]))
        found += islice(_expanded(part.strip()), _MOST_NODES + 1)
        if len(found) > _MOST_NODES:
            raise InputError(f"a node list must name at most {_MOST_NODES:,} nodes", text[:80])
    if not found or not all(re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) for name in found):
        hint = "write it like gpu[001-064], or give a hostfile"
        raise InputError("nodes must be a hostfile or a Slurm node list", repr(text[:80]), hint)
    return found


def _expanded(part: str) -> Iterator[str]:
    match = re.match(r"^([^\[]*)\[([^\]]*)\](.*)$", part)
    if match is None:
        yield part
        return
    for span in match[2].split(","):
        low, _, high = span.strip().partition("-")
        high = high or low
        if not (low.isdigit() and high.isdigit() and len(high) < 10 and int(low) <= int(high)):
            raise InputError("a range of nodes must look like [001-064]", repr(part[:80]))
        if int(high) - int(low) > _MOST_NODES:
            raise InputError(f"a node list must name at most {_MOST_NODES:,} nodes", part[:80])
        for number in range(int(low), int(high) + 1):
            yield from (f"{match[1]}{number:0{len(low)}d}{rest}" for rest in _expanded(match[3]))


def machine_notes(cluster: Cluster, topology: NodeTopology | None, nodes: Nodes | None) -> tuple[str, ...]:
    """Where a machine contradicts the cluster that was named. Empty where it agrees."""
    said = []
    if topology is not None:
        if topology.devices != cluster.devices_per_node:
            said.append(
                f"the node has {topology.devices} devices, {cluster.name} as given {cluster.devices_per_node}"
            )
        joined = topology.links[1] > 0
        usual = _JOINTS.get(str(cluster.tiers[0].kind))
        if usual is not None and topology.devices > 1 and (not joined or usual != topology.joint):
            said.append(
                f"some pairs have no {usual} (worst path {topology.worst}), {cluster.name} says {cluster.tiers[0].kind}"
            )
        if 0 < topology.cards < topology.devices and len(cluster.tiers) > 1:
            said.append(f"the node has {topology.cards} network cards for {topology.devices} devices")
        if topology.cards and topology.near < topology.devices and len(cluster.tiers) > 1:
            said.append(
                f"{topology.devices - topology.near} devices reach no network card behind their own switch: "
                "GPUDirect RDMA crosses the processor there"
            )
    if nodes is not None:
        if len(nodes.names) != cluster.num_nodes:
            said.append(
                f"{len(nodes.names)} hosts are named, {cluster.name} as given has {cluster.num_nodes}"
            )
        if nodes.slots is not None and nodes.slots != cluster.devices_per_node:
            said.append(
                f"the hosts have {nodes.slots} slots, a node of {cluster.name} {cluster.devices_per_node}"
            )
    return tuple(said)


def cluster_text(cluster: Cluster, topology: NodeTopology | None, nodes: Nodes | None, name: str) -> str:
    """A cluster file of the machine as it was found; what was not looked at is as in `cluster`. Raises `InputError`."""
    per_node = (
        topology.devices if topology else (nodes.slots if nodes and nodes.slots else cluster.devices_per_node)
    )
    count = len(nodes.names) if nodes else cluster.num_nodes
    kind = str(cluster.tiers[0].kind)
    if topology is not None and topology.devices > 1:
        direct = next(kind for kind, joint in _JOINTS.items() if joint == topology.joint)
        kind = direct if topology.links[1] else "pcie"
    # a tray's matrix shows its own devices alone, whose links may join several nodes
    joins = cluster.tiers[0].size > cluster.devices_per_node and kind == str(cluster.tiers[0].kind)
    domain = min(cluster.tiers[0].size, per_node * count) if joins else per_node
    node: dict[str, Any] = {"accelerators": per_node, "scale_up": {"kind": kind, "domain": domain}}
    spec: dict[str, Any] = {
        "name": name, "description": f"as found; the rest from {cluster.name}", "nodes": count,
        "accelerator": cluster.accelerator.name, "node": node,
    }  # fmt: skip
    sources = {
        "node": ("nvidia-smi topo -m" if topology.joint == "NVLink" else "rocm-smi --showtopo")
        if topology
        else f"the cluster {cluster.name}"
    }
    if per_node * count > domain:
        if len(cluster.tiers) < 2:
            raise InputError(
                "a cluster of several nodes needs a fabric", cluster.name, "name one with several nodes"
            )
        whole = cluster.tiers[1].bandwidth_alone * cluster.devices_per_node
        cards = topology.cards if topology and topology.cards else cluster.devices_per_node
        node |= {"nics": cards, "nic_bandwidth": f"{whole * 8 / cluster.devices_per_node / 1e9:.4g} Gbit/s"}
        spec["fabric"] = {"kind": str(cluster.fabric)}
        sources["fabric"] = f"the cluster {cluster.name}"
    if nodes is not None:
        sources["nodes"] = "the hosts given"
    text = yaml.safe_dump({**spec, "sources": sources}, sort_keys=False, allow_unicode=True)
    return f"# Written by planner calibrate from what the machine says of itself.\n{text}"

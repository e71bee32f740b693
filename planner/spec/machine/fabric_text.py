"""Which cluster does "64x8 h100 400G-ib" mean, and which fabric "IB HDR 8x200G (Selene)"?

    shorthand := [NODES x] DEVICES ACCELERATOR [SPEED G-FABRIC]
    64x8 h100 400G-ib    64 nodes of 8 H100, one 400 Gbit/s InfiniBand NIC per device
    8 rtx4090            one node of 8
    FABRIC               ib | roce | efa | eth | opa | slingshot
    SPEED                of one device: 3.2 Tbit/s shared by a node of 8 is 400G

The shorthand is strict. `parse_fabric` reads what papers write, and says in words what it had to assume. Left
out: anything about switches; both mean one non-blocking fabric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from planner.errors import InputError
from planner.spec.machine.accelerator import TypicalNode
from planner.spec.machine.cluster import Accelerator, LinkKind

if TYPE_CHECKING:
    from planner.spec.machine.ports_text import Ports

GRAMMAR: Final = (
    "write [NODES x] DEVICES ACCELERATOR [SPEED G-ib|roce|efa|eth|opa|slingshot], SPEED in Gbit/s of one device, "
    "such as '64x8 h100 400G-ib' or '8 rtx4090'"
)
_MOST_OF_A_DEVICE: Final = (
    400e9  # bytes/s: a node's eight NICs taken for one device's, which is told, not refused
)
_SHORTHAND: Final = re.compile(
    r"(?:(?P<nodes>\d+)\s*[xX×]\s*)?(?P<devices>\d+)\s+(?P<chip>[A-Za-z][\w.-]*|\d{4}[\w.-]*)"
    r"(?:\s+(?P<speed>\d{1,5}(?:\.\d{1,3})?)[Gg]-(?P<fabric>[A-Za-z]+))?"
)
_SHORT_KINDS: Final[Mapping[str, LinkKind]] = {
    "ib": LinkKind.INFINIBAND,
    "roce": LinkKind.ROCE,
    "efa": LinkKind.EFA,
    "eth": LinkKind.ETHERNET,
    "opa": LinkKind.OMNIPATH,
    "slingshot": LinkKind.SLINGSHOT,
}
_WORDS: Final[tuple[tuple[str, LinkKind], ...]] = (
    (r"\b(efa)(v?\d)?\b", LinkKind.EFA),
    (r"\b(roce|rdma)(v\d)?\b", LinkKind.ROCE),
    (r"(?:(?<![a-z])|(?<=\dx))(ib|infiniband|quantum|[ehnx]dr\d*)\b", LinkKind.INFINIBAND),
    (r"\b(opa|omni-?path)\b", LinkKind.OMNIPATH),
    (r"\b(slingshot)(-\d+)?\b", LinkKind.SLINGSHOT),
    (r"(?<![a-z])(eth|ethernet|tcpxo?|tcp|gvnic|gbe|gige)\b", LinkKind.ETHERNET),
)


_OVERSUBSCRIBED: Final = re.compile(
    r"over-?subscri\w*|\b\d{1,2}:\d{1,2}\b(?=[^,;]*(?:blocking|taper|tree|spine|leaf))", re.IGNORECASE
)


@dataclass(frozen=True)
class Shorthand:
    """A cluster in a few words: `speed` of one NIC per device [bytes/s], None where not said."""

    nodes: int
    devices_per_node: int
    accelerator: str
    speed: float | None
    fabric: LinkKind | None

    @property
    def network(self) -> str:
        """Speed and fabric as the shorthand writes them; empty where they were not said."""
        short = next((name for name, kind in _SHORT_KINDS.items() if kind is self.fabric), "")
        return "" if self.speed is None else f"{self.speed * 8e-9:g}G-{short}"


def looks_like_shorthand(text: str) -> bool:
    """Whether `text` can only be meant as a shorthand: a count first, then more words, or `NxM`."""
    return re.match(r"\s*[+-]?\d+(\s*[xX×]\s*\d+|\s+\S)", text) is not None


def parse_shorthand(text: str) -> Shorthand:
    """Read the shorthand above. Raises `InputError` that shows the grammar."""
    match = _SHORTHAND.fullmatch(text.strip())
    if match is None:
        raise InputError("a cluster shorthand must follow its grammar", repr(text), GRAMMAR)
    fabric = match["fabric"]
    if fabric is not None and fabric.lower() not in _SHORT_KINDS:
        raise InputError(
            f"the fabric of a shorthand must be one of {', '.join(_SHORT_KINDS)}", repr(fabric), GRAMMAR
        )
    nodes, devices = (_count(match[key] or "1", text) for key in ("nodes", "devices"))
    speed = float(match["speed"]) * 1e9 / 8 if match["speed"] else None
    if speed == 0:
        raise InputError("the speed of a NIC must be above 0", repr(text), GRAMMAR)
    if speed is not None and speed > _MOST_OF_A_DEVICE:
        must = f"the speed of one device must be at most {_MOST_OF_A_DEVICE * 8e-9:,g} Gbit/s"
        raise InputError(must, repr(text), GRAMMAR)
    return Shorthand(nodes, devices, match["chip"], speed, _SHORT_KINDS[fabric.lower()] if fabric else None)


def _count(digits: str, text: str) -> int:
    if len(digits) > 8 or int(digits) == 0:
        raise InputError("nodes and devices must be between 1 and 10 million", repr(text), GRAMMAR)
    return int(digits)


def parse_fabric(
    text: str, accelerator: Accelerator, devices_per_node: int
) -> tuple[LinkKind, float, str | None]:
    """Fabric, what one node sends per direction [bytes/s], and what had to be assumed (None: nothing).

    Reads "RoCE 8x200G", "EFA", "dual-rail EDR", "800 Gbps per node", "50 GB/s per GPU", "4 HDR NICs per node".
    What `text` does not say is that of the accelerator's typical node.
    """
    from planner.spec.machine.ports_text import stated_ports  # of no cluster that is described

    node = accelerator.typical_node
    if node is None:
        raise InputError(f"{accelerator.name} must have a typical node to complete a fabric", repr(text))
    words = text.strip()
    kind = next((found for pattern, found in _WORDS if re.search(pattern, words, re.IGNORECASE)), None)
    scale = devices_per_node / node.accelerators
    used, notes = kind or node.fabric, []
    bandwidth, note = _injection(stated_ports(words), node, used, devices_per_node)
    if kind is None:
        notes.append(f"fabric {used}")
    if bandwidth is None:
        bandwidth = node.injection_bandwidth(used) * scale
        notes.append(f"{bandwidth * 8e-9:g} Gbit/s per node")
    elif note:
        notes.append(note)
    oversubscribed = bool(_OVERSUBSCRIBED.search(words))
    if not notes and not oversubscribed:
        return used, bandwidth, None
    why = f"the fabric is given as {text!r}" if words else "no fabric is given"
    usual = "" if note and used is LinkKind.ETHERNET else f" as in a typical {accelerator.name} node"
    left_open = f"; assumed{usual}: {', '.join(notes)}" if notes else ""
    return used, bandwidth, why + left_open + "; its oversubscription is not modelled" * oversubscribed


def _injection(
    ports: Ports | None, node: TypicalNode, kind: LinkKind, devices_per_node: int
) -> tuple[float | None, str]:
    """Bytes/s of a node that a text states, None if it states none, and which count of NICs was assumed."""
    if ports is None:
        return None, ""
    from planner.spec.machine.ports_text import FASTEST_PORT

    total = ports.per_node(devices_per_node)
    if total is not None:
        return total, ""
    rate, usual = ports.rate, node.nics * devices_per_node / node.accelerators
    # what a single port does not reach, or what such a node sends on that fabric in all
    if rate > FASTEST_PORT or rate == dict(node.injection).get(kind):
        return rate, f"{rate * 8e-9:g} Gbit/s being that of a node"
    if kind is LinkKind.ETHERNET:
        usual = 1
    return rate * usual, f"{usual:g} NIC{'s' * (usual != 1)} per node"

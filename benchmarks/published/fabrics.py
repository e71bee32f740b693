"""Which fabric does "IB HDR 8x200G (Selene)" mean?

Reads what papers write, and says in words what it had to assume. Left out: anything about switches; a text means one
non-blocking fabric.
"""

from __future__ import annotations

import re
from typing import Final

from benchmarks.published.ports import FASTEST_PORT, Ports, stated_ports
from planner.errors import InputError
from planner.spec.machine.accelerator import TypicalNode
from planner.spec.machine.cluster import Accelerator, LinkKind

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


def parse_fabric(
    text: str, accelerator: Accelerator, devices_per_node: int
) -> tuple[LinkKind, float, str | None]:
    """Fabric, what one node sends per direction [bytes/s], and what had to be assumed (None: nothing).

    Reads "RoCE 8x200G", "EFA", "dual-rail EDR", "800 Gbps per node", "50 GB/s per GPU", "4 HDR NICs per node".
    What `text` does not say is that of the accelerator's typical node.
    """
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

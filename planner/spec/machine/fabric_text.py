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
from typing import Final

from planner.errors import InputError
from planner.spec.machine.cluster import Accelerator, LinkKind

GRAMMAR: Final = (
    "write [NODES x] DEVICES ACCELERATOR [SPEED G-ib|roce|efa|eth|opa|slingshot], SPEED in Gbit/s of one device, "
    "such as '64x8 h100 400G-ib' or '8 rtx4090'"
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
    (r"\b(ib|infiniband|quantum|[ehnx]dr\d*)\b", LinkKind.INFINIBAND),
    (r"\b(opa|omni-?path)\b", LinkKind.OMNIPATH),
    (r"\b(slingshot)(-\d+)?\b", LinkKind.SLINGSHOT),
    (r"\b(eth|ethernet|tcpxo?|tcp|gvnic|gbe)\b", LinkKind.ETHERNET),
)
_GENERATIONS: Final[Mapping[str, float]] = {
    "edr": 100e9,
    "hdr": 200e9,
    "ndr": 400e9,
    "xdr": 800e9,
    "opa": 100e9,
}  # bit/s of one port
_FASTEST_PORT: Final = 800e9 / 8  # bytes/s
_PREFIX: Final[Mapping[str, float]] = {"m": 1e6, "g": 1e9, "t": 1e12}
_RATE: Final = re.compile(
    r"(?:\b(?P<count>\d{1,4})\s*[x×*]\s*)?(?:[ehnx]dr[ -]?)?(?P<rate>\d+(?:\.\d+)?)\s*"
    r"(?P<unit>[MGTmgt](?:bit/s|bps|b/s|B/s|Bps|bE|be|b)?)(?![\w])"
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
    return Shorthand(nodes, devices, match["chip"], speed, _SHORT_KINDS[fabric.lower()] if fabric else None)


def _count(digits: str, text: str) -> int:
    if len(digits) > 8 or int(digits) == 0:
        raise InputError("nodes and devices must be between 1 and 10 million", repr(text), GRAMMAR)
    return int(digits)


def parse_fabric(
    text: str, accelerator: Accelerator, devices_per_node: int
) -> tuple[LinkKind, float, str | None]:
    """Fabric, what one node sends per direction [bytes/s], and what had to be assumed (None: nothing).

    Reads "RoCE 8x200G", "EFA", "IB HDR", "800 Gbps per node", "50 GB/s per GPU", "IB 100G (1 port per node)".
    What `text` does not say is that of the accelerator's typical node.
    """
    node = accelerator.typical_node
    if node is None:
        raise InputError(f"{accelerator.name} must have a typical node to complete a fabric", repr(text))
    words = text.strip()
    kind = next((found for pattern, found in _WORDS if re.search(pattern, words, re.IGNORECASE)), None)
    scale = devices_per_node / node.accelerators
    used, notes = kind or node.fabric, []
    bandwidth, note = _injection(words, node.nics * scale, devices_per_node)
    if kind is None:
        notes.append(f"fabric {used}")
    if bandwidth is None:
        bandwidth = node.injection_bandwidth(used) * scale
        notes.append(f"{bandwidth * 8e-9:g} Gbit/s per node")
    elif note:
        notes.append(note)
    if not notes:
        return used, bandwidth, None
    why = f"the fabric is given as {text!r}" if words else "no fabric is given"
    return used, bandwidth, f"{why}; assumed as in a typical {accelerator.name} node: {', '.join(notes)}"


def _injection(words: str, usual_nics: float, devices_per_node: int) -> tuple[float | None, str]:
    """Bytes/s of a node that `words` state, None if they state none, and which count of NICs was assumed."""
    match = _RATE.search(words)
    generation = re.search(r"\b([ehnx]dr|opa)[ -]?(\d{2,3})?", words, re.IGNORECASE)
    if match is None and generation is None:
        return None, ""
    if match is not None:
        unit = match["unit"]
        in_bytes = "B" in unit[1:]
        one = float(match["rate"]) * _PREFIX[unit[0].lower()] / (1 if in_bytes else 8)
        count = match["count"]
    else:
        assert generation is not None
        bits = float(generation[2]) * 1e9 if generation[2] else _GENERATIONS[generation[1].lower()]
        one, count = bits / 8, None
    if one <= 0 or one > 1e15 or (count is not None and not 0 < int(count) <= 1024):
        return None, ""
    lower = words.lower()
    ports = re.search(r"\b(\d{1,4})\s*(?:ports?|nics?|rails?|hcas?)\s*(?:per|/)\s*node", lower)
    per_device = re.search(r"(?:per|/)\s*(?:gpu|device|accelerator)", lower)
    if count is not None:
        return one * int(count), ""
    if ports is not None and 0 < int(ports[1]) <= 1024:
        return one * int(ports[1]), ""
    if per_device:
        return one * devices_per_node, ""
    if re.search(r"(?:per|/)\s*node", lower):
        return one, ""
    if one > _FASTEST_PORT:  # no single port is that fast
        return one, f"{one * 8e-9:g} Gbit/s being that of a node"
    return one * usual_nics, f"{usual_nics:g} NICs per node"

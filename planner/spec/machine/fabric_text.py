"""Which cluster does "64x8 h100 400G-ib" mean?

    shorthand := [NODES x] DEVICES [x] ACCELERATOR [SPEED G-FABRIC] | ACCELERATOR x DEVICES [SPEED G-FABRIC]
    64x8 h100 400G-ib    64 nodes of 8 H100, one 400 Gbit/s InfiniBand NIC per device
    8 rtx4090, 8x RTX 4090, rtx 4090 x 8    one node of 8
    32xH100              4 nodes of 8, as many as such a node usually has
    FABRIC               ib | roce | efa | eth | opa | slingshot
    SPEED                of one device: 3.2 Tbit/s shared by a node of 8 is 400G

Left out: anything about switches; it means one non-blocking fabric.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from planner.errors import InputError
from planner.spec.machine.cluster import LinkKind

FORM: Final = (
    "[NODES x] DEVICES ACCELERATOR [SPEED G-ib|roce|efa|eth|opa|slingshot], SPEED in Gbit/s of one device, "
    "such as '64x8 h100 400G-ib', '8 rtx4090' or '2x RTX 3090'"
)
GRAMMAR: Final = f"write {FORM}"
_MOST_OF_A_DEVICE: Final = (
    400e9  # bytes/s: a node's eight NICs taken for one device's, which is told, not refused
)
_TIMES: Final = r"\s*[xX×*]\s*"
_CHIP: Final = (
    r"(?P<chip>(?:(?![xX]\b)[A-Za-z][\w.-]*|\d{4}[\w.-]*)(?:\s+(?!\d+(?:\.\d+)?[A-Za-z]?-)[\w()./-]+)*)"
)
_MEMORY: Final = r"\d+\s*[Gg][Ii]?[Bb]?\s*$"  # "4090 48gb" is a device, not 4,090 of them
_NETWORK: Final = r"(?:\s+(?P<speed>\d{1,5}(?:\.\d{1,3})?)[Gg]-(?P<fabric>[A-Za-z]+))?"
# "2x3080 ti" is 2 nodes of 3,080 devices, or 2 of one whose name begins with digits; "2 xeon" 2 of eon, or of xeon; the
# x of a count last stands after a space or a digit, so that the one of RTX is none
_READINGS: Final = tuple(
    re.compile(rf"{counts}{_NETWORK}")
    for counts in (
        *(
            rf"{nodes}(?P<devices>\d+){between}{_CHIP}"
            for nodes in (rf"(?P<nodes>\d+){_TIMES}", "(?P<nodes>)")
            for between in (_TIMES, r"\s+")
        ),
        rf"(?P<nodes>){_CHIP}(?:\s+|(?<=\d))[xX×*]\s*(?P<devices>\d+)",
    )
)
_PATH: Final = re.compile(
    r"\.ya?ml\s*$|(?<!\s)[/\\]|[/\\](?!\s)", re.IGNORECASE
)  # "MI250X / MI250" is a device
_SHORT_KINDS: Final[Mapping[str, LinkKind]] = {
    "ib": LinkKind.INFINIBAND,
    "roce": LinkKind.ROCE,
    "efa": LinkKind.EFA,
    "eth": LinkKind.ETHERNET,
    "opa": LinkKind.OMNIPATH,
    "slingshot": LinkKind.SLINGSHOT,
}


@dataclass(frozen=True)
class Shorthand:
    """A cluster in a few words. `nodes`: 0 where not said, `devices`: of each, or of all; `speed` of one NIC per device
    [bytes/s], None where not said."""

    nodes: int
    devices: int
    accelerator: str
    speed: float | None
    fabric: LinkKind | None

    @property
    def network(self) -> str:
        """Speed and fabric as the shorthand writes them; empty where they were not said."""
        short = next((name for name, kind in _SHORT_KINDS.items() if kind is self.fabric), "")
        return "" if self.speed is None else f"{self.speed * 8e-9:g}G-{short}"


def looks_like_path(text: str) -> bool:
    """Whether `text` can only be meant as a file: it ends as YAML's do, or holds a separator of folders."""
    return _PATH.search(text) is not None


def looks_like_shorthand(text: str) -> bool:
    """Whether `text` can only be meant as a shorthand: a count first, then more words, or `x` and a count last."""
    counted = rf"\s*[+-]?\d+({_TIMES}\S|\s+(?!{_MEMORY})\S)|.*(\s|\d)[xX×*]\s*\d+(\s|$)"
    return not looks_like_path(text) and re.match(counted, text) is not None


def readings(text: str) -> Iterator[Shorthand]:
    """Every way to read the shorthand above, at least one. Raises `InputError` that shows the grammar."""
    found = [match for reading in _READINGS if (match := reading.fullmatch(text.strip()))]
    if not found:
        raise InputError("a cluster shorthand must follow its grammar", repr(text), GRAMMAR)
    return (_shorthand(match, text) for match in found)


def _shorthand(match: re.Match[str], text: str) -> Shorthand:
    fabric = match["fabric"]
    if fabric is not None and fabric.lower() not in _SHORT_KINDS:
        raise InputError(
            f"the fabric of a shorthand must be one of {', '.join(_SHORT_KINDS)}", repr(fabric), GRAMMAR
        )
    nodes, devices = _count(match["nodes"], text) if match["nodes"] else 0, _count(match["devices"], text)
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

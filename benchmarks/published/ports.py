"""How fast is one network port of a node, and how many are there, in words like "4x HDR", "200 Gb/s, 4 NICs per node"?

A rate is stated, or follows from a generation ("HDR") or a card ("ConnectX-7"); a count stands before the rate, behind
it, or with what is counted. Left out: which fabric it is, and what a text leaves open (`fabrics.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FASTEST_PORT: Final = 800e9 / 8  # bytes/s
_MOST_PORTS: Final = 1024
_PREFIX: Final[Mapping[str, float]] = {"m": 1e6, "g": 1e9, "t": 1e12}
_NUMBERS: Final = (
    (r"single|one", 1), (r"dual|two|double|twin", 2), (r"quad|four", 4), (r"eight|octa", 8),
)  # fmt: skip
# bit/s of one port by generation and, behind those, by card and switch
_GENERATIONS: Final = (
    (r"\bopa\b|omni-?path", 100e9), (r"edr", 100e9), (r"hdr", 200e9), (r"ndr", 400e9), (r"xdr", 800e9),
    (r"slingshot[ -]?10", 100e9), (r"slingshot[ -]?11", 200e9),
    (r"connectx-?5|\bcx-?5", 100e9), (r"connectx-?6|\bcx-?6", 200e9), (r"connectx-?7|\bcx-?7", 400e9),
    (r"connectx-?8|\bcx-?8", 800e9), (r"quantum[ -]?2", 400e9), (r"quantum", 200e9),
)  # fmt: skip
# numbers that are part of a name, none of them a count or a rate
_NAMES: Final = re.compile(
    r"(?:slingshot|connectx|\bcx|quantum|\broce ?v?|\befa ?v|\bgen|\bpcie|bluefield)[ -]?\d{1,2}(?:\.\d)?"
    r"(?![\d.]|\s*[x*gmt])"
)
# clauses on what joins devices inside a node
_INSIDE: Final = re.compile(r"nvlink|nvswitch|xgmi|infinity fabric|pcie?\b|pci-e|hccs|intra")
_FABRIC: Final = re.compile(
    r"\b(?:ib|infiniband|roce|efa|[ehnx]dr|ethernet|slingshot|opa|omni-?path|rdma|nics?|hcas?)\b"
)
_CLAUSES: Final = re.compile(r"[,;+&()]| and | with ")
_UNIT: Final = (
    r"(?P<prefix>[mgt])(?:iga|era|ega)?(?P<kind>bit/s|bits/s|bits?|bps|b/s|B/s|Bps|B|be|ige|b)?(?![\w])"
)
_RATE: Final = rf"(?P<rate>\d+(?:\.\d+)?)\s*{_UNIT}"
_TIMES: Final = r"\s*[x*]\s*"
_COUNT: Final = r"(?<![\w.:-])(?P<count>\d{1,4})"
_COUNTED: Final = r"(?:nics?|hcas?|ports?|rails?|adapters?|cards?|links?|interfaces?)\b"
_DEVICE: Final = r"(?:per|/)\s*(?:gpu|device|accelerator|gcd|chip)"
_GENERATION: Final = r"(?:\w+[ -])?(?:[ehnx]dr|opa|omni-?path|slingshot|connectx)"
# where a count of ports stands, first form first
_COUNTS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_COUNT}{_TIMES}(?=\d+(?:\.\d+)?\s*(?:[mgt]|\b))",  # 8x200G, 8*200
        rf"{_COUNT}(?:{_TIMES}|\s+)(?={_GENERATION})",  # 4xHDR, 2 EDR
        rf"(?:[mgt]b?(?:it)?s?(?:/s|ps)?|[ehnx]dr\d*){_TIMES}(?P<count>\d{{1,2}})(?![\w.])",  # HDR x4, 200G x 4
        rf"{_COUNT}(?:{_TIMES}|\s*-?\s*)(?!\s*[mgt]b)(?:[a-z][\w/.-]*\s+|\d+\s*g\S*\s+){{0,4}}{_COUNTED}",  # 4 HDR NICs
        rf"{_COUNT}\s*x?\s*(?:per|/)\s*node",  # 4 per node
        rf"{_COUNT}\s*x?\s*(?={_DEVICE})",  # 1 per GPU
    )
)  # fmt: skip


@dataclass(frozen=True)
class Ports:
    """`rate` of one port [bytes/s], or of all that a device or a node has; `count`: how many a device or a node has,
    None where a text does not say."""

    rate: float
    count: int | None = None
    of_device: bool = False
    of_node: bool = False

    def per_node(self, devices: int) -> float | None:
        """What a node of so many devices sends [bytes/s]; None where the text leaves the number of ports open."""
        if self.count is None and not self.of_device:
            return self.rate if self.of_node else None
        return self.rate * (self.count or 1) * (devices if self.of_device else 1)


def stated_ports(words: str) -> Ports | None:
    """The ports that a text states; None if it states no rate, or one of nothing."""
    text = _between_nodes(words)
    generation = next((bits for pattern, bits in _GENERATIONS if re.search(pattern, text.lower())), None)
    text = _NAMES.sub(" ", text)
    lower = text.lower()
    rate = _rate(text, generation)
    if rate is None or not 0 < rate <= 1e15:
        return None
    found = next((match for pattern in _COUNTS if (match := pattern.search(lower))), None)
    if found is not None:
        count, rest = int(found["count"]), lower[found.end() :]
        each = re.match(rf"[\w\s/.-]*?{_DEVICE}", rest)
        return Ports(rate, count, of_device=each is not None) if 0 < count <= _MOST_PORTS else None
    if re.search(_DEVICE, lower):
        return Ports(rate, of_device=True)
    return Ports(rate, of_node=bool(re.search(r"(?:per|/)\s*node", lower)))


def _between_nodes(words: str) -> str:
    """The text without what it says of links inside a node; numbers as digits, and in lower case but for units."""
    text = re.sub("[×✕]", "x", words)
    for pattern, number in _NUMBERS:
        text = re.sub(rf"\b(?:{pattern})\b[ -]?", f"{number}x ", text, flags=re.IGNORECASE)
    marks, parts = [*_CLAUSES.findall(text), ""], _CLAUSES.split(text)
    lower = [part.lower() for part in parts]
    kept = [bool(_FABRIC.search(part)) or not _INSIDE.search(part) for part in lower]
    return "".join(part + mark for part, mark, keep in zip(parts, marks, kept, strict=True) if keep)


def _rate(text: str, generation: float | None) -> float | None:
    """Bytes/s of the rate that a text states first; a generation's port where it states none."""
    lowered = re.sub(r"[A-Za-z]+", lambda word: _unit(word[0]), text)
    if match := re.search(_RATE, lowered):
        return float(match["rate"]) * _PREFIX[match["prefix"]] / (1 if "B" in (match["kind"] or "") else 8)
    if match := re.search(r"(?:[ehnx]dr|opa|omni-?path)[ -]?(\d{2,3})\b", lowered):  # HDR100
        return float(match[1]) * 1e9 / 8
    if match := re.search(rf"{_COUNT}{_TIMES}(\d{{2,3}})\b", lowered):  # 8*200
        return float(match[2]) * 1e9 / 8
    return None if generation is None else generation / 8


def _unit(word: str) -> str:
    """A word in lower case, but for the B of bytes."""
    bytes_ = re.fullmatch(r"[MGTmgt]B(ps)?", word) or word == "B"
    return word[0].lower() + word[1:] if bytes_ and len(word) > 1 else word if bytes_ else word.lower()

"""Which device does a name mean, as drivers, clouds and people write it?

    NVIDIA GeForce RTX 3090, rtx-3090 24gb    rtx3090
    NVIDIA A100-SXM4-80GB                     a100sxm of 80 GiB
    AMD Instinct MI300X                       mi300x

Left out: which devices there are, whose names and aliases `load_cluster` reads.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from planner.units import GIB

# vendors, brands and what else tells no two devices apart
_SAYS_NOTHING: Final = re.compile(
    "accelerator|amazon|amd|aws|blackwell|card|cloud|core|edition|geforce|generation|google|gpus?|graphics|habana|hbm[23]e?"
    "|instinct|intel|nvidia|oam|tensor|tesla"
)
_MEMORY: Final = re.compile(r"(?<![\w.])(\d{1,4})\s?g(?:i?b)?(?!\w)")
_BETWEEN: Final = re.compile(r"[\s_\-/()]+")
_SOCKET: Final = re.compile(
    r"sxm[0-24-9]"
)  # SXM4 of A100, SXM5 of H100: one of them a device; of V100 there are two


class DeviceName(NamedTuple):
    """A name without what tells no two devices apart. `memory`: what it says of it [GiB], None where nothing."""

    text: str
    memory: int | None = None


class Named(NamedTuple):
    """A device of the catalog: its name, the names it goes by, the memory it is sold with [bytes]."""

    name: str
    names: tuple[DeviceName, ...]
    memory: float


def device_name(text: str) -> DeviceName:
    """What a text says of a device."""
    text = " ".join(_BETWEEN.split(text.lower()))
    memories = {int(found) for found in _MEMORY.findall(text)}
    if len(memories) == 1:  # who says two says none that a device has
        text = _MEMORY.sub(" ", text)
    words = [_SOCKET.sub("sxm", word) for word in text.split()]
    plain = "".join(word for word in words if not _SAYS_NOTHING.fullmatch(word))
    return DeviceName(plain, memories.pop() if len(memories) == 1 else None)


def called(text: str, known: Iterable[Named]) -> list[str]:
    """The devices that a text names: those which bear the name as it is, or else which bear it and have the memory,
    where that is said."""
    asked = device_name(text)
    alike = [device for device in known if any(name.text == asked.text for name in device.names)]
    if not asked.text:
        return []
    found = [device for device in alike if asked in device.names] or [
        device for device in alike if asked.memory in (None, round(device.memory / GIB))
    ]
    return [device.name for device in found]


def nearest(text: str, known: Iterable[Named]) -> list[str]:
    """The devices of which one name begins with a text or is most like it, nearest first; none where none is."""
    bearers: dict[str, list[str]] = {}
    for name, device in sorted(
        ((name, each.name) for each in known for name in each.names),
        key=lambda pair: (pair[0].text, pair[0].memory or 0, pair[1]),
    ):
        bearers.setdefault(name.text, []).append(device)  # what bears it without memory stands first
    asked = device_name(text).text
    longer = [name for name in bearers if asked and name.startswith(asked)]
    close = [*sorted(longer, key=len), *difflib.get_close_matches(asked, bearers, n=5)]
    return list(dict.fromkeys(device for name in close for device in bearers[name]))[:7]

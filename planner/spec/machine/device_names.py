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
_SOCKET: Final = re.compile(r"sxm\d")  # SXM4 of A100, SXM5 of H100: one of them a device


class DeviceName(NamedTuple):
    """A name without what tells no two devices apart. `memory`: what it says of it [GiB], 0 where nothing."""

    text: str
    memory: int = 0


class Named(NamedTuple):
    """A device of the catalog: its name, the names it goes by, the memory it is sold with [bytes]."""

    name: str
    names: tuple[DeviceName, ...]
    memory: float


def device_name(text: str) -> DeviceName:
    """What a text says of a device."""
    text = text.lower()
    memory = _MEMORY.search(" ".join(_BETWEEN.split(text)))
    words = [_SOCKET.sub("sxm", word) for word in _BETWEEN.split(_MEMORY.sub(" ", _BETWEEN.sub(" ", text)))]
    return DeviceName(
        "".join(word for word in words if not _SAYS_NOTHING.fullmatch(word)), int(memory[1]) if memory else 0
    )


def resolve(text: str, known: Iterable[Named]) -> str | None:
    """The one device that a text names: that which bears the name as it is, or else the only one that bears it and has
    the memory, where that is said; None where there is none or several are."""
    asked = device_name(text)
    alike = [device for device in known if any(name.text == asked.text for name in device.names)]
    if not alike or not asked.text:
        return None
    found = [device for device in alike if asked in device.names] or [
        device for device in alike if asked.memory in (0, round(device.memory / GIB))
    ]
    return found[0].name if len(found) == 1 else None


def nearest(text: str, known: Iterable[Named]) -> list[str]:
    """The devices of which one name is most like a text, nearest first; none where no name is like it."""
    called: dict[str, list[str]] = {}
    for name, device in sorted((name, each.name) for each in known for name in each.names):
        called.setdefault(name.text, []).append(device)  # what bears it without memory stands first
    close = difflib.get_close_matches(device_name(text).text, called, n=5)
    return list(dict.fromkeys(device for name in close for device in called[name]))[:5]

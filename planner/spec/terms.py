"""What are the terms of a step, of memory and of lost time called where people read them?

Left out: their keys, which plan files and JSON hold and which stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# only those whose key is not the field's word; all others are their key with spaces
_TITLES: Final[Mapping[str, str]] = {
    "memory_bound": "memory-bound ops",
    "host_bound": "CPU launch overhead",
    "host_transfer": "CPU offload",
    "narrow_weight_copies": "low-precision weight copies",
    "outside_allocator": "outside PyTorch allocator",
    "repeated_work": "recomputed work",
    "stops": "interruptions",
}


def term_name(key: str) -> str:
    """A term's key as words."""
    return _TITLES.get(key, key.replace("_", " "))

"""Where memory binds, and what of a host's it takes, in words."""

from __future__ import annotations

from collections.abc import Mapping

from planner.report.words.template import amount
from planner.spec.findings import Finding
from planner.spec.planfile import Memory
from planner.spec.terms import term_name
from planner.units import format_capacity

_HOST = {
    "host_states": "states",
    "host_activations": "activations",
    "host_checkpoint_copy": "checkpoint copy",
}


def tightest(rank: int, ranks: int, phase: str) -> str:
    """The binding pipeline rank, of several, and its phase."""
    if ranks == 1:
        return f"in the {term_name(phase)} phase"
    return f"on pipeline rank {rank} (of 0-{ranks - 1}), {term_name(phase)}"


def parts_said(parts: Mapping[str, float]) -> str:
    """What takes memory, and how much [bytes]."""
    return ", ".join(f"{term_name(name)} {format_capacity(size)}" for name, size in parts.items())


def host_lack(short: float, limit: float, parts: Mapping[str, float]) -> str:
    """How far over its limit the host memory of a node is, and what takes it [bytes]."""
    over = f"{format_capacity(short)} over its limit of {format_capacity(limit)}"
    return f"host memory of a node {over} ({parts_said(parts)})"


def lack_of(memory: Memory) -> str:
    """The same of a configuration; empty where its hosts have what it needs."""
    if memory.host_limit is None or not memory.host_short:
        return ""
    return host_lack(memory.host_short, memory.host_limit, memory.host)


def host_of(found: Finding) -> dict[str, float]:
    """What of a host's memory a finding names [bytes]."""
    return {term: amount(found, name, float) for name, term in _HOST.items() if name in found.values}

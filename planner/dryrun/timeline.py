"""What is held when, over a step? What is allocated and reserved, part by part, and by what.

Left out: which part is the peak (`outcome.py`), and how it is drawn (`report/`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.captured.operation import Phase
from planner.dryrun.allocator.rounding import Column
from planner.dryrun.allocator.trace import Kind
from planner.dryrun.recording import Holds, Recording

POINTS: Final = 400  # of a timeline
_KINDS: Final = tuple(Holds)
_LAYER: Final = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True)
class Moment:
    """Where most is allocated within one of the parts of equal length of a step [bytes]."""

    phase: Phase
    operation: str
    """That ran then, and its module."""
    module: str
    allocated: int
    reserved: int
    """The most within the part."""
    held: Mapping[Holds, int]
    """What of the allocated holds what; adds up to it."""


@dataclass(frozen=True)
class HeldBlocks:
    """Blocks of one size, with `*` in `module` for the number of a layer; empty where no module made them."""

    size: int
    """That was asked for, of each [bytes]."""
    holds: Holds
    module: str
    number: int
    taken: int
    """Of what is allocated, by all of them: with what the allocator rounds up and does not split off [bytes]."""


def operation_at(recording: Recording, event: int) -> int:
    """Number of the operation that an event is part of."""
    return max(bisect_right(recording.operations, event, key=lambda one: one.first) - 1, 0)


def holds_of(recording: Recording, block: int) -> Holds:
    """What a block holds: where it was not said, what the forward pass makes is taken to be kept for the backward
    pass."""
    made = recording.made_by[block]
    phase = recording.operations[made].phase if made >= 0 else Phase.BUILD
    return recording.kinds.get(block, Holds.ACTIVATIONS if phase is Phase.FORWARD else Holds.TEMPORARY)


def blocks_after(recording: Recording, event: int, allocated: Column) -> tuple[HeldBlocks, ...]:
    """What is allocated after an event. `allocated`: after each event of the recording [bytes]."""
    what, blocks = recording.trace.what[: event + 1], recording.trace.blocks[: event + 1]
    made, changes = what >= 0, np.diff(allocated[: event + 1], prepend=0)
    held = dict(
        zip(blocks[made].tolist(), zip(what[made].tolist(), changes[made].tolist(), strict=True), strict=True)
    )
    for block in blocks[what == Kind.FREE].tolist():
        held.pop(block, None)
    alike, taken = Counter[tuple[int, Holds, str]](), Counter[tuple[int, Holds, str]]()
    for block, (size, change) in held.items():
        at = recording.made_by[block]
        module = _LAYER.sub(".*", recording.operations[at].module) if at >= 0 else ""
        key = size, holds_of(recording, block), module
        alike[key] += 1
        taken[key] += change
    return tuple(HeldBlocks(*key, number, taken[key]) for key, number in alike.items())


def timeline_of(
    recording: Recording, allocated: Column, reserved: Column, points: int = POINTS
) -> tuple[Moment, ...]:
    """The second step in parts. `allocated`, `reserved`: after each event of the recording [bytes]."""
    begin = recording.second_step + 1  # behind the mark
    number = len(allocated) - begin
    if number < 1:
        return ()
    held = _held(recording, allocated)
    edges = begin + np.linspace(0, number, min(points, number) + 1).astype(int)
    found = []
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        at = start + int(np.argmax(allocated[start:end]))
        made = recording.operations[operation_at(recording, at)]
        shares = {kind: int(sums[at]) for kind, sums in held.items() if sums[at]}
        most = int(reserved[start:end].max())
        found.append(Moment(made.phase, made.name, made.module, int(allocated[at]), most, shares))
    return tuple(found)


def _held(recording: Recording, allocated: Column) -> Mapping[Holds, Column]:
    """After each event, what every kind holds of what is allocated [bytes].

    A block takes from the allocator what its own event adds, and gives back as much.
    """
    changes = np.diff(allocated, prepend=0)
    moved = np.flatnonzero(changes)  # events that allocate or free
    blocks = recording.trace.blocks[moved].tolist()
    holders = np.array([_KINDS.index(holds_of(recording, block)) for block in blocks], np.int64)
    found = {}
    for number, kind in enumerate(_KINDS):
        own, steps = moved[holders == number], np.zeros_like(changes)
        steps[own] = changes[own]
        found[kind] = np.cumsum(steps)
    return found

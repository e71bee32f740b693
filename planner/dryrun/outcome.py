"""How much memory does a recorded step take, when, for what, and does it fit? The peaks of its replay.

Left out: how it is recorded (`transformers_step.py`), and the words a report says it in.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.result import OutOfMemory, Replay
from planner.dryrun.allocator.settings import AllocatorSettings, read_alloc_conf
from planner.dryrun.allocator.trace import Kind
from planner.dryrun.recording import Holds, Phase, Recording
from planner.spec.verdict import MemoryVerdict

ERROR: Final = (
    0.005  # of what a device has: above what 36 of 42 runs of one H100 were off by (benchmarks/RESULTS.md)
)
HELP: Final = ("expandable_segments:True", "max_split_size_mb:512")
_LAYER: Final = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True)
class Alive:
    """What is held at the peak: `module`, with `*` for the number of a layer, of the operation that made it; empty
    where none did."""

    holds: Holds
    module: str
    size: int
    """[bytes]"""
    blocks: int


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank's step, once the optimizer has its moments [bytes].

    `allocated_peak`, `reserved_peak`: `torch.cuda.max_memory_allocated` and `max_memory_reserved`.
    """

    rank: int
    allocated_peak: int
    reserved_peak: int
    first_step_allocated_peak: int
    phase: Phase
    """When most is allocated, and by which operation of which module."""
    operation: str
    module: str
    alive: tuple[Alive, ...]
    """What is allocated then, the largest first."""
    operations: int
    """How many run in one step."""
    timeline: tuple[tuple[Phase, int], ...]
    """The highest amount allocated in each of the parts of equal length of the step, and its phase [bytes]."""
    limit: int
    """What the allocator can have [bytes]."""
    verdict: MemoryVerdict
    out_of_memory: OutOfMemory | None
    host_peak: int
    """What the rank's tensors take at most in its host's memory, pinned ones powers of two; without the process itself
    [bytes]."""
    helped_by: tuple[str, ...]
    """Settings of the allocator with which it would fit."""


def memory_of(recording: Recording, settings: AllocatorSettings, limit: int, rank: int = 0) -> RankMemory:
    """Memory of a recorded step on a device that has `limit` for the allocator [bytes]."""
    free = replay(recording.trace, settings, stop=recording.end)
    held = replay(recording.trace, settings, capacity=limit, stop=recording.end)
    verdict = _verdict(recording, settings, limit)
    peaks = free.last_peaks
    at = _operation_at(recording, peaks.allocated_event)
    made = recording.operations[at]
    first = recording.second_step
    return RankMemory(
        rank=rank,
        allocated_peak=peaks.allocated,
        reserved_peak=peaks.reserved if held.out_of_memory else held.last_peaks.reserved,
        first_step_allocated_peak=int(free.allocated_timeline[:first].max(initial=0)),
        phase=made.phase,
        operation=made.name,
        module=made.module,
        alive=alive_at(recording, free, peaks.allocated_event),
        operations=len(recording.operations) - _operation_at(recording, first) - 1,
        timeline=_timeline(recording, free),
        limit=limit,
        verdict=verdict,
        out_of_memory=held.out_of_memory,
        host_peak=recording.host.largest_total(),
        helped_by=() if verdict is MemoryVerdict.FITS else _help(recording, settings, limit),
    )


def _verdict(recording: Recording, settings: AllocatorSettings, limit: int) -> MemoryVerdict:
    """Does it run where the device has less by the error, and where it has more?"""
    if _runs(recording, settings, round(limit * (1 - ERROR))):
        return MemoryVerdict.FITS
    more = _runs(recording, settings, round(limit * (1 + ERROR)))
    return MemoryVerdict.BORDERLINE if more else MemoryVerdict.DOES_NOT_FIT


def _runs(recording: Recording, settings: AllocatorSettings, limit: int) -> bool:
    return replay(recording.trace, settings, capacity=limit, stop=recording.end).out_of_memory is None


def _help(recording: Recording, settings: AllocatorSettings, limit: int) -> tuple[str, ...]:
    others = {text: read_alloc_conf(text) for text in HELP}
    return tuple(
        text
        for text, other in others.items()
        if other != settings and _verdict(recording, other, limit) is MemoryVerdict.FITS
    )


def _operation_at(recording: Recording, event: int) -> int:
    """Number of the operation that an event is part of."""
    return max(bisect_right(recording.operations, event, key=lambda one: one.first) - 1, 0)


def alive_at(recording: Recording, replayed: Replay, event: int) -> tuple[Alive, ...]:
    """What is allocated after an event, by what it holds and the module that made it, the largest first.

    A block counts what the tensor asked for; what the allocator adds to it is in the peak alone.
    """
    what, blocks = recording.trace.what[: event + 1], recording.trace.blocks[: event + 1]
    made = what >= 0
    asked = dict(zip(blocks[made].tolist(), what[made].tolist(), strict=True))
    for block in blocks[what == Kind.FREE].tolist():
        asked.pop(block, None)
    sums: dict[tuple[Holds, str], list[int]] = defaultdict(lambda: [0, 0])
    for block, size in asked.items():
        at = recording.made_by[block]
        phase = recording.operations[at].phase if at >= 0 else Phase.BUILD
        kept = Holds.ACTIVATIONS if phase is Phase.FORWARD else Holds.TEMPORARY
        holds = recording.kinds.get(block, kept)
        module = _LAYER.sub(".*", recording.operations[at].module) if at >= 0 else ""
        total = sums[holds, module]
        total[0] += size
        total[1] += 1
    found = (Alive(holds, module, size, count) for (holds, module), (size, count) in sums.items())
    return tuple(sorted(found, key=lambda one: (-one.size, one.holds, one.module)))


POINTS: Final = 400  # of a timeline


def _timeline(recording: Recording, replayed: Replay) -> tuple[tuple[Phase, int], ...]:
    begin = recording.second_step + 1  # behind the mark
    allocated = replayed.allocated_timeline[begin:]
    parts = np.array_split(allocated, min(POINTS, len(allocated)))
    starts = np.cumsum([begin, *(len(part) for part in parts[:-1])])
    phases = (recording.operations[_operation_at(recording, int(start))].phase for start in starts)
    return tuple((phase, int(part.max())) for phase, part in zip(phases, parts, strict=True))

"""How much memory does a recorded step take, when, for what, and does it fit? The peaks of its replay.

Left out: how it is recorded (`step.py` of each framework), and the words a report says it in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from planner.cost.captured.operation import Phase
from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.result import OutOfMemory
from planner.dryrun.allocator.settings import AllocatorSettings, read_alloc_conf
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.timeline import HeldBlocks, Moment, blocks_after, operation_at, timeline_of
from planner.spec.verdict import MemoryVerdict

ERROR: Final = (
    0.005  # of what a device has: above what 36 of 42 runs of one H100 were off by (benchmarks/RESULTS.md)
)
HELP: Final = ("expandable_segments:True", "max_split_size_mb:512")


@dataclass(frozen=True)
class Alive:
    """What is held at the peak: `module`, with `*` for the number of a layer, of the operation that made it; empty
    where none did."""

    holds: Holds
    module: str
    size: int
    """That its blocks take; of all of them it is the allocated peak [bytes]."""
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
    built_allocated_peak: int
    """The most while the step is built, before the first one: a process has needed that once."""
    phase: Phase
    """When most is allocated, and by which operation of which module."""
    operation: str
    module: str
    alive: tuple[Alive, ...]
    """What is allocated then, the largest first."""
    blocks: tuple[HeldBlocks, ...]
    """The same by size."""
    operations: int
    """How many run in one step."""
    timeline: tuple[Moment, ...]
    """Parts of equal length of the step."""
    limit: int
    """What the allocator can have [bytes]."""
    verdict: MemoryVerdict
    out_of_memory: OutOfMemory | None
    host_peak: int
    """What the rank's tensors take at most in its host's memory, pinned ones powers of two; without the process itself
    [bytes]."""
    helped_by: tuple[str, ...]
    """Settings of the allocator with which it would fit."""


def memory_of(
    recording: Recording, settings: AllocatorSettings, limit: int, rank: int = 0, device: int | None = None
) -> RankMemory:
    """Memory of a recorded step on a device that has `limit` for the allocator, of all its memory `device`, which is
    `limit` where not given [bytes]."""
    device = limit if device is None else device
    free = replay(recording.trace, replace(settings, memory_fraction=1.0), stop=recording.end)
    held = replay(recording.trace, settings, limit, device, recording.end)
    verdict = _verdict(recording, settings, limit, device)
    peaks = free.last_peaks
    at, blocks = (
        operation_at(recording, peaks.allocated_event),
        blocks_after(recording, peaks.allocated_event, free.allocated_timeline),
    )
    made = recording.operations[at]
    first = recording.second_step
    return RankMemory(
        rank=rank,
        allocated_peak=peaks.allocated,
        reserved_peak=peaks.reserved if held.out_of_memory else held.last_peaks.reserved,
        first_step_allocated_peak=int(free.allocated_timeline[recording.first_step : first].max(initial=0)),
        built_allocated_peak=int(free.allocated_timeline[: recording.first_step].max(initial=0)),
        phase=made.phase,
        operation=made.name,
        module=made.module,
        alive=_sums(blocks),
        blocks=blocks,
        operations=len(recording.operations) - operation_at(recording, first) - 1,
        timeline=timeline_of(
            recording, free.allocated_timeline, (free if held.out_of_memory else held).reserved_timeline()
        ),
        limit=settings.allowed(limit, device),
        verdict=verdict,
        out_of_memory=held.out_of_memory,
        host_peak=recording.host.largest_total(),
        helped_by=() if verdict is MemoryVerdict.FITS else _help(recording, settings, limit, device),
    )


def _verdict(recording: Recording, settings: AllocatorSettings, limit: int, device: int) -> MemoryVerdict:
    """Does it run where the device has less by the error, and where it has more?"""
    if _runs(recording, settings, limit, device, 1 - ERROR):
        return MemoryVerdict.FITS
    more = _runs(recording, settings, limit, device, 1 + ERROR)
    return MemoryVerdict.BORDERLINE if more else MemoryVerdict.DOES_NOT_FIT


def _runs(recording: Recording, settings: AllocatorSettings, limit: int, device: int, share: float) -> bool:
    """Does it run where there is this share of both?"""
    ran = replay(recording.trace, settings, round(limit * share), round(device * share), recording.end)
    return ran.out_of_memory is None


def _help(recording: Recording, settings: AllocatorSettings, limit: int, device: int) -> tuple[str, ...]:
    others = {text: replace(read_alloc_conf(text), memory_fraction=settings.memory_fraction) for text in HELP}
    return tuple(
        text
        for text, other in others.items()
        if other != settings and _verdict(recording, other, limit, device) is MemoryVerdict.FITS
    )


def _sums(blocks: Iterable[HeldBlocks]) -> tuple[Alive, ...]:
    """Blocks by what they hold and the module that made them, the largest first."""
    sums: dict[tuple[Holds, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in blocks:
        total = sums[one.holds, one.module]
        total[0] += one.taken
        total[1] += one.number
    found = (Alive(holds, module, size, count) for (holds, module), (size, count) in sums.items())
    return tuple(sorted(found, key=lambda one: (-one.size, one.holds, one.module)))

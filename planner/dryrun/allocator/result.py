"""What does a replayed trace say? Peaks, what is left at the end, and the allocation that failed.

`Replay.peaks` and `last_peaks` are `torch.cuda.max_memory_allocated` and `max_memory_reserved`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.dryrun.allocator.rounding import Column


@dataclass(frozen=True)
class Peaks:
    """Highest amounts [bytes], and the first event after which each holds."""

    allocated: int
    allocated_event: int
    reserved: int
    reserved_event: int


@dataclass(frozen=True)
class OutOfMemory:
    """The allocation that failed, with what PyTorch's message says of it [bytes]."""

    event: int
    """Index of the event in the trace."""
    block: int
    """Number of the block."""
    asked: int
    """What the tensor holds."""
    tried: int
    """What the device was asked for: "Tried to allocate"."""
    allocated: int
    """"is allocated by PyTorch"."""
    reserved: int
    """What the allocator had then, having given back what it could."""

    @property
    def unallocated(self) -> int:
        """ "is reserved by PyTorch but unallocated"."""
        return self.reserved - self.allocated


@dataclass(frozen=True)
class Segment:
    """Memory taken from the device in one piece: by one cudaMalloc, or mapped without a gap [bytes]."""

    address: int
    size: int
    stream: int
    small: bool


@dataclass(frozen=True, eq=False)
class Replay:
    """What a trace did to the device, up to its end or to the allocation that failed."""

    allocated_timeline: Column
    """After each event, what is allocated [bytes]."""
    changes: Column
    """(changes, 2): event, and what is reserved after it or after a part of it [bytes]."""
    resets: Column
    """Events that reset the peaks."""
    live: Column
    """(live blocks, 3) at the end: block, address [bytes], size [bytes]."""
    segments: tuple[Segment, ...]
    """What is reserved at the end, by address."""
    split_free: int
    """Free at the end in segments in use (`inactive_split_bytes`); in expandable segments not counted [bytes]."""
    retries: int
    """How often all cached memory was given back for one allocation (`num_alloc_retries`)."""
    freed_segments: int
    """How often memory was given back to the device (`num_device_free`)."""
    out_of_memory: OutOfMemory | None

    @property
    def allocated(self) -> int:
        """What is allocated at the end [bytes]."""
        return int(self.allocated_timeline[-1]) if len(self.allocated_timeline) else 0

    @property
    def reserved(self) -> int:
        """What is reserved at the end [bytes]."""
        return int(self.changes[-1, 1])

    @cached_property
    def peaks(self) -> Peaks:
        """Over the whole trace."""
        return self._peaks_from(-1)

    @cached_property
    def last_peaks(self) -> Peaks:
        """Since the peaks were last reset: `max_memory_allocated` and `max_memory_reserved` at the end."""
        return self._peaks_from(int(self.resets[-1]) if len(self.resets) else -1)

    def reserved_timeline(self) -> Column:
        """After each event, what is reserved [bytes]."""
        after = np.searchsorted(self.changes[:, 0], np.arange(len(self.allocated_timeline)), side="right")
        reserved: Column = self.changes[after - 1, 1]
        return reserved

    def _peaks_from(self, event: int) -> Peaks:
        """Peaks after an event, which itself counts with what holds after it."""
        allocated = self.allocated_timeline[max(event, 0) :]
        top = int(np.argmax(allocated)) if len(allocated) else 0
        current = int(np.searchsorted(self.changes[:, 0], event, side="right")) - 1
        reserved = self.changes[current:, 1]
        highest = int(np.argmax(reserved))
        return Peaks(
            allocated=int(allocated[top]) if len(allocated) else 0,
            allocated_event=top + max(event, 0),
            reserved=int(reserved[highest]),
            reserved_event=max(int(self.changes[current + highest, 0]), event, 0),
        )

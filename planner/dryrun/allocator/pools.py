"""Which memory does the allocator hold, and which of it is free? A segment of cudaMalloc for what finds no free block.

Sizes and addresses in units of 512 bytes. A pool is 2 x stream, and 1 more for requests above 1 MiB; PyTorch orders all
streams in one set, by stream first, which is the same. Addresses only grow: cudaMalloc may hand out again what was
given back, which can matter where blocks of one size are told apart by address alone. A gap of one unit keeps segments
apart, so that blocks that touch are of one segment. Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11 to 2.13,
by its function names: alloc_block, garbage_collect_cached_blocks, release_available_cached_blocks,
release_cached_blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from planner.dryrun.allocator.late_frees import Freed, LateFrees
from planner.dryrun.allocator.rounding import SMALL, UNIT, segment_of
from planner.dryrun.allocator.settings import AllocatorSettings

SHIFT: Final = (
    60  # a free block's key is size << SHIFT | address, so that keys order by size, then by address
)
MASK: Final = (1 << SHIFT) - 1
NOTHING: Final = -1
NEVER: Final = 1 << 44  # units, more than any device has


@dataclass(frozen=True)
class Limits:
    """What bounds the memory that is taken from the device [units]; `NEVER` where nothing does."""

    capacity: int
    """What the device has for the process."""
    allowed: int
    """What the process may take, where its fraction of the device is below 1."""
    collected_above: int
    """Cached segments are freed by age from here on."""


class Pools:
    """The memory that one process has taken from a device, and how it takes more and gives some back."""

    leave: tuple[int, int] = (0, SMALL)  # what a block keeps at most when it is not split, by pool % 2

    def __init__(self, settings: AllocatorSettings, pools: int, limits: Limits) -> None:
        self.keys: list[list[int]] = [[] for _ in range(pools)]  # of the free blocks of each pool, in order
        self.size_at: dict[int, int] = {}  # of a free block, by its address
        self.start_of: dict[int, int] = {}  # of a free block, by the address behind it
        self.segments: dict[int, tuple[int, int]] = {}  # size and pool of each segment, by address
        self.reserved = 0
        self.changes: list[tuple[int, int]] = []  # event, and what is reserved after it or a part of it
        self.retries = 0  # times that all cached memory was given back to try again
        self.freed_segments = 0
        self.limits = limits
        self.large_segment = settings.large_segment // UNIT
        self.limit = min(settings.max_split_size // UNIT, NEVER)
        self.whole_from = self.limit  # requests this large take a free block whole
        self.choosy = self.limit < NEVER  # whether `fitting` has a say
        self.rounding = settings.max_non_split_rounding // UNIT
        self.searches = 0  # in pools of large requests: the clock by which free blocks age
        # the clock when a block was made free; the rest of a split one needs none, as only whole segments are collected
        self.since: dict[int, int] | None = {} if limits.collected_above < NEVER else None
        self.late = LateFrees()
        self._behind = 1  # the address behind the last segment

    def give(self, start: int, size: int, pool: int) -> None:
        """Make memory free: one block with what is free beside it. The loop of `replay` does the same in place."""
        keys, end = self.keys[pool], start + size
        before = self.start_of.pop(start, NOTHING)
        if before != NOTHING:
            del keys[bisect_left(keys, start - before << SHIFT | before)]
            start = before
        after = self.size_at.pop(end, 0)
        if after:
            del keys[bisect_left(keys, after << SHIFT | end)]
            end += after
        self.size_at[start], self.start_of[end] = end - start, start
        insort(keys, end - start << SHIFT | start)
        if self.since is not None:
            self.since[start] = self.searches

    def take(self, start: int, pool: int) -> int:
        """Remove a free block from the free ones. Its size."""
        size, keys = self.size_at.pop(start), self.keys[pool]
        del self.start_of[start + size]
        del keys[bisect_left(keys, size << SHIFT | start)]
        return size

    def fitting(self, place: int, size: int, pool: int) -> int:
        """The place of the free block that a request takes, given that of the smallest one that holds it.

        `NOTHING` where that block is too large to be given away: it is to be kept whole for requests as large.
        """
        block = self.keys[pool][place] >> SHIFT
        refused = block >= size + self.rounding if size >= self.limit else block >= self.limit
        return NOTHING if refused else place

    def obtain(self, size: int, pool: int, event: int) -> int:
        """Take more from the device for a request that no free block serves, after giving back what must be.

        The place of a free block for it among the keys of its pool; `NOTHING` where the device has no more.
        """
        if self.since is not None:
            self.collect(event)
        place = self.grow(size, pool, event)
        if place == NOTHING and self.release_oversize(size, pool, event):
            place = self.grow(size, pool, event)
        if place == NOTHING:
            self.release(event)
            self.retries += 1
            place = self.grow(size, pool, event)
        return place

    def grow(self, size: int, pool: int, event: int) -> int:
        """A new segment for a request: the place of its block, or `NOTHING`."""
        segment = segment_of(size, self.large_segment)
        if self.reserved + segment > min(self.limits.allowed, self.limits.capacity):
            return NOTHING
        start = self._behind + 1
        self._behind = start + segment
        self.segments[start] = segment, pool
        self.reserve(segment, event)
        self.give(start, segment, pool)
        return bisect_left(self.keys[pool], segment << SHIFT | start)

    def reserve(self, size: int, event: int) -> None:
        """Count what is taken from the device, or given back."""
        self.reserved += size
        self.changes.append((event, self.reserved))

    def collect(self, event: int) -> None:
        """Free whole cached segments of large requests that have been free for longer than the mean of them.

        In rounds, until the threshold is kept; a round does not stop at the threshold.
        """
        assert self.since is not None
        ages = {
            start: self.searches - self.since[start] for start in self._whole() if self.segments[start][1] % 2
        }
        excess = self.reserved - self.limits.collected_above
        while excess > 0 and ages:
            mean = sum(ages.values()) / len(ages)
            old = [start for start, age in ages.items() if age >= mean]
            for start in old:
                del ages[start]
                excess -= self.segments[start][0]
                self._free(start, event)

    def release_oversize(self, size: int, pool: int, event: int) -> bool:
        """Free cached blocks that are kept whole: the smallest that serves the request, else the largest until enough.

        Whether enough was freed.
        """
        if self.limit == NEVER:
            return False
        keys, wanted = self.keys[pool], max(size, self.limit)
        place = bisect_left(keys, wanted << SHIFT)
        if place < len(keys):
            self._free(keys[place] & MASK, event)
            return True
        freed = 0
        while freed < wanted and keys and keys[-1] >> SHIFT >= self.limit:
            freed += keys[-1] >> SHIFT
            self._free(keys[-1] & MASK, event)
        return freed >= wanted

    def release(self, event: int) -> None:
        """Wait for all streams, then give every segment back that is wholly free."""
        self.give_all(self.late.take_all())
        for start in self._whole():
            self._free(start, event)

    def give_all(self, freed: Iterable[Freed]) -> None:
        """Make blocks free that waited for other streams."""
        for start, size, pool in freed:
            self.give(start, size, pool)

    def split_free(self) -> int:
        """Free memory that cannot be given back, since its segment is in use in part."""
        whole = sum(self.segments[start][0] for start in self._whole())
        return sum(self.size_at.values()) - whole

    def taken(self) -> list[tuple[int, int, int]]:
        """Address, size and pool of what is reserved, piece by piece."""
        return [(start, size, pool) for start, (size, pool) in sorted(self.segments.items())]

    def _whole(self) -> list[int]:
        """Addresses of segments that are one free block."""
        return [start for start, (size, _) in self.segments.items() if self.size_at.get(start) == size]

    def _free(self, start: int, event: int) -> None:
        size, pool = self.segments.pop(start)
        self.take(start, pool)
        self.freed_segments += 1
        self.reserve(-size, event)

"""Which memory does the allocator hold with expandable segments? Pages, mapped at the end of one range per pool.

A range of addresses 9/8 as large as the device belongs to each pool, another one to a pool whose range is full. Pages
of 2 MiB for small requests and 20 MiB for large ones are mapped into it, and unmapped where nothing lives when memory
runs out. It takes less than segments do where sizes change, but not always: of 600 random traces of one stream, whose
sizes repeat, 143 reserved more. Sizes and addresses as in `pools`. Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch
2.11 to 2.13, by its function names: find_expandable_block, map_block, try_allocate_expandable_block, unmap_block,
get_free_block.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from planner.dryrun.allocator.pools import MASK, NEVER, NOTHING, SHIFT, Limits, Pools
from planner.dryrun.allocator.rounding import SMALL_SEGMENT, segment_of
from planner.dryrun.allocator.settings import AllocatorSettings

_UNBOUNDED: Final = 1 << 33  # units of a range where the device is not known: 4 TiB


class ExpandablePools(Pools):
    """Memory in ranges that grow page by page. `segments` holds the ranges, all their addresses, and keeps them."""

    leave = (0, 0)

    def __init__(self, settings: AllocatorSettings, pools: int, limits: Limits, device: int | None) -> None:
        super().__init__(settings, pools, limits)
        self.whole_from, self.choosy = NEVER, True
        self._range = _UNBOUNDED if device is None else device + device // 8
        self.holes: list[list[int]] = [[] for _ in range(pools)]  # addresses of what is not mapped, by pool
        self.hole_size: dict[int, int] = {}  # by address

    def fitting(self, place: int, size: int, pool: int) -> int:
        """As with segments; but a free block before a hole counts as being as large as it can grow."""
        keys = self.keys[pool]
        key = keys[place]
        if (key >> SHIFT) + (key & MASK) in self.hole_size:
            while place + 1 < len(keys) and self._grown(keys[place + 1]) < self._grown(keys[place]):
                place += 1
        return place if self.limit == NEVER else super().fitting(place, size, pool)

    def grow(self, size: int, pool: int, event: int) -> int:
        """Map pages at the lowest address that has room: the place of the block, or `NOTHING`.

        Pages mapped into one hole stay mapped when those of the next one cannot be had.
        """
        beyond = self.reserved + segment_of(size, self.large_segment) > self.limits.allowed
        if beyond or size > max(self._range, 0):  # no range has room for it
            return NOTHING
        start = self._room(size, pool)
        while (mapped := self.size_at.get(start, 0)) < size:
            if not self._map(start + mapped, size - mapped, pool, event):
                return NOTHING
        return bisect_left(self.keys[pool], mapped << SHIFT | start)

    def release_oversize(self, size: int, pool: int, event: int) -> bool:
        """No part of a range is given back as a segment."""
        return False

    def release(self, event: int) -> None:
        """Wait for all streams, then unmap every page that is wholly free."""
        self.give_all(self.late.take_all())
        for pool, keys in enumerate(self.keys):
            for key in tuple(keys):
                self._unmap(key & MASK, pool, event)

    def split_free(self) -> int:
        """Nothing, since PyTorch leaves expandable segments out of this count."""
        return 0

    def taken(self) -> list[tuple[int, int, int]]:
        """What is mapped between holes."""
        pieces = []
        for start, (size, pool) in sorted(self.segments.items()):
            at, end = start, start + size
            for hole in (*(h for h in self.holes[pool] if start <= h < end), end):
                pieces += [(at, hole - at, pool)] if hole > at else []
                at = hole + self.hole_size.get(hole, 0) if hole < end else end
        return pieces

    def _whole(self) -> list[int]:
        return []

    def _grown(self, key: int) -> int:
        size = key >> SHIFT
        return size + self.hole_size.get(size + (key & MASK), 0)

    def _room(self, size: int, pool: int) -> int:
        """The lowest address from which free blocks and holes, one of them at the start or second, hold `size`."""
        for hole in self.holes[pool]:
            start = self.start_of.get(hole, hole)
            end = start
            while end - start < size and (more := self.size_at.get(end, 0) or self.hole_size.get(end, 0)):
                end += more
            if end - start >= size:
                return start
        return self._new_range(pool)

    def _new_range(self, pool: int) -> int:
        page = self._page(pool)
        start = (self._behind // page + 1) * page
        size = -(-self._range // page) * page
        self._behind = start + size
        self.segments[start] = size, pool
        self._dig(start, size, pool)
        return start

    def _map(self, hole: int, size: int, pool: int, event: int) -> bool:
        """Map whole pages from the start of a hole on, for `size` or what the hole holds. Whether there were any."""
        page, room = self._page(pool), self.hole_size[hole]
        size = -(-min(size, room) // page) * page
        if self.reserved + size > self.limits.capacity:
            return False
        self._fill(hole, pool)
        if size < room:
            self._dig(hole + size, room - size, pool)
        self.reserve(size, event)
        self.give(hole, size, pool)
        return True

    def _unmap(self, start: int, pool: int, event: int) -> None:
        """Give the whole pages of a free block back."""
        page, size = self._page(pool), self.size_at[start]
        first, last = -(-start // page) * page, (start + size) // page * page
        if first >= last:
            return
        self.take(start, pool)
        for left, end in ((start, first), (last, start + size)):
            if left < end:
                self.give(left, end - left, pool)
        self.freed_segments += 1
        self.reserve(first - last, event)
        at = bisect_left(self.holes[pool], first)
        before, after = self.holes[pool][at - 1] if at else NOTHING, self.hole_size.get(last, 0)
        if after:
            last += self._fill(last, pool)
        if before != NOTHING and before + self.hole_size[before] == first:
            self._fill(before, pool)
            first = before
        self._dig(first, last - first, pool)

    def _dig(self, start: int, size: int, pool: int) -> None:
        insort(self.holes[pool], start)
        self.hole_size[start] = size

    def _fill(self, start: int, pool: int) -> int:
        self.holes[pool].remove(start)
        return self.hole_size.pop(start)

    def _page(self, pool: int) -> int:
        return self.large_segment if pool % 2 else SMALL_SEGMENT

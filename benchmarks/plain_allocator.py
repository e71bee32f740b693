"""PyTorch's caching allocator, one object per block and one ordered set per pool, as its C++ has them.

The plain version that `planner.dryrun.allocator` is timed and tested against: it shares nothing with it but the trace
and the settings, and follows c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.11 to 2.13) function by function. Bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final, cast

from planner.dryrun.allocator.settings import MIB, AllocatorSettings
from planner.dryrun.allocator.trace import Kind, Trace

UNLIMITED: Final = 2**63 - 1


@dataclass(eq=False)
class Block:
    """A part of a segment."""

    stream: int
    size: int
    address: int
    pool: Pool
    allocated: bool = False
    mapped: bool = True
    before: Block | None = None
    after: Block | None = None
    used_on: set[int] = field(default_factory=set)
    events: int = 0
    born: int = 0
    expandable: bool = False
    page: int = 0

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None

    @property
    def mergeable(self) -> bool:
        return not self.allocated and not self.events and not self.used_on

    @property
    def grown(self) -> int:
        """The size up to which it can be mapped."""
        tail = self.after
        return self.size + (tail.size if tail is not None and not tail.mapped else 0)


class Pool:
    """Free blocks by stream, size and address; unmapped ones by stream and address."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.blocks: list[tuple[int, int, int, Block]] = []
        self.unmapped: list[tuple[int, int, Block]] = []
        self.searches = 0

    def insert(self, block: Block) -> None:
        block.born = self.searches
        insort(self.blocks, (block.stream, block.size, block.address, block))

    def erase(self, block: Block) -> None:
        del self.blocks[bisect_left(self.blocks, (block.stream, block.size, block.address))]

    def insert_unmapped(self, block: Block) -> None:
        insort(self.unmapped, (block.stream, block.address, block))

    def erase_unmapped(self, block: Block) -> None:
        del self.unmapped[bisect_left(self.unmapped, (block.stream, block.address))]


class PlainAllocator:
    """An allocator that has taken nothing yet."""

    def __init__(
        self, settings: AllocatorSettings, capacity: int | None = None, device_memory: int | None = None
    ) -> None:
        self.settings = settings
        self.small, self.large = Pool(True), Pool(False)
        self.capacity = UNLIMITED if capacity is None else capacity
        self.device = capacity if device_memory is None else device_memory
        self.allowed: int | None = None
        if settings.memory_fraction < 1:
            assert self.device is not None
            self.allowed = int(settings.memory_fraction * self.device)
        self.allocated = self.reserved = self.retries = 0
        self.top = MIB  # the next address
        self.queues: dict[int, list[Block]] = {}
        self.caught_up: dict[int, int] = {}  # by stream, how many of its queue are done
        self.highest_reserved = 0

    @property
    def collects(self) -> bool:
        return self.allowed is not None and self.settings.garbage_collection_threshold > 0

    def round_size(self, size: int) -> int:
        if size < 512:
            return 512
        interval = min(max(size.bit_length() - 21, 0), 15)
        divisions = self.settings.roundup_divisions[interval]
        if divisions > 1 and size > 512 * divisions:
            if size & (size - 1) == 0:
                return size
            step = (1 << (size.bit_length() - 1)) >> (divisions.bit_length() - 1)
            floor = size & ~(step - 1)
            return size if floor == size else floor + step
        return 512 * ((size + 511) // 512)

    def segment_size(self, size: int) -> int:
        if size <= MIB:
            return 2 * MIB
        if size < 10 * MIB:
            return self.settings.large_segment
        return 2 * MIB * ((size + 2 * MIB - 1) // (2 * MIB))

    def malloc(self, asked: int, stream: int) -> Block | None:
        self.process_events()
        size = self.round_size(asked)
        pool = self.small if size <= MIB else self.large
        block = self.free_block_for(pool, size, stream)
        if block is None:
            if self.collects:
                self.collect()
            block = self.new_block(pool, size, stream)
        if block is None and self.release_available(pool, size, stream):
            block = self.new_block(pool, size, stream)
        if block is None:
            self.release_cached()
            self.retries += 1
            block = self.new_block(pool, size, stream)
        if block is None:
            return None
        left = block.size - size
        always = pool.small or self.settings.expandable_segments
        if left >= 512 if always else size < self.settings.max_split_size and left > MIB:
            rest, block = block, Block(stream, size, block.address, pool, before=block.before)
            block.expandable, block.page = rest.expandable, rest.page
            if block.before:
                block.before.after = block
            block.after, rest.before = rest, block
            rest.address += size
            rest.size -= size
            pool.insert(rest)
        block.allocated = True
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        block.allocated = False
        self.allocated -= block.size
        if not block.used_on:
            self.free_block(block)
            return
        streams, block.used_on = block.used_on, set()
        for stream in streams:
            block.events += 1
            self.queues.setdefault(stream, []).append(block)

    def catch_up(self, stream: int) -> None:
        self.caught_up[stream] = len(self.queues.get(stream, ()))

    def process_events(self) -> None:
        for stream, count in self.caught_up.items():
            for block in self.queues.get(stream, ())[:count]:
                self.event_done(block)
            self.queues[stream] = self.queues.get(stream, [])[count:]
        self.caught_up.clear()

    def event_done(self, block: Block) -> None:
        block.events -= 1
        if not block.events:
            self.free_block(block)

    def free_block(self, block: Block) -> None:
        self.merge(block, block.before)
        self.merge(block, block.after)
        block.pool.insert(block)

    def merge(self, block: Block, other: Block | None) -> None:
        if other is None or not other.mergeable or other.mapped != block.mapped:
            return
        (block.pool.erase if other.mapped else block.pool.erase_unmapped)(other)
        if block.before is other:
            block.address, block.before = other.address, other.before
            if block.before:
                block.before.after = block
        else:
            block.after = other.after
            if block.after:
                block.after.before = block
        block.size += other.size

    def free_block_for(self, pool: Pool, size: int, stream: int) -> Block | None:
        pool.searches += self.collects
        at = bisect_left(pool.blocks, (stream, size))
        if at == len(pool.blocks) or pool.blocks[at][0] != stream:
            return None
        block = pool.blocks[at][3]
        if block.expandable:
            for following, _, _, other in pool.blocks[at + 1 :]:
                if following != stream or other.grown >= block.grown:
                    break
                block = other
        limit = self.settings.max_split_size
        if size < limit <= block.size:
            return None
        if size >= limit and block.size >= size + self.settings.max_non_split_rounding:
            return None
        pool.erase(block)
        return block

    def collect(self) -> None:
        assert self.allowed is not None
        threshold = int(self.settings.garbage_collection_threshold * self.allowed)
        if self.reserved <= threshold:
            return
        target, reclaimed, pool = self.reserved - threshold, 0, self.large
        whole = [block for *_, block in pool.blocks if not block.is_split]
        total, count = sum(pool.searches - b.born for b in whole), len(whole)
        found = True
        while reclaimed < target and found and count:
            mean, found = total / count, False
            for *_, block in tuple(pool.blocks):
                age = pool.searches - block.born
                if not block.is_split and not block.expandable and age >= mean:
                    found, reclaimed, total, count = True, reclaimed + block.size, total - age, count - 1
                    self.release_block(block)

    def reserve(self, size: int) -> None:
        self.reserved += size
        self.highest_reserved = max(self.highest_reserved, self.reserved)

    def new_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        segment = self.segment_size(size)
        if self.allowed is not None and self.reserved + segment > self.allowed:
            return None
        if self.settings.expandable_segments:
            return self.expand(pool, size, stream)
        if self.reserved + segment > self.capacity:
            return None
        self.reserve(segment)
        block = Block(stream, segment, self.top, pool)
        self.top += segment
        return block

    def release_available(self, pool: Pool, size: int, stream: int) -> bool:
        limit = self.settings.max_split_size
        if limit == UNLIMITED:
            return False
        wanted = max(size, limit)
        at = bisect_left(pool.blocks, (stream, wanted))
        if at < len(pool.blocks) and pool.blocks[at][0] == stream and not pool.blocks[at][3].expandable:
            self.release_block(pool.blocks[at][3])
            return True
        released = 0
        for of_stream, block_size, _, block in reversed(pool.blocks[:at]):
            if released >= wanted or block_size < limit or of_stream != stream:
                break
            if not block.expandable:
                released += block_size
                self.release_block(block)
        return released >= wanted

    def release_cached(self) -> None:
        for blocks in self.queues.values():
            for block in blocks:
                self.event_done(block)
        self.queues.clear()
        self.caught_up.clear()
        for pool in (self.large, self.small):
            for *_, block in tuple(pool.blocks):
                if block.expandable:
                    self.unmap(block)
                elif not block.is_split:
                    self.release_block(block)

    def release_block(self, block: Block) -> None:
        self.reserve(-block.size)
        block.pool.erase(block)

    def expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        block = self.candidate(pool, size, stream)
        if not block.mapped and not self.map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.after
            assert following is not None
            if not self.map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.erase(block)
        return block

    def candidate(self, pool: Pool, size: int, stream: int) -> Block:
        for of_stream, _, block in pool.unmapped:
            if of_stream != stream:
                continue
            first = block.before if block.before and block.before.mergeable else block
            room, at = 0, cast("Block | None", first)
            while room < size and at is not None and at.mergeable:
                room += at.size
                at = at.after
            if room >= size:
                return first
        page = 2 * MIB if pool.small else self.settings.large_segment
        space = 2**50 if self.device is None else self.device + self.device // 8
        start = -(-self.top // page) * page
        block = Block(stream, -(-space // page) * page, start, pool, mapped=False, expandable=True, page=page)
        self.top = start + block.size
        pool.insert_unmapped(block)
        return block

    def map(self, block: Block, size: int) -> bool:
        size = -(-size // block.page) * block.page
        if self.reserved + size > self.capacity:
            return False
        block.pool.erase_unmapped(block)
        block.mapped = True
        if size < block.size:
            rest = Block(block.stream, block.size - size, block.address + size, block.pool, mapped=False)
            rest.expandable, rest.page = True, block.page
            self.splice(rest, block, block.after)
            block.pool.insert_unmapped(rest)
            block.size = size
        self.merge(block, block.before)
        self.merge(block, block.after)
        block.pool.insert(block)
        self.reserve(size)
        return True

    def unmap(self, block: Block) -> None:
        page, end = block.page, block.address + block.size
        first, last = -(-block.address // page) * page, end // page * page
        if first >= last:
            return
        block.pool.erase(block)
        for at, stop in ((block.address, first), (last, end)):
            if at < stop:
                part = Block(block.stream, stop - at, at, block.pool, expandable=True, page=page)
                self.splice(part, *((block.before, block) if at < first else (block, block.after)))
                block.pool.insert(part)
        block.address, block.size, block.mapped = first, last - first, False
        self.merge(block, block.before)
        self.merge(block, block.after)
        self.reserve(first - last)
        if block.is_split:
            block.pool.insert_unmapped(block)

    @staticmethod
    def splice(block: Block, before: Block | None, after: Block | None) -> None:
        block.before, block.after = before, after
        if before:
            before.after = block
        if after:
            after.before = block


@dataclass(frozen=True)
class PlainReplay:
    """What a trace did [bytes]."""

    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    highest_reserved: int
    retries: int
    failed: int | None


def replay_plainly(
    trace: Trace, settings: AllocatorSettings, capacity: int | None = None, device_memory: int | None = None
) -> PlainReplay:
    """Replay a trace up to the first allocation that fails, which is `failed`."""
    allocator = PlainAllocator(settings, capacity, device_memory)
    blocks: dict[int, Block] = {}
    allocated, reserved, failed = [], [], None
    for event, (what, number, stream) in enumerate(
        zip(trace.what.tolist(), trace.blocks.tolist(), trace.streams.tolist(), strict=True)
    ):
        if what > 0:
            made = allocator.malloc(what, stream)
            if made is None:
                failed = event
                break
            blocks[number] = made
        elif what == Kind.FREE and number in blocks:
            allocator.free(blocks.pop(number))
        elif what == Kind.USE_ON and number in blocks:
            blocks[number].used_on.add(stream)
        elif what == Kind.CATCH_UP:
            allocator.catch_up(stream)
        elif what == Kind.EMPTY_CACHE:
            allocator.release_cached()
        allocated.append(allocator.allocated)
        reserved.append(allocator.reserved)
    return PlainReplay(
        tuple(allocated), tuple(reserved), allocator.highest_reserved, allocator.retries, failed
    )

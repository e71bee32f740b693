"""Events against free blocks, one after the other: malloc and free of c10/cuda/CUDACachingAllocator.cpp.

The only part that runs for every event, and so written in one function over lists of integers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from planner.dryrun.allocator.pools import MASK, NOTHING, SHIFT, Pools
from planner.dryrun.allocator.trace import Kind

_FREE, _USE_ON, _CATCH_UP, _EMPTY_CACHE = (
    int(kind) for kind in (Kind.FREE, Kind.USE_ON, Kind.CATCH_UP, Kind.EMPTY_CACHE)
)

# (size, block, pool) of an allocation, else (kind, block or event, pool or stream)
Event = tuple[int, int, int]


def run(
    events: Iterable[Event], event_of: list[int], pools: Pools, addresses: list[int], held: list[int]
) -> int:
    """Replay events. The block that could not be allocated, or `NOTHING`.

    `event_of`: the event that allocates each block. Fills in `addresses`, and `held` of blocks that take a free block
    whole [units].
    """
    lists, size_at, start_of, since = pools.keys, pools.size_at, pools.start_of, pools.since
    choosy, leave, whole_from = pools.choosy, pools.leave, pools.whole_from
    late, ready, used_on = pools.late, pools.late.ready, pools.late.used_on
    for code, block, pool in events:
        if code > 0:
            if ready:
                pools.give_all(late.take_ready())
            if since is not None:
                pools.searches += pool & 1
            keys = lists[pool]
            place = bisect_left(keys, code << SHIFT)
            if place == len(keys):
                place = NOTHING
            elif choosy:
                place = pools.fitting(place, code, pool)
            if place < 0:
                place = pools.obtain(code, pool, event_of[block])
                if place < 0:
                    return block
            key = keys[place]
            addresses[block] = address = key & MASK
            size = key >> SHIFT
            del size_at[address]
            rest = size - code
            if rest > leave[pool & 1] and code < whole_from:
                start = address + code
                size_at[start] = rest
                start_of[address + size] = start
                key = rest << SHIFT | start
                if not place or keys[place - 1] < key:
                    keys[place] = key
                else:
                    del keys[place]
                    insort(keys, key, 0, place)
            else:
                del keys[place]
                del start_of[address + size]
                held[block] = size
        elif code == _FREE:
            start, size = addresses[block], held[block]
            if block in used_on:
                late.hold(block, (start, size, pool))
                continue
            keys, end = lists[pool], start + size
            before = start_of.pop(start, NOTHING)
            if before >= 0:
                del keys[bisect_left(keys, start - before << SHIFT | before)]
                start = before
            after = size_at.pop(end, 0)
            if after:
                del keys[bisect_left(keys, after << SHIFT | end)]
                end += after
            size_at[start] = size = end - start
            start_of[end] = start
            insort(keys, size << SHIFT | start)
            if since is not None:
                since[start] = pools.searches
        elif code == _USE_ON:
            used_on.setdefault(block, set()).add(pool)
        elif code == _CATCH_UP:
            late.catch_up(pool)
        elif code == _EMPTY_CACHE:
            pools.release(block)
    return NOTHING

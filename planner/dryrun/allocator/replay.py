"""How much memory does PyTorch allocate and reserve for a recorded step, and where does it run out?

Left out: memory of other libraries and of the device's context, which is no part of `capacity`; what cudaMalloc itself
takes beyond the sizes asked for; pools of CUDA graphs. Source: c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11 to 2.13.
More memory can run out earlier: what is given back in a retry comes back in other pieces (4 of 1,200 random traces).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.dryrun.allocator.expandable import ExpandablePools
from planner.dryrun.allocator.loop import Event, run
from planner.dryrun.allocator.pools import NEVER, NOTHING, Limits, Pools
from planner.dryrun.allocator.result import OutOfMemory, Replay, Segment
from planner.dryrun.allocator.rounding import SMALL, UNIT, Column, rounded, segment_of
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.allocator.trace import Kind, Trace
from planner.errors import InputError

_DEFAULTS: Final = AllocatorSettings()


def replay(
    trace: Trace,
    settings: AllocatorSettings = _DEFAULTS,
    capacity: int | None = None,
    device_memory: int | None = None,
    stop: int | None = None,
) -> Replay:
    """Replay a trace, or its events before `stop`, on a device that has `capacity` for the allocator [bytes].

    `device_memory`: all memory of the device, of which the settings allow a fraction; the capacity where not given.
    Ends at the first allocation that fails. Raises `InputError` where nothing is known of which a fraction is allowed.
    """
    requests = _requests(trace, settings, stop)
    pools = _pools(
        settings, requests.num_streams, capacity, capacity if device_memory is None else device_memory
    )
    addresses, held = [NOTHING] * len(requests.sizes), requests.sizes.tolist()
    failed = run(requests.events(), requests.event_of.tolist(), pools, addresses, held)
    amounts = np.array(held, np.int64) * UNIT
    done = requests if failed == NOTHING else requests.before(int(requests.event_of[failed]))
    allocated = np.cumsum(done.allocated(amounts))
    return Replay(
        allocated_timeline=allocated,
        changes=np.array([(NOTHING, 0), *pools.changes], np.int64) * (1, UNIT),
        resets=np.flatnonzero(done.what == Kind.RESET_PEAKS),
        live=done.live(np.array(addresses, np.int64) * UNIT, amounts),
        segments=tuple(
            Segment(start * UNIT, size * UNIT, pool // 2, pool % 2 == 0)
            for start, size, pool in pools.taken()
        ),
        split_free=pools.split_free() * UNIT,
        retries=pools.retries,
        freed_segments=pools.freed_segments,
        out_of_memory=None
        if failed == NOTHING
        else OutOfMemory(
            event=len(done.what),
            block=failed,
            asked=int(requests.what[len(done.what)]),
            tried=segment_of(int(requests.sizes[failed]), pools.large_segment) * UNIT,
            allocated=int(allocated[-1]) if len(allocated) else 0,
            reserved=pools.reserved * UNIT,
        ),
    )


@dataclass(frozen=True, eq=False)
class _Requests:
    """Columns of a trace, with what each block takes [units]."""

    what: Column
    blocks: Column
    streams: Column
    event_of: Column  # by block
    sizes: Column  # by block

    @property
    def num_streams(self) -> int:
        return int(self.streams.max(initial=0)) + 1

    def before(self, end: int) -> _Requests:
        """The events before `end`."""
        return replace(self, what=self.what[:end], blocks=self.blocks[:end], streams=self.streams[:end])

    def events(self) -> Iterable[Event]:
        """What `run` reads; nothing is allocated or freed where nothing was asked for."""
        allocates, frees = self.what >= 0, self.what == Kind.FREE
        pools = 2 * self.streams[allocates] + (self.sizes > SMALL)
        codes, places = self.what.copy(), self.streams.copy()
        codes[allocates], places[allocates] = self.sizes, pools
        freed = self.blocks[frees]
        codes[frees], places[frees] = np.where(self.sizes[freed] > 0, Kind.FREE, 0), pools[freed]
        return zip(codes.tolist(), self.blocks.tolist(), places.tolist(), strict=True)

    def allocated(self, amounts: Column) -> Column:
        """By event, what it adds to what is allocated, given what each block takes."""
        signs = np.where(self.what >= 0, 1, np.where(self.what == Kind.FREE, -1, 0))
        return signs * amounts[np.where(signs == 0, 0, self.blocks)] if len(amounts) else signs

    def live(self, addresses: Column, amounts: Column) -> Column:
        """(live blocks, 3): block, address, size."""
        live = np.zeros(len(amounts), np.bool_)
        live[self.blocks[self.what >= 0]] = True
        live[self.blocks[self.what == Kind.FREE]] = False
        blocks = np.flatnonzero(live & (amounts > 0))
        return np.stack((blocks, addresses[blocks], amounts[blocks]), axis=1)


def _requests(trace: Trace, settings: AllocatorSettings, stop: int | None) -> _Requests:
    what = trace.what[:stop]
    event_of = np.flatnonzero(what >= 0)
    return _Requests(
        what, trace.blocks[:stop], trace.streams[:stop], event_of, rounded(what[event_of], settings)
    )


def _pools(settings: AllocatorSettings, streams: int, capacity: int | None, device: int | None) -> Pools:
    """An allocator that has taken nothing yet."""
    fraction, threshold = settings.memory_fraction, settings.garbage_collection_threshold
    if fraction < 1 and device is None:
        raise InputError(
            "a fraction of a device's memory needs that memory",
            f"a fraction of {fraction}",
            "give the capacity",
        )
    allowed = int(fraction * device) if device is not None and fraction < 1 else None
    limits = Limits(
        capacity=NEVER if capacity is None else capacity // UNIT,
        allowed=NEVER if allowed is None else allowed // UNIT,
        collected_above=int(threshold * allowed) // UNIT if threshold and allowed is not None else NEVER,
    )
    if settings.expandable_segments:
        return ExpandablePools(settings, 2 * streams, limits, None if device is None else device // UNIT)
    return Pools(settings, 2 * streams, limits)

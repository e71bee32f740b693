"""What must hold of every trace, and the plain version of the allocator, block by block, beside the fast one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from benchmarks.plain_allocator import replay_plainly
from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import MIB, AllocatorSettings
from planner.dryrun.allocator.trace import Trace
from tests.dryrun.allocator.allocations import SIZES, settings, trace_of, traces

CAPACITY = st.one_of(st.none(), st.integers(10, 700).map(lambda mebibytes: mebibytes * MIB + 7))
DEVICE = st.integers(100, 900).map(lambda mebibytes: mebibytes * MIB)


@given(traces(), settings(), CAPACITY, DEVICE)
@runs(max_examples=300, deadline=None)
def test_the_plain_version_does_the_same(
    trace: Trace, chosen: AllocatorSettings, capacity: int | None, device: int
) -> None:
    plain, fast = replay_plainly(trace, chosen, capacity, device), replay(trace, chosen, capacity, device)
    assert plain.allocated == tuple(fast.allocated_timeline.tolist())
    assert plain.reserved == tuple(fast.reserved_timeline().tolist())
    assert (plain.highest_reserved, plain.retries) == (fast.peaks.reserved, fast.retries)
    assert plain.failed == (fast.out_of_memory and fast.out_of_memory.event)


@given(traces(), settings(), CAPACITY, DEVICE, st.integers(0, 80))
@runs(deadline=None)
def test_memory_adds_up_and_no_two_blocks_overlap(
    trace: Trace, chosen: AllocatorSettings, capacity: int | None, device: int, stop: int
) -> None:
    result = replay(trace, chosen, capacity, device, stop)
    assert (result.reserved_timeline() >= result.allocated_timeline).all()
    assert result.live[:, 2].sum() == result.allocated
    assert sum(segment.size for segment in result.segments) == result.reserved
    live = sorted((address, address + size) for _, address, size in result.live.tolist())
    assert all(end <= start for (_, end), (start, _) in pairwise(live))
    pieces = [(s.address, s.address + s.size) for s in result.segments]
    assert all(any(low <= start and end <= high for low, high in pieces) for start, end in live)
    assert 0 <= result.split_free <= result.reserved - result.allocated


@given(traces(ending=True), settings())
@runs(deadline=None)
def test_all_freed_and_emptied_leaves_nothing(trace: Trace, chosen: AllocatorSettings) -> None:
    result = replay(trace, chosen, device_memory=10**12)
    assert (result.allocated, result.reserved, result.segments, result.split_free) == (0, 0, (), 0)


@given(traces(), settings())
@runs(deadline=None)
def test_a_replay_gives_the_same_again(trace: Trace, chosen: AllocatorSettings) -> None:
    first, second = (replay(trace, chosen, 200 * MIB) for _ in range(2))
    assert first.changes.tolist() == second.changes.tolist()
    assert first.live.tolist() == second.live.tolist()


@given(traces(), st.booleans(), st.integers(0, 100))
@runs(deadline=None)
def test_what_was_reserved_at_most_is_enough(trace: Trace, expandable: bool, more: int) -> None:
    """More memory is not always better: a retry with less of it can leave blocks where they fit better later."""
    chosen = AllocatorSettings(expandable_segments=expandable)
    free = replay(trace, chosen)
    bounded = replay(trace, chosen, free.peaks.reserved + more * MIB)
    assert bounded.out_of_memory is None
    assert bounded.changes.tolist() == free.changes.tolist()


@given(traces(), settings(), st.integers(0, 300))
@runs(deadline=None)
def test_a_capacity_is_kept_to(trace: Trace, chosen: AllocatorSettings, mebibytes: int) -> None:
    assert replay(trace, chosen, mebibytes * MIB, device_memory=10**9).peaks.reserved <= mebibytes * MIB


@given(st.lists(st.one_of(st.sampled_from(SIZES), st.integers(0, 90 * MIB)), max_size=40))
@runs(deadline=None)
def test_what_only_grows_takes_a_page_more_at_most_in_expandable_segments(sizes: list[int]) -> None:
    """Blocks lie end to end, and the last page of each pool may be used in part. With frees this does not hold."""
    trace = trace_of(*sizes)
    grown = replay(trace, AllocatorSettings(expandable_segments=True)).reserved
    assert grown <= replay(trace).reserved + 22 * MIB

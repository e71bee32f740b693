"""Expandable segments: pages, growth, reuse of holes and unmapping, worked by hand."""

from __future__ import annotations

import pytest

from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.result import Replay
from planner.dryrun.allocator.settings import MIB, read_alloc_conf
from planner.dryrun.allocator.trace import Trace
from tests.dryrun.allocator.allocations import trace_of

EXPANDABLE = read_alloc_conf("expandable_segments:True")


def result_of(*steps: int | str, capacity: int | None = None) -> Replay:
    return replay(trace_of(*steps), EXPANDABLE, capacity)


@pytest.mark.parametrize(
    ("asked", "reserved"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (20 * MIB, 20 * MIB), (21 * MIB, 40 * MIB)],
)
def test_pages_are_of_2_mib_for_small_requests_and_20_for_large(asked: int, reserved: int) -> None:
    assert result_of(asked).reserved == reserved


def test_a_segment_grows_by_what_is_missing_at_its_end() -> None:
    """21 MiB take two pages; of the 19 MiB left, 30 MiB use all, and one page more."""
    result = result_of(21 * MIB, 30 * MIB)
    assert (result.allocated, result.reserved) == (51 * MIB, 60 * MIB)
    assert [(s.size, s.small) for s in result.segments] == [(60 * MIB, False)]


def test_any_remainder_is_split_off() -> None:
    """should_split with expandable segments: 512 bytes are enough, also of large blocks."""
    assert result_of(20 * MIB - 512).allocated == 20 * MIB - 512
    assert result_of(20 * MIB - 512, MIB + 1, "free 0", 20 * MIB - 1024).allocated == 21 * MIB - 512


def test_large_requests_are_split_off_whatever_max_split_size_says() -> None:
    settings = read_alloc_conf("expandable_segments:True,max_split_size_mb:20")
    assert replay(trace_of(30 * MIB), settings).allocated == 30 * MIB


def test_a_free_block_before_unmapped_memory_is_the_last_to_be_taken() -> None:
    """get_free_block: 2 MiB at the end can grow, so that the hole of 5 MiB is the better fit for 2 MiB."""
    result = result_of(5 * MIB, 13 * MIB, "free 0", 2 * MIB)
    addresses = {int(block): int(address) for block, address, _ in result.live}
    assert addresses[2] < addresses[1]


def test_each_stream_and_pool_has_a_segment() -> None:
    trace = Trace()
    for stream in (0, 1):
        for size in (100, 2 * MIB):
            trace.allocate(size, stream)
    result = replay(trace, EXPANDABLE)
    assert sorted((s.stream, s.small, s.size) for s in result.segments) == [
        (0, False, 20 * MIB), (0, True, 2 * MIB), (1, False, 20 * MIB), (1, True, 2 * MIB),
    ]  # fmt: skip


def test_empty_cache_unmaps_pages_that_are_wholly_free() -> None:
    """30 and 30 MiB in three pages; without the first, pages 1 and a half of 2 are free: one goes."""
    result = result_of(30 * MIB, 30 * MIB, "free 0", "empty")
    assert (result.reserved, result.split_free) == (40 * MIB, 0)
    assert [s.size for s in result.segments] == [40 * MIB]
    assert result_of(30 * MIB, 30 * MIB, "free 0", "free 1", "empty").segments == ()


def test_holes_are_filled_before_the_segment_grows() -> None:
    """find_expandable_block: 20 MiB unmapped and 10 MiB mapped in front serve 30 MiB with one page again."""
    result = result_of(30 * MIB, 30 * MIB, "free 0", "empty", 30 * MIB)
    assert result.reserved == 60 * MIB
    addresses = {int(block): int(address) for block, address, _ in result.live}
    assert addresses[2] < addresses[1]
    assert result_of(30 * MIB, 30 * MIB, "free 0", "empty", 31 * MIB).reserved == 80 * MIB


def test_pages_elsewhere_are_unmapped_when_memory_runs_out() -> None:
    """Two streams on 60 MiB: 40 MiB that stream 0 has freed go to stream 1 after a retry."""
    trace = Trace()
    trace.free(trace.allocate(40 * MIB, stream=0))
    trace.allocate(60 * MIB, stream=1)
    result = replay(trace, EXPANDABLE, capacity=60 * MIB)
    assert (result.out_of_memory, result.retries, result.reserved) == (None, 1, 60 * MIB)


def test_fragments_that_fail_without_expandable_segments() -> None:
    """20 + 20 MiB freed and 40 asked for in 60 MiB: segments must be given back first, a segment only grows."""
    steps = (20 * MIB, 20 * MIB, "free 0", "free 1", 40 * MIB)
    assert replay(trace_of(*steps), capacity=60 * MIB).retries == 1
    assert result_of(*steps, capacity=60 * MIB).retries == 0
    assert result_of(*steps).reserved == 40 * MIB


def test_an_address_range_is_nine_eighths_of_the_device() -> None:
    """Of 80 MiB: 90, five pages of addresses. What does not fit behind 60 MiB goes to another range."""
    for second, pieces in ((40, [100]), (41, [60, 60])):
        trace = trace_of(60 * MIB, second * MIB)
        result = replay(trace, EXPANDABLE, capacity=400 * MIB, device_memory=80 * MIB)
        assert [segment.size // MIB for segment in result.segments] == pieces


def test_the_allowed_fraction_is_compared_with_the_request_and_not_with_the_pages() -> None:
    """alloc_block: 20 MiB and 16 for a request of 15 are above 30 allowed; of 36 they are not, and two pages are 40."""
    trace = trace_of(9 * MIB, 15 * MIB)
    settings = read_alloc_conf("expandable_segments:True,per_process_memory_fraction:0.5")
    assert replay(trace, settings, 60 * MIB).out_of_memory is not None
    assert replay(trace, settings, 72 * MIB).reserved == 40 * MIB


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_holes_that_touch_are_one(order: tuple[int, int]) -> None:
    """Of two free blocks before holes that which grows to less is taken: 6 and 20 MiB, not 5 and twice 20."""
    sizes = (15, 5, 20, 20, 14, 6, 20, 20)
    unmapped = [step for block in (*order, 6) for step in (f"free {block}", "empty")]
    result = result_of(*(size * MIB for size in sizes), *unmapped, "free 1", "free 5", 4 * MIB)
    addresses = {int(block): int(address) for block, address, _ in result.live}
    assert addresses[8] > addresses[4]


@pytest.mark.parametrize("capacity", [None, 0, MIB, 40 * MIB])
def test_a_request_larger_than_any_range_fails(capacity: int | None) -> None:
    asked = 2**43 if capacity is None else 2 * capacity + 1
    assert replay(trace_of(asked), EXPANDABLE, capacity=capacity).out_of_memory is not None

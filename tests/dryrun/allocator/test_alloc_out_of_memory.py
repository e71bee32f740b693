"""What happens when the device has no more: what is freed, in which order, and what is said."""

from __future__ import annotations

import pytest

from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import MIB, read_alloc_conf
from planner.dryrun.allocator.trace import Trace
from planner.errors import InputError
from tests.dryrun.allocator.allocations import trace_of


def test_what_the_message_says() -> None:
    """30 MiB in 50: 9 MiB took a segment of 20, of which 11 are reserved but unallocated."""
    failed = replay(trace_of(9 * MIB, 30 * MIB - 7), capacity=50 * MIB - 1).out_of_memory
    assert failed is not None
    assert (failed.event, failed.block, failed.asked, failed.tried) == (1, 1, 30 * MIB - 7, 30 * MIB)
    assert (failed.allocated, failed.reserved, failed.unallocated) == (9 * MIB, 20 * MIB, 11 * MIB)


def test_a_segment_that_just_fits() -> None:
    assert replay(trace_of(9 * MIB, 30 * MIB), capacity=50 * MIB).out_of_memory is None


def test_the_replay_ends_where_memory_runs_out() -> None:
    result = replay(trace_of(30 * MIB, 30 * MIB, "free 0", 1), capacity=40 * MIB)
    assert len(result.allocated_timeline) == 1
    assert result.peaks.allocated == result.allocated == 30 * MIB


def test_all_cached_segments_are_given_back_before_memory_runs_out() -> None:
    """release_cached_blocks: small ones and those of other streams too."""
    trace = Trace()
    for size, stream in ((100, 0), (20 * MIB, 0), (20 * MIB, 1)):
        trace.free(trace.allocate(size, stream))
    trace.allocate(50 * MIB)
    result = replay(trace, capacity=50 * MIB)
    assert (result.reserved, result.retries, result.freed_segments) == (50 * MIB, 1, 3)


def test_segments_in_use_stay() -> None:
    result = replay(trace_of(9 * MIB, 9 * MIB, "free 0", 12 * MIB), capacity=30 * MIB)
    assert result.out_of_memory is not None
    assert result.out_of_memory.unallocated == 11 * MIB


def test_oversize_blocks_go_first_the_smallest_that_serves() -> None:
    """release_available_cached_blocks: for 80 MiB the cached 100 MiB go, 130 and the small segment stay."""
    steps = (100, 130 * MIB, 100 * MIB, "free 0", "free 1", "free 2", 80 * MIB)
    settings = read_alloc_conf("max_split_size_mb:40")
    result = replay(trace_of(*steps), settings, capacity=240 * MIB)
    assert (result.retries, result.reserved) == (0, (2 + 130 + 80) * MIB)
    assert replay(trace_of(*steps), capacity=240 * MIB).retries == 0  # taken from the 100 MiB block


def test_oversize_blocks_go_the_largest_first_until_enough_is_free() -> None:
    """For 150 MiB no block of 50, 60 and 90 serves: 90 and 60 make 150, and 50 stays."""
    steps = (50 * MIB, 60 * MIB, 90 * MIB, "free 0", "free 1", "free 2", 150 * MIB)
    result = replay(trace_of(*steps), read_alloc_conf("max_split_size_mb:40"), capacity=210 * MIB)
    assert (result.retries, result.freed_segments, result.reserved) == (0, 2, 200 * MIB)


def test_too_few_oversize_blocks_are_followed_by_everything() -> None:
    steps = (50 * MIB, 30 * MIB, "free 0", "free 1", 80 * MIB)
    result = replay(trace_of(*steps), read_alloc_conf("max_split_size_mb:40"), capacity=80 * MIB)
    assert (result.retries, result.freed_segments, result.reserved) == (1, 2, 80 * MIB)


def test_a_fraction_of_the_device_bounds_what_is_reserved() -> None:
    """PyTorch's test_max_split_expandable: three times 40 MiB of 120 allowed, not a fourth; 120 once they are free."""
    settings = read_alloc_conf("max_split_size_mb:40,per_process_memory_fraction:0.5")
    filled = (40 * MIB,) * 3
    failed = replay(trace_of(*filled, 40 * MIB), settings, capacity=240 * MIB).out_of_memory
    assert failed is not None
    assert failed.event == 3
    freed = ("free 0", "free 1", "free 2")
    assert replay(trace_of(*filled, *freed, 120 * MIB), settings, capacity=240 * MIB).out_of_memory is None


def test_a_fraction_of_nothing_known_is_refused() -> None:
    with pytest.raises(InputError, match="needs that memory"):
        replay(Trace(), read_alloc_conf("per_process_memory_fraction:0.5"))


def collected(threshold: str, fraction: str, *steps: int | str) -> int:
    """What is reserved at the end, of 200 MiB of which a fraction is allowed [bytes]."""
    settings = read_alloc_conf(
        f"garbage_collection_threshold:{threshold},per_process_memory_fraction:{fraction}"
    )
    return replay(trace_of(*steps), settings, device_memory=200 * MIB).reserved


def test_cached_segments_are_collected_above_the_threshold() -> None:
    """50 % of 100 MiB: 60 are cached when 80 are asked for that no block holds, and go without a failure."""
    assert collected("0.5", "0.5", 60 * MIB, "free 0", 80 * MIB) == 80 * MIB
    assert collected("0.7", "0.95", 60 * MIB, "free 0", 80 * MIB) == 140 * MIB


def test_nothing_is_collected_where_the_whole_device_is_allowed() -> None:
    """garbage_collect_cached_blocks runs only with a fraction below 1, which PyTorch's documentation asks for too."""
    assert collected("0.1", "1", 60 * MIB, "free 0", 80 * MIB) == 140 * MIB


def test_the_older_segments_are_collected() -> None:
    """Segments of 30 and 24 MiB, the second reused two searches later: the first alone is older than their mean."""
    steps = (30 * MIB, 24 * MIB, "free 0", "free 1", 23 * MIB + 1, "free 2", 60 * MIB)
    assert collected("0.2", "0.95", *steps) == 84 * MIB


def test_younger_segments_follow_until_the_threshold_is_kept() -> None:
    """As above, with a threshold that 24 MiB are above too: a second round frees them."""
    steps = (30 * MIB, 24 * MIB, "free 0", "free 1", 23 * MIB + 1, "free 2", 60 * MIB)
    assert collected("0.05", "0.95", *steps) == 60 * MIB


def test_small_requests_do_not_age_large_segments() -> None:
    """30 and 24 MiB are of one age, whatever small requests lie between, and go together though 30 were enough."""
    steps = (100, 30 * MIB, 24 * MIB, "free 1", *(100,) * 5, "free 2", 60 * MIB)
    assert collected("0.2", "0.95", *steps) == 62 * MIB


def test_small_segments_are_not_collected() -> None:
    assert collected("0.01", "0.95", 100, "free 0", 30 * MIB) == 32 * MIB

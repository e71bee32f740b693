"""Segments of cudaMalloc: sizes, rounding, which free block is taken, splitting and merging, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.rounding import rounded
from planner.dryrun.allocator.settings import MIB, AllocatorSettings, read_alloc_conf
from planner.dryrun.allocator.trace import Trace
from tests.dryrun.allocator.allocations import KIB, trace_of

DEFAULTS = AllocatorSettings()
SPLIT_40 = AllocatorSettings(max_split_size=40 * MIB)


def sizes(*steps: int | str, settings: AllocatorSettings = DEFAULTS) -> tuple[int, int]:
    """Allocated and reserved at the end [bytes]."""
    result = replay(trace_of(*steps), settings)
    return result.allocated, result.reserved


@pytest.mark.parametrize(
    ("asked", "allocated"),
    [(0, 0), (1, 512), (511, 512), (512, 512), (513, 1024), (MIB, MIB), (3_000_001, 3_000_320)],
)
def test_sizes_are_rounded_to_512_bytes(asked: int, allocated: int) -> None:
    assert sizes(asked)[0] == allocated


@pytest.mark.parametrize(
    ("asked", "reserved"),
    [
        (0, 0), (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB), (10 * MIB + 1, 12 * MIB), (63 * MIB, 64 * MIB),
    ],
)  # fmt: skip
def test_segments_are_2_or_20_mib_or_the_request_in_steps_of_2_mib(asked: int, reserved: int) -> None:
    """get_allocation_size, of the size rounded to 512 bytes."""
    assert sizes(asked)[1] == reserved


def test_requests_from_1_to_10_mib_share_a_segment_of_20_mib() -> None:
    assert sizes(9 * MIB, 9 * MIB)[1] == 20 * MIB
    assert sizes(9 * MIB, 9 * MIB, 3 * MIB)[1] == 40 * MIB


def test_the_size_of_large_segments_can_be_set() -> None:
    settings = read_alloc_conf("large_segment_size_mb:40")
    assert sizes(9 * MIB, 9 * MIB, 9 * MIB, settings=settings)[1] == 40 * MIB
    assert sizes(12 * MIB, settings=settings)[1] == 12 * MIB


def test_a_small_remainder_of_512_bytes_is_split_off() -> None:
    """should_split: 1 MiB less 512 bytes, twice, leaves 1,024 bytes of 2 MiB for two more tensors."""
    assert sizes(MIB - 512, MIB - 512, 100, 100) == (2 * MIB, 2 * MIB)
    assert sizes(MIB - 512, MIB - 512, 100, 100, 100)[1] == 4 * MIB


def test_a_large_remainder_of_1_mib_stays_with_its_block() -> None:
    """should_split: more than 1 MiB must remain; the whole block counts as allocated."""
    assert sizes(11 * MIB) == (12 * MIB, 12 * MIB)
    assert sizes(11 * MIB - 512) == (11 * MIB - 512, 12 * MIB)


def test_the_smallest_free_block_is_taken() -> None:
    """Of 14 and 12 MiB, a request of 12 MiB takes the second; 14 MiB is left for the next."""
    assert sizes(14 * MIB, 12 * MIB, "free 0", "free 1", 12 * MIB, 14 * MIB)[1] == 26 * MIB


def test_of_equal_blocks_the_lowest_address_is_taken() -> None:
    result = replay(trace_of(12 * MIB, 12 * MIB, 12 * MIB, "free 2", "free 0", 12 * MIB))
    addresses = {int(block): int(address) for block, address, _ in result.live}
    assert addresses[3] < addresses[1]


def test_small_requests_do_not_take_large_blocks() -> None:
    assert sizes(20 * MIB, "free 0", MIB)[1] == 22 * MIB


def test_free_neighbours_of_a_segment_become_one_block() -> None:
    """Two halves of a segment of 20 MiB serve 19 MiB once both are free, in either order, with the rest beside them."""
    for first, second in ((0, 1), (1, 0)):
        steps = (9 * MIB, 9 * MIB, f"free {first}", f"free {second}", 19 * MIB)
        assert sizes(*steps) == (20 * MIB, 20 * MIB)


def test_segments_do_not_become_one() -> None:
    assert sizes(20 * MIB, 20 * MIB, "free 0", "free 1", 40 * MIB)[1] == 80 * MIB


def test_streams_do_not_share_blocks() -> None:
    trace = Trace()
    trace.free(trace.allocate(30 * MIB, stream=1))
    trace.allocate(30 * MIB, stream=0)
    assert replay(trace).reserved == 60 * MIB


def test_empty_cache_gives_back_whole_segments_alone() -> None:
    result = replay(trace_of(9 * MIB, 9 * MIB, 30 * MIB, "free 1", "free 2", "empty"))
    assert (result.reserved, result.freed_segments, result.split_free) == (20 * MIB, 1, 11 * MIB)
    assert [(s.size, s.stream, s.small) for s in result.segments] == [(20 * MIB, 0, False)]


def test_what_is_free_in_whole_segments_is_not_split() -> None:
    assert replay(trace_of(9 * MIB, "free 0", 100)).split_free == 2 * MIB - 512


def test_requests_below_max_split_size_take_no_oversize_block() -> None:
    assert sizes(40 * MIB, "free 0", 30 * MIB, settings=SPLIT_40)[1] == 70 * MIB
    assert sizes(40 * MIB, "free 0", 30 * MIB)[1] == 40 * MIB


def test_oversize_blocks_are_not_split() -> None:
    """50 MiB in a block of 60 MiB: all of it is allocated."""
    assert sizes(60 * MIB, "free 0", 50 * MIB, settings=SPLIT_40) == (60 * MIB, 60 * MIB)
    assert sizes(60 * MIB, "free 0", 50 * MIB) == (50 * MIB, 60 * MIB)


def test_an_oversize_block_20_mib_too_large_is_not_taken() -> None:
    assert sizes(60 * MIB, "free 0", 40 * MIB, settings=SPLIT_40)[1] == 100 * MIB
    assert sizes(60 * MIB, "free 0", 40 * MIB + 1, settings=SPLIT_40)[1] == 60 * MIB
    wider = replace(SPLIT_40, max_non_split_rounding=21 * MIB)
    assert sizes(60 * MIB, "free 0", 40 * MIB, settings=wider)[1] == 60 * MIB


def test_rounding_to_parts_of_a_power_of_two() -> None:
    """roundup_power2_next_division: four parts between 1,024 and 2,048 give 1,280 for 1,200; here 1,200 KiB."""
    settings = read_alloc_conf("roundup_power2_divisions:4")
    asked = np.array([0, 1, 2048, 2049, 1200 * KIB, 1280 * KIB, 2 * MIB, 2 * MIB + 1])
    expected = [0, 512, 2048, 2560, 1280 * KIB, 1280 * KIB, 2 * MIB, 2 * MIB + 512 * KIB]
    assert (rounded(asked, settings) * 512).tolist() == expected


def test_divisions_hold_for_sizes_of_their_interval() -> None:
    """test_allocator_settings of PyTorch's test/test_cuda.py: 84 MiB in 8 parts of 64, 400 MiB in 2 of 256."""
    settings = read_alloc_conf("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]")
    assert (rounded(np.array([84 * MIB, 400 * MIB, 1100 * MIB]), settings) * 512 // MIB).tolist() == [
        88,
        512,
        1100,
    ]
    four = read_alloc_conf("roundup_power2_divisions:4")
    assert rounded(np.array([84 * MIB]), four).tolist() == [96 * MIB // 512]

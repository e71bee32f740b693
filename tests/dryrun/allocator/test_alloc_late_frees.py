"""Blocks that other streams use when they are freed, and misuse of a trace."""

from __future__ import annotations

import pytest

from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import MIB
from planner.dryrun.allocator.trace import Trace


def used_by(*streams: int) -> Trace:
    """A block of 30 MiB, freed while other streams use it."""
    trace = Trace()
    block = trace.allocate(30 * MIB)
    for stream in streams:
        trace.use_on(block, stream)
    trace.free(block)
    return trace


def test_a_block_in_use_elsewhere_is_not_free_yet() -> None:
    trace = used_by(1)
    trace.allocate(30 * MIB)
    result = replay(trace)
    assert result.allocated_timeline.tolist() == [30 * MIB, 30 * MIB, 0, 30 * MIB]
    assert result.reserved == 60 * MIB


def test_a_stream_that_has_caught_up_sets_it_free() -> None:
    trace = used_by(1)
    trace.catch_up(1)
    trace.allocate(30 * MIB)
    assert replay(trace).reserved == 30 * MIB


def test_all_streams_that_use_it_must_have_caught_up() -> None:
    trace = used_by(1, 2, 2)
    trace.catch_up(1)
    trace.allocate(30 * MIB)
    trace.catch_up(2)
    trace.allocate(30 * MIB)
    assert replay(trace).reserved_timeline().tolist()[-3:] == [60 * MIB] * 3


def test_catching_up_says_nothing_of_later_frees() -> None:
    trace = Trace()
    block = trace.allocate(30 * MIB)
    trace.use_on(block, 1)
    trace.catch_up(1)
    trace.free(block)
    trace.allocate(30 * MIB)
    assert replay(trace).reserved == 60 * MIB


def test_use_on_its_own_stream_changes_nothing() -> None:
    trace = used_by(0)
    trace.allocate(30 * MIB)
    assert replay(trace).reserved == 30 * MIB


def test_memory_that_runs_out_waits_for_all_streams() -> None:
    """test_caching_allocator_record_stream_oom of PyTorch's test/test_cuda.py: a delayed block is freed in time."""
    trace = used_by(1)
    trace.allocate(40 * MIB)
    result = replay(trace, capacity=40 * MIB)
    assert (result.out_of_memory, result.retries) == (None, 1)


def test_emptying_the_cache_waits_for_all_streams() -> None:
    trace = used_by(1, 2)
    trace.empty_cache()
    assert replay(trace).reserved == 0


def test_nothing_is_held_for_0_bytes() -> None:
    trace = Trace()
    block = trace.allocate(0)
    trace.use_on(block, 1)
    trace.free(block)
    assert replay(trace).peaks.reserved == 0


def test_misuse_is_refused() -> None:
    trace = Trace()
    block = trace.allocate(1)
    trace.free(block)
    for wrong in (lambda: trace.free(block), lambda: trace.use_on(7, 0), lambda: trace.free(-1)):
        with pytest.raises(ValueError, match="is not allocated"):
            wrong()
    with pytest.raises(ValueError, match="0 or more"):
        trace.allocate(-1)

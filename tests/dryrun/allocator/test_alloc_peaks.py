"""Peaks of a whole trace and since the last reset, timelines, and a replay that stops early."""

from __future__ import annotations

from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.result import Peaks
from planner.dryrun.allocator.settings import MIB
from planner.dryrun.allocator.trace import Trace
from tests.dryrun.allocator.allocations import trace_of

STEPS = trace_of(30 * MIB, 20 * MIB, "free 0", "free 1", "reset", 16 * MIB, "free 2", "empty", 12 * MIB)


def test_peaks_of_the_whole_trace() -> None:
    assert replay(STEPS).peaks == Peaks(50 * MIB, 1, 50 * MIB, 1)


def test_peaks_since_the_last_reset() -> None:
    """resetPeakStats: a peak starts anew from what holds then, 0 allocated and all still reserved."""
    assert replay(STEPS).last_peaks == Peaks(16 * MIB, 5, 50 * MIB, 4)


def test_without_a_reset_both_are_the_same() -> None:
    result = replay(trace_of(MIB, 30 * MIB, "free 1"))
    assert result.peaks == result.last_peaks == Peaks(31 * MIB, 1, 32 * MIB, 1)


def test_reserved_memory_can_peak_inside_an_event() -> None:
    """A failed allocation is retried after everything was given back: 40, then 0, then 50 MiB."""
    result = replay(trace_of(40 * MIB, "free 0", "reset", 50 * MIB), capacity=60 * MIB)
    assert result.reserved_timeline().tolist() == [40 * MIB, 40 * MIB, 40 * MIB, 50 * MIB]
    assert result.last_peaks.reserved == 50 * MIB


def test_timelines_have_a_value_after_each_event() -> None:
    result = replay(STEPS)
    assert (result.allocated_timeline // MIB).tolist() == [30, 50, 20, 0, 0, 16, 0, 0, 12]
    assert (result.reserved_timeline() // MIB).tolist() == [30, 50, 50, 50, 50, 50, 50, 0, 12]


def test_a_replay_that_stops_shows_what_held_then() -> None:
    result = replay(STEPS, stop=6)
    assert (result.allocated, result.reserved, result.split_free) == (16 * MIB, 50 * MIB, 4 * MIB)
    assert result.live[:, 0].tolist() == [2]


def test_nothing_takes_nothing() -> None:
    for result in (replay(Trace()), replay(trace_of("reset", "empty"))):
        assert (result.allocated, result.reserved, result.segments) == (0, 0, ())
        assert result.peaks == result.last_peaks == Peaks(0, 0, 0, 0)

"""Are the peaks of a run those of its snapshot, is nothing in the file run, and is what differs told?"""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import pytest
from hypothesis import given, settings

from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.trace import Trace
from planner.dryrun.beside_snapshot import Unmatched, laid_beside
from planner.dryrun.outcome import memory_of
from planner.dryrun.recording import Holds
from planner.dryrun.snapshot import Blocks, OwnRun, read_snapshot
from planner.errors import FileInputError
from tests.dryrun.allocator.allocations import trace_of, traces
from tests.dryrun.snapshots import entry, pickled, snapshot
from tests.dryrun.test_dryrun_outcome import MIB, PLAIN, two_steps


def read(held: object) -> OwnRun:
    return read_snapshot(io.BytesIO(pickled(held)), "own.pickle")


def run_of(trace: Trace, lost: int = 0) -> OwnRun:
    return read(snapshot(trace, replay(trace), lost))


def test_peaks_are_those_of_the_trace() -> None:
    trace = trace_of(30 * MIB, 20 * MIB, "free 0", 40 * MIB, "free 1", 64 * MIB)
    found, known = run_of(trace), replay(trace).peaks
    assert (found.allocated_peak, found.reserved_peak) == (known.allocated, known.reserved)
    assert (found.allocated_at_start, found.allocated_at_end) == (0, 104 * MIB)
    assert found.alive == (
        Blocks(64 * MIB, "me/train.py:7 step", 1),
        Blocks(40 * MIB, "me/train.py:7 step", 1),
    )


@settings(max_examples=60, deadline=None)
@given(traces(streams=1))
def test_a_trace_written_as_a_snapshot_has_its_peaks(trace: Trace) -> None:
    """Up to what the allocator does not split off a block that is freed: less than 1 MiB each."""
    replayed = replay(trace)
    found, known = read(snapshot(trace, replayed)), replayed.peaks
    assert found.reserved_peak == known.reserved
    assert found.allocated_at_end == replayed.allocated
    assert 0 <= known.allocated - found.allocated_peak <= MIB * trace.num_blocks


def test_a_history_that_lost_its_beginning_is_counted_back_from_the_end() -> None:
    trace = trace_of(30 * MIB, 20 * MIB, "free 0", 40 * MIB, "free 2", 64 * MIB)
    whole = snapshot(trace, replay(trace))["device_traces"][0]
    lost = next(i for i, one in enumerate(whole) if one["action"] == "free_requested")
    found = run_of(trace, lost)
    assert found.allocated_at_start == 50 * MIB
    assert found.allocated_peak == 84 * MIB
    assert found.reserved_peak == replay(trace).peaks.reserved
    assert [one.size for one in found.alive] == [64 * MIB, 20 * MIB]


def test_the_peak_may_lie_before_the_history() -> None:
    trace = trace_of(60 * MIB, 20 * MIB, "free 0", 4 * MIB)
    lost = next(
        i
        for i, one in enumerate(snapshot(trace, replay(trace))["device_traces"][0])
        if one["action"] == "free_requested"
    )
    found = run_of(trace, lost)
    assert (found.allocated_peak, found.allocated_at_start) == (80 * MIB, 80 * MIB)
    assert [(one.size, one.where) for one in found.alive] == [(60 * MIB, ""), (20 * MIB, "")]


def test_without_a_history_levels_are_those_when_it_was_taken() -> None:
    trace = trace_of(30 * MIB, 20 * MIB, "free 0")
    held = snapshot(trace, replay(trace)) | {"device_traces": [[]]}
    found = read(held)
    assert (found.events, found.allocated_peak, found.reserved_peak) == (0, 20 * MIB, 50 * MIB)


def test_pages_of_expandable_segments_count_as_reserved() -> None:
    held: dict[str, Any] = {
        "segments": [],
        "device_traces": [
            [entry("segment_map", 0, 40 * MIB), entry("alloc", 0, 30 * MIB), entry("free_requested", 0, 30 * MIB),
             entry("free_completed", 0, 30 * MIB), entry("segment_unmap", 0, 40 * MIB),
             entry("oom", 0, 90 * MIB, device_free=5)],
        ],
    }  # fmt: skip
    found = read(held)
    assert (found.allocated_peak, found.reserved_peak, found.out_of_memory) == (30 * MIB, 40 * MIB, 90 * MIB)


def test_the_device_that_reserves_most_is_taken() -> None:
    held = snapshot(trace_of(30 * MIB), replay(trace_of(30 * MIB)))
    more = snapshot(trace_of(90 * MIB), replay(trace_of(90 * MIB)))
    held["segments"].append(more["segments"][0] | {"device": 1})
    held["device_traces"] = [held["device_traces"][0], more["device_traces"][0]]
    assert read(held).device == 1


class Harmful:
    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


def test_nothing_in_a_file_is_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileInputError, match=r"plain values[\s\S]*system"):
        read({"segments": [Harmful()], "device_traces": []})
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "must be a pickle\n  given: another kind of file"),
        (b"\x80\x04not a pickle", "must be a pickle"),
        (pickle.dumps([1, 2]), "segments and device_traces"),
        (pickle.dumps({"segments": []}), "device_traces"),
        (pickle.dumps({"segments": [], "device_traces": [[]]}), "no device"),
        (pickle.dumps({"segments": [{"total_size": "x"}], "device_traces": []}), "segments and"),
        (pickle.dumps({"segments": [], "device_traces": [[entry("melt", 0, 1)]]}), "'melt'"),
        (pickle.dumps({"segments": [], "device_traces": [[entry("alloc", 0, 1)]]}), "in no segment"),
        (pickle.dumps({"segments": [], "device_traces": [[entry("alloc", 4, 1)] * 2]}), "two blocks at 0x4"),
        (b"cos\nsystem\n(S'echo'\ntR.", "plain values"),
    ],
)
def test_what_is_no_snapshot_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(FileInputError, match=said) as told:
        read_snapshot(io.BytesIO(content), "own.pickle")
    assert "Error" not in told.value.given, "words of Python"


def test_blocks_that_only_one_has_are_told_by_size() -> None:
    ran = memory_of(two_steps(), PLAIN, 1000 * MIB)
    run = run_of(trace_of(200 * MIB, 100 * MIB, 100 * MIB, 40 * MIB, 70 * MIB, 70 * MIB))
    beside = laid_beside(run, ran)
    assert beside.only_run == (Unmatched(70 * MIB, 2, "me/train.py:7 step", None),)
    assert beside.only_dryrun == (Unmatched(40 * MIB, 1, "layers.*.mlp", Holds.ACTIVATIONS),)
    assert beside.allocated_off == pytest.approx(480 / 580 - 1)


def test_a_run_as_its_dry_run_has_nothing_unmatched() -> None:
    recording = two_steps()
    ran = memory_of(recording, PLAIN, 1000 * MIB)
    beside = laid_beside(run_of(recording.trace), ran)
    assert (beside.only_run, beside.only_dryrun) == ((), ())
    assert (beside.allocated_off, beside.reserved_off) == (0.0, 0.0)

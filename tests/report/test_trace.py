"""Traces of small pipelines: every slice, message and counter against the schedule they are drawn from."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import planner.report.trace as traces
from planner.cost.chunks import ChunkTimes
from planner.errors import InputError
from planner.report.trace import MemoryLevels, TracedStep, trace_document, trace_text
from planner.schedule.actions import Pass
from planner.schedule.generate import action_table
from planner.schedule.simulate import simulate
from planner.spec.config import Schedule

ONCE = {"dp_comm": 0.5, "optimizer": 0.25, "step_overhead": 0.0, "stragglers": 0.125}
WORK = ("forward", "recompute", "backward", "weight gradient")
CASES = [
    (Schedule.ONE_F_ONE_B, 4, 8, 1, 0.01),
    (Schedule.ONE_F_ONE_B, 1, 3, 1, 0.0),
    (Schedule.INTERLEAVED, 4, 8, 3, 0.3),
    (Schedule.GPIPE, 3, 5, 1, 4.0),  # messages longer than passes
    (Schedule.ZB_H1, 4, 8, 1, 0.01),
    (Schedule.ZB_V, 4, 8, 2, 0.01),
    (Schedule.DUALPIPE, 4, 8, 1, 0.01),
    (Schedule.DUALPIPE_V, 2, 6, 2, 0.0),
]


def traced(schedule: Schedule, p: int, m: int, v: int, hop: float, again: float = 0.5) -> TracedStep:
    """A pipeline whose later chunks are slower."""
    table = action_table(schedule, p, m, v)
    n = table.stages
    slow = 1 + 0.1 * np.arange(n)
    chunks = ChunkTimes(
        slow, again * slow, 0.75 * slow, 0.875 * slow, np.full(n - 1, hop), tuple(range(2, 2 + n))
    )
    memory = MemoryLevels(
        "memory", 1000.0 + np.arange(p), 10.0 + np.arange(n), np.full(n, 3.0), 0.0, 0.0, np.full(p, 5000.0)
    )
    return TracedStep(simulate(table, chunks.stage_times((hop,))), chunks, hop, 0.1, ONCE, memory, {"a": 1})


def lanes(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["tid"]].append(event)
    return rows


def names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


def ns(microseconds: float) -> int:
    return round(microseconds * 1e3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_json_sorted_and_free_of_overlap(case: tuple[Schedule, int, int, int, float]) -> None:
    document = json.loads(trace_text(trace_document(traced(*case))))
    events = document["traceEvents"]
    assert document["otherData"] == {"a": 1}
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    rows = lanes(events)
    assert set(rows) == set(names(events)), "every row has a name"
    for row in rows.values():
        assert all(event["dur"] > 0 for event in row)
        assert all(ns(a["ts"]) + ns(a["dur"]) <= ns(b["ts"]) for a, b in pairwise(row))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_slices_add_up_to_the_schedule(case: tuple[Schedule, int, int, int, float]) -> None:
    step = traced(*case)
    events = trace_document(step)["traceEvents"]
    called, by_rank = names(events), np.zeros(case[1])
    end, counted = 0, defaultdict(int)
    seen: set[tuple[str, int, int]] = set()
    for tid, row in lanes(events).items():
        for event in row:
            if event["cat"] in WORK:
                end = max(end, ns(event["ts"]) + ns(event["dur"]))
                counted[event["cat"]] += 1
                seen.add((event["cat"], event["args"]["micro-batch"], event["args"]["chunk"]))
                assert event["args"]["layers"] == step.chunks.layers[event["args"]["chunk"]]
                if "overlapped" not in called[tid]:
                    by_rank[int(called[tid].split()[1])] += event["dur"] / 1e6
    n, m = step.timeline.table.stages, case[2]
    assert dict(counted) == dict.fromkeys(WORK, n * m), "each pass is drawn once"
    assert len(seen) == 4 * n * m
    assert end / 1e9 == pytest.approx(step.timeline.makespan, abs=1e-8)
    assert by_rank == pytest.approx(step.timeline.busy, abs=1e-6)
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") / 1e6
    assert last == pytest.approx(step.timeline.makespan + sum(ONCE.values()), abs=1e-8)


def test_sums_of_a_rank_are_those_of_its_chunks() -> None:
    step = traced(*CASES[2])
    spent: dict[tuple[int, str], float] = defaultdict(float)
    for event in trace_document(step)["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in WORK:
            spent[event["args"]["chunk"], event["cat"]] += event["dur"] / 1e6
    times = (
        step.chunks.forward,
        step.chunks.recompute,
        step.chunks.input_gradient,
        step.chunks.weight_gradient,
    )
    for kind, each in zip(WORK, times, strict=True):
        for chunk, seconds in enumerate(each):
            assert spent[chunk, kind] == pytest.approx(8 * seconds, abs=1e-7)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3], CASES[6]], ids=str)
def test_a_message_runs_from_its_pass_to_the_one_that_waits(
    case: tuple[Schedule, int, int, int, float],
) -> None:
    step = traced(*case)
    events = trace_document(step)["traceEvents"]
    sent = [event for event in events if event["ph"] == "X" and "to chunk" in event["args"]]
    assert len(sent) == 2 * (step.timeline.table.stages - 1) * case[2]
    timeline = step.timeline
    table, begin, end = (
        timeline.table,
        dict[tuple[bool, int, int], float](),
        dict[tuple[bool, int, int], float](),
    )
    for rank, k in np.argwhere(table.where(Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.BACKWARD)):
        key = (table.kind[rank, k] != Pass.FORWARD, int(table.microbatch[rank, k]), int(table.stage[rank, k]))
        begin[key], end[key] = float(timeline.start[rank, k]), float(timeline.end[rank, k])
    for event in sent:
        said, back = event["args"], event["name"].startswith("gradient")
        sender, taker = ((back, said["micro-batch"], said[which]) for which in ("from chunk", "to chunk"))
        assert event["ts"] / 1e6 == pytest.approx(end[sender], abs=2e-9)
        assert event["dur"] / 1e6 == pytest.approx(case[-1], abs=2e-9)
        assert (event["ts"] + event["dur"]) / 1e6 <= begin[taker] + 4e-9
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event["ph"])
    assert len(arrows) == len(sent)
    assert all(sorted(ends) == ["f", "s"] for ends in arrows.values())


def test_overlapped_pairs_lie_side_by_side() -> None:
    events = trace_document(traced(*CASES[6]))["traceEvents"]
    called, rows = names(events), lanes(events)
    beside = next(tid for tid, name in called.items() if name == "rank 0 overlapped backward")
    first = next(tid for tid, name in called.items() if name == "rank 0")
    forwards = {(e["ts"], ns(e["dur"])) for e in rows[first] if e["name"].startswith("forward")}
    starts = [e for e in rows[beside] if e["cat"] == "recompute"]
    assert starts
    for event in starts:
        whole = sum(
            ns(e["dur"])
            for e in rows[beside]
            if e["args"] | {"alone_us": 0} == event["args"] | {"alone_us": 0}
        )
        assert (event["ts"], whole) in forwards


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_follows_the_schedule(case: tuple[Schedule, int, int, int, float]) -> None:
    """With equal chunks the highest value is the number in flight that the schedule itself counts."""
    step = traced(*case)
    n, p = step.timeline.table.stages, case[1]
    levels = MemoryLevels(
        "memory", np.full(p, 1000.0), np.full(n, 10.0), np.zeros(n), 0.0, 0.0, np.full(p, 5000.0)
    )
    equal = TracedStep(step.timeline, step.chunks, step.hop, 0.0, ONCE, levels)
    values: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for event in trace_document(equal)["traceEvents"]:
        if event["ph"] == "C":
            values[event["name"]].append((event["ts"], event["args"]["bytes"]))
    assert len(values) == p
    for rank, series in enumerate(values[name] for name in sorted(values)):
        peak = max(value for at, value in series if value < 5000)
        assert peak == 1000 + 10 * step.timeline.in_flight.until_weight[rank]
        assert series[0][0] == 0
        assert series[-1][1] == 1000, "everything is given back"
        assert max(value for _, value in series) == 5000, "the optimizer's step"


def test_loss_and_working_set_are_counted_where_they_are() -> None:
    table = action_table(Schedule.ONE_F_ONE_B, 1, 1, 1)
    one = np.ones(1)
    chunks = ChunkTimes(3 * one, 0 * one, 4 * one, 2 * one, np.zeros(0), (2,))
    levels = MemoryLevels("memory", 100 * one, 10 * one, 3 * one, 50.0, 20.0, 100 * one)
    step = TracedStep(simulate(table, chunks.stage_times()), chunks, 0.0, 3.0, {}, levels)
    found = [
        (e["ts"] / 1e6, e["args"]["bytes"]) for e in trace_document(step)["traceEvents"] if e["ph"] == "C"
    ]
    assert found == [(0, 110), (2, 160), (3, 130), (5, 113), (9, 100)]


def test_some_ranks_alone() -> None:
    events = trace_document(traced(*CASES[0]), [0, 3])["traceEvents"]
    assert set(names(events).values()) == {"rank 0", "rank 3", "rank 0 sends", "rank 3 sends"}
    assert not [event for event in events if event["ph"] in "sf"], "their neighbours are not drawn"


def test_too_many_events_are_refused_with_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    step = traced(*CASES[0])
    size = len(trace_document(step)["traceEvents"])
    monkeypatch.setattr(traces, "MOST_EVENTS", size - 1)
    with pytest.raises(InputError, match="--ranks 0-2"):
        trace_document(step, [0, 1, 2, 3])
    trace_document(step, [0, 1, 2])
    monkeypatch.setattr(traces, "MOST_EVENTS", 10)
    with pytest.raises(InputError, match="smaller global batch"):
        trace_document(step)


def test_of_too_many_events_the_telling_ranks_are_drawn_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    step = traced(*CASES[0])
    whole = trace_document(step)
    assert "note" not in whole["otherData"]
    step = replace(step, timeline=replace(step.timeline, busy=np.array([1.0, 1.0, 2.0, 1.0])))
    monkeypatch.setattr(traces, "MOST_EVENTS", len(whole["traceEvents"]) - 1)
    few = trace_document(step)
    drawn = {name for name in names(few["traceEvents"]).values() if "sends" not in name}
    assert drawn == {"rank 0", "rank 2", "rank 3"}
    assert few["otherData"]["note"].startswith("ranks 0, 2, 3 are drawn")

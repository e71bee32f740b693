"""Fixed schedules against the action lists of torch, Megatron-LM and DualPipe, as timed in schedule_vectors.csv."""

from __future__ import annotations

import json

import pytest
from schedule_vectors import FIXED, label

from planner.schedule.generate import action_table, named_schedule
from planner.schedule.simulate import simulate, stage_times


@pytest.mark.parametrize("row", FIXED, ids=label)
def test_fixed_schedule_equals_its_vector(row: dict[str, str]) -> None:
    named = named_schedule(row["schedule"])
    options = json.loads(row["opts"] or "{}")
    table = action_table(
        named.schedule,
        int(row["pp"]),
        int(row["microbatches"]),
        int(row["vpp"]),
        group=options.get("group"),
        in_rounds=named.in_rounds,
        expert_overlap=options.get("moe_overlap", False),
    )
    f, b, w, hop = (float(row[key]) for key in ("f", "b", "w", "comm"))
    pair = float(row["fb"]) if row["fb"] else None
    timed = simulate(table, stage_times(table.stages, f, b, w, hop, pair))
    for value, key in (
        (timed.makespan, "makespan"),
        (timed.longest_span, "max_rank_span"),
        (timed.busy.max(), "ideal_busy"),
        (timed.bubble, "bubble"),
    ):
        assert value == pytest.approx(float(row[key]), abs=1e-6), key
    for counts, key in (
        (timed.in_flight.until_input, "peak_inflight_until_I"),
        (timed.in_flight.until_weight, "peak_inflight_until_W"),
        (timed.in_flight.pending_weight, "peak_pending_W"),
    ):
        assert counts.tolist() == [int(x) for x in row[key].split()], key

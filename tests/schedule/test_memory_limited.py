"""Orders found under a memory limit, against the recorded orders of the zero-bubble project."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_vectors import RECORDED, label

from planner.errors import InputError
from planner.schedule.actions import Pass
from planner.schedule.memory_limited import default_limit, memory_limited_table
from planner.schedule.simulate import simulate, stage_times
from planner.spec.config import Schedule

KINDS = {"sail-vhalf": Schedule.V_HALF, "sail-vmin": Schedule.V_MIN}


@pytest.mark.parametrize("row", RECORDED, ids=label)
def test_no_slower_than_the_recorded_order_at_its_own_peak(row: dict[str, str]) -> None:
    p, m, v = (int(row[key]) for key in ("pp", "microbatches", "vpp"))
    limit = max(int(x) for x in row["peak_inflight_until_W"].split())
    f, b, w, hop = (float(row[key]) for key in ("f", "b", "w", "comm"))
    times = stage_times(p * v, f, b, w, hop)
    table = memory_limited_table(KINDS.get(row["schedule"], Schedule.ZB_H2), p, m, times, limit, v)
    timed = simulate(table, times)
    assert timed.makespan <= float(row["makespan"]) + 1e-6
    assert timed.in_flight.until_weight.max() <= limit


@pytest.mark.parametrize("schedule", [Schedule.V_HALF, Schedule.V_MIN])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 12])
def test_default_limits_have_an_order(schedule: Schedule, p: int) -> None:
    times = stage_times(2 * p, 1.0, 1.0, 1.0)
    timed = simulate(memory_limited_table(schedule, p, 2 * p + 1, times), times)
    assert timed.in_flight.until_weight.max() <= default_limit(schedule, p)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 2), st.integers(2, 10), st.randoms())
def test_any_times_and_limit_give_a_complete_order_within_the_limit(
    p: int, m: int, v: int, limit: int, random: object
) -> None:
    rng = np.random.default_rng(p * 100 + m)
    stages = p * v
    f, b, w = (rng.random(stages) + 0.2 for _ in range(3))
    times = stage_times(stages, f, b, w, rng.random(stages - 1))
    table = memory_limited_table(Schedule.ZB_H2, p, m, times, limit, v)
    timed = simulate(table, times)
    assert timed.in_flight.until_weight.max() <= limit
    for kind in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT):
        assert np.count_nonzero(table.where(kind)) == stages * m
    assert timed.makespan >= timed.busy.max() * (1 - 1e-12)


def test_more_memory_is_used_where_it_helps() -> None:
    times = stage_times(4, 1.0, 1.0, 1.0)
    spans = [
        simulate(memory_limited_table(Schedule.ZB_H2, 4, 12, times, limit), times).makespan
        for limit in (2, 4)
    ]
    assert spans[0] > spans[1]


def test_limits_that_cannot_hold_a_chunk_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 chunks"):
        memory_limited_table(Schedule.V_MIN, 4, 8, stage_times(8, 1.0, 1.0, 1.0), 1)
    with pytest.raises(InputError, match="searched for"):
        memory_limited_table(Schedule.V_MIN, 1024, 4096, stage_times(2048, 1.0, 1.0, 1.0))


def test_sixteen_ranks_and_64_micro_batches_are_scheduled() -> None:
    times = stage_times(32, 1.0, 1.2, 0.8, 0.1)
    table = memory_limited_table(Schedule.V_HALF, 16, 64, times)
    timed = simulate(table, times)
    assert 64 * 2 * 3.0 < timed.makespan < 1.5 * 64 * 2 * 3.0
    assert timed.in_flight.until_weight.max() <= default_limit(Schedule.V_HALF, 16)


# makespans of the zero-bubble project's own orders within these limits (sail-sg, scheduler/zbv_greedy.py, zbv.py and
# zb.py, run with these times): schedule, stages a rank, ranks, micro-batches, (f, b, w, hop), limit, makespan
@pytest.mark.parametrize(
    ("schedule", "v", "p", "m", "costs", "limit", "makespan"),
    [
        (Schedule.V_HALF, 2, 16, 64, (1.0, 1.0, 1.0, 0.1), None, 435.2),
        (Schedule.V_HALF, 2, 5, 14, (1.0, 1.0, 1.0, 0.25), None, 102.0),
        (Schedule.V_HALF, 2, 6, 24, (1.0, 1.5, 0.7, 0.05), None, 183.1),
        (Schedule.V_MIN, 2, 12, 48, (1.0, 0.9, 1.1, 0.0), None, 326.8),
        (Schedule.V_MIN, 2, 6, 24, (1.0, 2.0, 0.5, 0.0), None, 308.5),
        (Schedule.ZB_V, 2, 10, 10, (1.0, 1.2, 0.8, 0.0), None, 72.0),
        (Schedule.ZB_H2, 1, 8, 8, (1.0, 0.9, 1.1, 0.1), 12, 31.7),
        (Schedule.ZB_H2, 1, 8, 8, (1.0, 0.9, 1.1, 0.05), 8, 31.35),
    ],
)
def test_no_slower_than_the_project_of_its_name(
    schedule: Schedule,
    v: int,
    p: int,
    m: int,
    costs: tuple[float, float, float, float],
    limit: int | None,
    makespan: float,
) -> None:
    times = stage_times(p * v, *costs)
    timed = simulate(memory_limited_table(schedule, p, m, times, limit, v), times)
    assert timed.makespan <= makespan + 1e-6
    assert timed.in_flight.until_weight.max() <= (limit or default_limit(schedule, p))


@pytest.mark.parametrize(("p", "held"), [(2, 4), (3, 4), (4, 6), (5, 6), (6, 8), (8, 10), (16, 18)])
def test_v_half_holds_by_default_what_its_pattern_holds(p: int, held: int) -> None:
    assert default_limit(Schedule.V_HALF, p) == held


@pytest.mark.parametrize(
    ("v", "p", "m", "costs"),
    [
        (2, 4, 16, (0.7, 1.3, 1.0, 0.1)),  # 208.7 with 2 chunks, once 229.4 with 3
        (2, 5, 10, (1.0, 0.9, 1.1, 0.3)),
        (2, 3, 10, (1.0, 1.6, 0.6, 0.1)),
        (1, 4, 13, (1.0, 1.6, 0.6, 0.3)),
        (1, 6, 12, (0.7, 1.3, 1.0, 0.0)),
    ],
)
def test_more_memory_is_never_slower(
    v: int, p: int, m: int, costs: tuple[float, float, float, float]
) -> None:
    times = stage_times(p * v, *costs)
    spans = []
    for limit in range(v, 3 * p + 1):
        timed = simulate(memory_limited_table(Schedule.ZB_H2, p, m, times, limit, v), times)
        assert timed.in_flight.until_weight.max() <= limit
        spans.append(timed.makespan)
    assert all(after <= before * (1 + 1e-8) for before, after in pairwise(spans))

"""Ranks filled round by round, against makespans of the zero-bubble project's ZB and ZB-V."""

from __future__ import annotations

import math

import pytest

from planner.schedule.actions import peak_in_flight
from planner.schedule.greedy import Orders
from planner.schedule.list_scheduling import Pipeline, written_table
from planner.schedule.simulate import simulate, stage_times

Costs = tuple[float, float, float, float]


def pipeline(v: int, p: int, m: int, costs: Costs, limit: int) -> Pipeline:
    f, b, w, hop = costs
    stages = p * v
    return Pipeline(p, v == 2, m, [f] * stages, [b] * stages, [w] * stages, [hop] * (stages - 1), limit)


def spans(work: Pipeline, costs: Costs, latest: float = math.inf) -> list[float]:
    times = stage_times(work.stages, *costs)
    tables = [written_table("greedy", work, order) for order in Orders(work).found(lambda: latest)]
    assert all(peak_in_flight(table).until_weight.max() <= work.limit for table in tables)
    return [simulate(table, times).makespan for table in tables]


# makespans of sail-sg's scheduler/zb.py and zbv.py, run with these times
@pytest.mark.parametrize(
    ("v", "p", "m", "costs", "limit", "makespan"),
    [
        (1, 8, 8, (1.0, 0.9, 1.1, 0.1), 12, 31.7),
        (1, 8, 8, (1.0, 0.9, 1.1, 0.05), 8, 31.35),
        (1, 8, 8, (1.0, 2.0, 0.5, 0.0), 12, 45.5),
        (2, 10, 10, (1.0, 1.2, 0.8, 0.0), 20, 72.0),
    ],
)
def test_the_best_takes_as_long_as_the_order_it_follows(
    v: int, p: int, m: int, costs: Costs, limit: int, makespan: float
) -> None:
    assert min(spans(pipeline(v, p, m, costs, limit), costs)) == pytest.approx(makespan)


@pytest.mark.parametrize(("v", "limit"), [(1, 6), (2, 8), (2, 11)])
def test_lower_limits_down_to_the_lowest_give_the_same_orders(v: int, limit: int) -> None:
    costs = (1.0, 1.2, 0.8, 0.1)
    orders = Orders(pipeline(v, 4, 12, costs, limit))
    found = list(orders.found(lambda: math.inf))
    assert found
    for lower in range(orders.lowest, limit + 1):
        assert list(Orders(pipeline(v, 4, 12, costs, lower)).found(lambda: math.inf)) == found


def test_orders_that_end_too_late_are_given_up_and_no_others() -> None:
    costs = (1.0, 1.2, 0.8, 0.1)
    work = pipeline(1, 4, 12, costs, 5)
    best = min(spans(work, costs))
    assert min(spans(work, costs, best * (1 + 1e-9))) == pytest.approx(best)
    assert spans(work, costs, best * 0.9) == []

"""Patterns whose passes moved into the gaps of both ends, against the in-flight counts of V-Half and V-Min."""

from __future__ import annotations

import numpy as np
import pytest

from planner.schedule.actions import peak_in_flight
from planner.schedule.list_scheduling import Pipeline, written_table
from planner.schedule.reordered import Pattern, reordered
from planner.schedule.simulate import simulate, stage_times


def v_half(p: int) -> Pattern:
    return Pattern(2, 0 if p % 2 else 3, 1)


def v_min(p: int) -> Pattern:
    return Pattern(1, 0 if p % 3 else 2, 0)


# makespans with passes of one second, from sail-sg's scheduler/zbv_greedy.py; chunks held: its order's, which follow
# from the pattern
@pytest.mark.parametrize(
    ("pattern", "p", "m", "hop", "makespan", "held"),
    [
        (v_half(16), 16, 64, 0.0, 425.0, 18),
        (v_half(16), 16, 64, 0.1, 435.2, 18),
        (v_half(5), 5, 14, 0.25, 102.0, 6),
        (v_half(6), 6, 13, 0.0, 89.0, 8),
        (v_min(8), 8, 32, 0.0, 219.0, 8),
        (v_min(2), 2, 4, 0.0, 27.0, 4),
    ],
)
def test_takes_as_long_as_the_order_it_follows(
    pattern: Pattern, p: int, m: int, hop: float, makespan: float, held: int
) -> None:
    order = reordered(pattern, p, m)
    assert order is not None
    times = stage_times(2 * p, 1.0, 1.0, 1.0, hop)
    ones = [1.0] * (2 * p)
    table = written_table("v", Pipeline(p, True, m, ones, ones, ones, [hop] * (2 * p - 1), held), order)
    assert simulate(table, times).makespan == pytest.approx(makespan)
    assert peak_in_flight(table).until_weight.max() == held


@pytest.mark.parametrize("p", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("m", [1, 2, 9])
def test_every_pass_is_there_once_for_any_number_of_micro_batches(p: int, m: int) -> None:
    for pattern in (v_half(p), v_min(p)):
        order = reordered(pattern, p, m)
        assert order is not None
        passes = {one for rank in order for one in rank}
        assert len(passes) == 6 * p * m == sum(map(len, order))
        assert {stage for _, stage, _ in passes} == set(np.arange(2 * p).tolist())


def test_a_pattern_whose_passes_collide_has_no_order() -> None:
    assert reordered(Pattern(1, 0, 0), 3, 8) is None

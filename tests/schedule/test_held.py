"""The worst moments of a rank: against all moments, counts that stop growing, and known schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.schedule.actions import Pass, peak_in_flight
from planner.schedule.generate import action_table
from planner.schedule.held import SATURATED, held_moments, interleaved_moments, most_held, worst_moments
from planner.spec.config import Schedule

SHAPES = [
    (Schedule.ZB_H1, 1, 4),
    (Schedule.ZB_H1, 2, 4),
    (Schedule.ZB_H2, 1, 5),
    (Schedule.ZB_V, 2, 4),
    (Schedule.DUALPIPE, 1, 6),
    (Schedule.DUALPIPE_V, 2, 5),
]
POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


@given(POINTS, st.floats(0, 5))
def test_no_other_moment_weighs_more(points: list[tuple[int, int]], rho: float) -> None:
    kept = worst_moments(points)
    assert set(kept) <= set(points)
    assert max(x + rho * y for x, y in kept) == pytest.approx(max(x + rho * y for x, y in points))


@pytest.mark.parametrize(("schedule", "v", "p"), SHAPES)
def test_both_counts_agree_with_the_order(schedule: Schedule, v: int, p: int) -> None:
    table = action_table(schedule, p, 4 * p, v)
    peaks = peak_in_flight(table)
    for rank, moments in enumerate(held_moments(table)):
        assert max(x for x, _ in moments) == peaks.until_input[rank]
        # a pass holds what it releases in both counts at its own moment
        assert peaks.until_weight[rank] - 1 <= max(x + y for x, y in moments) <= peaks.until_weight[rank]


@pytest.mark.parametrize(("schedule", "v", "p"), SHAPES)
def test_more_micro_batches_hold_no_more(schedule: Schedule, v: int, p: int) -> None:
    for m in (SATURATED * p, (SATURATED + 1) * p, 6 * p):
        assert most_held(schedule, p, v, m) == tuple(held_moments(action_table(schedule, p, 6 * p, v)))


def test_zb_h1_trades_activations_for_weight_gradients() -> None:
    # Qi 2023, arXiv 2401.10241: as 1F1B before the input gradient, p in all until the weight gradient
    for rank, moments in enumerate(most_held(Schedule.ZB_H1, 4, 1, 12)):
        assert moments[0] == (4 - rank, rank)


def test_fewer_micro_batches_than_the_pipeline_is_deep() -> None:
    few = most_held(Schedule.ZB_V, 4, 2, 2)
    assert np.max([x + y for moments in few for x, y in moments]) <= 4


@given(
    st.integers(2, 5), st.integers(2, 5), st.integers(1, 5), st.lists(st.floats(0, 9), min_size=5, max_size=5)
)
def test_no_other_moment_of_an_interleaved_rank_weighs_more(
    p: int, v: int, rounds: int, weights: list[float]
) -> None:
    table, weigh = action_table(Schedule.INTERLEAVED, p, rounds * p, v), np.array(weights[:v])
    for rank in range(p):
        held, peak, at_loss = np.zeros(v), 0.0, 0.0
        for kind, stage in zip(table.kind[rank].tolist(), table.stage[rank].tolist(), strict=True):
            held[stage // p] += kind == Pass.FORWARD
            peak = max(peak, float(held @ weigh))
            if kind == Pass.BACKWARD:
                at_loss = max(at_loss, float(held @ weigh)) if stage == p * v - 1 else at_loss
                held[stage // p] -= 1
        step, loss = interleaved_moments(p, v, rounds * p, rank)
        assert (step @ weigh).max() == pytest.approx(peak)
        assert rank < p - 1 or (loss @ weigh).max() == pytest.approx(at_loss)

"""Errors by hand, and what taking planner's picks of a sweep would lose."""

from __future__ import annotations

import numpy as np
import pytest

from planner.calibrate.measured import Measurement
from planner.calibrate.statistics import Answer, error_summary, mean_of_sources, spearman, sweep_summaries

# predicted seconds, measured seconds (None: out of memory), verdict
SWEEP = (
    (8.0, None, "does_not_fit"),
    (9.0, None, "borderline"),
    (10.0, 11.0, "borderline"),
    (11.0, 13.0, "fits"),
    (12.0, 10.0, "fits"),
    (13.0, 14.0, "fits"),
    (14.0, 15.0, "fits"),
    (15.0, 16.0, "fits"),
)


def _answer(predicted: float, measured: float | None, verdict: str) -> Answer:
    output = {"step_time_s": predicted, "verdict": verdict}
    return Answer({}, output, Measurement(measured, None, oom=measured is None), "mine", ("mine",))


def test_regret_of_the_pick_of_a_few_and_of_what_surely_fits() -> None:
    answers = [_answer(predicted, measured, verdict) for predicted, measured, verdict in SWEEP]
    (sweep,) = sweep_summaries(answers)
    assert (sweep["missed"], sweep["pick_ran"]) == (True, False)
    assert sweep["regret"] == 0.1  # the first that ran
    assert sweep["regret_of_three"] == 0.1
    assert sweep["regret_of_five"] == 0.0
    assert sweep["regret_of_fitting"] == 0.3


def test_a_pick_that_may_not_fit_must_gain_what_is_worth_the_risk() -> None:
    def regret(borderline: float) -> float:
        rows = [(borderline, 12.0, "borderline"), (10.0, 10.0, "fits")]
        rows += [(seconds, seconds, "fits") for seconds in (11.0, 12.0, 13.0, 14.0)]
        (sweep,) = sweep_summaries(
            [_answer(predicted, measured, verdict) for predicted, measured, verdict in rows]
        )
        return float(sweep["regret"])

    assert (regret(9.79), regret(9.82)) == (0.2, 0.0)


def test_statistics_by_hand() -> None:
    assert error_summary([1.1, 0.8, 1.0]) == {"rows": 3, "median": 0.1, "mean": 0.1, "p90": 0.18, "bias": 0.0}
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])) == pytest.approx(0.5)


def test_a_headline_is_the_mean_of_sources_with_enough_rows() -> None:
    def source(median: float, rows: int = 9, judged: bool = True) -> dict[str, object]:
        return {"judged": judged, "time": {"rows": rows, "median": median, "p90": 0.2, "bias": 0.0}}

    sources = {
        "a": source(0.02),
        "b": source(0.04),
        "few": source(0.9, 4),
        "listed": source(0.9, judged=False),
    }
    assert mean_of_sources(sources, "time") == {
        "sources": 2, "rows": 18, "median": 0.03, "bias": 0.0, "p90": 0.2,
    }  # fmt: skip

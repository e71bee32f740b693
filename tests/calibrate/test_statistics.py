"""What taking planner's picks of a sweep would lose."""

from __future__ import annotations

from planner.calibrate.published.measured import Measurement
from planner.calibrate.statistics import Answer, sweep_summaries
from tests.calibrate.rows import ROW

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


def test_regret_of_the_pick_of_a_few_and_of_what_surely_fits() -> None:
    answers = [
        Answer(
            ROW,
            {"step_time_s": predicted, "verdict": verdict},
            Measurement(measured, None, measured is None, False, False),
            moe=False,
        )
        for predicted, measured, verdict in SWEEP
    ]
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
            [
                Answer(
                    ROW,
                    {"step_time_s": predicted, "verdict": verdict},
                    Measurement(measured, None, False, False, False),
                    moe=False,
                )
                for predicted, measured, verdict in rows
            ]
        )
        return float(sweep["regret"])

    assert (regret(9.79), regret(9.82)) == (0.2, 0.0)

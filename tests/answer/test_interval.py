"""Is a step's interval as wide as its uncertain parts make it?"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner.answer.estimate import make_estimate
from planner.answer.interval import UNCERTAIN, step_band, uncertain_shares
from planner.answer.outcome import days_ends, run_days
from planner.answer.reasons import UNMEASURED_BAND
from planner.ask.question import Question
from planner.campaign.run import run_facts
from planner.catalog.load_campaign import load_assumptions
from planner.spec.stack import UNLIKE_BAND, WIDEST_BAND
from tests.problems import problem

PARTS = [name for _, names in UNCERTAIN for name in names]
KERNELS = {"gemm": 1.0, "attention": 0.5}


def test_the_page_of_accelerators_states_their_bands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "accelerators.md").read_text(encoding="utf-8")
    for band in (UNMEASURED_BAND, UNMEASURED_BAND * UNLIKE_BAND):
        assert f"-{1 - 1 / (1 + band):.0%} to +{band:.0%}".replace("%", " %") in page


@pytest.mark.parametrize("band", [0.01, 0.2])
@pytest.mark.parametrize(("fewer", "more"), [(1.0, 1.0), (1.3, 2.0)])
def test_days_are_as_uncertain_as_steps_and_tokens(band: float, fewer: float, more: float) -> None:
    given = problem(global_batch=512)
    given = replace(given, job=replace(given.job, tokens=1e12))
    run = run_facts(5.0, given, load_assumptions())
    assert run is not None
    assert run.tokens is not None
    ends = {"tokens_least": run.tokens / fewer, "tokens_most": run.tokens * more}
    (choice,) = make_estimate(Question("llama-3.2-1b", "dgx-h100", gpus=8, set={"dp": 8})).choices
    one = {"step_time": 5.0, "step_time_low": 5.0 / (1 + band), "step_time_high": 5.0 * (1 + band)}
    choice = choice.model_copy(update={**one, "run": run.model_copy(update=ends)})
    low, high = days_ends(choice)
    days = run_days(run)
    assert days / low >= max(1 + band, fewer) * (1 - 1e-9)
    assert high / days >= max(1 + band, more) * (1 - 1e-9)
    assert high / days <= (1 + band) * more * (1 + 1e-9)
    if more == 1.0:
        assert (low, high) == (pytest.approx(days / (1 + band)), pytest.approx(days * (1 + band)))


def test_a_step_of_kernels_has_their_band() -> None:
    assert step_band(0.2, KERNELS) == pytest.approx(0.2)
    assert step_band(0.2, {}) == pytest.approx(0.2)


@pytest.mark.parametrize("part", PARTS)
def test_an_uncertain_part_widens_with_its_share(part: str) -> None:
    bands = [step_band(0.2, KERNELS | {part: seconds}) for seconds in (0.0, 0.01, 0.1, 1.0, 10.0)]
    assert bands == sorted(bands)
    assert bands[0] < bands[-1] <= WIDEST_BAND
    assert step_band(
        0.2, {name: 60.0 * time for name, time in (KERNELS | {part: 0.1}).items()}
    ) == pytest.approx(bands[2])


def test_communication_along_several_axes_errs_together_and_hosts_apart() -> None:
    one = step_band(0.1, {"gemm": 1.0, "tp_comm": 1.0})
    assert step_band(0.1, {"gemm": 1.0, "tp_comm": 0.5, "dp_comm": 0.5}) == pytest.approx(one)
    assert step_band(0.1, {"gemm": 1.0, "tp_comm": 0.5, "host_bound": 0.5}) < one


def test_a_step_all_of_one_part_is_as_uncertain_as_it() -> None:
    for width, names in UNCERTAIN:
        assert step_band(0.0, {names[0]: 3.0}) == pytest.approx(min(math.expm1(width), WIDEST_BAND))


def test_the_parts_that_widen_are_told_largest_first() -> None:
    time = {"gemm": 6.0, "dp_comm": 1.0, "host_bound": 3.0, "tp_comm": 0.01}
    assert list(uncertain_shares(time)) == ["host_bound", "dp_comm"]

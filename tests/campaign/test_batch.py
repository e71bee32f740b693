"""The critical batch: the law's own figures, published fits at their ranges, schedules, and bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.campaign.batch import (
    FARTHEST,
    Stage,
    batch_of_fit,
    critical_batch,
    loss_reached,
    relative_tokens,
    staged_run,
    token_factor,
)
from planner.catalog.load_campaign import load_assumptions
from planner.errors import InputError
from planner.spec.batch_fit import BatchFit, FitOf

FITS = {fit.name: fit for fit in load_assumptions().batch_fits}
BATCHES = st.floats(1e3, 1e10)


@pytest.mark.parametrize(("times", "tokens"), [(0.5, 1.5), (1.0, 2.0), (2.0, 3.0)])
def test_the_law_at_and_around_the_critical_batch(times: float, tokens: float) -> None:
    # McCandlish 2018: at B_crit twice the fewest tokens and twice the fewest steps
    assert relative_tokens(times * 4e6, 4e6) == pytest.approx(tokens)
    assert (tokens - 1) * (tokens / times - 1) == pytest.approx(
        1, rel=1e-6
    )  # S / S_min = (E / E_min) B_crit / B


@given(BATCHES, st.floats(1, 100), BATCHES)
def test_a_larger_batch_takes_more_tokens_and_fewer_steps(batch: float, more: float, critical: float) -> None:
    one, other = (token_factor(b, critical) for b in (batch, more * batch))
    assert 1 <= one <= other <= more * one * (1 + 1e-9)
    assert other / (more * batch) <= one / batch * (1 + 1e-9)
    assert token_factor(min(batch, critical), critical) == 1  # as stated
    column = token_factor(np.array([batch, more * batch]), critical)
    assert column.tolist() == [one, other]


def test_kaplans_law() -> None:
    kaplan = FITS["Kaplan 2020"]
    # section 5.1: it doubles where the loss falls by 13 %; at 3 nats about 1e6 tokens (2e8 / 3^4.76)
    assert (1 - 0.13) ** kaplan.exponent == pytest.approx(2, rel=0.05)
    assert kaplan.coefficient * 3**kaplan.exponent == pytest.approx(1.07e6, rel=0.01)
    # equation 4.4: 5e3 N^0.74 tokens keep overfitting small, within 2.5 % of the loss of endless ones
    for size in (1e8, 1.5e9):
        assert loss_reached(size, 5e3 * size**0.74) == pytest.approx(loss_reached(size, 1e15), rel=0.025)


@pytest.mark.parametrize(
    ("name", "parameters", "tokens", "batch"),
    [
        # B* = 93.20 N^0.47 sequences of 512 with N in millions, on 20.34 N tokens: 20 % beside the fewest tokens
        ("Zhang 2024", 151e6, 3.072e9, 93.20 * 151**0.47 * 512 / 0.2),
        ("Zhang 2024", 1.2e9, 24.4e9, 93.20 * 1200**0.47 * 512 / 0.2),
        # 0.0471 D^0.462 sequences of 2,048
        ("Bergsma 2025", 6.1e8, 1.22e10, 0.0471 * 1.22e10**0.462 * 2048),
        ("OLMo (Merrill 2025)", 1e9, 1.68e11, 2048 * 4096),
        ("OLMo (Merrill 2025)", 7e9, 5.03e11, 4096 * 4096),
        ("OLMo (Merrill 2025)", 7e9, 4e12, 4096 * 4096),  # level
        ("MiniMax-01", 4.59e10, 6.9e10, 32e6),
        ("MiniMax-01", 4.59e10, 7.9e11, 64e6),
        ("MiniMax-01", 4.59e10, 4.7e12, 128e6),
        # by which DeepSeek's 7B and 67B were trained: 2,304 and 4,608 sequences of 4,096, 2T tokens (table 2)
        ("DeepSeek LLM", 6.9e9, 2e12, 2304 * 4096),
        ("DeepSeek LLM", 67e9, 2e12, 4608 * 4096),
        ("Step Law", 1e9, 1e11, 0.58 * 1e11**0.571),
    ],
)
def test_published_fits_give_their_own_figures(
    name: str, parameters: float, tokens: float, batch: float
) -> None:
    assert batch_of_fit(FITS[name], parameters, tokens) == pytest.approx(batch, rel=0.03)


def test_two_fits_of_one_definition_agree_where_both_were_made() -> None:
    # Zhang's and Bergsma's exponents are 0.47 and 0.462, of unlike models, data, lengths and schedules
    for tokens in (3e9, 2.4e10):
        one, other = (batch_of_fit(FITS[name], 1e9, tokens) for name in ("Zhang 2024", "Bergsma 2025"))
        assert one == pytest.approx(other, rel=0.15)


@pytest.mark.parametrize("fit", [fit for fit in FITS.values() if fit.of is not FitOf.AT_LEAST], ids=str)
def test_a_fit_is_silent_below_its_runs_and_stays_beyond_them(fit: BatchFit) -> None:
    least, most = fit.tokens
    own = min(fit.parameters, least)
    assert critical_batch([fit], own, 0.99 * least, fit.of) is None
    assert critical_batch([fit], 1.01 * FARTHEST * fit.parameters, most, fit.of) is None
    for tokens in (least, most, FARTHEST * most):
        found = critical_batch([fit], own, tokens, fit.of)
        assert found is not None
        assert found.low == found.high == pytest.approx(batch_of_fit(fit, own, tokens))
        assert found.extrapolated == ((fit.name,) if tokens > most else ())
    assert critical_batch([fit], own, 100 * FARTHEST * most, fit.of) == found
    assert fit.source


@given(st.floats(1e7, 1e12), st.floats(1e7, 1e15))
def test_a_run_has_a_range_or_none(parameters: float, tokens: float) -> None:
    found = critical_batch(tuple(FITS.values()), parameters, tokens)
    heard = [
        fit for fit in FITS.values()
        if fit.of is FitOf.CRITICAL and fit.tokens[0] <= tokens and parameters <= FARTHEST * fit.parameters
    ]  # fmt: skip
    if tokens < parameters or not heard:
        assert found is None  # fine-tuning, or short of all of them
    elif found is not None:  # else all had ended before the run had a token a parameter
        assert found.low <= found.middle * (1 + 1e-9)
        assert found.middle <= found.high * (1 + 1e-9)


EDGES = sorted({edge * near for fit in FITS.values() for edge in (fit.tokens[0], FARTHEST * fit.tokens[1])
                for near in (0.99, 1.0, 1.01)})  # fmt: skip


@given(st.floats(1e7, 1e12), st.lists(st.floats(1e7, 1e15) | st.sampled_from(EDGES), min_size=2), BATCHES)
def test_a_longer_run_takes_no_fewer_tokens(parameters: float, lengths: list[float], batch: float) -> None:
    for of in (FitOf.CRITICAL, FitOf.BEST):
        held = [0.0, 0.0, 0.0]
        counted = 0.0
        for tokens in sorted(lengths):
            found = critical_batch(tuple(FITS.values()), parameters, tokens, of)
            if found is not None:
                new = [found.low, found.middle, found.high]
                assert all(one >= other * (1 - 1e-9) for one, other in zip(new, held, strict=True))
                held = new
            run = staged_run([Stage(tokens, batch, 1.0)], None if found is None else found.middle)
            assert run.tokens >= counted * (1 - 1e-9)
            counted = run.tokens


def test_what_the_fits_say_of_8b_and_1t() -> None:
    found = critical_batch(tuple(FITS.values()), 7e9, 1e12)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(33.8e6, rel=0.01), pytest.approx(70e6, rel=0.01))
    assert (found.fits, found.extrapolated) == (("MiniMax-01",), ("Bergsma 2025",))
    # where Kaplan's and Zhang's were just left, OLMo's is the least: so much is no loss
    shorter = critical_batch(tuple(FITS.values()), 7e9, 2.5e11)
    assert shorter is not None
    assert shorter.low == pytest.approx(batch_of_fit(FITS["OLMo (Merrill 2025)"], 7e9, 2.5e11), rel=0.1)


def test_a_schedule_takes_its_stages_one_after_the_other() -> None:
    # 100 steps of 1 at 2 s, then 90 of 10 at 5 s: 1,000 tokens
    staged = staged_run([Stage(100, 1, 2.0), Stage(900, 10, 5.0)], None)
    assert (staged.tokens, staged.steps, staged.seconds) == (1000, 190, 650)
    # at and below the critical batch no more are counted; at twice it, one and a half times as many
    assert staged_run([Stage(100, 1, 2.0), Stage(900, 10, 5.0)], 10.0) == staged
    assert staged_run([Stage(1000, 20, 5.0)], 10.0).tokens == pytest.approx(1500)
    assert staged_run([Stage(100, 20, 2.0), Stage(900, 40, 5.0)], 10.0).tokens == pytest.approx(150 + 2250)


def test_the_ramp_of_bloom() -> None:
    # chronicles of tr11-176B-ml: batches of 192 to 2,048 by 16 took 12,695 steps for 9,841,584 samples in all
    sizes = np.arange(192, 2048, 16.0).tolist()
    staged = staged_run([Stage(9_841_584 / len(sizes), size, 1.0) for size in sizes], None)
    assert staged.steps == pytest.approx(12_695, rel=0.05)


@pytest.mark.parametrize(("parameters", "tokens"), [(0.0, 1e9), (1e9, 0.0), (-1.0, 1e9), (float("nan"), 1e9)])
def test_what_is_not_above_zero_is_refused(parameters: float, tokens: float) -> None:
    with pytest.raises(InputError, match="above 0"):
        critical_batch(tuple(FITS.values()), parameters, tokens)


def test_a_fit_that_says_nothing_is_refused() -> None:
    kaplan, minimax = FITS["Kaplan 2020"], FITS["MiniMax-01"]
    for wrong in ({"coefficient": 0.0}, {"tokens": (2e9, 1e9)}, {"overhead": 0.0}):
        with pytest.raises(InputError, match="Kaplan 2020"):
            replace(kaplan, **wrong)
    with pytest.raises(InputError, match="MiniMax-01"):
        replace(minimax, points=minimax.points[::-1])

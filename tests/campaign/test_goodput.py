"""Intervals between checkpoints, goodput, spares: hand-worked figures, limits, and a simulated job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.campaign.goodput import (
    daly_interval,
    goodput_shares,
    spare_nodes,
    time_between_stops,
)

DAY = 86400.0


def test_time_between_stops_of_llama_3() -> None:
    # 419 unexpected stops in 54 days on 16,384 GPUs: 3.09 h. Both rates are derived from that run.
    assert time_between_stops(16384.0, 0.003 / DAY, 1.7 / DAY) == pytest.approx(54 * DAY / 419, rel=0.02)


def test_time_between_stops_of_smaller_jobs() -> None:
    # never used for the rates: Meta RSC 7.9 h at 1,024 GPUs, OPT-175B 105 stops in about 60 days on 992
    assert 24 / (time_between_stops(1024.0, 0.003 / DAY, 1.7 / DAY) / 3600) == pytest.approx(
        24 / 7.9, rel=0.35
    )
    assert DAY / time_between_stops(992.0, 0.003 / DAY, 1.7 / DAY) == pytest.approx(105 / 60, rel=0.25)


def test_intervals_by_hand() -> None:
    # stall 10 s, M = 3.1 h = 11,160 s: sqrt(2 x 10 x 11160) = 472.4 s, to first order (Young 1974)
    # x = 10/22320 = 4.48e-4: 472.4 (1 + 0.02117/3 + 4.98e-5) - 10 = 465.8
    assert daly_interval(10.0, 11160.0) == pytest.approx(465.8, abs=0.1)
    assert daly_interval(300.0, 100.0) == 100.0


@given(st.floats(0.1, 3600), st.floats(600, 1e6), st.floats(0, 7200))
def test_daly_interval_is_the_best(stall: float, between: float, restart: float) -> None:
    interval = float(daly_interval(stall, between))
    trial = interval * np.geomspace(0.2, 5, 201)
    best = goodput_shares(trial, stall, between, restart, 0.0).productive.max()
    mine = float(goodput_shares(interval, stall, between, restart, 0.0).productive)
    assert mine >= best * (1 - (0.001 if stall < between / 4 else 0.05))


@given(st.floats(1, 1e5), st.floats(0, 1e4), st.floats(60, 1e7), st.floats(0, 1e4), st.floats(0, 1e4))
def test_shares_add_up(interval: float, stall: float, between: float, restart: float, unsaved: float) -> None:
    shares = goodput_shares(interval, stall, between, restart, unsaved)
    parts = (shares.productive, shares.checkpoint_stalls, shares.repeated_work, shares.restarts)
    assert sum(parts) == pytest.approx(1.0)
    assert min(parts) >= -1e-12


def test_first_order_waste() -> None:
    # stall / interval + (interval / 2 + restart) / M for a job that seldom stops
    shares = goodput_shares(472.0, 10.0, 1e6, 600.0, 0.0)
    assert 1 - shares.productive == pytest.approx(10 / 482 + (241 + 600) / 1e6, rel=0.01)


def test_goodput_equals_a_simulated_job() -> None:
    rng = np.random.default_rng(7)
    interval, stall, between, restart = 900.0, 60.0, 4000.0, 300.0
    clock = done = 0.0
    fault = rng.exponential(between)
    while done < 2000 * interval:
        if clock + interval + stall <= fault:
            clock, done = clock + interval + stall, done + interval
            continue
        clock = fault
        fault = clock + rng.exponential(between)
        while clock + restart > fault:
            clock, fault = fault, fault + rng.exponential(between)
        clock += restart
    expected = float(goodput_shares(interval, stall, between, restart, 0.0).productive)
    assert done / clock == pytest.approx(expected, rel=0.02)


def test_a_column_equals_its_rows() -> None:
    between = np.array([1e3, 1e4, 1e6])
    column = goodput_shares(daly_interval(10.0, between), 10.0, between, 300.0, 5.0)
    for row, value in enumerate(between):
        alone = goodput_shares(daly_interval(10.0, float(value)), 10.0, float(value), 300.0, 5.0)
        assert column.productive[row] == alone.productive


def test_spares() -> None:
    # 2,048 nodes, 0.003 a day, away for a day: 6.1 in repair, and 13 are enough in 99 % of the time (Poisson)
    assert spare_nodes(2048, 0.003 / DAY, DAY) == 13
    assert spare_nodes(1, 0.0, DAY) == 0

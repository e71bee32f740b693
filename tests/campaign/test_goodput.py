"""Intervals between checkpoints, goodput, spares: hand-worked figures, limits, and a simulated job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.campaign.goodput import (
    daly_interval,
    goodput_shares,
    software_stops_rate,
    spare_nodes,
    time_between_stops,
)

DAY = 86400.0


FIRST_MONTH = 0.0063 / DAY


@pytest.mark.parametrize(
    ("nodes", "days", "stops"),
    [
        (48, 30, 8), (48, 109, 12), (124, 22, 45 - 22 * 8 / 7), (124, 56, 90 - 56 * 8 / 7), (2048, 54, 0.22 * 419),
        (1, 7, 7 * (1 / 47.7 - 0.0065)), (128, 7, 7 * (24 / 7.9 - 128 * 0.0065)),
    ],
    ids=["BLOOM", "BLOOM, all", "OPT", "OPT, all", "Llama 3", "RSC-1, a node", "RSC-1, 1,024 GPUs"],
)  # fmt: skip
def test_software_stops_of_the_runs_they_were_fitted_on(nodes: int, days: float, stops: float) -> None:
    found = software_stops_rate(8.0 * nodes, FIRST_MONTH, days * DAY) * days * DAY
    assert found == pytest.approx(stops, rel=0.23)


@pytest.mark.parametrize(
    ("gpus", "hardware", "days", "between"),
    [
        (16384.0, 0.00296, 54.0, 54 / 419),  # Llama 3, of which the rate of hardware is
        (1024.0, 0.0065, 7.0, 7.9 / 24),  # Meta RSC-1, jobs of a week at most, with its own hardware
        (8.0, 0.0065, 7.0, 47.7),
        (992.0, 0.0092, 56.0, 56 / 90),  # OPT-175B
    ],
)
def test_time_between_stops_of_the_runs_it_was_fitted_on(
    gpus: float, hardware: float, days: float, between: float
) -> None:
    software = software_stops_rate(gpus, FIRST_MONTH, days * DAY)
    assert time_between_stops(gpus, hardware / DAY, software) / DAY == pytest.approx(between, rel=0.2)


@given(st.floats(1, 1e5), st.floats(1, 4), st.floats(7, 1000), st.floats(1, 4))
def test_more_nodes_stop_more_often_and_old_jobs_less(
    nodes: float, more: float, days: float, older: float
) -> None:
    rate = software_stops_rate(8 * nodes, FIRST_MONTH, days * DAY)
    more_nodes = software_stops_rate(8 * nodes * more, FIRST_MONTH, days * DAY)
    assert rate * (1 - 1e-9) <= more_nodes <= more * rate * (1 + 1e-9)
    old = software_stops_rate(8 * nodes, FIRST_MONTH, days * older * DAY)
    assert rate / older * (1 - 1e-9) <= old <= rate * (1 + 1e-9)  # they add up, if ever more slowly


def test_a_node_does_not_crash_every_day() -> None:
    software = software_stops_rate(8.0, FIRST_MONTH, 140 * DAY)
    assert 150 * DAY < time_between_stops(8.0, 0.003 / DAY, software) < 250 * DAY


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

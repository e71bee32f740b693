"""Checkpoint sizes, energy and money: hand-worked and published figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.campaign.checkpoint import (
    full_state_size,
    host_copy_time,
    storage_size,
    storage_time,
    weights_size,
)
from planner.campaign.energy import average_power, emissions, run_energy
from planner.campaign.money import break_even_hours, depreciation_per_hour, running_cost_per_hour
from planner.catalog.load_campaign import load_assumptions

KWH = 3.6e6


def test_checkpoint_sizes() -> None:
    assert weights_size(405.9e9, 2) == pytest.approx(811.8e9)
    assert full_state_size(405.9e9, 2, 4, 8) == pytest.approx(5.68e12, rel=0.001)
    # BLOOM publishes 2.3 TB for 176.2 B parameters; 14 bytes each are 2.47 TB (2.24 TiB)
    assert full_state_size(176.2e9, 2, 4, 8) == pytest.approx(2.3e12, rel=0.08)


def test_bloom_writes_its_checkpoint_in_40_seconds() -> None:
    assert storage_time(2.3e12, 48.0, 1.2e9, 1e12) == pytest.approx(40, rel=0.01)
    assert storage_time(2e12, 1e6, 1e9, 1e12) == 2.0


def test_copy_and_storage() -> None:
    assert host_copy_time(5.68e12, 16384.0, 64e9, 0.85) == pytest.approx(0.00637, rel=0.01)
    assert storage_size(10.0, 2.0, 3, 10.5 * 86400, 86400) == 3 * 10 + 10 * 2


@pytest.mark.parametrize(
    ("gpu_hours", "tonnes"), [(30.84e6, 8930), (7.0e6, 2040), (1.46e6, 420)], ids=["405B", "70B", "8B"]
)
def test_energy_and_emissions_of_llama_3_1(gpu_hours: float, tonnes: float) -> None:
    # model card: TDP of 700 W x GPU-hours, PUE 1.08, location-based; with the US average of 390 g/kWh
    energy = run_energy(gpu_hours, 700.0, 1.08)
    assert energy == pytest.approx(gpu_hours * 0.7 * 1.08 * KWH)
    assert emissions(energy, 0.390 / KWH) / 1000 == pytest.approx(tonnes, rel=0.03)


def test_average_power() -> None:
    assert average_power(1275.0, 0.75) == pytest.approx(956.25)


def test_energy_of_bloom() -> None:
    # 1,082,990 A100-hours: 433 MWh of devices and 257 MWh of the cluster beside them (arXiv 2211.02001, section 4),
    # before the site's overhead. A DGX A100's 6.5 kW over 8 devices, at the share of it that nodes of H100 draw
    power = average_power(6500 / 8, load_assumptions().load)
    assert run_energy(1_082_990.0, power, 1.0) == pytest.approx((433 + 257) * 1e3 * KWH, rel=0.05)


def test_own_hardware() -> None:
    year = 365.25 * 86400.0
    # 35,064 $ over 4 years of 8,766 h, all in use: 1 $/h; at half the use twice that
    assert depreciation_per_hour(35064.0, 4 * year, 1.0) == pytest.approx(1.0)
    assert depreciation_per_hour(35064.0, 4 * year, 0.5) == pytest.approx(2.0)
    # 1 kW x 1.2 x 0.1 $/kWh = 0.12 $/h, and 8,766 $ of staff a year 1 $/h
    running = running_cost_per_hour(0.0, 1000.0, 1.2, 0.1 / KWH, 8766.0, 0.0, 1.0)
    assert running == pytest.approx(1.12)


def test_break_even() -> None:
    assert break_even_hours(20000.0, 2.5, 0.5) == pytest.approx(10000.0)
    assert math.isinf(float(break_even_hours(20000.0, 0.4, 0.5)))
    column = break_even_hours(20000.0, np.array([2.5, 0.4]), 0.5)
    assert column[0] == 10000.0
    assert np.isinf(column[1])

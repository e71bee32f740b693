"""Stragglers and what a full device costs, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.pipeline.step import STRAGGLING, chance_of_full_memory, slow_mode_time, straggling
from tests.problems import dense_model, problem


def test_stragglers_cost_a_share_per_doubling_of_nodes() -> None:
    for nodes, doublings in ((1, 0), (8, 3)):
        subject = problem(dense_model(), f"{nodes}x8 h100 400G-ib")
        assert float(straggling(np.array([10.0]), subject)[0]) == pytest.approx(10 * STRAGGLING * doublings)


def test_slow_messages_cost_what_nanotrons_runs_lost() -> None:
    """0.26 s a message: 0.52 s a slot at pp 2, 1.04 s at pp 4 and more; nothing without a pipeline."""
    lost = slow_mode_time(np.array([8.0, 8.0, 8.0, 8.0]), np.array([1.0, 2.0, 4.0, 16.0]), 0.26)
    assert lost == pytest.approx([0, 0.52 * 8.5, 1.04 * 9.5, 1.04 * 15.5])


def test_a_device_fills_up_within_the_band_of_its_verdict() -> None:
    chance = chance_of_full_memory(np.array([70.0, 72.0, 80.0, 84.0, 90.0]), 80.0, 0.1)
    assert chance == pytest.approx([0, 0, 0.5, 0.75, 1])

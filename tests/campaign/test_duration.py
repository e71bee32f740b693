"""Steps, days and device-hours of a run."""

from __future__ import annotations

import numpy as np
import pytest

from planner.campaign.duration import device_hours, run_duration, run_steps
from planner.errors import InputError


def test_hand_worked_run() -> None:
    # 1000 steps of 1000 tokens at 86.4 s on 24 devices: one day, 24 x 24 device-hours
    run = run_duration(86.4, tokens=1e6, tokens_per_step=1e3, devices=24)
    assert run.steps == 1000
    assert run.days == pytest.approx(1.0)
    assert run.gpu_hours == pytest.approx(576.0)


def test_published_run() -> None:
    # Llama 3 (arXiv 2407.21783): 15.6T tokens in batches of 16M; at 400 TFLOP/s on 16,384 GPUs and
    # 6 x 405e9 FLOP a token that is 67 days. The paper's own: 54 days of a snapshot and some more before.
    seconds = 6 * 405e9 * 16.78e6 / (400e12 * 16384)
    run = run_duration(seconds, 15.6e12, 16.78e6, 16384)
    assert run.days == pytest.approx(67, abs=1)


def test_the_last_step_is_a_whole_one() -> None:
    assert run_steps(1001, 1000) == 2


def test_a_column_equals_its_rows() -> None:
    steps = np.array([1.0, 2.5, 7.0])
    run = run_duration(steps, 1e9, 1e6, 64)
    for index, step in enumerate(steps):
        alone = run_duration(float(step), 1e9, 1e6, 64)
        assert (run.days[index], run.gpu_hours[index]) == (alone.days, alone.gpu_hours)


def test_units() -> None:
    assert device_hours(7200.0, 8) == 16.0


@pytest.mark.parametrize(("tokens", "per_step"), [(0.0, 1.0), (1.0, 0.0), (-5.0, 1.0)])
def test_tokens_must_be_above_zero(tokens: float, per_step: float) -> None:
    with pytest.raises(InputError, match="tokens"):
        run_steps(tokens, per_step)

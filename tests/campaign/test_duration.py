"""Steps and device-hours of a run."""

from __future__ import annotations

import pytest

from planner.campaign.duration import device_hours, run_steps
from planner.errors import InputError


def test_the_last_step_is_a_whole_one() -> None:
    assert run_steps(1001, 1000) == 2


def test_units() -> None:
    assert device_hours(7200.0, 8) == 16.0


@pytest.mark.parametrize(("tokens", "per_step"), [(0.0, 1.0), (1.0, 0.0), (-5.0, 1.0)])
def test_tokens_must_be_above_zero(tokens: float, per_step: float) -> None:
    with pytest.raises(InputError, match="tokens"):
        run_steps(tokens, per_step)

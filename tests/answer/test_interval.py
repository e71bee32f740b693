"""Is a step's interval as wide as its uncertain parts make it?"""

from __future__ import annotations

import math

import pytest

from planner.answer.interval import UNCERTAIN, step_band, uncertain_shares
from planner.spec.stack import WIDEST_BAND

PARTS = [name for _, names in UNCERTAIN for name in names]
KERNELS = {"gemm": 1.0, "attention": 0.5}


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

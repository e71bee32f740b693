"""The lower bound of interleaved 1F1B: below the simulator for any times, equal to it for equal stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.schedule.generate import action_table
from planner.schedule.graph import dependency_graph
from planner.schedule.interleaved_bound import interleaved_lower_bound
from planner.schedule.simulate import StageTimes, makespans, stage_times
from planner.spec.config import Schedule


def exact(p: int, v: int, m: int, times: StageTimes) -> np.ndarray:
    return makespans(dependency_graph(action_table(Schedule.INTERLEAVED, p, m, v)), times)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(2, 3), st.integers(2, 5), st.integers(0, 10**6))
def test_never_above_the_simulated_time(p: int, v: int, groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = p * v
    f, b, w = (rng.exponential(1, (8, stages)) + 0.01 for _ in range(3))
    times = stage_times(stages, f, b, w, rng.random((8, stages - 1)) * rng.integers(0, 2))
    assert (
        interleaved_lower_bound(p, v, groups * p, times) <= exact(p, v, groups * p, times) * (1 + 1e-12)
    ).all()


def test_equal_stages_are_exact_with_and_without_hops() -> None:
    for p, v, m in ((2, 2, 8), (4, 2, 16), (4, 4, 32), (8, 2, 32)):
        for hop in (0.0, 0.03):
            times = stage_times(p * v, 1.0, 1.0, 1.0, hop)
            assert interleaved_lower_bound(p, v, m, times) == pytest.approx(exact(p, v, m, times), rel=1e-12)


def test_gap_where_the_first_and_the_last_stage_differ() -> None:
    rng = np.random.default_rng(0)
    gaps = []
    for p, v, m in ((4, 2, 16), (4, 4, 16), (8, 2, 32), (8, 2, 128), (8, 4, 32)):
        f = np.ones((100, p * v))
        f[:, 0] += 0.3 * rng.random(100)
        f[:, -1] += 0.5 * (rng.random(100) - 0.5)
        times = stage_times(p * v, f, f, f)
        gaps.append(1 - interleaved_lower_bound(p, v, m, times) / exact(p, v, m, times))
    assert np.mean(gaps) < 5e-3
    assert np.max(gaps) < 4e-2


def test_shapes_without_a_bound_are_refused() -> None:
    with pytest.raises(InputError, match="multiple"):
        interleaved_lower_bound(4, 2, 10, stage_times(8, 1.0, 1.0))

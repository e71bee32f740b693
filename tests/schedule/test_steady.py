"""Many micro-batches from few: the same makespan as a simulation of all of them, or no answer."""

from __future__ import annotations

import numpy as np
import pytest

from planner.schedule.graph import schedule_graph
from planner.schedule.simulate import StageTimes, makespans, stage_times
from planner.schedule.steady import WORTHWHILE, makespans_of_many, repeats
from planner.spec.config import Schedule

CASES = 12


def uneven(p: int, v: int, seed: int) -> StageTimes:
    """Chunks of a few layers, some with one more, an embedding and a head; half of the cases with messages."""
    rng = np.random.default_rng(seed)
    forward = rng.integers(2, 6) + (rng.random((CASES, p * v)) < 0.15).astype(float)
    forward[:, 0] += 0.2 * rng.random(CASES)
    forward[:, -1] += 2.0 * rng.random(CASES)
    hop = np.where(np.arange(CASES) % 2, 0.3 * rng.random(CASES), 0.0)
    return stage_times(p * v, forward, 2.0 * forward, 0.0, np.repeat(hop[:, None], p * v - 1, axis=1))


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 5), (8, 3)])
def test_a_pipeline_that_repeats_itself_takes_as_long_as_simulated_whole(p: int, v: int) -> None:
    times, m = uneven(p, v, seed=p), (WORTHWHILE + 5) * p
    found = makespans_of_many(p, m, v, times)
    steady = ~np.isnan(found)
    assert steady.mean() >= 0.75
    whole = makespans(schedule_graph(Schedule.INTERLEAVED, p, m, v), times)
    np.testing.assert_allclose(found[steady], whole[steady], rtol=1e-10)


def test_a_pipeline_whose_slowest_path_changes_late_has_no_answer_or_the_right_one() -> None:
    # two ranks a thousandth apart: the slower one decides only after hundreds of micro-batches
    p, v, m = 4, 2, 4 * WORTHWHILE * 4
    forward = np.full((2, p * v), 1.0)
    forward[0, 0], forward[0, 3] = 1.0 + 1e-3, 1.0 + 2e-3
    times = stage_times(p * v, forward, 2.0 * forward)
    found = makespans_of_many(p, m, v, times)
    whole = makespans(schedule_graph(Schedule.INTERLEAVED, p, m, v), times)
    steady = ~np.isnan(found)
    assert steady[1], "equal chunks repeat themselves at once"
    np.testing.assert_allclose(found[steady], whole[steady], rtol=1e-10)


def test_only_interleaved_groups_of_many_micro_batches_repeat_themselves() -> None:
    assert repeats(Schedule.INTERLEAVED, 4, 4 * WORTHWHILE)
    assert not repeats(Schedule.INTERLEAVED, 4, 4 * WORTHWHILE + 2)
    assert not repeats(Schedule.INTERLEAVED, 4, 4 * (WORTHWHILE - 1))
    assert not repeats(Schedule.ZB_H1, 4, 4 * WORTHWHILE)

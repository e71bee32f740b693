"""Do paths found in short schedules bound long ones?"""

from __future__ import annotations

import numpy as np
import pytest

from planner.schedule.critical import critical_paths
from planner.schedule.generate import action_table
from planner.schedule.graph import dependency_graph
from planner.schedule.simulate import makespans, stage_times
from planner.solve.split_bound import known_paths
from planner.spec.config import Schedule


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 2, 4), (4, 2, 16), (4, 3, 40), (3, 2, 30), (8, 2, 64), (5, 4, 60)]
)
def test_known_paths_are_no_longer_than_any_schedule(p: int, v: int, m: int) -> None:
    chance = np.random.default_rng(p * v * m)
    shape = (200, p * v)
    forward, backward = chance.uniform(0.2, 1.0, shape), chance.uniform(0.2, 2.0, shape)
    hops = chance.uniform(0.0, 0.3, (200, p * v - 1))
    graph = dependency_graph(action_table(Schedule.INTERLEAVED, p, m, v))
    real = makespans(graph, stage_times(p * v, forward, backward, 0.0, hops))
    paths = known_paths(p, v, m)
    length = paths.forward @ forward.T + paths.backward @ backward.T + paths.hops @ hops.T
    assert (length <= real[None, :] * (1 + 1e-9)).all()
    assert length.max(axis=0).mean() > 0.8 * real.mean()
    equal = np.ones((1, p * v))
    exact = makespans(graph, stage_times(p * v, equal, 2 * equal))[0]
    assert paths.forward[0].sum() + 2 * paths.backward[0].sum() == pytest.approx(exact)


def test_a_longest_path_is_as_long_as_the_schedule() -> None:
    chance = np.random.default_rng(1)
    graph = dependency_graph(action_table(Schedule.INTERLEAVED, 4, 16, 2))
    forward, backward = chance.uniform(0.2, 1.0, (50, 8)), chance.uniform(0.2, 2.0, (50, 8))
    hops = chance.uniform(0.0, 0.3, (50, 7))
    times = stage_times(8, forward, backward, 0.0, hops)
    paths = critical_paths(graph, times)
    length = (paths.forward * forward + paths.backward * backward).sum(axis=1) + (paths.hops * hops).sum(
        axis=1
    )
    assert length == pytest.approx(makespans(graph, times))

"""Is no pipeline shorter, simulated, than its path, and equal ones no longer?"""

from __future__ import annotations

import numpy as np
import pytest

from planner.schedule.graph import schedule_graph
from planner.schedule.paths import LOOPED, Floats, looped_path
from planner.schedule.simulate import makespans, stage_times
from planner.spec.config import Schedule

CASES = 6


def both(
    schedule: Schedule, p: int, v: int, m: int, times: tuple[Floats, Floats, Floats], hop: Floats
) -> tuple[Floats, Floats]:
    """The path and the simulation of some cases, (n,); `times` (n, p v), `hop` (n, p v - 1)."""
    graph = schedule_graph(schedule, p, m, v)
    chunks = [side.reshape(len(side), v, p) for side in times]
    path = looped_path(schedule, *chunks, hop.sum(axis=1), np.full(len(hop), float(m)))
    return path, makespans(graph, stage_times(p * v, *times, hop))


@pytest.mark.parametrize("schedule", LOOPED)
@pytest.mark.parametrize("seed", range(40))
def test_no_simulation_is_shorter(schedule: Schedule, seed: int) -> None:
    chance = np.random.default_rng(seed)
    p, groups, v = (int(chance.integers(2, 8)), int(chance.integers(1, 6)), int(chance.integers(1, 6)))
    v = max(v, 2) if schedule is Schedule.INTERLEAVED else 1 if schedule is Schedule.ZB_H2 else v
    one_group = v == 1 or schedule is Schedule.GPIPE
    m = int(chance.integers(1, 20)) if one_group else p * groups
    shape = (CASES, p * v)
    layers = chance.integers(1, 4, shape) if seed % 2 else chance.uniform(0.1, 3.0, shape)
    forward, back = (
        layers * chance.uniform(0.5, 1.5, (CASES, 1)),
        layers * chance.uniform(0.5, 4.0, (CASES, 1)),
    )
    weight = back * chance.uniform(0.0, 0.7, shape) * (schedule in (Schedule.ZB_H1, Schedule.ZB_H2))
    hop = chance.uniform(0.0, 2.0, (CASES, p * v - 1)) * chance.integers(0, 2, (CASES, 1))
    path, simulated = both(schedule, p, v, m, (forward, back - weight, weight), hop)
    assert (path <= simulated * (1 + 1e-9)).all()
    assert (path >= 0.5 * simulated).all()


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m"),
    [
        (Schedule.INTERLEAVED, 2, 6, 2),
        (Schedule.INTERLEAVED, 4, 3, 4),
        (Schedule.INTERLEAVED, 5, 2, 20),
        (Schedule.INTERLEAVED, 8, 4, 16),
        (Schedule.GPIPE, 4, 1, 3),
        (Schedule.GPIPE, 4, 3, 9),
        (Schedule.GPIPE, 5, 3, 2),
        (Schedule.ZB_H1, 4, 1, 8),
    ],
)
@pytest.mark.parametrize("hop", [0.0, 0.05])
def test_of_equal_chunks_it_is_exact(schedule: Schedule, p: int, v: int, m: int, hop: float) -> None:
    one = np.ones((1, p * v))
    weight = 0.5 * one * (schedule is Schedule.ZB_H1)
    messages = np.full((1, p * v - 1), hop * (schedule is Schedule.INTERLEAVED))
    path, simulated = both(schedule, p, v, m, (one, 1.5 * one - weight, weight), messages)
    assert path == pytest.approx(simulated)

"""Is the front of step time against memory that of costing everything, and do the bounds hold for every row?"""

from __future__ import annotations

import numpy as np
import pytest

from planner.solve import pareto
from planner.solve.dealing import bounds_of
from planner.solve.pareto import pareto_front
from planner.solve.search import search
from tests.solve.test_search import searched


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_that_of_brute_force(seed: int) -> None:
    model, space, table, _ = searched(seed)
    if not len(table):
        pytest.skip("nothing is legal")
    cost = model.evaluate(table)
    for share in (0.0, 0.3, 1.0):
        limit = float(np.quantile(cost.device_memory, share))
        front = pareto_front(model, space, limit)
        rows = np.flatnonzero(cost.device_memory <= limit)
        points = sorted({(float(cost.step_time[r]), float(cost.device_memory[r])) for r in rows})
        expected, least = [], np.inf
        for time, memory in points:
            if memory < least:
                expected.append((time, memory))
                least = memory
        found = list(zip(front.step_time.tolist(), front.device_memory.tolist(), strict=True))
        assert found == expected
        again = model.evaluate(front.table)
        assert again.step_time.tolist() == front.step_time.tolist()
        assert front.complete


# spaces of the even ones are large
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 4))])
def test_a_front_that_is_stopped_anywhere_hands_over_what_it_has(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pareto, "WAVE_STEMS", 8)  # so that a small space has many waves
    model, space, table, _ = searched(seed)
    if not len(table):
        pytest.skip("nothing is legal")
    for last in (*range(12), *range(12, 60, 6), 10**9):
        left = iter(range(last))
        front = pareto_front(model, space, np.inf, lambda left=left: next(left, None) is None)
        again = model.evaluate(front.table)
        assert again.step_time.tolist() == front.step_time.tolist()
    assert front.complete


@pytest.mark.parametrize("seed", range(40))
def test_no_row_is_below_its_bounds(seed: int) -> None:
    model, space, _, cost = searched(seed)
    stem = np.repeat(np.arange(len(space.stems)), space.counts)
    bounds = bounds_of(model, space)
    assert (bounds.time[stem] <= np.minimum(cost.step_time, model.evaluate(space.table()).step_time)).all()
    assert (bounds.memory[stem] <= cost.device_memory).all()
    assert (bounds.memory > 0).all()


def test_a_stopped_search_hands_over_what_it_has_and_what_may_be_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, space, _, cost = searched(0)
    for name, size in (("WAVE_STEMS", 8), ("WAVES_LARGEST", 8), ("PROBE_STEMS", 8)):
        monkeypatch.setattr(f"planner.solve.search.{name}", size)
    limit = float(np.median(cost.device_memory))
    full = search(model, space, limit, 1)
    stopped = search(model, space, limit, 1, stopped=lambda: True)
    assert stopped.costed < full.costed
    assert np.isinf(full.unseen)
    fits = cost.step_time[cost.device_memory <= limit]
    best = model.least_step_time(stopped.best)
    assert min(float(stopped.unseen), *best.tolist()) <= float(fits.min())
    assert not pareto_front(model, space, limit, stopped=lambda: True).complete

"""Is the makespan that a solver sees the makespan of the schedule?"""

from __future__ import annotations

import numpy as np
import pytest

from planner.schedule.uneven import one_f_one_b_makespan
from planner.solve.cp_sat import cp_model
from planner.solve.splits.schedule import one_f_one_b


@pytest.mark.parametrize("seed", range(40))
def test_1f1b_takes_as_long_as_its_closed_form(seed: int) -> None:
    chance = np.random.default_rng(seed)
    p, m = int(chance.integers(1, 9)), int(chance.integers(1, 20))
    forward, backward = (chance.integers(1, most, p) for most in (50, 100))
    cp = cp_model.CpModel()
    longest = 10**6
    makespan = cp.new_int_var(0, longest, "makespan")
    one_f_one_b(cp, forward.tolist(), backward.tolist(), m, makespan, longest)
    cp.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(cp) == cp_model.OPTIMAL
    assert solver.value(makespan) == one_f_one_b_makespan(forward, backward, np.ones(p), m)

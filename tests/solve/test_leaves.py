"""Do leaves cost what the configurations that they stand for cost, however many are prepared at a time?"""

from __future__ import annotations

import numpy as np
import pytest

from planner.solve import leaves
from planner.solve.leaves import costed_leaves
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES
from planner.spec.config import AXES
from planner.spec.rule import Problem
from tests.problems import costs, dense_model, moe_model, problem

SUBJECTS: dict[str, Problem] = {
    "dense": problem(dense_model(layers=6), global_batch=16),
    "mixture": problem(moe_model(layers=4, leading_dense=1, experts=4), "1x8 h100", global_batch=16),
    "operations": problem(dense_model(layers=4), "1x8 h100", global_batch=8, stack="torchtitan-2026"),
    "recomputes no module": problem(dense_model(layers=4), "1x8 a100", global_batch=8, stack="nanotron-2024"),
}
COLUMNS = ("step_time", "peak_memory", "device_memory", "stage", "phase")


@pytest.mark.parametrize("name", SUBJECTS)
def test_leaves_cost_as_the_rows_they_stand_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "PREPARED_ROWS", 3000)
    monkeypatch.setattr(leaves, "BATCH_ROWS", 700)
    subject = SUBJECTS[name]
    space, model = enumerate_configs(subject, RULES), costs(subject)
    table = space.table()
    whole, done = model.evaluate(table), 0
    for batch in space.batches(rows=5000):
        some = space.stems.take(batch.stems)
        same = batch.recomputed.given_to(some.take(batch.stem))
        here = table.take(slice(done, done + len(same)))
        assert all(np.array_equal(same[axis], here[axis]) for axis in AXES)
        for rows, cost in costed_leaves(model, some, batch.stem, batch.recomputed):
            here = slice(done + rows.start, done + rows.stop)
            for column in COLUMNS:
                assert np.array_equal(getattr(cost, column), getattr(whole, column)[here])
        done += len(batch.stem)
    assert done == len(space) == len(whole.step_time)

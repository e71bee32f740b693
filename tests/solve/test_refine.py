"""Are the fastest configurations those that are fastest when every pipeline is simulated?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.plan import make_plan
from planner.request import Request
from planner.solve.refine import FINALISTS, LISTED, refine, worth_listing
from planner.solve.search import SearchResult, search
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES
from tests.problems import costs, dense_model, hybrid_model, moe_model, problem

# layers that do not divide evenly, and few micro-batches: the closed forms of interleaved pipelines are furthest off
SUBJECTS = {
    "dense": problem(dense_model(28), "3x8 h100 400G-ib", global_batch=24, seq_len=1024),
    "mixture": problem(moe_model(27), "3x8 h100 400G-ib", global_batch=24, seq_len=1024),
    "hybrid": problem(
        hybrid_model("M-M*M-M-M*M-M-MMM*M-" * 2), "4x8 h100 400G-ib", global_batch=32, seq_len=2048
    ),
    "folded": problem(dense_model(12), "2x8 h100 400G-ib", global_batch=24, stack="torchtitan-2026-eager"),
}
PINS = {"recompute": (0,), "sp": (0,), "zero": (1, 3)}
LIMIT = 70e9
NEAR = 1.3  # times the fastest by closed forms: those beyond are simulated by nobody


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_list_is_that_of_simulating_everything(name: str) -> None:
    subject = SUBJECTS[name]
    model, space = costs(subject), enumerate_configs(subject, RULES, PINS)
    simulator, table = simulator_of(model), space.table()
    cost = model.evaluate(table)
    fits = np.flatnonzero(cost.device_memory <= LIMIT)
    near = fits[cost.step_time[fits] <= NEAR * cost.step_time[fits].min()]
    time = evaluate_exactly(model, table.take(near), simulator).step_time
    order = near[np.lexsort((near, cost.device_memory[near], time))]
    everything = worth_listing(table.take(order), LISTED)

    def look(most: int) -> SearchResult:
        return search(model, space, LIMIT, most)

    found = refine(model, simulator, look(FINALISTS), look)
    seconds = [
        evaluate_exactly(model, each, simulator).step_time.tolist()
        for each in (everything, worth_listing(found.best, LISTED))
    ]
    assert seconds[0] == seconds[1]
    assert len(found.best) >= FINALISTS
    assert found.solved >= len(found.best)


def test_a_shorter_list_is_the_start_of_a_longer() -> None:
    request = Request(
        "llama-3.2-3b", "1x8 h100", 8, 2048, "20", restrict={"sp": (1,), "zero": (1,)}, front=False
    )
    texts = [[c.config.text for c in make_plan(replace(request, top=top)).choices] for top in (2, 5, 10)]
    assert [len(each) for each in texts] == [2, 5, 10]
    assert texts[0] == texts[1][:2]
    assert texts[1] == texts[2][:5]

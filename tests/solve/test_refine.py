"""Are the fastest configurations those that are fastest when every pipeline is simulated?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.solve.refine import FINALISTS, LISTED, ranked, refine, worth_listing
from planner.solve.search import SearchResult, search
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES
from planner.spec.config import ConfigTable, CudaGraphs, ParallelConfig
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


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_list_is_that_of_simulating_everything(name: str) -> None:
    subject = SUBJECTS[name]
    model, space = costs(subject), enumerate_configs(subject, RULES, PINS)
    simulator, table = simulator_of(model), space.table()
    cost = model.evaluate(table)
    fits = np.flatnonzero(cost.device_memory <= LIMIT)
    time = evaluate_exactly(model, table.take(fits), simulator).step_time
    order = fits[np.lexsort((fits, cost.device_memory[fits], time))]
    everything = worth_listing(table.take(order), np.sort(time), LISTED)

    def look(most: int) -> SearchResult:
        return search(model, space, LIMIT, most)

    found = refine(model, simulator, look(FINALISTS), look)
    seconds = evaluate_exactly(model, found.best, simulator).step_time
    shown = worth_listing(found.best, seconds, LISTED)
    times = [evaluate_exactly(model, each, simulator).step_time.tolist() for each in (everything, shown)]
    assert times[0] == times[1]
    assert len(found.best) >= FINALISTS
    assert found.solved >= len(found.best)


def test_a_default_of_the_framework_stands_before_those_that_tie_with_it() -> None:
    """torchtitan captures by itself; others of the same time stand by their memory, and what is 0.02 % faster first."""
    plain = ParallelConfig(tp=2, zero=2)
    graphs = replace(plain, cuda_graph_impl=int(CudaGraphs.FULL_ITERATION))
    other = replace(plain, tp=4)
    table = ConfigTable.of([plain, other, graphs])
    preferred = np.array([2, 0, 1])  # rows: the one with graphs
    assert ranked(table, np.array([1.0, 1.00002, 1.00008]), preferred).tolist() == [2, 0, 1]
    assert ranked(table, np.array([1.0, 1.0001, 1.0002]), preferred).tolist() == [0, 1, 2]
    assert ranked(table, np.ones(3), np.array([1, 0, 2])).tolist() == [1, 0, 2]


def test_a_shorter_list_is_the_start_of_a_longer() -> None:
    request = Request(
        "llama-3.2-3b",
        "1x8 h100",
        8,
        seq_len=2048,
        global_batch="20",
        set={"sp": (1,), "zero": (1,)},
        front=False,
    )
    texts = [[c.config.text for c in make_plan(replace(request, top=top)).choices] for top in (2, 5, 10)]
    assert [len(each) for each in texts] == [2, 5, 10]
    assert texts[0] == texts[1][:2]
    assert texts[1] == texts[2][:5]

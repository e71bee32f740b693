"""Is any answer beaten by a configuration and a layout that `planner estimate` accepts? And is the oracle right?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.brute_force import judged_question
from benchmarks.climbing import moved, usual_layouts
from benchmarks.exhaustive import Oracle
from benchmarks.hill_climb import CASES, climbed, known_beaten
from benchmarks.known_better import KNOWN, Known
from benchmarks.layouts import all_layouts, cost_under, number_of_layouts
from benchmarks.least_times import LeastTimes
from benchmarks.legal_space import LegalSpace, legal_space
from planner.ask.request import Request, cost_model, resolve
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.spec.config import AXES, ConfigTable, ParallelConfig

QUESTIONS = ("0-1", "0-14", "0-45", "0-48", "0-83", "0-93", "0-162", "0-10", "0-25", "0-221", "0-294")
# what was beaten at commit 15a9d0f9
BEATEN = ("0-0", "0-17", "0-26", "0-60", "0-127", "0-136", "0-143", "0-163", "0-207")
MORE = range(20)  # of another seed, for the slow run
CLIMBED = ("llama-3.2-1b", "gemma-3-1b", "qwen3-8b")
QUICK = ("empty ends", "a folded pipeline", "pipelines of DeepSpeed")
LONG = ("0-60",)


def _asked(model: str, cluster: str, batch: str, **more: Any) -> tuple[Request, CostModel]:
    request = Request(model, cluster, None, seq_len=2048, global_batch=batch, **more)
    return request, cost_model(resolve(request)[0])


@pytest.mark.parametrize(
    "seed",
    [pytest.param(one, marks=pytest.mark.slow) if one in LONG else one for one in (*QUESTIONS, *BEATEN)],
)
def test_no_small_answer_is_beaten(seed: str, tmp_path: Path) -> None:
    _, found = judged_question(seed, tmp_path)
    assert not found.refused
    assert found.complete
    assert not found.beaten, f"{found.question}\n{found.reproduce}"


@pytest.mark.slow
@pytest.mark.parametrize("number", MORE)
def test_no_other_small_answer_is_beaten(number: int, tmp_path: Path) -> None:
    _, found = judged_question(f"1-{number}", tmp_path)
    assert not found.beaten, f"{found.question}\n{found.reproduce}"


@pytest.mark.parametrize("known", [pytest.param(k, id=k.name, marks=[] if k.name in QUICK else
                                                pytest.mark.slow) for k in KNOWN])  # fmt: skip
def test_what_beat_answers_before_beats_none(known: Known, tmp_path: Path) -> None:
    found = known_beaten(known, tmp_path)
    assert not found.beaten, found


@pytest.mark.slow
@pytest.mark.parametrize("model", CLIMBED)
def test_no_climb_beats_an_answer(model: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.model == model)
    found = climbed(case, 1, tmp_path)
    assert not found.beaten, found.reproduce


@pytest.mark.parametrize(
    ("model", "cluster", "stack"),
    [
        ("llama-3.2-1b", "1x8 h100 400G-ib", "megatron-2026"),
        ("deepseek-v2-lite", "1x4 h100 400G-ib", "megatron-2025"),
        ("llama-3.1-8b", "1x4 h100 100G-ib", "torchtitan-2026-eager"),
        ("llama-3.2-1b", "1x4 rtx4090 100G-ib", "deepspeed-2025"),
    ],
)
def test_the_oracle_knows_all_that_the_search_tries(model: str, cluster: str, stack: str) -> None:
    request, costs = _asked(model, cluster, "24", stack=stack)
    problem = costs.problem
    space = legal_space(problem, {"offload": (0,), "cuda_graph_impl": (0,), "cuda_graph_modules": (0,)})
    assert space is not None
    tried = enumerate_configs(problem, rules_for(problem.stack), request.restrict).table()
    rows = [set(zip(*(table[axis].tolist() for axis in AXES), strict=True)) for table in (tried, space.own)]
    assert len(rows[0]) > 50
    assert rows[0] <= rows[1]


def test_all_layouts_are_dealt_once() -> None:
    found = all_layouts(5, 4)
    assert len(found) == number_of_layouts(5, 4) == 56
    assert set(map(tuple, found.tolist())) == {way for way in product(range(6), repeat=4) if sum(way) == 5}


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("gemma-3-1b", ParallelConfig(pp=4, dp=2, micro_batch=2, num_microbatches=4, zero=1)),
        ("gemma-3-1b", ParallelConfig(pp=4, dp=2, vpp=2, schedule=1, num_microbatches=8, recompute=2,
                                      recompute_layers=4)),
        ("qwen3-30b-a3b", ParallelConfig(pp=2, dp=4, ep=4, vpp=3, schedule=1, num_microbatches=4, recompute=2,
                                         recompute_layers=24)),
        ("gemma-3-1b", ParallelConfig(pp=4, dp=2, vpp=2, schedule=5, num_microbatches=8)),
        ("gemma-3-1b", ParallelConfig(pp=4, dp=2, schedule=8, num_microbatches=8, recompute=1, recompute_modules=1)),
        ("llama-3.2-1b", ParallelConfig(pp=4, dp=2, vpp=2, schedule=9, num_microbatches=8, zero=1)),
        ("llama-3.2-1b", ParallelConfig(pp=4, dp=2, schedule=2, num_microbatches=8, recompute=2, recompute_layers=3)),
    ],
)  # fmt: skip
def test_bounds_hold_and_simulations_agree_under_any_layout(model: str, config: ParallelConfig) -> None:
    _, costs = _asked(model, "1x8 h100 400G-ib", "16")
    layers, chunks = costs.problem.model.num_layers, config.pp * config.vpp
    layouts = usual_layouts(layers, chunks)
    layouts = np.vstack([layouts, moved(tuple(layouts[3].tolist()))[::17]])
    table = ConfigTable.of([config] * len(layouts))
    names = [tuple(layout) for layout in layouts.tolist()]
    together = cost_under(costs, table, names, np.arange(len(names)), {}, keep_terms=True)
    least = LeastTimes(costs, table, layouts)
    bounds, free = least.of_layouts(0), least.makespans(0, np.arange(len(layouts)), config)[:, 0]
    anyhow = float(least.of_any_layout()[0])
    for i, name in enumerate(names):
        under = costs.with_split(name)
        alone = evaluate_exactly(under, table.take(slice(0, 1)))
        plain = under.evaluate(table.take(slice(0, 1)))
        assert together.step_time[i] == pytest.approx(plain.step_time[0], rel=1e-12)
        assert together.device_memory[i] == pytest.approx(plain.device_memory[0], rel=1e-12)
        assert anyhow <= bounds[i] * (1 + 1e-12)
        assert bounds[i] <= alone.step_time[0]
        if not config.schedule:  # of 1F1B the bound is the last stage's path, which no other exceeds by much
            assert plain.step_time[0] >= bounds[i] >= 0.6 * plain.step_time[0]
        else:
            assert bounds[i] <= free[i] * (1 + 1e-9)
            exact = simulator_of(costs).dealt(under.layers).makespans([config])[0][0]
            assert free[i] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("vpp", "share"), [((1, 2), 1.0), ((1, 2), 0.45), ((2,), 1.0)])
def test_the_oracle_finds_what_costing_everything_finds(vpp: tuple[int, ...], share: float) -> None:
    """Of a tiny space, with much and with little memory; and where all pipelines are simulated."""
    restrict = {"pp": (1, 2), "tp": (1,), "zero": (1,), "micro_batch": (2,), "vpp": vpp, "recompute": (0, 2),
                "recompute_layers": (0, 1, 2), "cuda_graph_impl": (0,), "offload": (0,), "hsdp": (0,)}  # fmt: skip
    _, costs = _asked("llama-3.2-1b", "1x8 h100 400G-ib", "32", set=restrict)
    model = replace(costs.problem.model, layers=costs.problem.model.layers[:5])
    costs = CostModel(replace(costs.problem, model=model), costs.kernels, costs.links)
    space = legal_space(costs.problem, restrict)
    assert space is not None
    own = evaluate_exactly(costs, space.own)
    allowed = share * float(own.device_memory.max())
    best = float(own.step_time[own.device_memory <= allowed].min(initial=np.inf))
    for (ranks, chunks), table in space.told.items():
        for layout in all_layouts(5, ranks * chunks).tolist():
            cost = evaluate_exactly(costs.with_split(tuple(layout)), table)
            best = float(cost.step_time[cost.device_memory <= allowed].min(initial=best))
    hunt = Oracle(costs, allowed, lambda config, layout, seconds: "").of_space(space, 1e9)
    assert hunt.complete
    assert hunt.step == pytest.approx(best, rel=1e-12)


def test_a_layout_is_asked_about_where_a_framework_can_be_told_one() -> None:
    spaces = []
    for stack in ("megatron-2026", "nanotron-2024"):
        _, costs = _asked("llama-3.2-1b", "1x4 h100 400G-ib", "8", stack=stack)
        spaces.append(legal_space(costs.problem, {"offload": (0,), "pp": (1, 2)}))
    assert isinstance(spaces[0], LegalSpace)
    assert isinstance(spaces[1], LegalSpace)
    assert spaces[0].told
    assert not spaces[1].told

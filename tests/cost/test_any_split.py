"""Do the bounds of any layout hold for random layouts, and for passes of any length?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.cost.any_fit import LeastMemory, least_slowest
from planner.cost.any_split import AnyLayout, least_of_any_layout
from planner.cost.levels import layer_level
from planner.cost.simulated import evaluate_exactly
from planner.frameworks import explicit_splits
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.spec.config import FOLDED_SCHEDULES, ConfigTable, CudaGraphs, ParallelConfig
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.problems import costs, dense_model, moe_model, problem
from tests.solve.test_dealing import STACKS, with_stack


def layouts(layers: int, chunks: int, chance: np.random.Generator) -> list[tuple[int, ...]]:
    """Some layouts: anything, nearly even ones, nearly even ones with light ends."""
    anywhere = np.sort(chance.integers(0, layers + 1, chunks - 1))
    found = [tuple(np.diff([0, *anywhere, layers]).tolist())]
    for ends in (0, 1):
        share = np.ones(chunks)
        share[[0, -1]] -= ends * chance.random(2)
        exact = np.cumsum(share * layers / share.sum() * (1 + 0.02 * chance.standard_normal(chunks)))
        edges = np.clip(np.rint(exact / exact[-1] * layers), 0, layers).astype(int)
        found.append(tuple(np.diff([0, *edges]).tolist()))
    return found


def check_bounds(subject: Problem, seed: int, number: int = 40) -> None:
    """No layout beats the bounds of random configurations, nor fits where none may."""
    pins = {"offload": subject.stack.limits.offload[:2] + subject.stack.limits.offload[-1:]}
    model, space = costs(subject), enumerate_configs(subject, rules_for(subject.stack), pins)
    table, chance = space.table(), np.random.default_rng(seed)
    some = table.take(chance.permutation(len(table))[:number])
    assert len(some), "something is legal"
    told = explicit_splits(subject.stack.framework)
    most = float(evaluate_exactly(model, some).step_time.max())
    least = least_of_any_layout(model, some, most)
    for row in range(len(some)):
        one = some.take(np.array([row]))
        own = evaluate_exactly(model, one)
        costed, layers = [own], subject.model.num_layers
        chunks = int(one["pp"][0] * one["vpp"][0])
        for layout in layouts(layers, chunks, chance) if chunks > 1 and told else ():
            costed.append(evaluate_exactly(model.with_split(layout), one))
        for cost in costed:
            memory, time = float(cost.device_memory[0]), float(cost.step_time[0])
            assert least[row] <= time
            anyhow, slowest = AnyLayout(model, one, 1.05 * time), least_slowest(model, one, memory, time)
            assert anyhow.least()[0] <= time
            assert np.isfinite(slowest[0])
            assert anyhow.least(slowest)[0] <= time


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 4))])
def test_no_layout_beats_the_bound(name: str, seed: int) -> None:
    check_bounds(with_stack(name, seed), seed)


def test_what_the_allocator_wastes_of_activations_counts_under_cuda_graphs_as_well() -> None:
    subject = with_stack("megatron-2026", 0)
    pins = {"cuda_graph_impl": (int(CudaGraphs.FULL_ITERATION),)}
    model, graphs = costs(subject), enumerate_configs(subject, rules_for(subject.stack), pins).table()
    level = layer_level(model.layers, graphs)
    wasted = 1.0 + subject.stack.overhead.fragmentation
    assert wasted > 1.0
    kept = LeastMemory.of(model, graphs, level).kept
    assert kept == pytest.approx(wasted * level.kept[:, level.of_row])


MODULES = replace(dense_model(5), mtp_layers=2)
ADAPTED: dict[str, dict[str, Any]] = {
    "adapters": {"lora_rank": 16},
    "adapters on 4 bits": {"lora_rank": 16, "frozen_bits": 4},
    "8 bits": {"precision": Precision.FP8},
}


@pytest.mark.parametrize(
    ("name", "job"),
    [
        (name, job)
        for name in ("megatron-2026", "megatron-2024", "torchtitan-2026", "torchtitan-2026-eager")
        for job in ADAPTED
        if not (name.startswith("torchtitan") and job == "8 bits")  # which it has none of
    ],
)
@pytest.mark.parametrize(
    "model",
    [pytest.param(MODULES, id="modules"), pytest.param(moe_model(), id="mixture", marks=pytest.mark.slow)],
)
def test_no_layout_beats_the_bound_of_other_jobs(name: str, job: str, model: ModelSpec) -> None:
    subject = with_stack(name, 1)
    changed = replace(subject.job, **ADAPTED[job])
    check_bounds(replace(subject, model=model, job=changed), seed=len(job), number=25)


def test_of_chunks_with_few_layers_few_are_recomputed() -> None:
    model = dense_model(20, hidden=4096, heads=32, ffn=7168, vocab=1024)
    subject = costs(problem(model, "1x4 h100", seq_len=8192, global_batch=96, stack="megatron-2024"))
    config = ParallelConfig(
        pp=2, vpp=3, schedule=1, tp=2, sp=1, num_microbatches=96, recompute=2, recompute_layers=9
    )
    one = ConfigTable.of([config])
    time = float(evaluate_exactly(subject.with_split((1, 1, 5, 7, 4, 2)), one).step_time[0])
    assert least_of_any_layout(subject, one, 1.05 * time)[0] <= time


def test_the_bound_is_near_where_layers_divide_evenly() -> None:
    subject = with_stack("megatron-2026", 0)
    model = costs(subject)
    space = enumerate_configs(
        subject, rules_for(subject.stack), {"pp": (2, 4), "zero": (1,), "recompute": (0,)}
    )
    table = space.table()
    assert not np.isin(table["schedule"], FOLDED_SCHEDULES).any()
    time = evaluate_exactly(model, table).step_time
    least = least_of_any_layout(model, table, float(time.max()))
    assert np.median(least / time) > 0.9
    assert len(least_of_any_layout(model, ConfigTable.of([]), 1.0)) == 0

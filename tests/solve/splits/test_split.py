"""Does the split solver find what trying every layout finds, and do its bounds hold for every layout?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest

from planner.cost.model import CostModel
from planner.solve.splits.dealt import Dealt
from planner.solve.splits.split import cost_of_split, even_split, own_split, solve_split
from planner.space.axes import recompute_choices
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig
from tests.problems import costs, delta_model, dense_model, moe_model, problem, with_section

STACKS = ("megatron-2026", "torchtitan-2026-eager", "megatron-2024")
MOST_LAYOUTS = 1500


def layouts(layers: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Every way to deal layers to chunks in order, chunks without a layer among them."""
    for ends in combinations_with_replacement(range(layers + 1), chunks - 1):
        edges = (0, *ends, layers)
        yield tuple(b - a for a, b in pairwise(edges))


def count(layers: int, chunks: int) -> int:
    """How many there are."""
    total = 1
    for i in range(chunks - 1):
        total = total * (layers + chunks - 1 - i) // (i + 1)
    return total


def random_case(seed: int) -> tuple[CostModel, ParallelConfig]:
    """A small problem and one of its pipelines, under any schedule of its stack."""
    chance = random.Random(seed)
    while True:
        layers = chance.randint(3, 8)
        stack = chance.choice(STACKS)
        models = [
            dense_model(layers, vocab=chance.choice([32000, 128256, 512000]), tied=chance.random() < 0.3),
            moe_model(layers, leading_dense=chance.randint(0, 2), experts=4),
        ]
        if stack == "megatron-2026":
            models.append(delta_model(layers, every=chance.choice([2, 3])))
        subject = problem(
            chance.choice(models), chance.choice(["1x8 h100", "2x8 h100 400G-ib"]),
            seq_len=chance.choice([1024, 8192]), global_batch=chance.choice([8, 16, 32]), stack=stack,
        )  # fmt: skip
        pins = {"pp": (2, 4), "micro_batch": (1, 2), "offload": (0,), "cuda_graph_impl": (0,)}
        space = enumerate_configs(subject, rules_for(subject.stack), pins).table()
        rows = [space.row(i) for i in chance.sample(range(len(space)), min(len(space), 40))]
        rows = [r for r in rows if r.num_microbatches <= 16 and count(layers, r.pp * r.vpp) <= MOST_LAYOUTS]
        if rows:
            return costs(subject), chance.choice(rows)


def every_layout(
    model: CostModel, config: ParallelConfig, choices: Sequence[int]
) -> list[tuple[float, float]]:
    """Step time and memory of every layout that an estimate takes, however many layers it recomputes."""
    found, rules = [], all_rules_for(model.problem.stack.framework)
    for chunks in layouts(model.problem.model.num_layers, config.pp * config.vpp):
        for again in choices:
            dealt = Dealt(chunks, (again,))
            other = dealt.of_model(model)
            if not explain_config(dealt.config(config), other.problem, rules):
                cost = cost_of_split(model, config, dealt)
                found.append((float(cost.step_time[0]), float(cost.device_memory[0])))
    return found


def check(seed: int) -> None:
    model, config = random_case(seed)
    choices = recompute_choices(model.problem, {}, config) if seed % 3 == 0 else (config.recompute_layers,)
    every = every_layout(model, config, choices)
    memory = sorted({memory for _, memory in every})
    for limit in (np.inf, memory[len(memory) // 3], memory[0], memory[0] * 0.9):
        best = min((time for time, held in every if held <= limit), default=np.inf)
        found = solve_split(model, config, float(limit), effort=20.0, choices=choices)
        if np.isinf(best):
            assert np.isinf(found.step_time)
            assert found.chunks == ()
            continue
        assert found.bound <= best * (1 + 1e-9)
        assert found.step_time >= best * (1 - 1e-9)
        if found.proven:
            assert found.step_time <= best * (1 + 2e-4)
        assert found.dealt is not None
        again = cost_of_split(model, config, found.dealt)
        assert float(again.step_time[0]) == pytest.approx(found.step_time)
        assert float(again.device_memory[0]) <= limit
        assert solve_split(model, config, float(limit), cutoff=0.99 * best, choices=choices).bound <= best


@pytest.mark.parametrize("seed", range(8))
def test_the_split_is_that_of_brute_force(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 48))
def test_the_split_is_that_of_brute_force_in_tens_of_cases(seed: int) -> None:
    check(seed)


def test_an_empty_last_stage_is_found_where_the_head_is_heavy() -> None:
    model = costs(problem(dense_model(6, vocab=512000), "1x8 h100", seq_len=1024, global_batch=32))
    config = ParallelConfig(pp=4, dp=2, num_microbatches=16)
    found = solve_split(model, config, np.inf)
    assert found.proven
    assert found.chunks[-1] == 0
    assert found.step_time < found.own


def test_memory_moves_layers_off_the_stage_that_holds_most() -> None:
    # layers that the device takes longer for than its host, so that the stages' own work decides
    subject = problem(dense_model(9), "1x8 h100", global_batch=16)
    model = costs(with_section(subject, "host", layer_floor=0.5e-3))
    config = ParallelConfig(pp=4, dp=2, num_microbatches=8)
    free = solve_split(model, config, np.inf)
    needed = float(cost_of_split(model, config, free.chunks).device_memory[0])
    tight = solve_split(model, config, 0.97 * needed)
    assert tight.chunks
    assert tight.chunks != free.chunks
    assert tight.step_time >= free.step_time


def test_nothing_to_solve() -> None:
    model = costs(problem(dense_model(4), "1x8 h100", global_batch=8))
    alone = ParallelConfig(dp=8)
    found = solve_split(model, alone, np.inf)
    assert found.chunks == own_split(model, alone) == (4,)
    assert found.gap == 0
    assert even_split(6, 4, 2) == ()
    assert even_split(6, 4, 1) == (2, 2, 1, 1)

"""Does the split solver find what trying every split finds, and do its bounds hold?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.solve.cp_sat import cp_model
from planner.solve.refine import FINALISTS, refine, solve_splits
from planner.solve.search import SearchResult, search
from planner.solve.splits.bound import capacity, quick_bound
from planner.solve.splits.dealt import Dealt
from planner.solve.splits.model import STARTING, SplitModel
from planner.solve.splits.split import (
    cost_of_split,
    even_split,
    only_split,
    own_split,
    solvable,
    solve_split,
)
from planner.space.axes import recompute_choices
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.space.rules import RULES
from planner.spec.config import ConfigTable, ParallelConfig, Schedule
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from tests.problems import costs, delta_model, dense_model, moe_model, problem, with_section


def every_split(layers: int, pp: int, vpp: int) -> Iterator[tuple[int, ...]]:
    """All splits that the solver may choose from."""
    chunks = pp * vpp
    inner = range(1, layers + 1) if vpp == 1 else range(max(layers // chunks, 1), layers // chunks + 2)
    outer = inner if vpp == 1 else range(inner.stop)
    for first, last in product(outer, repeat=2):
        for middle in product(inner, repeat=chunks - 2):
            if first + last + sum(middle) == layers:
                yield (first, *middle, last)


def random_case(seed: int) -> tuple[CostModel, ParallelConfig]:
    """A small problem and one of its pipelines."""
    chance = random.Random(seed)
    while True:
        layers = chance.randint(3, 9)
        model = (
            moe_model(layers, leading_dense=chance.randint(0, 2), experts=4)
            if chance.random() < 0.4
            else dense_model(layers, vocab=chance.choice([32000, 128256, 512000]), tied=chance.random() < 0.3)
        )
        subject = problem(
            model, chance.choice(["1x8 h100", "2x8 h100 400G-ib"]), seq_len=chance.choice([2048, 8192]),
            global_batch=chance.choice([8, 16, 32]), stack=chance.choice(["megatron-2026", "megatron-2024"]),
        )  # fmt: skip
        space = enumerate_configs(subject, RULES, {"pp": (2, 4), "micro_batch": (1, 2)}).table()
        rows = [space.row(i) for i in chance.sample(range(len(space)), min(len(space), 20))]
        rows = [row for row in rows if solvable(row) and row.num_microbatches <= 16 and row.pp * row.vpp <= 8]
        if rows:
            return costs(subject), chance.choice(rows)


def brute_force(model: CostModel, config: ParallelConfig) -> list[tuple[float, float]]:
    """Step time and memory of every split."""
    found = []
    for chunks in every_split(model.problem.model.num_layers, config.pp, config.vpp):
        cost = cost_of_split(model, config, chunks)
        found.append((float(cost.step_time[0]), float(cost.device_memory[0])))
    return found


def with_wide_ends(seed: int) -> tuple[CostModel, ParallelConfig]:
    """A random case in 8 bits, with layers at both ends in bf16: three kinds of layers, or four with experts."""
    model, config = random_case(seed)
    given, chance = model.problem, random.Random(seed)
    most = given.model.num_layers // config.pp
    ends = (chance.randint(0, most), chance.randint(min(1, most), most))
    job = replace(given.job, precision=Precision.FP8_CS, bf16_layers=ends)
    return costs(replace(given, job=job)), config


def check(seed: int, case: Callable[[int], tuple[CostModel, ParallelConfig]] = random_case) -> None:
    model, config = case(seed)
    every = brute_force(model, config)
    memory = sorted({memory for _, memory in every})
    for limit in (np.inf, memory[len(memory) // 3], memory[0], memory[0] * 0.9):
        best = min((time for time, held in every if held <= limit), default=np.inf)
        found = solve_split(model, config, float(limit), effort=20.0)
        if np.isinf(best):
            assert np.isinf(found.step_time)
            assert found.chunks == ()
            continue
        # the stack's own split may lie outside the splits tried, and be better
        assert found.step_time <= best * (1 + 2e-4)
        assert found.bound <= best * (1 + 1e-9)
        assert found.proven
        again = cost_of_split(model, config, found.chunks)
        assert float(again.step_time[0]) == pytest.approx(found.step_time)
        assert float(again.device_memory[0]) <= limit
        assert found.step_time >= min(best, found.own) * (1 - 1e-9)
        assert quick_bound(model, config, best) <= best * (1 + 1e-9)
        room = capacity(model, config, (config.recompute_layers,), float(limit))
        assert quick_bound(model, config, best, room) <= best * (1 + 1e-9)
        best = min(best, found.own)
        assert solve_split(model, config, float(limit), cutoff=0.99 * best).bound >= 0.98 * best


@pytest.mark.parametrize("seed", range(6))
def test_the_split_is_that_of_brute_force(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", range(6))
def test_the_split_with_wide_ends_is_that_of_brute_force(seed: int) -> None:
    check(seed, with_wide_ends)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 106))
def test_the_split_with_wide_ends_is_that_of_brute_force_in_a_hundred_cases(seed: int) -> None:
    check(seed, with_wide_ends)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 206))
def test_the_split_is_that_of_brute_force_in_hundreds_of_cases(seed: int) -> None:
    check(seed)


def recompute_case(seed: int) -> tuple[CostModel, ParallelConfig, tuple[int, ...]]:
    """A pipeline, and how many layers its ranks may recompute; every third keeps states on the host."""
    chance = random.Random(1000 + seed)
    while True:
        layers = chance.randint(4, 7)
        subject = problem(
            moe_model(layers, leading_dense=1, experts=4) if chance.random() < 0.3 else dense_model(layers, ffn=14336),
            "1x8 h100", seq_len=8192, global_batch=chance.choice([8, 16]), stack="megatron-2026",
        )  # fmt: skip
        pins = {
            "pp": (2, 4),
            "micro_batch": (1, 2),
            "vpp": (1, 2),
            "recompute": (0, 2),
            "offload": (int(seed % 3 == 0),),
        }
        space = enumerate_configs(subject, rules_for(subject.stack), pins).table()
        rows = [space.row(i) for i in chance.sample(range(len(space)), min(len(space), 20))]
        rows = [row for row in rows if row.num_microbatches <= 8 and row.pp * row.vpp <= 8]
        rows = [row for row in rows if not row.recompute_layers]
        if rows:
            row = chance.choice(rows)
            return costs(subject), row, recompute_choices(subject, {}, row)


def chunks_case(seed: int) -> tuple[CostModel, ParallelConfig, tuple[int, ...]]:
    """An interleaved pipeline whose chunks may recompute some of several layers, of two kinds where `seed` is odd."""
    chance = random.Random(5000 + seed)
    while True:
        layers = chance.randint(8, 14)
        subject = problem(
            moe_model(layers, leading_dense=chance.randint(1, 5), experts=4)
            if seed % 2
            else dense_model(layers, ffn=14336),
            "1x8 h100", seq_len=8192, global_batch=chance.choice([4, 8]), stack="megatron-2026",
        )  # fmt: skip
        pins = {"pp": (2,), "micro_batch": (1,), "vpp": (2, 3), "recompute": (0, 2)}
        space = enumerate_configs(subject, RULES, pins).table()
        rows = [row for row in map(space.row, range(len(space))) if row.num_microbatches <= 8]
        rows = [row for row in rows if not row.recompute_layers]
        rows = [row for row in rows if len(recompute_choices(subject, {}, row)) > 2]
        if rows:
            row = chance.choice(rows)
            return costs(subject), row, recompute_choices(subject, {}, row)


def test_splits_recompute_as_many_layers_as_the_stack_can() -> None:
    """One of so many of 13 layers are 13, 6, 4, 3, 2 or 1; 5 fit beside 14 and 12 layers, and no file says them."""
    pins, limit = {"pp": (2,), "micro_batch": (1,)}, 26e9
    model_of_26 = dense_model(26, 4096, 32, 8, 14336)
    subject = problem(model_of_26, "1x8 h100", global_batch=64, seq_len=8192, stack="torchtitan-2024")
    assert recompute_choices(subject, {}, ParallelConfig(pp=2)) == (0, 1, 2, 3, 4, 6, 13)
    model, rules = costs(subject), rules_for(subject.stack)
    space, simulator = enumerate_configs(subject, rules, pins), simulator_of(model)

    def look(most: int) -> SearchResult:
        return search(model, space, limit, most)

    found = refine(model, simulator, look(FINALISTS), look)
    solved = solve_splits(
        model, simulator, found, limit, True, choices=lambda row: recompute_choices(subject, pins, row)
    )
    best = solved.best
    assert not any(explain_config(best.row(i), subject, rules) for i in range(len(best)))


def check_recomputation(case: tuple[CostModel, ParallelConfig, tuple[int, ...]], per_stage: bool) -> None:
    model, config, choices = case
    ways = product(choices, repeat=config.pp) if per_stage else ((count,) for count in choices)
    splits = list(every_split(model.problem.model.num_layers, config.pp, config.vpp))
    every = []
    for dealt in (Dealt(chunks, counts) for counts in ways for chunks in splits):
        cost = cost_of_split(model, config, dealt)
        every.append((float(cost.step_time[0]), float(cost.device_memory[0])))
    memory = sorted({held for _, held in every})
    for limit in (memory[len(memory) // 8], memory[len(memory) // 3], memory[0]):
        best = min(time for time, held in every if held <= limit)
        found = solve_split(
            model, config, float(limit), effort=30.0, choices=choices, per_stage=per_stage, candidates=400
        )
        assert found.dealt is not None
        again = cost_of_split(model, config, found.dealt)
        assert float(again.device_memory[0]) <= limit
        assert float(again.step_time[0]) == pytest.approx(found.step_time)
        assert min(best, found.own) * (1 - 1e-9) <= found.step_time <= best * (1 + 2e-4)
        assert found.bound <= best * (1 + 1e-9)
        assert found.proven
        room = None if per_stage else capacity(model, config, choices, float(limit))
        assert quick_bound(model, config, best, room) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_split_and_recomputation_are_those_of_brute_force(seed: int) -> None:
    check_recomputation(recompute_case(seed), per_stage=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 150))
def test_split_and_recomputation_are_those_of_brute_force_in_hundreds_of_cases(seed: int) -> None:
    check_recomputation(recompute_case(seed), per_stage=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_recomputation_of_every_stage_is_that_of_brute_force(seed: int) -> None:
    check_recomputation(recompute_case(seed), per_stage=True)


@pytest.mark.parametrize("seed", range(2))
def test_recomputation_of_every_chunk_is_that_of_brute_force(seed: int) -> None:
    check_recomputation(chunks_case(seed), per_stage=False)


@pytest.mark.slow
@pytest.mark.parametrize("per_stage", [False, True])
@pytest.mark.parametrize("seed", range(2, 30))
def test_recomputation_of_every_chunk_is_that_of_brute_force_in_tens_of_cases(
    seed: int, per_stage: bool
) -> None:
    check_recomputation(chunks_case(seed), per_stage)


def test_an_uneven_split_is_found_where_the_head_is_heavy() -> None:
    """Ten layers and a head of several: the last stage gets fewer."""
    model = costs(problem(dense_model(10, vocab=512000), "1x8 h100", global_batch=16))
    config = ParallelConfig(pp=4, dp=2, num_microbatches=8)
    found = solve_split(model, config, np.inf)
    even = float(cost_of_split(model, config, even_split(10, 4, 1)).step_time[0])
    assert found.chunks[-1] < max(found.chunks)
    assert found.step_time < 0.97 * even
    assert found.proven


def test_without_effort_it_is_the_best_of_the_simple_splits() -> None:
    """The even split and the stack's own with deep stages first are tried before the solver runs."""
    subject = problem(moe_model(13, leading_dense=1, experts=8), "2x8 h100 400G-ib", global_batch=16)
    model, config = costs(subject), ParallelConfig(pp=8, dp=2, num_microbatches=8)
    own, even = own_split(model, config), even_split(13, 8, 1)
    times = {
        split: float(cost_of_split(model, config, split).step_time[0])
        for split in (own, even, tuple(sorted(own, reverse=True)))
    }
    found = solve_split(model, config, np.inf, effort=0.0)
    assert found.step_time == min(times.values()) < times[own]
    assert found.chunks == min(times, key=times.__getitem__)
    assert found.bound <= found.step_time


def test_a_slow_machine_finds_the_same_with_the_same_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a solve takes on the clock neither ends it nor counts as effort; each counts, whatever it takes."""
    model = costs(problem(dense_model(22, vocab=512000), "2x8 h100 400G-ib", global_batch=32))
    config = ParallelConfig(pp=8, vpp=2, schedule=1, dp=2, num_microbatches=16)
    quick = solve_split(model, config, np.inf, effort=0.02)
    solved = cp_model.CpSolver.solve

    def slow(solver: cp_model.CpSolver, *arguments: Any) -> Any:
        assert np.isinf(solver.parameters.max_time_in_seconds)
        status = solved(solver, *arguments)
        solver.response_proto.wall_time = solver.response_proto.user_time = 1e3
        return status

    monkeypatch.setattr(cp_model.CpSolver, "solve", slow)
    assert solve_split(model, config, np.inf, effort=0.02) == quick
    assert quick.effort > STARTING


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
    assert only_split(model, ParallelConfig(pp=4, dp=2, num_microbatches=4))
    assert even_split(6, 4, 2) == ()
    assert even_split(6, 4, 1) == (2, 2, 1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_no_random_configuration_beats_the_certificate(seed: int) -> None:
    """10,000 configurations of a space too large to solve one by one."""
    subject = problem(
        moe_model(12, leading_dense=1, experts=16) if seed == 2 else dense_model(30), "16x8 h100 400G-ib",
        seq_len=4096, global_batch=(256, 96, 512)[seed],
    )  # fmt: skip
    model, space = costs(subject), enumerate_configs(subject, RULES)
    limit = subject.cluster.accelerator.memory * 0.95
    simulator = simulator_of(model)

    def look(most: int) -> SearchResult:
        return search(model, space, limit, most)

    found = refine(model, simulator, look(FINALISTS), look)
    solved = solve_splits(model, simulator, found, limit, explicit=True)
    table = space.table()
    rows = np.random.default_rng(seed).choice(len(table), 10_000)
    cost = model.evaluate(table.take(rows))
    fits = cost.device_memory <= limit
    assert fits.sum() > 100
    assert solved.bound <= float(cost.step_time[fits].min())
    first = solved.best.row(0)
    taken = (
        solved.splits[first].step_time
        if first in solved.splits
        else float(evaluate_exactly(model, solved.best.take(slice(1)), simulator).step_time[0])
    )
    assert solved.bound <= taken <= solved.bound * 1.01


@pytest.mark.parametrize(
    ("spec", "alternates"),
    [(dense_model(16), False), (moe_model(16, leading_dense=3), False), (delta_model(16), True),
     (delta_model(16, every=16), False)],
)  # fmt: skip
def test_presolving_is_left_out_where_kinds_of_layers_alternate(spec: ModelSpec, alternates: bool) -> None:
    """Presolving them takes a minute, which the effort asked for does not count."""
    model = costs(problem(spec))
    config = ParallelConfig(dp=4, pp=4, vpp=2, num_microbatches=16, zero=1, schedule=Schedule.INTERLEAVED)
    room = capacity(model, config, (0,), 1e12)
    found = SplitModel(model, config, Dealt((2,) * 8, (0,)), np.inf, room)
    seen: list[bool] = []

    class Watched(cp_model.CpSolver):
        def solve(self, *given: Any, **named: Any) -> Any:
            seen.append(self.parameters.cp_model_presolve)
            return super().solve(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cp_model, "CpSolver", Watched)
        best, least, _ = found.solve(np.inf, 1.0)
    assert seen == [not alternates]
    assert best is not None
    assert sum(best.chunks) == 16
    assert least <= float(evaluate_exactly(model, ConfigTable.of([config])).step_time[0])

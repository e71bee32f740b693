"""Does the search return what costing everything and sorting returns?"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.catalog.load_stacks import load_stack
from planner.cost.model import CostModel
from planner.cost.table import CostTable
from planner.solve.refine import LISTED_ONCE, worth_listing
from planner.solve.search import SearchResult, search
from planner.space.axes import Restriction
from planner.space.enumerate import Enumeration, enumerate_configs
from planner.space.rules import RULES
from planner.spec.config import AXES, ConfigTable, ParallelConfig
from planner.spec.own_run import OwnRun
from planner.spec.rule import Problem
from planner.spec.stack import Calibration
from planner.spec.stack.engines import DeepSpeed
from tests.problems import costs, dense_model, moe_model, problem

STACKS = (
    "megatron-2026",
    "megatron-2022",
    "nanotron-2024",
    "torchtitan-2026",
    "deepspeed-2025",
    "fsdp1-2023",
)


@pytest.fixture(autouse=True, scope="module")
def _pipelines_of_deepspeed() -> Iterator[None]:
    """They are searched too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeepSpeed, "pipelines_programmed", False)
        yield


def random_problem(seed: int) -> Problem:
    chance = random.Random(seed)
    layers = chance.choice([3, 4, 6, 8, 12])
    model = (
        moe_model(layers, leading_dense=chance.randint(0, 2), experts=chance.choice([4, 8]))
        if chance.random() < 0.35
        else dense_model(
            layers, kv_heads=chance.choice([4, 8, 16]), vocab=chance.choice([32000, 128256]),
            tied=chance.random() < 0.3,
        )
    )  # fmt: skip
    machine = chance.choice(["1x8 h100", "1x8 a100", "2x8 h100 400G-ib", "3x8 h100 400G-ib"])
    seq_len, batch = chance.choice([2048, 4096, 16384]), chance.choice([8, 16, 24, 48])
    stack = load_stack(chance.choice(STACKS))
    return problem(model, machine, seq_len=seq_len, global_batch=batch, stack=stack)


def brute_force(space: Enumeration, cost: CostTable, limit: float) -> np.ndarray:
    """Of every stem the fastest row that fits; fastest first, ties by least memory, then in order."""
    stem = np.repeat(np.arange(len(space.stems)), space.counts)
    rows = np.flatnonzero(cost.device_memory <= limit)
    rows = rows[np.lexsort((cost.device_memory[rows], cost.step_time[rows]))]
    _, first = np.unique(stem[rows], return_index=True)
    return rows[np.sort(first)]


# jobs of adapters on a frozen model, and of sequences that differ in length
TUNED: tuple[dict[str, Any], ...] = (
    {"lora_rank": 16},
    {"lora_rank": 8, "frozen_bits": 4},
    {"mean_length": 700.0},
    {"mean_length": 500.0, "packed": True},
    {"lora_rank": 16, "mean_length": 600.0},
)


def searched(seed: int, **job: Any) -> tuple[CostModel, Enumeration, ConfigTable, CostTable]:
    subject = random_problem(seed)
    subject = replace(subject, job=replace(subject.job, **job))
    model, space = costs(subject), enumerate_configs(subject, RULES)
    table = space.table()
    return model, space, table, ranked(model, table)


def ranked(model: CostModel, table: ConfigTable) -> CostTable:
    """The cost of every row, with the step time that a search ranks by."""
    return replace(model.evaluate(table), step_time=model.least_step_time(table))


def check(found: SearchResult, space: Enumeration, cost: CostTable, limit: float, top: int) -> None:
    table = space.table()
    best = table.take(brute_force(space, cost, limit)[:top])
    assert all(np.array_equal(found.best[axis], best[axis]) for axis in AXES)
    if len(best):  # nothing at all is faster than the first
        fastest = float(cost.step_time[cost.device_memory <= limit].min())
        assert float(cost.step_time[brute_force(space, cost, limit)[0]]) == fastest
    assert found.costed + found.by_memory + found.behind == len(table)
    assert 0 <= found.too_large <= int((cost.device_memory > limit).sum())


@pytest.mark.parametrize("seed", range(30))
def test_the_best_are_those_of_brute_force(seed: int) -> None:
    model, space, table, cost = searched(seed)
    if not len(table):
        pytest.skip("nothing is legal")
    for share in (0.02, 0.2, 0.6, 1.0):  # of the rows fit
        limit = float(np.quantile(cost.device_memory, share))
        for top in (1, 10):
            check(search(model, space, limit, top), space, cost, limit, top)


@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_other_jobs_are_those_of_brute_force(seed: int) -> None:
    model, space, _, cost = searched(seed, **TUNED[seed % len(TUNED)])
    stem = np.repeat(np.arange(len(space.stems)), space.counts)
    assert (model.lower_bound(space.stems)[stem] <= cost.step_time).all()
    limit = float(np.quantile(cost.device_memory, 0.5))
    check(search(model, space, limit, 10), space, cost, limit, 10)


@pytest.mark.parametrize("seed", range(6))
def test_asking_for_everything_returns_all_that_compete(seed: int) -> None:
    model, space, table, cost = searched(seed)
    limit = float(np.median(cost.device_memory))
    check(search(model, space, limit, len(table)), space, cost, limit, len(table))


@pytest.mark.parametrize("seed", range(4))
def test_bounding_first_returns_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of large spaces: waves of stems in the order of a bound, here in waves of 64."""
    model, space, _, cost = searched(seed)
    for name, size in (("WAVE_STEMS", 64), ("WAVES_LARGEST", 128), ("PROBE_STEMS", 8)):
        monkeypatch.setattr(f"planner.solve.search.{name}", size)
    for share in (0.05, 0.5, 1.0):
        limit = float(np.quantile(cost.device_memory, share))
        found = search(model, space, limit, 10)
        check(found, space, cost, limit, 10)


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_of_a_stem_is_behind_none_of_its_leaves(seed: int) -> None:
    model, space, _, cost = searched(seed)
    stem = np.repeat(np.arange(len(space.stems)), space.counts)
    bound = model.lower_bound(space.stems)
    assert (bound[stem] <= cost.step_time).all()
    assert (bound > 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_own_runs_leave_bounds_and_search_as_they_must_be(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, subject = random.Random(seed), random_problem(seed)
    space = enumerate_configs(subject, RULES)
    table = space.table()
    runs = tuple(
        OwnRun.of(subject.model, subject.job, table.row(chance.randrange(len(table))), factor)
        for factor in (0.5, 0.7, 0.9, 1.8)
    )
    calibration = Calibration(said="own", level="L2", runs=runs)
    model = costs(replace(subject, stack=subject.stack.model_copy(update={"calibration": calibration})))
    cost = ranked(model, table)
    assert (cost.step_time < 0.95 * costs(subject).least_step_time(table)).any()
    stem = np.repeat(np.arange(len(space.stems)), space.counts)
    assert (model.lower_bound(space.stems)[stem] <= cost.step_time).all()
    for name, size in (("WAVE_STEMS", 64), ("WAVES_LARGEST", 128), ("PROBE_STEMS", 8)):
        monkeypatch.setattr(f"planner.solve.search.{name}", size)
    limit = float(np.median(cost.device_memory))
    check(search(model, space, limit, 10), space, cost, limit, 10)


@pytest.mark.parametrize("seed", range(6))
def test_where_nothing_fits_the_smallest_is_named(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, space, _, cost = searched(seed)
    monkeypatch.setattr("planner.solve.search.PROBE_STEMS", 8)
    found = search(model, space, 0.0, 3)
    assert len(found.best) == 0
    assert len(found.smallest) == 1
    least, named = float(cost.device_memory.min()), model.evaluate(found.smallest)
    assert float(named.device_memory[0]) == least
    fastest = float(cost.step_time[cost.device_memory == least].min())
    assert float(named.step_time[0]) == pytest.approx(fastest, rel=0.05)  # as far as bubbles are simulated
    assert found.too_large == found.costed <= len(space)
    assert found.costed + found.by_memory == len(space)
    unnamed = search(model, space, 0.0, 3, name_smallest=False)
    assert (len(unnamed.best), len(unnamed.smallest), unnamed.costed) == (0, 0, 0)


def test_what_has_more_states_than_the_least_memory_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model = costs(problem(dense_model(80, 8192, 64, 8, 28672), "1x8 h100", seq_len=2048, global_batch=8))
    space = enumerate_configs(model.problem, RULES)
    monkeypatch.setattr("planner.solve.search.PROBE_STEMS", 8)
    found = search(model, space, 0.0, 1)
    cost = model.evaluate(space.table())
    assert 0 < found.costed < len(space) / 2
    assert float(model.evaluate(found.smallest).device_memory[0]) == float(cost.device_memory.min())


def test_the_same_search_gives_the_same_rows() -> None:
    model, space, _, cost = searched(3)
    limit = float(np.median(cost.device_memory))
    first, second = (search(model, space, limit, 10) for _ in range(2))
    assert all(np.array_equal(first.best[axis], second.best[axis]) for axis in AXES)


def test_ties_go_to_least_memory_then_to_the_order_of_the_space() -> None:
    # without links between micro-batches and shards, ZeRO 0 and 1 of a single rank differ in nothing: pin dp 1
    subject = problem(dense_model(4), "1x1 h100", global_batch=4)
    space, model = enumerate_configs(subject, RULES), costs(subject)
    table = space.table()
    cost = ranked(model, table)
    found = search(model, space, np.inf, len(table))
    chosen = ranked(model, found.best)
    pairs = list(zip(chosen.step_time.tolist(), chosen.device_memory.tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert pairs[0][0] == cost.step_time.min()


def test_an_empty_space_has_no_best() -> None:
    subject = problem()
    for restrict in ({"tp": (3,)}, {"recompute": (2,), "recompute_layers": (0,)}):
        pins: Restriction = restrict
        found = search(costs(subject), enumerate_configs(subject, RULES, pins), np.inf, 5)
        assert (len(found.best), found.costed, found.by_memory, found.behind) == (0, 0, 0, 0)


def test_a_tighter_limit_is_never_faster() -> None:
    model, space, _, cost = searched(5)
    times = []
    for share in (1.0, 0.7, 0.4, 0.2, 0.1, 0.05):
        limit = float(np.quantile(cost.device_memory, share))
        times.append(float(model.least_step_time(search(model, space, limit, 1).best)[0]))
    assert times == sorted(times)


def test_a_pin_is_never_faster_than_the_free_space() -> None:
    subject = problem(moe_model(6))
    model = costs(subject)
    free = search(model, enumerate_configs(subject, RULES), np.inf, 1)
    fastest = float(model.least_step_time(free.best)[0])
    for restrict in ({"tp": (2,)}, {"pp": (2, 4)}, {"ep": (8,)}, {"zero": (0,)}, {"recompute": (2,)}):
        pinned = search(model, enumerate_configs(subject, RULES, restrict), np.inf, 1)
        assert float(model.least_step_time(pinned.best)[0]) >= fastest


def test_more_devices_of_the_same_batch_are_never_slower_at_best() -> None:
    steps = []
    for machine in ("1x8 h100", "2x8 h100 400G-ib", "4x8 h100 400G-ib"):
        subject = replace(problem(dense_model(8), machine, global_batch=256))
        model = costs(subject)
        best = search(model, enumerate_configs(subject, RULES), np.inf, 1).best
        steps.append(float(model.least_step_time(best)[0]))
    assert steps[0] > steps[1] > steps[2]


def test_twins_in_virtual_stages_are_listed_only_where_there_are_too_few_others() -> None:
    rows = [
        ParallelConfig(tp=tp, pp=4, vpp=vpp, schedule=int(vpp > 1))
        for tp, vpp in ((1, 2), (1, 1), (2, 1), (1, 4), (4, 1))
    ]
    table = ConfigTable.of(rows)
    time = np.arange(1.0, 6.0)
    assert listed(table, time, 3) == [rows[0], rows[2], rows[4]]
    assert listed(table, time, 4) == [rows[0], rows[1], rows[2], rows[4]]
    assert len(worth_listing(table, time, 10)) == 5
    assert listed(table, time, 3, once=()) == rows[:3]


def test_twins_in_graphs_are_listed_once_where_they_tie() -> None:
    """The first stands for the second, 0.008 % slower, and for no other: those of another degree, those that are 0.02 %
    slower."""
    rows = [
        ParallelConfig(tp=tp, cuda_graph_impl=graphs)
        for tp, graphs in ((1, 3), (1, 0), (2, 0), (1, 1), (2, 3))
    ]
    table, time = ConfigTable.of(rows), np.array([1.0, 1.00008, 1.0001, 1.0002, 1.01])
    assert listed(table, time, 4) == [rows[0], rows[2], rows[3], rows[4]]
    assert listed(table, time, 4, once=("vpp",)) == rows[:4]
    assert listed(table, time, 5) == rows


def listed(
    table: ConfigTable, time: NDArray[np.float64], top: int, once: Collection[str] = LISTED_ONCE
) -> list[ParallelConfig]:
    found = worth_listing(table, time, top, once)
    return [found.row(i) for i in range(len(found))]

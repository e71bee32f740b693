"""Do paths found in short schedules bound long ones, and levels of what a stage may hold leave none out?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.cost.table import STAGE_TERMS
from planner.schedule.critical import critical_paths
from planner.schedule.generate import action_table
from planner.schedule.graph import dependency_graph
from planner.schedule.simulate import makespans, stage_times
from planner.solve.splits.bound import (
    LEVELS,
    Capacity,
    LayerCosts,
    few_splits,
    known_paths,
    near_splits,
    quick_bound,
)
from planner.solve.splits.split import cost_of_split
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES
from planner.spec.config import ConfigTable, Recompute, Schedule
from tests.problems import costs, dense_model, moe_model, problem


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 2, 4), (4, 2, 16), (4, 3, 40), (3, 2, 30), (8, 2, 64), (5, 4, 60)]
)
def test_known_paths_are_no_longer_than_any_schedule(p: int, v: int, m: int) -> None:
    chance = np.random.default_rng(p * v * m)
    shape = (200, p * v)
    forward, backward = chance.uniform(0.2, 1.0, shape), chance.uniform(0.2, 2.0, shape)
    hops = chance.uniform(0.0, 0.3, (200, p * v - 1))
    graph = dependency_graph(action_table(Schedule.INTERLEAVED, p, m, v))
    real = makespans(graph, stage_times(p * v, forward, backward, 0.0, hops))
    paths = known_paths(p, v, m)
    length = paths.forward @ forward.T + paths.backward @ backward.T + paths.hops @ hops.T
    assert (length <= real[None, :] * (1 + 1e-9)).all()
    assert length.max(axis=0).mean() > 0.8 * real.mean()
    equal = np.ones((1, p * v))
    exact = makespans(graph, stage_times(p * v, equal, 2 * equal))[0]
    assert paths.forward[0].sum() + 2 * paths.backward[0].sum() == pytest.approx(exact)


@pytest.mark.parametrize("seed", range(12))
def test_what_a_step_takes_once_grows_with_the_heaviest_stages_up_to_what_it_is(seed: int) -> None:
    """No split holds less than the least; with what the stack's own split holds it is the cost of that."""
    subject = problem(
        moe_model(9, leading_dense=seed % 3, experts=4) if seed % 2 else dense_model(9), "2x8 h100 400G-ib",
        global_batch=16, stack=("megatron-2026", "fsdp1-2023")[seed % 4 == 2],
    )  # fmt: skip
    model, space = costs(subject), enumerate_configs(subject, RULES, {"pp": (1, 2, 4)}).table()
    config = space.row(int(np.random.default_rng(seed).integers(len(space))))
    table = ConfigTable.of([config])
    prepared, costed = model.prepare(table), LayerCosts(model, config)
    least = costed.lightest()
    own = float(prepared.shards.most_dense[0]), float(prepared.shards.most_expert[0])
    assert least[0] <= own[0]
    assert least[1] <= own[1]
    cost = model.evaluate(table, keep_terms=True)
    assert cost.detail is not None
    work = sum(float(cost.detail.time[name][0]) for name in STAGE_TERMS)
    slowest, deepest = np.array([work / config.num_microbatches]), float(prepared.deepest[0])
    once = ("dp_comm", "optimizer", "step_overhead")
    exact = sum(float(cost.detail.time[name][0]) for name in once)
    between = tuple((a + b) / 2 for a, b in zip(least, own, strict=True))
    taken = [float(costed.holding(held).once(deepest, slowest)[0]) for held in (least, between, own)]
    if not config.offload:
        assert taken[2] == pytest.approx(exact)
    assert taken == sorted(taken)
    if sum(least) < 0.99 * sum(own):
        assert taken[0] < taken[2]


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(10, 2, 3), (7, 2, 2), (8, 4, 2), (6, 4, 2), (13, 3, 2)])
def test_few_splits_are_all_that_may_be_solved(layers: int, pp: int, vpp: int) -> None:
    chunks = pp * vpp
    fewest, most = max(layers // chunks, 1), layers // chunks + 1
    inner = [range(fewest, most + 1)] * (chunks - 2)
    every = product(range(most + 1), *inner, range(most + 1))
    found = few_splits(layers, pp, vpp)
    assert found is not None
    assert sorted(map(tuple, found.tolist())) == sorted(split for split in every if sum(split) == layers)


def test_too_many_splits_are_not_listed() -> None:
    assert few_splits(80, 8, 2) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [0, 1, 2])
def test_no_split_is_faster_than_the_quick_bound(seed: int, count: int) -> None:
    """With all splits looked at the bound is higher than without, and no split simulated beats it."""
    subject = problem(
        moe_model(10, leading_dense=seed, experts=4) if seed % 2 else dense_model(10), "2x8 h100 400G-ib",
        global_batch=(16, 32)[seed % 2],
    )  # fmt: skip
    model = costs(subject)
    tp = (4, 2)[seed // 2]
    restrict = {"tp": (tp,), "pp": (2,), "cp": (1,), "vpp": (3,), "micro_batch": (1,), "recompute": (0, 2)}
    table = enumerate_configs(subject, RULES, restrict).table()
    config = replace(table.row(0), recompute=int(Recompute.FULL if count else 0), recompute_layers=3 * count)
    assert not config.num_microbatches % config.pp
    splits = few_splits(10, 2, 3)
    assert splits is not None
    times = [float(cost_of_split(model, config, tuple(split)).step_time[0]) for split in splits.tolist()]
    own = float(model.evaluate(ConfigTable.of([config])).step_time[0])
    room = Capacity((config.recompute_layers,), np.full((1, 2), 10))
    bound = quick_bound(model, config, own, room, splits)
    assert quick_bound(model, config, own, room) < bound <= min(times) * (1 + 1e-9)


def test_near_splits_move_one_layer() -> None:
    splits = near_splits((2, 0, 3), 100)
    assert splits.tolist()[0] == [2, 0, 3]
    assert len({tuple(split) for split in splits.tolist()}) == 5
    assert (splits.sum(axis=1) == 5).all()
    assert splits.min() == 0
    assert len(near_splits((2, 0, 3), 2)) == 3


def test_a_longest_path_is_as_long_as_the_schedule() -> None:
    chance = np.random.default_rng(1)
    graph = dependency_graph(action_table(Schedule.INTERLEAVED, 4, 16, 2))
    forward, backward = chance.uniform(0.2, 1.0, (50, 8)), chance.uniform(0.2, 2.0, (50, 8))
    hops = chance.uniform(0.0, 0.3, (50, 7))
    times = stage_times(8, forward, backward, 0.0, hops)
    paths = critical_paths(graph, times)
    length = (paths.forward * forward + paths.backward * backward).sum(axis=1) + (paths.hops * hops).sum(
        axis=1
    )
    assert length == pytest.approx(makespans(graph, times))


def test_levels_are_those_of_all_mixes() -> None:
    widths, counts, whole, outer, least = [3, 5, 5, 11], [2, 1, 2, 3], 4, {0, 7}, 12.0
    mixes = [mix for mix in product(*(range(count + 1) for count in counts)) if sum(mix) <= whole]
    held = {own + sum(a * b for a, b in zip(mix, widths, strict=True)) for mix in mixes for own in outer}
    above = sorted(level for level in held if level > least)
    bound: Any = SimpleNamespace(counts=counts, whole=whole)
    found = LayerCosts.levels(bound, widths, outer, least)
    assert found == sorted({above[i] for i in np.linspace(0, len(above) - 1, LEVELS).astype(int)})


def test_levels_of_thirty_widths_take_no_minutes() -> None:
    bound: Any = SimpleNamespace(counts=[3] * 30, whole=40)
    found = LayerCosts.levels(bound, list(range(100, 130)), {0}, 0.0)
    assert found[-1] == 3 * sum(range(117, 130)) + 116  # the 40 widest

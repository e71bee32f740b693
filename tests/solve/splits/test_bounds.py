"""Do bounds of many configurations at once, and what they say of memory, hold for every layout of each?"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.model import CostModel
from planner.schedule.graph import schedule_graph
from planner.schedule.simulate import makespans
from planner.solve.splits.cases import Layout
from planner.solve.splits.families import ADAPTIVE, CLOSED, Families, known_of
from planner.solve.splits.layers import LayerCosts
from planner.solve.splits.paths import Ways, timed
from planner.solve.splits.pipe import Kinds, Pipe, lines_about_runs
from planner.solve.splits.profiles import Profiles, Recomputed, profiles, recomputed_of
from planner.solve.splits.programme import Outcome, Programme
from planner.solve.splits.relaxed import Known, Relaxed, fullest, times_of
from planner.solve.splits.split import fewest_inner, solve_split
from planner.solve.splits.whole_ranks import whole_ranks
from planner.spec.config import ConfigTable, ParallelConfig, Schedule
from tests.solve.splits.test_split import every_layout, layouts, random_case

SEEDS = range(6)


def stepped_case(seed: int) -> tuple[CostModel, ParallelConfig]:
    """A small pipeline whose makespan has no closed form."""
    for more in range(100):
        model, config = random_case(100 * seed + more)
        closed = config.vpp == 1 and config.schedule in CLOSED
        if not closed and config.schedule not in ADAPTIVE:
            return model, config
    raise AssertionError("some case has none")


def profile_of(
    model: CostModel, config: ParallelConfig, limit: float, target: float
) -> tuple[Pipe, Profiles]:
    pipe = Pipe.of(model, config, fewest_inner(model, config))
    again = Recomputed(config.recompute_layers)
    return pipe, profiles(model, ConfigTable.of([config]), limit, target, [again])


@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_is_faster_than_the_bound_of_its_family(seed: int) -> None:
    model, config = stepped_case(seed)
    every = every_layout(model, config, (config.recompute_layers,))
    memory = sorted(held for _, held in every)
    for limit in (np.inf, memory[len(memory) // 3], memory[0]):
        best = min(time for time, held in every if held <= limit)
        table = ConfigTable.of([config])
        for target in (0.9 * best, best, 1.1 * best):
            again = [(config.recompute_layers,)]
            families = Families(model, table, limit, again, lambda one: fewest_inner(model, one), {})
            cut = families.raise_bounds(np.zeros(1), target, 5.0, closely=False)
            bound = families.raise_bounds(np.zeros(1), target, 5.0, closely=True)
            assert cut[0] <= bound[0] * (1 + 1e-9)
            assert bound[0] <= best * (1 + 1e-9)
            assert bound[0] <= target


@pytest.mark.parametrize("seed", SEEDS)
def test_a_family_is_closed_below_the_best_of_its_members(seed: int) -> None:
    model, config = stepped_case(seed)
    best = min(time for time, _ in every_layout(model, config, (config.recompute_layers,)))
    again = [(config.recompute_layers,)]
    families = Families(
        model, ConfigTable.of([config]), np.inf, again, lambda one: fewest_inner(model, one), {}
    )
    assert families.raise_bounds(np.zeros(1), 0.8 * best, 5.0, closely=True)[0] == 0.8 * best


@pytest.mark.parametrize("seed", SEEDS)
def test_what_bounds_one_profile_bounds_others(seed: int) -> None:
    model, config = stepped_case(seed)
    time = solve_split(model, config, np.inf, effort=0.1).step_time
    pipe, own = profile_of(model, config, np.inf, time)
    kinds, chance = Kinds(pipe, own), np.random.default_rng(seed)
    known, _ = known_of(pipe, own)
    relaxed = Relaxed(pipe, own, known, kinds)
    relaxed.solve(enough=np.inf)
    assert relaxed.prices is not None
    assert relaxed.prices.least(pipe, own, kinds)[0] == pytest.approx(relaxed.least, rel=1e-3)
    scaled = {
        name: getattr(own, name) * chance.uniform(0.7, 1.4, getattr(own, name).shape)
        for name in ("passes", "ends", "hops", "kept", "states")
    }
    other = Profiles(**{**vars(own), **scaled})
    again = Relaxed(pipe, other, known, Kinds(pipe, other))
    again.solve(enough=np.inf)
    assert relaxed.prices.least(pipe, other, kinds)[0] <= again.least * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_boxes_of_one_profile_bound_whole_layers_of_others(seed: int) -> None:
    model, config = stepped_case(seed)
    time = solve_split(model, config, np.inf, effort=0.1).step_time
    pipe, own = profile_of(model, config, np.inf, time)
    own = replace(own, recomputed=np.zeros(1))
    kinds, chance = Kinds(pipe, own), np.random.default_rng(seed)
    known, _ = known_of(pipe, own)
    relaxed = Relaxed(pipe, own, known, kinds)
    relaxed.solve(enough=np.inf)
    cut = relaxed.least
    boxes = whole_ranks(relaxed, np.inf, 2.0)
    known.remember(kinds, boxes.prices)
    assert boxes.least >= cut * (1 - 1e-9)
    graph, none = schedule_graph(pipe.schedule, pipe.p, pipe.m, pipe.v), np.zeros(pipe.chunks)
    every = [one for one in layouts(len(pipe.kinds), pipe.chunks) if min((*one[1:-1], 99)) >= pipe.fewest]
    for spread in (0.0, 0.3):
        scaled = {
            name: getattr(own, name) * chance.uniform(1 - spread, 1 + spread, getattr(own, name).shape)
            for name in ("passes", "ends", "hops")
        }
        other = replace(own, **scaled)
        held = [kinds.of_split(np.array(one)).astype(float) for one in every]
        times = np.concatenate([times_of(pipe, other, kinds, some, none) for some in held], axis=1)
        fastest = float(makespans(graph, timed(times, other.hops)).min())
        assert known.least(pipe, other, kinds)[0] <= fastest * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_needs_no_less_than_its_profile_says(seed: int) -> None:
    model, config = stepped_case(seed)
    costs, chance = LayerCosts(model, config), random.Random(seed)
    fewest = fewest_inner(model, config)
    every = list(layouts(costs.layers, len(costs.rank_of)))
    for split in chance.sample(every, min(len(every), 20)):
        for limit in (20e9, 60e9):
            pipe, own = profile_of(model, config, limit, 1.0)
            layout = Layout(config, limit, None, costs, per_stage=False, fewest=fewest, known={})  # type: ignore[arg-type]
            count = costs.recomputed(config.recompute_layers)
            needed = layout.room.needed(np.array([split]), config.recompute_layers, np.full(pipe.p, count))[0]
            kinds = Kinds(pipe, own)
            held = kinds.of_split(np.array(split)).astype(float)
            again = np.minimum(split, count).astype(float)
            for rank in range(pipe.p):
                if fullest(pipe, own, kinds, rank, held, again) is not None:
                    assert needed[rank] > limit


@pytest.mark.parametrize(
    ("choices", "ways"),
    [
        ((0,), [Recomputed(0)]),
        ((0, 8), [Recomputed(0), Recomputed(0, whole=True)]),
        ((8,), [Recomputed(0, whole=True)]),
        ((0, 3, 8), [Recomputed(30)]),
        ((2,), [Recomputed(2)]),
    ],
)
def test_none_and_all_layers_are_apart_where_nothing_lies_between(
    choices: tuple[int, ...], ways: list[Recomputed]
) -> None:
    assert recomputed_of(choices, layers=30, ranks=4) == ways


@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_that_recomputes_everything_or_nothing_is_faster_than_the_bound(seed: int) -> None:
    model, config = stepped_case(seed)
    all_ = -(-model.problem.model.num_layers // config.pp)
    every = every_layout(model, config, (0, all_))
    memory = sorted(held for _, held in every)
    for limit in (np.inf, memory[len(memory) // 3], memory[0]):
        best = min(time for time, held in every if held <= limit)
        for target in (0.9 * best, best, 1.1 * best):
            families = Families(
                model, ConfigTable.of([config]), limit, [(0, all_)], lambda one: fewest_inner(model, one), {}
            )
            bound = families.raise_bounds(np.zeros(1), target, 5.0, closely=True)
            assert bound[0] <= best * (1 + 1e-9)


def test_a_last_stage_that_has_time_for_its_head_alone_may_be_empty() -> None:
    pipe, one = Pipe(Schedule.ZB_H1, 3, 1, 4, (0,) * 4, fewest=1), np.ones(1)
    passes = np.array([[[0.02, 0.02, 0.02, 0.0]]])
    ends = np.array([[[0.0, 0.0, 0.0, 0.0], [0.08, 0.08, 0.08, 0.0]]])
    none, few = np.zeros((1, 1)), np.full((1, 1), 0.01)
    own = Profiles(
        one, 0 * one, one, passes, none, ends, np.zeros((1, 2)), few, few, few, np.zeros((1, 2)), 0 * one, 0 * one
    )  # fmt: skip
    known = Known(Ways(np.zeros((0, 4, 3)), np.zeros((0, 2))))
    outcome, split = Programme(pipe, own, known, Kinds(pipe, own)).solve(1.0, 1.0)
    assert outcome is Outcome.FOUND
    assert split is not None
    assert split[-1] == 0


def test_layers_of_a_kind_among_neighbours_lie_within_lines() -> None:
    kinds = np.array([0, 0, 1, 0, 0, 1, 1, 0])
    before = np.concatenate([[0], np.cumsum(kinds)])
    lines = lines_about_runs(before)
    for first in range(len(kinds)):
        for end in range(first, len(kinds) + 1):
            n, k = end - first, int(before[end] - before[first])
            assert all(a * n + b * k <= c for a, b, c in lines)
    assert not all(a * 4 + b * 4 <= c for a, b, c in lines)


def test_passes_of_a_split_are_those_of_its_layers() -> None:
    model, config = stepped_case(3)
    pipe, own = profile_of(model, config, np.inf, 1.0)
    kinds, costs = Kinds(pipe, own), LayerCosts(model, config)
    split = next(iter(layouts(costs.layers, pipe.chunks)))
    times = times_of(pipe, own, kinds, kinds.of_split(np.array(split)).astype(float), np.zeros(pipe.chunks))
    total = float(times[:3].sum() * own.allowed[0])
    assert total == pytest.approx(float(costs.of_layer[:2].sum() + costs.ends[:2].sum()), rel=1e-6)

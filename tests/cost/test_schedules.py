"""Costs of schedules beyond 1F1B: estimates against simulated pipelines, bounds, memory and copies of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.catalog.load_stacks import load_stack
from planner.cost.model import CostModel
from planner.cost.network.overlap import paired_time
from planner.cost.simulated import evaluate_exactly
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES
from planner.spec.config import OFFLOAD_ACTIVATIONS, SCHEDULE_LABELS, ConfigTable, ParallelConfig, Schedule
from planner.spec.rule import Problem
from tests.problems import cost_model, dense_model, moe_model, problem, random_rows

SCHEDULES = ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev")


def with_schedules(subject: Problem) -> Problem:
    stack = load_stack("torchtitan-2026-eager")
    limits = stack.limits.model_copy(update={"schedules": SCHEDULES})
    return replace(subject, stack=stack.model_copy(update={"limits": limits}))


MODEL: CostModel = cost_model(with_schedules(problem(dense_model(24))))
TABLE: ConfigTable = enumerate_configs(MODEL.problem, RULES).table()
# layers that do not divide evenly, layers of two kinds, with a prediction module behind the last
BOUNDED = {
    **{str(layers): dense_model(layers) for layers in (22, 24, 30)},
    "mixture": replace(moe_model(25, leading_dense=3), mtp_layers=1),
}


def rows_of(schedule: Schedule, count: int = 40) -> ConfigTable:
    return random_rows(TABLE.take(TABLE["schedule"] == schedule), count, seed=3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_terms_add_up_and_estimates_are_near_simulated_times(name: str) -> None:
    rows = rows_of(Schedule(SCHEDULE_LABELS.index(name)))
    mass, exact = MODEL.evaluate(rows, keep_terms=True), evaluate_exactly(MODEL, rows)
    for cost in (mass, exact):
        assert cost.detail is not None
        assert np.allclose(sum(cost.detail.time.values()), cost.step_time, rtol=1e-12)
    off = np.abs(mass.step_time / exact.step_time - 1)
    full = rows["num_microbatches"] >= 2 * rows["pp"] - 1  # ZB-V is laid out for so many
    assert np.median(off) < 0.04
    assert off[full].max() < 0.1
    assert off.max() < 0.3
    if name == "1f1b":
        assert off.max() == 0


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", [*BOUNDED])
def test_no_simulated_row_beats_its_bounds(name: str, kind: str) -> None:
    """The bound of its stem, and the nearer one that a search ranks by."""
    spec = BOUNDED[kind]
    model = cost_model(with_schedules(problem(spec)))
    rows = enumerate_configs(model.problem, RULES).table()
    rows = random_rows(rows.take(rows["schedule"] == SCHEDULE_LABELS.index(name)), 60, seed=spec.num_layers)
    least, time = model.least_step_time(rows), evaluate_exactly(model, rows).step_time
    assert (model.lower_bound(rows) <= least).all()
    assert (least <= time * (1 + 1e-12)).all()
    if name == "1f1b":
        assert (least == time).all()
    elif "v" not in name and name != "dualpipe":
        assert np.median(least / time) > 0.98


def test_a_row_costs_the_same_alone_and_among_other_schedules() -> None:
    rows = random_rows(TABLE, 60, seed=5)
    together = MODEL.evaluate(rows)
    for i in range(0, 60, 7):
        alone = MODEL.evaluate(rows.take(slice(i, i + 1)))
        assert alone.step_time[0] == together.step_time[i]
        assert alone.device_memory[0] == together.device_memory[i]


def config(schedule: Schedule, **axes: int) -> ParallelConfig:
    return ParallelConfig(tp=1, pp=4, dp=4, num_microbatches=16, zero=2, schedule=int(schedule), **axes)


def test_zero_bubble_idles_less_and_holds_more() -> None:
    plain, split, folded, dual = (
        evaluate_exactly(MODEL, ConfigTable.of([row]))
        for row in (
            config(Schedule.ONE_F_ONE_B),
            config(Schedule.ZB_H1),
            config(Schedule.ZB_V, vpp=2),
            config(Schedule.DUALPIPE),
        )
    )
    bubble = [cost.detail.time["pipeline_bubble"][0] for cost in (plain, split, folded, dual) if cost.detail]
    assert bubble[1] < 0.6 * bubble[0]
    assert bubble[2] < 0.3 * bubble[0]
    assert bubble[3] < 0.6 * bubble[0]
    assert split.device_memory[0] > plain.device_memory[0]


def test_dualpipe_holds_two_copies_of_its_layers() -> None:
    cost = MODEL.evaluate(
        ConfigTable.of([config(Schedule.ONE_F_ONE_B), config(Schedule.DUALPIPE)]), keep_terms=True
    )
    assert cost.detail is not None
    weights = cost.detail.memory["after_init"]["optimizer"]
    alive = cost.detail.classes.count[cost.detail.class_row] > 0
    total = [
        float((weights[i] * cost.detail.classes.count[cost.detail.class_row[i]])[alive[i]].sum())
        for i in (0, 1)
    ]
    assert total[1] == pytest.approx(total[0])  # twice the parameters over twice the ranks


@pytest.mark.parametrize(
    "schedule", [Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.DUALPIPE]
)
def test_activations_on_the_host_leave_two_layers_under_every_schedule(schedule: Schedule) -> None:
    asked = config(schedule, offload=OFFLOAD_ACTIVATIONS)
    others = [config(Schedule.ZB_H1), config(Schedule.DUALPIPE)]
    cost = MODEL.evaluate(ConfigTable.of([asked, *others]), keep_terms=True)
    assert cost.detail is not None
    alive = cost.detail.classes.count[cost.detail.class_row[0]] > 0
    layers = cost.detail.classes.layers[cost.detail.class_row[0]].sum(axis=1)
    kept = cost.detail.kept[0]  # of a micro-batch
    held = cost.detail.memory["backward"]["activations"][0]
    left = 2 * kept / np.maximum(layers, 1)
    assert (held[alive] <= left[alive] * (1 + 1e-9)).all()  # less where weight gradients alone are due
    assert held[0] == pytest.approx(left[0])
    assert cost.device_memory[0] == MODEL.evaluate(ConfigTable.of([asked])).device_memory[0]


def test_recomputation_frees_less_where_weight_gradients_wait() -> None:
    rows = [
        config(schedule, vpp=v, recompute=2 * full, recompute_layers=6 * full)
        for schedule, v in ((Schedule.ONE_F_ONE_B, 1), (Schedule.ZB_V, 2))
        for full in (0, 1)
    ]
    memory = MODEL.evaluate(ConfigTable.of(rows)).device_memory
    assert memory[1] / memory[0] < memory[3] / memory[2]


def test_a_pair_takes_the_longer_of_compute_and_exchange() -> None:
    share = load_stack("hai-llm-2024").communication.dispatcher.pair_share
    assert share is not None
    time = paired_time(np.array([10.0, 10.0]), np.array([4.0, 20.0]), share)
    assert time.tolist() == pytest.approx([10.0 + 4.0 * 20 / 132, 20.0], rel=1e-3)


def test_deepseek_v3_as_published() -> None:
    """arXiv 2412.19437: 180,000 GPU-hours of H800 for each trillion tokens, stops and shorter batches included."""
    words = {"pp": (16,), "ep": (64,), "schedule": (int(Schedule.DUALPIPE),), "recompute": (1,)}
    request = Request(
        "deepseek-v3",
        "deepseek-h800",
        2048,
        seq_len=4096,
        global_batch="15360",
        precision="fp8",
        stack="hai-llm-2024",
        set=words,
    )
    plan = make_estimate(request)
    assert plan.choices[0].tokens_per_second_per_device == pytest.approx(1e12 / 180e3 / 3600, rel=0.25)
    exchange = plan.choices[0].time["ep_comm"]
    alone = make_estimate(replace(request, set={**words, "schedule": (int(Schedule.ONE_F_ONE_B),)}))
    assert exchange < 0.25 * alone.choices[0].time["ep_comm"]

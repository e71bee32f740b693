"""Are leads that rest on balanced experts and better numbers of nodes named where they are, and only there?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.answer.estimate import make_estimate
from planner.answer.rivals import balanced_lead
from planner.answer.spare_nodes import rounder_counts, with_spare_nodes
from planner.answer.stopping import Stopwatch
from planner.ask.request import Request, cost_model, resolve
from planner.report.words import line_of, text_of
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.planfile import Choice, Plan

SMALL = Request("llama-3.1-8b", "2x8 h100 400G-ib", seq_len=8192, global_batch="64")


@pytest.fixture(scope="module")
def small_plan() -> Plan:
    plan = make_estimate(replace(SMALL, set={"tp": (2,), "pp": (1,)}))
    return plan.model_copy(update={"smallest_change": ()})


def with_axes(choice: Choice, slower: float = 0.0, **axes: int) -> Choice:
    config = choice.config.model_copy(update=axes)
    return choice.model_copy(update={"config": config, "step_time": choice.step_time * (1 + slower)})


def test_a_lead_that_rests_on_balanced_experts_is_said(small_plan: Plan) -> None:
    problem, _ = resolve(
        Request(
            "Qwen/Qwen3-30B-A3B",
            "16x8 h100 400G-ib",
            seq_len=4096,
            global_batch="256",
            expert_loads="balanced",
        )
    )
    wide = ParallelConfig(dp=128, ep=64, micro_batch=1, zero=1, num_microbatches=2)
    plain = with_axes(small_plan.choices[0], tp=1, cp=1, pp=1, vpp=1)
    first, near = with_axes(plain, ep=64), with_axes(plain, 0.02, ep=8)
    (said,) = balanced_lead(problem, wide, [first, with_axes(plain, 0.01, ep=32), near], cost_model)
    assert text_of(said).startswith("its 2.0% lead over #3 (")
    more = round(float(str(said.values["undone_by"])), 2)
    uneven = replace(problem, job=replace(problem.job, expert_imbalance=1 + more))
    even_time, uneven_time = (
        cost_model(each).evaluate(ConfigTable.of([wide])).step_time[0] for each in (problem, uneven)
    )
    assert uneven_time / even_time == pytest.approx(1.02, abs=0.005)
    assert balanced_lead(problem, wide, [first, with_axes(plain, 0.1, ep=8)], cost_model) == ()
    assert balanced_lead(uneven, wide, [first, near], cost_model) == ()  # the loads were given
    assert balanced_lead(problem, replace(wide, ep=8), [near, near], cost_model) == ()


def test_rounder_numbers_of_nodes() -> None:
    assert rounder_counts(127, 8) == (125, 120)
    assert rounder_counts(13, 8) == (12,)
    assert rounder_counts(11, 8) == (10, 9)
    assert [n for n in range(1, 33) if rounder_counts(n, 8)] == [11, 13, 17, 19, 22, 23, 26, 29, 31]


def test_numbers_of_nodes_whose_devices_divide_the_batch_better() -> None:
    assert rounder_counts(9, 8, 512) == (8,)
    assert rounder_counts(18, 4, 512) == (16,)
    assert rounder_counts(9, 8, 504) == ()  # 72 devices divide 504
    assert rounder_counts(8, 8, 512) == ()  # none of the fewer does better
    assert rounder_counts(8, 8, 500) == (5,)  # 40 devices share 20 with it, 64 share 4
    assert rounder_counts(9, 8) == ()  # a batch that nobody stated follows
    assert rounder_counts(1, 8, 7) == ()
    assert rounder_counts(96, 8, 512) == (64,)  # 768 devices share 256 with it, as 672 to 760 do at most
    assert rounder_counts(96, 8, 768) == ()


def test_a_few_nodes_fewer_are_advised_where_they_train_faster(small_plan: Plan) -> None:
    def plan_on(devices: int, faster: float = 0.0) -> Plan:
        subject, choice = small_plan.subject, small_plan.choices[0]
        cluster = subject.cluster.model_copy(update={"devices": devices})
        rate = choice.tokens_per_second_per_device * 104 / devices * (1 + faster)
        choice = choice.model_copy(update={"tokens_per_second_per_device": rate})
        subject = subject.model_copy(update={"cluster": cluster})
        return small_plan.model_copy(update={"subject": subject, "choices": (choice,)})

    def advised(devices: int, faster: float) -> str:
        watch, whole = Stopwatch(), plan_on(devices)
        found = with_spare_nodes(whole, SMALL, lambda asked: plan_on(asked.gpus or 0, faster), watch)
        return line_of(found.smallest_change)

    assert advised(104, 0.05).startswith("96 devices would take ")
    assert advised(104, 0.05).endswith("leave a node as a spare")
    assert advised(104, 0.005) == ""
    assert advised(64, 0.05) == ""
    assert advised(96, 1e-6).startswith("64 devices would take ")  # a third fewer, as fast
    assert advised(96, -0.01) == ""


def test_fewer_nodes_that_are_nearly_as_fast_are_planned_in_full(small_plan: Plan) -> None:
    asked: list[bool] = []

    def plan_of(request: Request) -> Plan:
        asked.append(request.thorough)
        subject, choice = small_plan.subject, small_plan.choices[0]
        devices = request.gpus or 0
        cluster = subject.cluster.model_copy(update={"devices": devices})
        slower = 1.0 if request.thorough or devices == 96 else 0.98
        rate = choice.tokens_per_second_per_device * 96 / devices * slower * (1 + 1e-6 * (devices < 96))
        choice = choice.model_copy(update={"tokens_per_second_per_device": rate})
        subject = subject.model_copy(update={"cluster": cluster})
        return small_plan.model_copy(update={"subject": subject, "choices": (choice,)})

    whole = plan_of(replace(SMALL, gpus=96))
    asked.clear()
    told = with_spare_nodes(whole, SMALL, plan_of, Stopwatch())
    assert line_of(told.smallest_change).startswith("64 devices ")
    assert asked == [False, True]

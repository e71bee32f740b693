"""Is what each objective answers the least of all there is, where everything can be looked at?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.answer.objective import plan_with_size, sooner
from planner.answer.outcome import hold_batch
from planner.answer.plan import make_plan
from planner.answer.size import Goal, size_cluster
from planner.ask.request import Request, cost_model, resolve
from planner.campaign.run import run_facts
from planner.catalog.load_campaign import load_assumptions
from planner.cost.host_memory import on_host
from planner.cost.simulated import evaluate_exactly
from planner.report.proof import cautions
from planner.report.words import text_of
from planner.solve.pareto import NEAR_MOST_ROOM
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.space.members import members
from planner.spec.planfile import Objective
from planner.spec.verdict import MemoryRoom

# without pipelines there is no split to solve, and the equations are the whole answer
REQUEST = Request(
    "llama-3.1-8b", "4x8 h100 400G-ib", None, seq_len=4096, global_batch="64", tokens=1e12, set={"pp": (1,)},
    headroom=0.05, assume=("price=2.5 $/h", "power=700 W"),
)  # fmt: skip


def everything(request: Request) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Step time and memory of every legal configuration under any options of the stack that fits, sure of the error or,
    where none is, at all."""
    problem, _ = resolve(request)
    (searched,) = members(problem, request.restrict, request.without)  # an option that is always on
    table = enumerate_configs(searched, rules_for(searched.stack), request.restrict, request.without).table()
    model = cost_model(searched)
    cost, room = evaluate_exactly(model, table), MemoryRoom.of(problem, request.headroom)
    for allowed in room.tiers:
        fits = (cost.device_memory <= allowed) & on_host(model, table)
        if fits.any():
            break
    return cost.step_time[fits], cost.device_memory[fits]


def test_headroom_leaves_most_memory() -> None:
    request = replace(REQUEST, gpus=16, objective="headroom")
    time, memory = everything(request)
    plan = make_plan(request)
    best = plan.choices[0]
    near = memory <= memory.min() + NEAR_MOST_ROOM * best.memory.limit
    assert best.step_time == pytest.approx(float(time[near].min()))
    assert best.memory.peak <= memory.min() + NEAR_MOST_ROOM * best.memory.limit
    peaks = [choice.memory.peak for choice in plan.choices]
    assert peaks == sorted(peaks), "faster ones behind it, by falling room"
    assert not plan.smallest_change, "what would make it faster is no help"
    assert not [said for said in cautions(plan) if "faster" in said]


def test_a_little_room_is_no_reason_to_take_a_far_slower_one() -> None:
    """Of 8B parameters on 64 devices, tp 32 leaves 0.2 GiB more than tp 8, and takes four times as long."""
    best = make_plan(Request("llama-3.1-8b", "dgx-h100", gpus=64, objective="headroom")).choices[0]
    assert best.config.tp <= 8
    assert best.mfu > 0.15


def test_step_time_is_the_least() -> None:
    request = replace(REQUEST, gpus=16)
    time, _ = everything(request)
    assert make_plan(request).choices[0].step_time == pytest.approx(float(time.min()))


@pytest.mark.parametrize("objective", ["cost", "energy", "gpus"])
def test_sizes_are_compared_by_what_the_best_of_each_takes(objective: str) -> None:
    held, _ = hold_batch(REQUEST)
    values = {}
    for point in size_cluster(REQUEST, Goal.MIN).tried:
        asked = replace(held, gpus=point.gpus)
        time, _ = everything(asked)
        if len(time):
            run = run_facts(float(time.min()), resolve(asked)[0], load_assumptions(REQUEST.assume))
            assert run is not None
            values[point.gpus] = {"cost": run.cost, "energy": run.energy, "gpus": float(point.gpus)}[
                objective
            ]
    found = plan_with_size(replace(REQUEST, objective=objective))
    best = min(values, key=lambda gpus: (values[gpus], gpus))
    assert len(values) > 1
    assert found.subject.cluster.devices == best
    proof = found.search.certificate
    assert proof is not None
    assert proof.best == pytest.approx(values[best])


def test_the_cheapest_says_what_ends_sooner() -> None:
    request = replace(REQUEST, objective="cost")
    points = [
        point for point in size_cluster(replace(request, objective="step_time"), Goal.MIN).tried if point.best
    ]
    best = min(points, key=lambda point: point.cost)
    fastest = min(points, key=lambda point: point.days)
    (said,) = sooner(points, best, Objective.COST)
    assert best.gpus < fastest.gpus
    assert (
        f"{fastest.gpus} devices in {fastest.days:,.1f} days for {fastest.cost / best.cost - 1:.0%} more"
        in text_of(said)
    )
    assert said in plan_with_size(request).smallest_change
    assert sooner(points, fastest, Objective.COST) == ()
    assert sooner(points, best, Objective.GPUS) == ()

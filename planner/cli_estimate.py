"""What does `planner estimate` estimate: a configuration in words, or one of a plan file?

Left out: how it is costed (`plan.py`), printing and exit codes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.request import Request
    from planner.spec.planfile import Plan
    from planner.spec.rule import Problem


def estimated(request: Request, index: int | None, gpus: int | None) -> tuple[Plan, Problem, tuple[str, ...]]:
    """The estimate that is asked for, of which problem, and what was assumed. Raises `PlannerError`."""
    from planner.estimate import make_estimate
    from planner.request import resolve

    if not request.cluster:
        return _of_plan(request, index or 0, gpus)
    if index is not None:
        raise InputError("--choice belongs to a plan file", f"--choice {index}", "planner estimate plan.json")
    return make_estimate(request), *resolve(request)


def _of_plan(request: Request, index: int, gpus: int | None) -> tuple[Plan, Problem, tuple[str, ...]]:
    """One configuration of a plan file, costed anew under the split that the plan gives it."""
    from dataclasses import replace

    from planner.catalog.load_campaign import load_assumptions
    from planner.cli_trace import check_same, planned_problem
    from planner.estimate import estimate_of
    from planner.request import Request
    from planner.spec.load_plan import load_plan

    name, started = request.model, time.perf_counter()
    if not (name.endswith(".json") and Path(name).is_file()):
        must = "an estimate needs MODEL and CLUSTER, or a file of planner plan -o"
        raise InputError(must, name, 'write it like: planner estimate llama-3.1-8b "1x8 h100" --set tp=2')
    usual = replace(
        Request(name, ""), calibration=request.calibration, assume=request.assume, tokens=request.tokens
    )
    if request != usual or gpus is not None:
        must = "a plan file says the job, the stack and the configuration"
        raise InputError(
            must, "other options", "leave all but --choice, --memory, --calibration and --assume out"
        )
    plan = load_plan(name)
    if not plan.choices:
        must = "a plan file must hold a configuration"
        raise InputError(must, f"{name}: nothing fits in it", "plan again with more devices or another --set")
    if not 0 <= index < len(plan.choices):
        must = f"--choice must be from 0 to {len(plan.choices) - 1}, the configurations of this plan"
        raise InputError(must, str(index), "0 is the best one")
    planned = plan.choices[index]
    calibration = None if request.calibration is None else Path(request.calibration)
    problem = planned_problem(plan, None, calibration)
    campaign = load_assumptions(request.assume)
    if campaign.record("checkpoint_writing").given:
        problem = replace(problem, job=replace(problem.job, checkpoint_staged=campaign.stages_checkpoints))
    chunks = planned.split.layers_per_chunk if planned.split else ()
    said = (f"configuration {index} of {name}, costed anew",)
    asked = replace(request, headroom=plan.headroom)
    found = estimate_of(problem, planned.config.parallel(), chunks, asked, said, started)
    for choice in found.choices:
        check_same(planned, choice.step_time)
    return found, problem, said

"""What does `planner estimate` estimate: a configuration in words, or one of a plan file, there or elsewhere?

Left out: how it is costed (`answer/estimate.py`), printing and exit codes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.ask.option import Group, as_written, options_of
from planner.ask.question import Question
from planner.dialect import option
from planner.errors import FileInputError, InputError
from planner.spec.findings import Finding, finding

if TYPE_CHECKING:
    from planner.spec.config import ParallelConfig
    from planner.spec.planfile import Choice, Plan
    from planner.spec.rule import Problem

_NO_PLAN = "an estimate needs MODEL and CLUSTER, or a file of planner plan -o"
_HINT = 'write it like: planner estimate llama-3.1-8b "1x8 h100" --set tp=2'


def estimated(
    request: Question, index: int | None, other: str | None
) -> tuple[Plan, Problem | None, tuple[Finding, ...]]:
    """The estimate that is asked for, of which problem, and what was assumed; of a plan file its `index`-th
    configuration, on the cluster that `other` names. Without a problem only where nothing fits in the plan file.

    Raises `PlannerError`.
    """
    from planner.answer.estimate import make_estimate
    from planner.ask.request import resolve

    if not request.cluster:
        return _of_plan(request, index or 0, other)
    if index is not None:
        raise InputError("--choice belongs to a plan file", f"--choice {index}", "planner estimate plan.json")
    if other is not None:
        must, hint = "--cluster belongs to a plan file", "planner estimate plan.json --cluster dgx-b200"
        raise InputError(must, f"--cluster {other}", hint)
    return make_estimate(request), *resolve(request)


def _of_plan(
    request: Question, index: int, other: str | None
) -> tuple[Plan, Problem | None, tuple[Finding, ...]]:
    """One configuration of a plan file, costed anew under the split that the plan gives it; the plan as it is where it
    holds none."""
    from planner.answer.estimate import estimate_of
    from planner.answer.launchable import with_launch_note
    from planner.ask.planned import check_same, planned_loads, planned_problem, planned_question
    from planner.ask.request import batches_of_run
    from planner.catalog.load_campaign import load_assumptions

    started = time.perf_counter()
    plan, changed = _plan_of(request)
    if not plan.choices:
        return plan, None, ()
    planned = plan.choice(index)
    chunks = planned.split.layers_per_chunk if planned.split else ()
    asked, gpus = planned_question(plan, **changed), changed.get("gpus")
    calibration = _path(asked.calibration)
    said: tuple[Finding, ...] = (
        finding("evaluated_again", place=index, plan=request.model),
        *planned_loads(plan),
    )
    config = planned.config.parallel()
    if other is None:
        problem = planned_problem(plan, planned, None, calibration)
        for choice in estimate_of(problem, config, chunks, asked, said, started).choices:
            check_same(planned, choice.step_time)
    if other is not None or gpus not in (None, plan.subject.cluster.devices):
        problem, moved = _elsewhere(plan, planned, other, gpus, calibration)
        config, dealt = _on_devices(config, problem)
        said += (*moved, *dealt)
    campaign, job = load_assumptions(asked.assume), problem.job
    if campaign.record("checkpoint_writing").given:
        job = replace(job, checkpoint_staged=campaign.stages_checkpoints)
    tokens = job.tokens if asked.tokens is None else asked.tokens
    batches = batches_of_run(asked, job.seq_len, problem.cluster.num_devices)
    problem = replace(problem, job=replace(job, tokens=tokens, **batches))
    found = estimate_of(problem, config, chunks, asked, said, started)
    found = found.model_copy(update={"asked": as_written(asked)})
    return with_launch_note(found, problem.model, problem.stack), problem, said


def _plan_of(request: Question) -> tuple[Plan, dict[str, Any]]:
    """The plan that a request names, and what its question is changed by. Raises `InputError`."""
    from planner.spec.load_plan import load_plan

    name = request.model
    if name.endswith(".json") and not Path(name).exists():
        raise FileInputError(
            name, "the file must exist", hint="write one with: planner plan ... -o plan.json"
        )
    if not (name.endswith(".json") and Path(name).is_file()):
        raise InputError(_NO_PLAN, name, _HINT)
    changed = {key: value for key, value in as_written(request).items() if key not in ("model", "cluster")}
    free = of_run()
    if others := [option(key) for key in changed if key not in free]:
        must = "a plan file says the job, the stack and the configuration"
        kept = ", ".join(("--choice", "--cluster", *map(option, free), "--memory"))
        raise InputError(must, ", ".join(others), f"leave all but {kept} out")
    return load_plan(name), changed


def of_run() -> tuple[str, ...]:
    """Options that may change under one configuration: of its devices, their memory, the whole run and what was
    measured there, but for the experts' loads, which are the job's."""
    groups = (Group.GOAL, Group.MEMORY, Group.RUN)
    return tuple(
        name
        for name, one in options_of(Question).items()
        if one.group in groups or (one.group is Group.MEASURED and one.reader.is_file)
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _elsewhere(
    plan: Plan, choice: Choice, other: str | None, gpus: int | None, calibration: Path | None
) -> tuple[Problem, tuple[Finding, ...]]:
    """The plan's problem on another cluster, or on more or fewer devices of its own, and what is then assumed.

    Raises `PlannerError`, such as for more devices than there are, or for a number format that they lack.
    """
    from planner.ask.planned import planned_cluster, problem_on
    from planner.catalog.load_stacks import load_stack
    from planner.spec.machine.device_kernels import missing_kernels, require_recipe
    from planner.spec.machine.load_cluster import load_cluster
    from planner.spec.machine.topology import said_of_host

    given = plan.subject.cluster
    count = gpus or given.devices
    machine = planned_cluster(given, count) if other is None else load_cluster(other, count)
    problem, chip = problem_on(plan, choice, machine, calibration), machine.accelerator
    require_recipe(problem.stack, chip, problem.job.precision)
    moved = finding(
        "moved", devices=machine.num_devices, accelerator=chip.name, cluster=machine.name,
        planned_devices=given.devices, planned_accelerator=given.accelerator, planned_cluster=given.name,
    )  # fmt: skip
    missing = missing_kernels(load_stack(choice.stack), problem.model, chip, problem.job.precision)
    return problem, (moved, *machine.assumed, *missing, *said_of_host(problem.cluster))


def _on_devices(config: ParallelConfig, problem: Problem) -> tuple[ParallelConfig, tuple[Finding, ...]]:
    """The configuration on as many devices as there are: data parallelism alone follows, as in a launch, and with it
    the micro-batches of a step, whose batch stays. Raises `InputError` where the devices are no multiple."""
    devices, model = problem.cluster.num_devices, config.tp * config.cp * config.pp
    if model * config.dp == devices:
        return config, ()
    if devices % model:
        must = f"--gpus must be a multiple of the configuration's tp x cp x pp, {model}"
        raise InputError(must, str(devices), f"--gpus {max(devices // model, 1) * model}, say")
    dp = devices // model
    micro = max(problem.job.global_batch // (dp * config.micro_batch), 1)
    said = finding(
        "follows_devices", dp=dp, planned_dp=config.dp, num_microbatches=micro,
        planned_num_microbatches=config.num_microbatches,
    )  # fmt: skip
    return replace(config, dp=dp, num_microbatches=micro), (said,)

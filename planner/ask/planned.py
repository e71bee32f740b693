"""What was a plan made for? Model, cluster and job, and the stack of each of its choices, read again from its file.

A plan holds the model and the cluster of a user's own files, so that it can be moved; what planner ships, it names.
Left out: the answer itself (`spec/planfile.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from planner.ask.option import options_of
from planner.ask.question import Question
from planner.ask.routing import LOADS_ASSUMED
from planner.catalog.load_operations import posed
from planner.catalog.load_overlay import calibrated, load_overlay
from planner.catalog.load_stacks import load_stack
from planner.cost.params import model_parameters
from planner.dialect import option
from planner.errors import InputError, PlannerError
from planner.frameworks.layout import chunk_layers
from planner.spec.config import FOLDED_SCHEDULES
from planner.spec.findings import Finding
from planner.spec.load_model import described_model, load_model
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.load_cluster import described_cluster, load_cluster
from planner.spec.model import ModelSpec
from planner.spec.planfile import Choice, Plan
from planner.spec.rule import Problem
from planner.spec.subject import ClusterFacts

SAME: Final = 1e-6  # relative: a step time recomputed from the plan's parts
_NAME_IT: Final = f"name the plan's cluster with {option('cluster')}"


def planned_model(plan: Plan) -> ModelSpec:
    """The model a plan was made for, known by its number of parameters. Raises `InputError`."""
    facts = plan.subject.model
    where = facts.name if facts.source.startswith("catalog/models/") else facts.source
    counts = []
    for with_mtp in (False, True):
        if facts.described:
            model = described_model(facts.described, facts.name, facts.source, with_mtp)
        else:
            model = load_model(where, with_mtp)
        counts.append(model_parameters(model).total)
        if counts[-1] == facts.params_total:
            for choice in plan.choices:
                _check_layers(choice, model)
            return model
    must = (
        f"the model at {where} must be the one the plan was made for, with {facts.params_total:,} parameters"
    )
    raise InputError(must, f"{counts[0]:,} parameters", "make the plan again")


def planned_question(plan: Plan, **changed: Any) -> Question:
    """The question of a plan, of its model and cluster as they are called there, with options changed.

    Raises `InputError`."""
    subject, known = plan.subject, options_of(Question)
    asked = {"model": subject.model.name, "cluster": subject.cluster.name, **plan.asked, **changed}
    return Question(**{name: value for name, value in asked.items() if name in known})


def _check_layers(choice: Choice, model: ModelSpec) -> None:
    """Raise `InputError` unless the places where a configuration says what its stages hold agree."""
    if not choice.layout:
        return
    pp, vpp, said = choice.config.pp, choice.config.vpp, choice.layers_per_stage
    dealt = chunk_layers(model.num_layers, pp, vpp, (), choice.layout)
    other = choice.split.layers_per_chunk if choice.split is not None else dealt
    folded = choice.config.parallel().schedule in FOLDED_SCHEDULES  # rank r holds chunks r and 2 pp - 1 - r
    stages = said if folded or not said else tuple(sum(dealt[rank::pp]) for rank in range(pp))
    if (dealt, said) != (other, stages):
        given = f"{choice.layout}, {','.join(map(str, said))} and {','.join(map(str, other))}"
        hint = (
            f"make the plan again; planner estimate ... {option('set', 'layout=')} costs a split of your own"
        )
        raise InputError("layout, layers_per_stage and split of a plan must say the same", given, hint)


def planned_problem(
    plan: Plan, choice: Choice, cluster: str | None = None, calibration: Path | None = None
) -> Problem:
    """Model, cluster, job and stack that a choice of a plan is for. Raises `PlannerError` for what can no longer be
    read."""
    return problem_on(plan, choice, planned_machine(plan, cluster), calibration)


def planned_machine(plan: Plan, cluster: str | None = None) -> Cluster:
    """The devices that a plan was made for. Raises `InputError`.

    `cluster`: its words, for a plan of a cluster file that does not hold it.
    """
    facts = plan.subject.cluster
    try:
        machine = (
            planned_cluster(facts, facts.devices) if cluster is None else load_cluster(cluster, facts.devices)
        )
    except PlannerError as error:
        given = f"{cluster or facts.name!r}: {' '.join(error.must.split())}"
        named = f"{option('cluster', 'FILE.yaml')} or {option('cluster', '4x8 h100 400G-ib')}"
        hint = f"name it as when the plan was made: {named}"
        raise InputError("the cluster of the plan must be readable", given, hint) from None
    if machine.accelerator.name != facts.accelerator:
        must = f"the cluster must have the plan's accelerators, {facts.accelerator}"
        raise InputError(must, machine.accelerator.name, _NAME_IT)
    found = ClusterFacts.of(machine)
    if found.tiers != facts.tiers:
        must = f"the cluster must have the plan's links, {_links(facts)}"
        raise InputError(must, _links(found), f"{_NAME_IT}, or make the plan again")
    return machine


def planned_cluster(facts: ClusterFacts, gpus: int) -> Cluster:
    """The first `gpus` devices of the cluster of a plan. Raises `InputError`."""
    if facts.described:
        return described_cluster(facts.described, facts.name, gpus)
    return load_cluster(facts.name, gpus)


def planned_loads(plan: Plan) -> tuple[Finding, ...]:
    """What a plan assumes of its experts' loads, which are its job's: empty for older files, which say it in words."""
    return tuple(one for one in plan.assumptions if one.code in LOADS_ASSUMED)


def _links(facts: ClusterFacts) -> str:
    return ", ".join(f"{t.name} of {t.devices:,} at {t.bandwidth / 1e9:g} GB/s" for t in facts.tiers)


def problem_on(plan: Plan, choice: Choice, machine: Cluster, calibration: Path | None = None) -> Problem:
    """What a choice of a plan is for, on a cluster which need not be the plan's. Raises `PlannerError`."""
    stack, model = load_stack(choice.stack), planned_model(plan)
    file = calibration or planned_question(plan).calibration
    if file is not None:
        overlay = load_overlay(str(file))
        stack, machine = calibrated(stack, overlay), overlay.of_cluster(machine)
    job = plan.subject.job.job()
    return posed(model, machine, job, stack)


def check_same(choice: Choice, now: float) -> None:
    """Raise `InputError` unless the plan's step time is what is predicted now [s]."""
    if abs(now - choice.step_time) > SAME * choice.step_time:
        must = "the step time of the plan must be what planner predicts for its model, cluster and stack now"
        hint = f"{_NAME_IT} and its calibration with {option('calibration')}, or make the plan again"
        raise InputError(must, f"{choice.step_time:.6g} s, now {now:.6g} s", hint)

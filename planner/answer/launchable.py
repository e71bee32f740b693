"""Can the framework that a plan was made for be launched with it? A note where its files cannot state it.

The rules of the search speak of degrees; a launcher also refuses models, number formats and optimizers. Left out:
frameworks that planner writes no files for, and configurations of the plan other than its best.
"""

from __future__ import annotations

from planner.errors import PlannerError
from planner.frameworks import framework_of_stack
from planner.frameworks.framework import launch_of
from planner.spec.findings import finding
from planner.spec.model import ModelSpec
from planner.spec.planfile import Plan
from planner.spec.stack import Stack


def with_launch_note(plan: Plan, model: ModelSpec, stack: Stack) -> Plan:
    """The plan, and at its head why no release of its own framework can be written for its best configuration, or
    among what is assumed, first, which other than the usual one can."""
    framework = framework_of_stack(plan.subject.stack.framework)
    if framework is None or not plan.choices:
        return plan
    usual = framework.default_version
    refused: PlannerError | None = None
    for version in (usual, *(v for v in reversed(framework.versions) if v != usual)):
        try:
            framework.render(launch_of(plan, 0, model, stack), version)
        except PlannerError as error:
            refused = refused or error
        else:
            break
    else:
        version = ""
    if version == usual:
        return plan
    assert refused is not None, "by the usual one"
    why = {"must": refused.must, "given": refused.given or None, "framework": framework.title}
    if not version:
        return plan.model_copy(update={"headline": (*plan.headline, finding("no_launch_files", **why))})
    note = finding("launched_otherwise", **why, version=version, usual=usual)
    return plan.model_copy(update={"assumptions": (note, *plan.assumptions)})

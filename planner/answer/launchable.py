"""Can the framework that a plan was made for be launched with it? A note where its files cannot state it.

The rules of the search speak of degrees; a launcher also refuses models, number formats and optimizers. Left out:
frameworks that planner writes no files for, and configurations of the plan other than its best.
"""

from __future__ import annotations

from typing import Final

from planner.errors import PlannerError
from planner.frameworks import framework_of_stack
from planner.frameworks.framework import launch_of
from planner.spec.model import ModelSpec
from planner.spec.planfile import Plan
from planner.spec.stack import Stack

WITHOUT_FILES: Final = "planner export cannot write launch files for this plan"


def with_launch_note(plan: Plan, model: ModelSpec, stack: Stack) -> Plan:
    """The plan, and among what is assumed, first, why no release of its own framework can be written for its best
    configuration, or which other than the usual one can."""
    framework = framework_of_stack(plan.subject.stack.framework)
    if framework is None or not plan.choices:
        return plan
    usual = framework.default_version
    refused = ""
    for version in (usual, *(v for v in reversed(framework.versions) if v != usual)):
        try:
            framework.render(launch_of(plan, 0, model, stack), version)
        except PlannerError as error:
            refused = refused or ", given ".join(part for part in (error.must, error.given) if part)
        else:
            break
    else:
        version = ""
    if version == usual:
        return plan
    note = f"{WITHOUT_FILES} ({framework.title}): {refused}"
    if version:
        how = f"planner export --framework-version {version}"
        note = f"launched with {framework.title} {version} ({how}), not {usual}: {refused}"
    return plan.model_copy(update={"assumptions": (note, *plan.assumptions)})

"""What does `planner explain` do? Reads a plan, and says where its parallelism lives and why it is not another.

Left out: how a configuration is placed and what stopped others (`solve/`), and how it looks (`report/explanation.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import (
    FASTEST,
    CalibrationOption,
    ChoiceOption,
    ClusterOption,
    JsonOption,
    PlanArgument,
)
from planner.cli.output import progress, tell
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.cli.campaign import Answer
    from planner.spec.planfile import Plan

RankOption = Annotated[
    int | None, typer.Option("--rank", metavar="R", help="Show the process groups of this rank (default: 0).")
]
WhyNotOption = Annotated[
    str | None,
    typer.Option("--why-not", metavar="AXIS=V,...", help="Why the plan is not this, such as tp=8,pp=4."),
]
EPILOG = "\b\nExample:\n  planner explain plan.json --rank 777 --why-not tp=8,pp=16"


def explain(
    plan: PlanArgument,
    rank: RankOption = None,
    why_not: WhyNotOption = None,
    choice: ChoiceOption = FASTEST,
    cluster: ClusterOption = None,
    calibration: CalibrationOption = None,
    as_json: JsonOption = False,
) -> int:
    """Explain a plan: rank layout, limits, what-ifs."""
    from planner.spec.load_plan import load_plan

    made = load_plan(plan)
    with progress("explaining"):
        answer = explain_plan(made, made.index(choice), rank, why_not, cluster, calibration)
    return tell(answer, as_json)


def explain_plan(
    plan: Plan,
    index: int = 0,
    rank: int | None = None,
    why_not: str | None = None,
    cluster: str | None = None,
    calibration: Path | None = None,
) -> Answer:
    """The explanation of one configuration of a plan. Raises `PlannerError`."""
    from planner.ask.planned import planned_loads, planned_problem
    from planner.ask.request import cost_model
    from planner.cli.campaign import Answer
    from planner.cost.model import CostModel
    from planner.cost.simulated import simulator_of
    from planner.report.explanation import Explanation, explanation_document, explanation_facts
    from planner.report.outcome import routing_of
    from planner.report.text import plan_document
    from planner.report.words import worded
    from planner.solve import alternatives
    from planner.solve.in_sight import with_exposed
    from planner.solve.place import layout_of, place
    from planner.space.enumerate import enumerate_configs
    from planner.space.framework_rules import all_rules_for, rules_for
    from planner.space.restriction import parse_restriction
    from planner.spec.findings import finding
    from planner.spec.verdict import MemoryRoom

    if not plan.choices:  # why there is none is all that there is to explain
        return Answer(False, plan.model_dump(mode="json"), plan_document(plan))
    chosen = plan.choice(index)
    problem = planned_problem(plan, chosen, cluster, calibration)
    config, model = chosen.config.parallel(), cost_model(problem)
    dealt = model if chosen.split is None else model.with_split(chosen.split.layers_per_chunk)
    devices = config.tp * config.cp * config.pp * config.dp
    if rank is not None and not 0 <= rank < devices:
        raise InputError(f"--rank must be from 0 to {devices - 1}", str(rank), "ranks are numbered from 0")
    named = None if why_not is None else parse_restriction([why_not], "why_not")
    shown = 0 if rank is None else rank
    stage = layout_of(problem, config).place_of(shown).get("pp", 0)
    search_rules = rules_for(problem.stack)
    room = MemoryRoom.of(problem, plan.headroom)
    weigher = alternatives.Weigher(
        model, simulator_of(model), all_rules_for(problem.stack.framework), room.allowed(chosen.memory.peak)
    )
    (planned,) = weigher.weigh([(finding("planned"), config)])
    if planned.step_time is None or planned.broken:
        raise InputError("the plan's configuration must be legal", config.describe(), "make the plan again")
    fixed = (f"{axis}={','.join(map(str, values))}" for axis, values in plan.search.restricted.items())
    space = enumerate_configs(problem, search_rules, parse_restriction(fixed))
    found = Explanation(
        choice=chosen,
        placement=with_exposed(dealt, place(dealt, config, stage), chosen.time),
        rank=shown,
        planned=planned,
        room=room,
        walls=alternatives.walls(weigher, planned, space),
        changes=alternatives.what_if(
            weigher, planned, lambda other: CostModel(other, model.kernels, model.links)
        ),
        why_not=None if named is None else alternatives.why_not(weigher, planned, named, search_rules),
        routing=(*planned_loads(plan), *routing_of(chosen)),
    )
    found = worded(found)
    return Answer(True, explanation_facts(found), explanation_document(found))

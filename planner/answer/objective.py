"""Which plan costs least, takes least energy, or needs fewest devices? The objectives that choose a size as well.

Tried are the sizes that `size.py` tries; at each of them the best configuration is proven. Left out: the sizes
between those, and objectives at a given size (`plan.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planner.answer.growth import Point
from planner.answer.plan import make_plan
from planner.answer.size import Goal, size_cluster
from planner.answer.stopping import Stopwatch
from planner.ask.option import as_written
from planner.ask.request import Request
from planner.dialect import option
from planner.errors import InputError
from planner.spec.findings import Finding, finding
from planner.spec.planfile import Certificate, Objective, Plan

HARDLY_MORE = 1.1  # of the least money or energy
MUCH_SOONER = 1.25  # times as long


def plan_with_size(request: Request) -> Plan:
    """The best plan under the objective of the request, one of `CHOOSES_SIZE`. Raises `PlannerError`."""
    objective = Objective(request.objective)
    if objective is not Objective.GPUS and request.tokens is None:
        raise InputError(
            f"the objective {objective} needs the length of the run", hint=f"add {option('tokens', '15.6T')}"
        )
    by_time, watch = replace(request, objective=Objective.STEP_TIME), Stopwatch(None)
    sizing = size_cluster(by_time, Goal.MIN)
    points = [point for point in sizing.tried if point.best is not None]
    if not points:
        return make_plan(by_time)
    best = min(points, key=lambda point: (_value(point, objective), point.gpus))
    value = _value(best, objective)
    if not math.isfinite(value):
        needs = {"cost": "price='2.50 $/h'", "energy": "power='700 W'"}[objective]
        raise InputError(
            f"the objective {objective} needs what it is made of",
            "none known",
            f"add {option('assume', needs)}",
        )
    plan = make_plan(replace(by_time, gpus=best.gpus, global_batch=str(best.batch)))
    sizes = [point.gpus for point in sizing.tried]
    said = finding("size_chosen", devices=best.gpus, sizes=sizes, objective=str(objective))
    certificate = plan.search.certificate
    assert certificate is not None, "a search has one"
    proven = _over_sizes(certificate, objective, value, said).model_copy(update={"seconds": watch.seconds()})
    search = plan.search.model_copy(update={"certificate": proven, "seconds": watch.seconds()})
    helps = (*sooner(points, best, objective), *plan.smallest_change)
    return plan.model_copy(
        update={
            "asked": as_written(request),
            "search": search,
            "assumptions": (said, sizing.batch, *plan.assumptions),
            "smallest_change": helps,
        }
    )


def sooner(points: Sequence[Point], best: Point, objective: Objective) -> tuple[Finding, ...]:
    """What ends earlier than the least of an objective, and for how much more of it: without a deadline few devices,
    which wait for each other least, take least money and energy, however long they take."""
    if objective is Objective.GPUS:
        return ()
    faster = [point for point in points if best.days >= MUCH_SOONER * point.days]
    near = [point for point in faster if _value(point, objective) <= HARDLY_MORE * _value(best, objective)]
    named = [min(some, key=lambda point: (point.days, point.gpus)) for some in (near, faster) if some]
    if not named:
        return ()
    named = list({point.gpus: point for point in named}.values())
    return (
        finding(
            "sooner", devices=best.gpus, days=best.days, others=tuple(point.gpus for point in named),
            others_days=tuple(point.days for point in named), quantity=str(objective),
            others_more=tuple(_value(point, objective) / _value(best, objective) - 1 for point in named),
        ),
    )  # fmt: skip


def _over_sizes(certificate: Certificate, objective: Objective, value: float, said: Finding) -> Certificate:
    """What is proven where sizes were tried: the configuration at each, not the sizes between them."""
    return certificate.model_copy(
        update={
            "objective": objective,
            "compared": (said, *certificate.compared),
            "best": value,
            "bound": None,
            "gap": None,
        }
    )


def _value(point: Point, objective: Objective) -> float:
    """What is to be least."""
    if objective is Objective.GPUS:
        return float(point.gpus)
    run = point.run
    found = None if run is None else run.cost if objective is Objective.COST else run.energy
    return math.inf if found is None else found

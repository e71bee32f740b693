"""Which of these clusters trains this model best? The best plan of each, side by side.

The devices of each cluster are given, so its fastest plan is also its cheapest and takes least energy. Left
out: how many devices to take (`size.py`), and clusters that mix accelerators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from planner.answer.outcome import best_of, hold_batch, run_days, why_nothing
from planner.answer.planners import Planners
from planner.ask.option import options_of, values_of
from planner.ask.question import ComparisonQuestion, Options
from planner.ask.request import Request
from planner.dialect import option
from planner.errors import FileInputError, InputError, PlannerError, UnknownNameError
from planner.spec.findings import Finding, one_line, refusal
from planner.spec.machine.load_cluster import accelerator_of, load_cluster
from planner.spec.planfile import Choice, Plan
from planner.spec.rows import COLUMNS, data_frame, plan_rows


class Objective(StrEnum):
    """What the clusters are ordered by."""

    STEP_TIME = "step_time"
    DAYS = "days"
    COST = "cost"
    ENERGY = "energy"


@dataclass(frozen=True)
class Standing:
    """One cluster: its plan, or the reason why there is none. `seconds`: what the answer took."""

    cluster: str
    accelerator: str
    gpus: int | None
    plan: Plan | None
    reason: tuple[Finding, ...]
    seconds: float

    @property
    def best(self) -> Choice | None:
        """The fastest configuration that fits."""
        return best_of(self.plan) if self.plan is not None else None

    def value(self, objective: Objective) -> float | None:
        """What the objective asks for: seconds, days, dollars or joules; None where it is not known."""
        best = self.best
        if best is None:
            return None
        if objective is Objective.STEP_TIME:
            return best.step_time
        if best.run is None:
            return None
        return {
            Objective.DAYS: run_days(best.run),
            Objective.COST: best.run.cost,
            Objective.ENERGY: best.run.energy,
        }[objective]


@dataclass(frozen=True)
class Comparison:
    """Clusters in the order of the objective; those without a plan last."""

    objective: Objective
    standings: tuple[Standing, ...]
    batch: Finding
    tokens: float | None

    @property
    def found(self) -> bool:
        """Can any of them train the model?"""
        return any(standing.best for standing in self.standings)

    def to_dataframe(self) -> Any:
        """A row for each cluster as a pandas data frame, in the order of the objective."""
        refused = dict.fromkeys(COLUMNS) | {"verdict": "refused"}
        rows = [
            (plan_rows(standing.plan)[0] if standing.plan else refused | {"gpus": standing.gpus})
            | {"cluster": standing.cluster, "reason": one_line(standing.reason)}
            for standing in self.standings
        ]
        return data_frame(rows)


def comparison_of(
    asked: ComparisonQuestion, say: Callable[[str], object] = lambda text: None, processes: int = 1
) -> Comparison:
    """The answer to a question about several clusters; of two or fewer in this process. Raises `InputError`."""
    request = Request(asked.model, "", **values_of(asked, options_of(Options)))
    workers = processes if len(asked.clusters) > 2 else 1
    return compare_clusters(request, asked.clusters, asked.gpus, asked.objective, say, workers)


def compare_clusters(
    request: Request,
    clusters: Sequence[str],
    gpus: Sequence[int] = (),
    objective: str = Objective.STEP_TIME,
    say: Callable[[str], object] = lambda text: None,
    processes: int = 1,
) -> Comparison:
    """The best plan of each cluster for one job. `gpus`: none (whole clusters), one for all, or one for each.

    `processes`: that work on it; several only where the program may be started again (`spawn`). A setting in
    `request.assume` may be for one cluster: "dgx-b200:price=5 $/h". Raises `InputError`.
    """
    goal = _objective(objective, request.tokens)
    if not clusters:
        raise InputError(
            "at least one cluster must be given", hint=f"add {option('clusters', 'dgx-h100,dgx-b200')}"
        )
    if len(gpus) not in (0, 1, len(clusters)):
        must = f"{option('gpus')} must be one number, or one for each of the {len(clusters)} clusters"
        raise InputError(must, ",".join(map(str, gpus)))
    counts = gpus if len(gpus) == len(clusters) else [0] * len(clusters)
    if len(set(zip(clusters, counts, strict=True))) < len(clusters):
        raise InputError("each cluster must be named once for a number of GPUs", ", ".join(clusters))
    settings = [_settings_for(cluster, clusters, request.assume) for cluster in clusters]
    numbers = [None if not gpus else gpus[0] if len(gpus) == 1 else gpus[i] for i in range(len(clusters))]
    sizes = [_devices(cluster, count) for cluster, count in zip(clusters, numbers, strict=True)]
    held, batch = hold_batch(request, [devices for devices in sizes if devices is not None])
    requests = [
        replace(held, cluster=cluster, gpus=count, assume=assume, top=1, front=False)
        for cluster, count, assume in zip(clusters, numbers, settings, strict=True)
    ]
    standings: list[Standing] = []
    errors: list[PlannerError] = []
    with Planners(min(processes, len(requests))) as planners:
        for one in requests:
            planners.foresee(one)
        for one in requests:
            say(f"comparing: {one.cluster}")
            standings.append(_standing(one, planners, errors))
    if len(errors) == len(clusters):
        raise errors[0]
    standings.sort(key=lambda standing: _rank(standing, goal))
    return Comparison(goal, tuple(standings), batch, request.tokens)


def _standing(request: Request, planners: Planners, errors: list[PlannerError]) -> Standing:
    started, device = time.perf_counter(), accelerator_of(request.cluster)
    try:
        plan = planners.plan(request)
    except (FileInputError, UnknownNameError):
        raise
    except PlannerError as error:
        errors.append(error)
        return Standing(
            request.cluster, device, request.gpus, None, (refusal(error),), time.perf_counter() - started
        )
    reason = () if plan.found else why_nothing(plan)
    devices = plan.subject.cluster.devices
    return Standing(request.cluster, device, devices, plan, reason, time.perf_counter() - started)


def _devices(cluster: str, gpus: int | None) -> int | None:
    """Devices of a cluster in a comparison; None where it has no such number, which its row says.

    Raises `InputError` for a name or file that cannot be read, before the work on the others.
    """
    try:
        return load_cluster(cluster, gpus).num_devices
    except (FileInputError, UnknownNameError):
        raise
    except PlannerError:
        return None


def _rank(standing: Standing, objective: Objective) -> tuple[int, float, float]:
    """Known values first, then plans without a value, then clusters without a plan; ties by step time."""
    value, best = standing.value(objective), standing.best
    step = best.step_time if best else 0.0
    return (0, value, step) if value is not None else (1 if best else 2, 0.0, step)


def _objective(text: str, tokens: float | None) -> Objective:
    known = [str(kind) for kind in Objective]
    if text.replace("-", "_") not in known:
        raise InputError(f"unknown objective {text!r}", hint="one of: " + ", ".join(known))
    goal = Objective(text.replace("-", "_"))
    if tokens is None and goal is not Objective.STEP_TIME:
        raise InputError(f"{goal} needs the length of the run", hint=f"add {option('tokens', '15.6T')}")
    return goal


def _settings_for(cluster: str, clusters: Sequence[str], settings: Sequence[str]) -> tuple[str, ...]:
    """The settings for all clusters and those that name this one before a colon. Raises `InputError`."""
    kept = []
    for setting in settings:
        name, colon, rest = setting.partition(":")
        if not colon or "=" in name:
            kept.append(setting)
        elif name not in clusters:
            raise UnknownNameError(f"cluster before the colon of {option('assume')}", name, clusters)
        elif name == cluster:
            kept.append(rest)
    return tuple(kept)

"""What do measured steps say of a stack? Predictions beside measurements, factors that shrink the gap, a calibration.

Left out: how steps are measured (`own_runs.py`), which numbers may move (`parts.py`) and the statistics
(`shrinkage.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.correction.parts import PARTS, SMALLEST, STEP, multiply_of, narrow_formats, prior_of
from planner.calibrate.correction.shrinkage import HOLDS_80, MOVED, Rows, Shrunk, shrink
from planner.calibrate.coverage import unmeasured_band
from planner.catalog.cluster_rates import rates_of
from planner.cost.model import CostModel
from planner.cost.pipeline.step import slow_mode_share
from planner.cost.simulated import evaluate_exactly
from planner.errors import InputError
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.overlay import Overlay, multiplied
from planner.spec.own_run import OwnRun
from planner.spec.rule import Problem
from planner.spec.stack import UNLIKE_BAND

Array = NDArray[np.float64]

# of a row's error over the logarithm of the stack's band, which holds 80 % of them
ROW: Final = 1 / HOLDS_80
LEAST_ROW: Final = 0.035
LARGEST_GAP: Final = math.log(4.0)  # beyond it something else than a slow machine is the matter
SAME_RUN: Final = 0.15  # relative: how far two measurements of one configuration may lie apart
LINEAR: Final = 0.02  # how far a step may lie from what its sensitivities say [log]
_ROUNDS: Final = 4
_ODD: Final = 4.0  # widths of a row's error


@dataclass(frozen=True)
class Observation:
    """One measured step. `name`: what the user calls the run; `seconds`: of one step."""

    name: str
    problem: Problem
    config: ParallelConfig
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """A calibration and how it came about. `before`, `after`: predicted steps [s], in the order of `observations`;
    `odd`: names of runs that the others contradict and that were set aside by their weight; `slow`: of those that were
    likely in their stack's slow mode."""

    overlay: Overlay
    observations: tuple[Observation, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    shrunk: Shrunk
    odd: tuple[str, ...]
    slow: tuple[str, ...] = ()


def predict_steps(observations: Sequence[Observation]) -> Array:
    """The predicted step of every observation (n,) [s]; those of one problem are evaluated as one table."""
    groups: dict[int, list[int]] = {}
    for index, seen in enumerate(observations):
        groups.setdefault(id(seen.problem), []).append(index)
    found = np.empty(len(observations))
    for members in groups.values():
        problem = observations[members[0]].problem
        model = CostModel(problem, *rates_of(problem.cluster))
        found[members] = evaluate_exactly(
            model, ConfigTable.of([observations[i].config for i in members])
        ).step_time
    return found


def row_width(problem: Problem) -> float:
    """Width of one row's error from the stack's band, wider for the mixtures of experts that it saw less of [log]."""
    wider = UNLIKE_BAND if problem.model.is_moe else 1.0
    return max(ROW * wider * math.log1p(problem.stack.band), LEAST_ROW)


def sensitivities(observations: Sequence[Observation]) -> Array:
    """Change of each run's log time with the log factor of each part (n, p), by central differences of the cost
    model's own prediction: bubbles, overlap and limits of the numbers are in it."""
    narrow = narrow_formats(seen.problem for seen in observations)
    columns = []
    for index in range(len(PARTS)):
        low, high = (
            predict_steps(_multiplied(observations, multiply_of(side * np.eye(len(PARTS))[index], narrow)))
            for side in (-STEP, STEP)
        )
        columns.append(np.log(high / low) / (2 * STEP))
    return np.array(columns).T


def factors_of(observations: Sequence[Observation], predicted: Array, told: Array) -> Shrunk:
    """The log factors that the observations speak for; `told` (n, p): their sensitivities.

    Where steps under the factors found are not what the sensitivities say, those are taken again there (Gauss-Newton).
    """
    narrow = narrow_formats(seen.problem for seen in observations)
    band = unmeasured_band(observations[0].problem)
    # where nothing was measured nothing that is shipped can hold
    prior, differs = prior_of(band), MOVED if band is None else 1.0
    rows = Rows(
        residuals=errors_of(observations, predicted),
        sensitivities=told,
        width=np.array([row_width(seen.problem) for seen in observations]),
        alike=alike(observations),
        slow=np.array([slow_share(seen) for seen in observations]),
    )
    found = shrink(rows, prior, differs)
    for _ in range(_ROUNDS):
        if not np.any(np.abs(found.mean) > STEP):
            return found
        there = _multiplied(observations, multiply_of(found.mean, narrow))
        left = errors_of(observations, predict_steps(there))
        if np.all(np.abs(rows.residuals - rows.sensitivities @ found.mean - left) < LINEAR):
            return found
        told = sensitivities(there)
        rows = replace(rows, residuals=left + told @ found.mean, sensitivities=told)
        found = shrink(rows, prior, differs)
    return found


def own_run(seen: Observation, factor: float = 1.0) -> OwnRun:
    """The configuration that a run speaks for."""
    return OwnRun.of(seen.problem.model, seen.problem.job, seen.config, factor)


def alike(observations: Sequence[Observation]) -> Array:
    """How alike the errors of the runs' configurations are, whatever their replicas (n, n)."""
    columns = ConfigTable.of([seen.config for seen in observations]).columns
    runs = [own_run(seen) for seen in observations]
    same = [[run.of_job(seen.problem.model, seen.problem.job) for seen in observations] for run in runs]
    return np.array(same) * np.array([run.likeness(columns) for run in runs])


def own_runs(observations: Sequence[Observation], shrunk: Shrunk) -> tuple[OwnRun, ...]:
    """What each configuration measured takes beyond the corrected prediction, those left out that take no more."""
    found: dict[str, OwnRun] = {}
    for seen, beyond in zip(observations, shrunk.own, strict=True):
        run = own_run(seen, round(math.exp(float(beyond)), 4))
        if abs(run.factor - 1) >= SMALLEST:
            found.setdefault(own_run(seen).model_dump_json(), run)
    return tuple(found.values())


def slow_share(seen: Observation) -> float:
    """Share of such runs that their stack's slow mode caught; 0 where it has none, or the run no pipeline."""
    known = seen.problem.stack.engine.message_when_full > 0 and seen.config.pp > 1
    return slow_mode_share(seen.problem.cluster.num_devices) if known else 0.0


def errors_of(observations: Sequence[Observation], predicted: Array) -> Array:
    """Measured over predicted time (n,) [log]."""
    return np.log(np.array([seen.seconds for seen in observations]) / predicted)


def _multiplied(observations: Sequence[Observation], factors: dict[str, float]) -> list[Observation]:
    stacks: dict[int, Problem] = {}
    for seen in observations:
        if id(seen.problem) not in stacks:
            stack = seen.problem.stack
            for path, factor in factors.items():
                stack = multiplied(stack, path, factor)
            stacks[id(seen.problem)] = replace(seen.problem, stack=stack)
    return [replace(seen, problem=stacks[id(seen.problem)]) for seen in observations]


def corrected(observations: Sequence[Observation], overlay: Overlay) -> list[Observation]:
    """The same runs on the calibrated stack and cluster."""
    problems: dict[int, Problem] = {}
    for seen in observations:
        of = seen.problem
        if id(of) not in problems:
            stack, cluster = overlay.of_stack(of.stack), overlay.of_cluster(of.cluster)
            problems[id(of)] = replace(of, stack=stack, cluster=cluster)
    return [replace(seen, problem=problems[id(seen.problem)]) for seen in observations]


def calibrate(observations: Sequence[Observation], name: str, date: str) -> Calibration:
    """A calibration from measured steps of one stack on one kind of device. Raises `InputError`."""
    check_agreement(observations)
    predicted = predict_steps(observations)
    check_gaps(observations, predicted)
    shrunk = factors_of(observations, predicted, sensitivities(observations))
    narrow = narrow_formats(seen.problem for seen in observations)
    first = observations[0].problem
    overlay = Overlay(
        name=name,
        date=date,
        level="L3",
        made_from=tuple(f"{seen.name}: {seen.seconds:.4g} s a step" for seen in observations),
        stack=first.stack.name,
        accelerator=first.cluster.accelerator.name,
        multiply=multiply_of(shrunk.mean, narrow),
        runs=own_runs(observations, shrunk),
        band=round(min(math.expm1(shrunk.band), 2.0), 4),
    )
    after = predict_steps(corrected(observations, overlay))
    odd = check_rest(observations, errors_of(observations, after))
    return Calibration(
        overlay=overlay,
        observations=tuple(observations),
        before=tuple(predicted.tolist()),
        after=tuple(after.tolist()),
        shrunk=shrunk,
        odd=odd,
        slow=tuple(seen.name for seen, chance in zip(observations, shrunk.slow, strict=True) if chance > 0.5),
    )


def check_agreement(observations: Sequence[Observation]) -> None:
    """Refuse runs that one calibration cannot hold for, or that contradict each other. Raises `InputError`."""
    if not observations:
        raise InputError("a calibration needs at least one measured step", "none", "give --log or --run")
    for what, names in (
        ("stack", {seen.problem.stack.name for seen in observations}),
        ("accelerator", {seen.problem.cluster.accelerator.name for seen in observations}),
    ):
        if len(names) > 1:
            hint = f"calibrate each {what} on its own"
            raise InputError(
                f"all runs of a calibration must have one {what}", ", ".join(sorted(names)), hint
            )
    for i, one in enumerate(observations):
        for other in observations[:i]:
            same = one.config == other.config and one.problem == other.problem
            if same and abs(math.log(one.seconds / other.seconds)) > math.log1p(SAME_RUN):
                given = (
                    f"{other.name}: {other.seconds:.4g} s, {one.name}: {one.seconds:.4g} s of the same "
                    "configuration"
                )
                raise InputError(
                    f"runs of one configuration must agree within {SAME_RUN:.0%}", given,
                    "find out which of the two was disturbed, and leave it out",
                )  # fmt: skip


def check_gaps(observations: Sequence[Observation], predicted: Array) -> None:
    """Refuse runs so far off that no calibration is meant. Raises `InputError`."""
    for seen, told, error in zip(observations, predicted, errors_of(observations, predicted), strict=True):
        if abs(error) > LARGEST_GAP:
            raise InputError(
                f"a measured step must lie within {math.exp(LARGEST_GAP):.0f} times of the predicted one",
                f"{seen.name}: measured {seen.seconds:.4g} s, predicted {told:.4g} s",
                "check the configuration and the batch; planner diagnose says what could be the cause",
            )


def check_rest(observations: Sequence[Observation], errors: Array) -> tuple[str, ...]:
    """Names of runs far off the others after the calibration. Raises `InputError` where they contradict."""
    wide = [row_width(seen.problem) for seen in observations]
    sizes = [error / width for error, width in zip(errors, wide, strict=True)]
    apart = max(sizes) - min(sizes)
    if len(sizes) == 2 and min(sizes) < 0 < max(sizes) and apart > 2 * _ODD:
        told = "; ".join(
            f"{s.name}: {abs(math.expm1(e)):.0%} {'slower' if e > 0 else 'faster'} than the other says"
            for s, e in zip(observations, errors, strict=True)
        )
        raise InputError("measurements must not contradict each other", told, "measure one of them again")
    if len(sizes) < 3:
        return ()
    middle = float(np.median(sizes))
    odd = [seen.name for seen, size in zip(observations, sizes, strict=True) if abs(size - middle) > _ODD]
    if 2 * len(odd) >= len(sizes):
        told = ", ".join(f"{s.name} {math.expm1(e):+.0%}" for s, e in zip(observations, errors, strict=True))
        raise InputError(
            "measurements must not contradict each other",
            f"after calibration still {told[:400]}",
            "check their configurations; planner diagnose looks at one of them",
        )
    return tuple(odd)

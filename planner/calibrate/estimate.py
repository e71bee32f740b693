"""What do measured steps say of a stack? Predictions beside measurements, factors that shrink the gap, a calibration.

The factors are few and physical: compute, communication, host floors, overhead of a step. Left out: how steps are
measured (`own_runs.py`) and the statistics (`shrinkage.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.answer import UNLIKE_BAND
from planner.calibrate.predict import rates_of
from planner.calibrate.shrinkage import PARTS, ROW, Shrunk, shrink
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.errors import InputError
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.overlay import Overlay
from planner.spec.rule import Problem

Array = NDArray[np.float64]

COMPUTE_TERMS: Final = ("gemm", "attention", "memory_bound", "recompute", "embedding_and_loss")
COMMUNICATION_TERMS: Final = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")
_STACK_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "compute": ("compute.gemm", "compute.attention", "compute.memory_bound"),
    "communication": (
        "communication.tp_exposed", "communication.tp_exposed_nodes", "communication.ep_exposed",
        "communication.p2p_exposed", "communication.dp_time",
    ),
    "host": (
        "host.layer_floor", "host.layer_floor_tp", "host.moe_layer_floor", "host.layer_floor_tp_nodes",
        "host.pipeline_tp_floor",
    ),
    "overhead": ("host.step_overhead",),
}  # fmt: skip
SMALLEST: Final = 0.002  # a factor within 0.2 % of 1 is left alone
LARGEST_GAP: Final = math.log(4.0)  # beyond it something else than a slow machine is the matter
SAME_RUN: Final = 0.15  # relative: how far two measurements of one configuration may lie apart
_ODD: Final = 4.0  # widths of a row's error


@dataclass(frozen=True)
class Observation:
    """One measured step. `name`: what the user calls the run; `seconds`: of one step."""

    name: str
    problem: Problem
    config: ParallelConfig
    seconds: float


@dataclass(frozen=True)
class Predicted:
    """A predicted step [s] and its exposed terms [s]."""

    seconds: float
    terms: dict[str, float]

    @property
    def shares(self) -> Array:
        """Parts of the step in the order of `shrinkage.PARTS` [1]; a bubble is as long as the work it waits for."""
        total = sum(self.terms.values())
        compute = sum(self.terms.get(name, 0.0) for name in COMPUTE_TERMS)
        wire = sum(self.terms.get(name, 0.0) for name in ("tp_comm", "cp_comm", "ep_comm"))
        host = self.terms.get("host_bound", 0.0)
        stretch = 1 + self.terms.get("pipeline_bubble", 0.0) / max(compute + wire + host, 1e-12)
        outer = self.terms.get("pp_comm", 0.0) + self.terms.get("dp_comm", 0.0)
        parts = (compute * stretch, wire * stretch + outer, host * stretch, self.terms["step_overhead"])
        return np.maximum(np.array(parts), 0.0) / total


@dataclass(frozen=True)
class Calibration:
    """A calibration and how it came about. `before`, `after`: predicted steps [s], in the order of `observations`;
    `odd`: names of runs that the others contradict and that were set aside by their weight."""

    overlay: Overlay
    observations: tuple[Observation, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    shrunk: Shrunk
    odd: tuple[str, ...]


def predict_steps(observations: Sequence[Observation]) -> list[Predicted]:
    """The predicted step of every observation; those of one problem are evaluated as one table."""
    groups: dict[int, list[int]] = {}
    for index, seen in enumerate(observations):
        groups.setdefault(id(seen.problem), []).append(index)
    found: list[Predicted | None] = [None] * len(observations)
    for members in groups.values():
        problem = observations[members[0]].problem
        model = CostModel(problem, *rates_of(problem.cluster))
        cost = evaluate_exactly(model, ConfigTable.of([observations[i].config for i in members]))
        assert cost.detail is not None, "costed with keep_terms"
        for row, index in enumerate(members):
            terms = {name: float(values[row]) for name, values in cost.detail.time.items()}
            found[index] = Predicted(float(cost.step_time[row]), terms)
    return [part for part in found if part is not None]


def row_width(problem: Problem) -> float:
    """Width of one row's error from the stack's band, wider for the mixtures of experts that it saw less of [log]."""
    wider = UNLIKE_BAND if problem.model.is_moe else 1.0
    return max(ROW * wider * math.log1p(problem.stack.band), 0.02)


def factors_of(observations: Sequence[Observation], predicted: Sequence[Predicted]) -> Shrunk:
    """The log factors that the observations speak for."""
    residuals = np.array(
        [math.log(seen.seconds / part.seconds) for seen, part in zip(observations, predicted, strict=True)]
    )
    shares = np.array([part.shares for part in predicted])
    row = np.array([row_width(seen.problem) for seen in observations])
    return shrink(residuals, shares, row)


def multiply_of(shrunk: Shrunk) -> dict[str, float]:
    """Factors of a stack's numbers, those that hardly move left out."""
    found: dict[str, float] = {}
    for part, log_factor in zip(PARTS, shrunk.mean, strict=True):
        factor = math.exp(float(log_factor))
        if abs(factor - 1) >= SMALLEST:
            found |= {path: round(factor, 4) for path in _STACK_FIELDS[part]}
    return found


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
    shrunk = factors_of(observations, predicted)
    first = observations[0].problem
    overlay = Overlay(
        name=name,
        date=date,
        level="L3",
        made_from=tuple(f"{seen.name}: {seen.seconds:.4g} s a step" for seen in observations),
        stack=first.stack.name,
        accelerator=first.cluster.accelerator.name,
        multiply=multiply_of(shrunk),
        band=round(min(math.expm1(1.28 * shrunk.spread), 2.0), 4),
    )
    after = predict_steps(corrected(observations, overlay))
    errors = [math.log(seen.seconds / part.seconds) for seen, part in zip(observations, after, strict=True)]
    odd = check_rest(observations, errors)
    return Calibration(
        overlay=overlay,
        observations=tuple(observations),
        before=tuple(part.seconds for part in predicted),
        after=tuple(part.seconds for part in after),
        shrunk=shrunk,
        odd=odd,
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


def check_gaps(observations: Sequence[Observation], predicted: Sequence[Predicted]) -> None:
    """Refuse runs so far off that no calibration is meant. Raises `InputError`."""
    for seen, part in zip(observations, predicted, strict=True):
        if abs(math.log(seen.seconds / part.seconds)) > LARGEST_GAP:
            raise InputError(
                f"a measured step must lie within {math.exp(LARGEST_GAP):.0f} times of the predicted one",
                f"{seen.name}: measured {seen.seconds:.4g} s, predicted {part.seconds:.4g} s",
                "check the configuration and the batch; planner diagnose says what could be the cause",
            )


def check_rest(observations: Sequence[Observation], errors: Sequence[float]) -> tuple[str, ...]:
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

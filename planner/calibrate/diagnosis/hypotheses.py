"""How well does a cause, or two at once, explain what was measured? Predictions under causes and their likelihoods.

A hypothesis is none, one or two causes, each at a severity. Its likelihood is that of every run's step time, memory and
reported rate, given the prediction under it. A run that ran had room: what would not fit in the device is unlikely.
Left out: which hypotheses are tried, and how they are ranked (`diagnose.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from planner.calibrate.correction.estimate import Observation
from planner.calibrate.correction.shrinkage import HOLDS_80
from planner.calibrate.coverage import band_of, unmeasured_band
from planner.calibrate.diagnosis.causes import Cause
from planner.calibrate.predict import Told, predicted_cost
from planner.cost.mfu import MfuConvention, mfu_flops_per_token
from planner.spec.precision import RECIPES
from planner.spec.stack import Stack

_DEGREES: Final = 4.0
_REPORTED: Final = 0.06  # width of a reported MFU or rate around the step time's own [log]
_LEAST_WIDTH: Final = 0.02
_LEAST_MEMORY_WIDTH: Final = 0.03
Parts = tuple[tuple[Cause, float], ...]


@dataclass(frozen=True)
class Evidence:
    """One run and what its log shows. `memory`: peak of the stack's counter [bytes]; `mfu` [1] or `flops` per device
    [FLOP/s] as reported; None where it does not say. `width`: of the run's error [log]; None: the stack's."""

    seen: Observation
    memory: float | None = None
    mfu: float | None = None
    flops: float | None = None
    width: float | None = None

    @cached_property
    def reported_ratio(self) -> float | None:
        """The rate a log reports over the one its step time means, counted as logs of its stack do [1]."""
        meant = model_flops(self.seen) / self.seen.seconds
        if self.flops is not None:
            return self.flops / meant
        return self.mfu * peak_of(self.seen) / meant if self.mfu is not None else None

    @cached_property
    def conventions(self) -> tuple[float, ...]:
        """FLOPs as frameworks count them, attention in full or by half, over those of the stack's own log [1]."""
        usual = model_flops(self.seen)
        known = (MfuConvention.FULL_SQUARE, MfuConvention.CAUSAL_HALF, MfuConvention.TORCHTITAN)
        return tuple(model_flops(self.seen, kind) / usual for kind in known)


@dataclass(frozen=True)
class Explained:
    """A hypothesis. `first`: the first run under it; `likelihood`: of everything measured [log]."""

    parts: Parts
    first: Told
    likelihood: float


class Costs:
    """Predictions of changed runs, each made once."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Told | None] = {}
        self._can_be: dict[tuple[int, str], bool] = {}

    def told(self, index: int, parts: Parts, seen: Observation, usual: Told) -> Told | None:
        """Run `index` under some causes; None where one of these cannot be."""
        parts = tuple((cause, severity) for cause, severity in parts if self._needs(index, cause, seen))
        stretch = math.prod(severity for cause, severity in parts if cause.stretch)
        changes = [(c, s) for c, s in parts if not (c.stretch or c.reported)]
        key = (index, *((cause.name, severity) for cause, severity in changes))
        if key not in self._found:
            self._found[key] = self._changed(changes, seen) if changes else usual
        told = self._found[key]
        return told and Told(told.seconds * stretch, told.memory, told.device)

    def _needs(self, index: int, cause: Cause, seen: Observation) -> bool:
        """Can run `index` have a cause? Asked once, as it may take a prediction."""
        key = index, cause.name
        if key not in self._can_be:
            self._can_be[key] = cause.needs(seen)
        return self._can_be[key]

    @staticmethod
    def _changed(changes: Sequence[tuple[Cause, float]], seen: Observation) -> Told | None:
        changed: Observation | None = seen
        for cause, severity in changes:
            changed = cause.change(changed, severity) if changed is not None else None
        return predicted_cost(changed.problem, changed.config) if changed is not None else None


def explained(
    parts: Parts, evidence: Sequence[Evidence], usual: Sequence[Told], costs: Costs
) -> Explained | None:
    """All runs under some causes; None where one of these cannot be. `usual`: the runs as predicted."""
    total, firsts = 0.0, []
    reported = math.prod(severity for cause, severity in parts if cause.reported)
    for index, (part, plain) in enumerate(zip(evidence, usual, strict=True)):
        told = costs.told(index, parts, part.seen, plain)
        if told is None:
            return None
        total += likelihood(part, told, plain, reported)
        firsts.append(told)
    return Explained(parts, firsts[0], total)


def likelihood(part: Evidence, told: Told, usual: Told, reported: float) -> float:
    """Log-likelihood of what one run shows, up to a constant."""
    error = max(part.seen.problem.stack.overhead.error, _LEAST_MEMORY_WIDTH)
    total = _student(math.log(part.seen.seconds / told.seconds), width_of(part))
    if part.memory is not None:
        total += _student(math.log(part.memory / told.memory), error)
    room = max(part.seen.problem.cluster.accelerator.memory, usual.device)
    if told.device > room:
        total += _student(math.log(told.device / room), error) - _student(0.0, error)
    rate = part.reported_ratio
    if rate is not None:
        total += max(_student(math.log(rate / (reported * share)), _REPORTED) for share in part.conventions)
    return total


def best_likelihood(evidence: Sequence[Evidence]) -> float:
    """Log-likelihood of a hypothesis that explains everything to the last digit."""
    total = 0.0
    for part in evidence:
        error = max(part.seen.problem.stack.overhead.error, _LEAST_MEMORY_WIDTH)
        total += _student(0.0, width_of(part))
        total += _student(0.0, error) if part.memory is not None else 0.0
        total += _student(0.0, _REPORTED) if part.reported_ratio is not None else 0.0
    return total


def with_widths(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The same, as wide as answers are where nobody measured the device's kernels, so that no cause need explain it."""
    found = []
    for part in evidence:
        band = unmeasured_band(part.seen.problem) if part.width is None else None
        found.append(part if band is None else replace(part, width=math.log1p(band) / HOLDS_80))
    return found


def width_of(part: Evidence) -> float:
    """Width of a run's error around its prediction [log]: 80 % lie within the stack's band."""
    return part.width or max(math.log1p(band_of(part.seen.problem)) / HOLDS_80, _LEAST_WIDTH)


def model_flops(seen: Observation, convention: MfuConvention | None = None) -> float:
    """Model FLOPs of a step on one device, counted as logs of its stack do if nothing else is said [FLOP]."""
    problem = seen.problem
    counted = convention or logged_convention(problem.stack)
    per_token = float(mfu_flops_per_token(problem.model, float(problem.job.seq_len), counted))
    return per_token * problem.job.tokens_per_step / problem.cluster.num_devices


NEVER: Final = "9999"
# Frameworks whose logs count causal attention at half, from this year's stacks on: Megatron-LM from core_v0.12.0
# training/training.py num_floating_point_operations, NeMo utils/flops_formulas.py; torchtitan models/utils.py, 6 x
# layers x heads x width x length. Others count it in full.
_HALF_ATTENTION_FROM: Final = {"megatron": "2025", "torchtitan": "2026"}


def logged_convention(stack: Stack) -> MfuConvention:
    """What the TFLOP/s and MFU of a stack's log count."""
    half = stack.released >= _HALF_ATTENTION_FROM.get(stack.framework, NEVER)
    return MfuConvention.CAUSAL_HALF if half else MfuConvention.FULL_SQUARE


def peak_of(seen: Observation) -> float:
    """Dense peak of the job's number format [FLOP/s]."""
    problem = seen.problem
    return problem.cluster.accelerator.peak_flops(RECIPES[problem.job.precision].gemm)


def _student(error: float, width: float) -> float:
    """Log-density of Student's t with 4 degrees of freedom, up to a constant."""
    return -0.5 * (_DEGREES + 1) * math.log1p((error / width) ** 2 / _DEGREES) - math.log(width)

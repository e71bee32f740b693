"""Why is a run slower than predicted? Ranks causes by how well each explains every measurement at once.

Evidence: step times of one or several runs, peak memory and MFU as logged, and what the log repeats of its options.
The probability of a cause is its prior times the likelihood, averaged over its severities. Left out: causes in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from planner.calibrate.causes import CAUSES, Cause
from planner.calibrate.estimate import Observation, row_width
from planner.calibrate.predict import rates_of
from planner.cost.flops import MfuConvention, mfu_flops_per_token
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.spec.config import ConfigTable
from planner.spec.precision import RECIPES

AS_PREDICTED: Final = 4.0  # prior of nothing being wrong, on the scale of the causes'
MARKED: Final = 60.0  # how much more probable a cause is that the log names; against: how much less
_DEGREES: Final = 4.0
_REPORTED: Final = 0.06  # width of a reported MFU or rate around the step time's own [log]
_CLOSE: Final = 0.02


@dataclass(frozen=True)
class Evidence:
    """One run and what its log shows. `memory`: peak of the stack's counter [bytes]; `mfu` [1] or `flops` per device
    [FLOP/s] as reported; None where it does not say. `width`: of the run's error [log]; None: the stack's."""

    seen: Observation
    memory: float | None = None
    mfu: float | None = None
    flops: float | None = None
    width: float | None = None


@dataclass(frozen=True)
class Finding:
    """A cause and its probability. `seconds`: what it takes of a step of the first run at `severity`; `share`: of the
    measured step [1]; `marked`: the log's own words for it."""

    cause: Cause | None
    probability: float
    severity: float
    seconds: float
    share: float
    marked: tuple[str, ...]

    @property
    def words(self) -> str:
        """How severe it is."""
        return self.cause.words.format(self.severity) if self.cause is not None else ""


@dataclass(frozen=True)
class Diagnosis:
    """`findings` from the most to the least probable; `measured`, `predicted`: the first run's step [s]."""

    findings: tuple[Finding, ...]
    measured: float
    predicted: float
    flops: float
    peak: float

    @property
    def gap(self) -> float:
        """Measured over predicted time, less 1."""
        return self.measured / self.predicted - 1


@dataclass(frozen=True)
class Told:
    """A predicted step [s] and peak of the stack's counter [bytes]."""

    seconds: float
    memory: float


def diagnose(evidence: Sequence[Evidence], marks: frozenset[str] = frozenset()) -> Diagnosis:
    """What explains the gap of the first run, and of the others of the same machine. Raises `PlannerError`."""
    usual = [predicted_cost(part.seen) for part in evidence]
    first = evidence[0].seen
    scored: list[tuple[float, Finding]] = []
    nothing = math.log(AS_PREDICTED) + sum(
        _likelihood(e, told, 1.0) for e, told in zip(evidence, usual, strict=True)
    )
    scored.append((nothing, Finding(None, 0.0, 0.0, 0.0, 0.0, ())))
    for cause in CAUSES:
        if not any(cause.needs(part.seen) for part in evidence):
            continue
        tried = [
            (s, score) for s in cause.severities if (score := _score(cause, s, evidence, usual)) is not None
        ]
        if not tried:
            continue
        best, told, _ = max(((s, told, value) for s, (told, value) in tried), key=lambda t: t[2])
        marked = tuple(word for word in cause.marks if word in marks)
        weight = cause.prior * (MARKED if marked else 1.0)
        weight /= MARKED if not marked and any(word in marks for word in cause.against) else 1.0
        total = math.log(weight / len(cause.severities)) + _log_sum([value for _, (_, value) in tried])
        size = told.seconds - usual[0].seconds
        finding = Finding(cause, 0.0, best, size, size / first.seconds, marked)
        scored.append((total, finding))
    scored.sort(key=lambda pair: -pair[0])
    norm = _log_sum([value for value, _ in scored])
    findings = tuple(
        Finding(f.cause, math.exp(value - norm), f.severity, f.seconds, f.share, f.marked)
        for value, f in scored
    )
    flops = model_flops(first)
    return Diagnosis(findings, first.seconds, usual[0].seconds, flops, peak_of(first))


def _score(
    cause: Cause, severity: float, evidence: Sequence[Evidence], usual: Sequence[Told]
) -> tuple[Told, float] | None:
    """The first run under a cause, and the log-likelihood of all; None where the cause cannot be."""
    total, first = 0.0, None
    for part, plain in zip(evidence, usual, strict=True):
        told = plain
        if cause.needs(part.seen):
            if cause.stretch:
                told = Told(plain.seconds * severity, plain.memory)
            elif not cause.reported:
                changed = cause.change(part.seen, severity)
                if changed is None:
                    return None
                told = predicted_cost(changed)
        total += _likelihood(part, told, severity if cause.reported else 1.0)
        first = first or told
    assert first is not None, "there is evidence"
    if cause.reported and not any(part.mfu or part.flops for part in evidence):
        return None
    return first, total


def predicted_cost(seen: Observation) -> Told:
    """Step and memory that planner predicts for a run."""
    model = CostModel(seen.problem, *rates_of(seen.problem.cluster))
    cost = evaluate_exactly(model, ConfigTable.of([seen.config]))
    return Told(float(cost.step_time[0]), float(cost.peak_memory[0]))


def _likelihood(part: Evidence, told: Told, reported: float) -> float:
    width = part.width or row_width(part.seen.problem)
    total = _student(math.log(part.seen.seconds / told.seconds), width)
    if part.memory is not None:
        error = max(part.seen.problem.stack.overhead.error, 0.03)
        total += _student(math.log(part.memory / told.memory), error)
    rate = reported_ratio(part)
    if rate is not None:
        total += max(
            _student(math.log(rate / (reported * share)), _REPORTED) for share in _conventions(part.seen)
        )
    return total


def reported_ratio(part: Evidence) -> float | None:
    """The rate a log reports over the one its step time means, counting the full square of attention [1]."""
    meant = model_flops(part.seen) / part.seen.seconds
    if part.flops is not None:
        return part.flops / meant
    return part.mfu * peak_of(part.seen) / meant if part.mfu is not None else None


def model_flops(seen: Observation) -> float:
    """Model FLOPs of a step on one device, attention over the full square [FLOP]."""
    problem = seen.problem
    per_token = float(
        mfu_flops_per_token(problem.model, float(problem.job.seq_len), MfuConvention.FULL_SQUARE)
    )
    return per_token * problem.job.tokens_per_step / problem.cluster.num_devices


def peak_of(seen: Observation) -> float:
    """Dense peak of the job's number format [FLOP/s]."""
    problem = seen.problem
    return problem.cluster.accelerator.peak_flops(RECIPES[problem.job.precision].gemm)


def _conventions(seen: Observation) -> tuple[float, ...]:
    """FLOPs as frameworks count them, attention in full or by half, over those of the full square [1]."""
    problem = seen.problem
    seq = float(problem.job.seq_len)
    whole = float(mfu_flops_per_token(problem.model, seq, MfuConvention.FULL_SQUARE))
    others = (MfuConvention.CAUSAL_HALF, MfuConvention.TORCHTITAN)
    return (1.0, *(float(mfu_flops_per_token(problem.model, seq, kind)) / whole for kind in others))


def _student(error: float, width: float) -> float:
    """Log-density of Student's t with 4 degrees of freedom, up to a constant."""
    return -0.5 * (_DEGREES + 1) * math.log1p((error / width) ** 2 / _DEGREES) - math.log(width)


def _log_sum(values: Sequence[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def best_change(diagnosis: Diagnosis) -> Finding | None:
    """The cause whose cure is expected to pay most: probability times seconds."""
    real = [f for f in diagnosis.findings if f.cause is not None and f.seconds > _CLOSE * diagnosis.measured]
    return max(
        real,
        key=lambda f: f.probability * min(f.seconds, diagnosis.measured - diagnosis.predicted),
        default=None,
    )

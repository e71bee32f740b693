"""Why is a run slower than predicted? Ranks causes by how well each explains every measurement at once.

Evidence: step times of one or several runs, peak memory and MFU as logged, and what the log repeats of its options.
Hypotheses are nothing, one cause, or two at once; each weighs its prior times its likelihood, averaged over the
severities. A cause's probability is that of all hypotheses with it. Left out: three causes at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from planner.calibrate.correction.estimate import Observation
from planner.calibrate.correction.shrinkage import HOLDS_80
from planner.calibrate.coverage import band_shown
from planner.calibrate.diagnosis.causes import Cause, causes_on
from planner.calibrate.diagnosis.hypotheses import (
    Costs,
    Evidence,
    Explained,
    Parts,
    best_likelihood,
    explained,
    model_flops,
    peak_of,
    with_widths,
)
from planner.calibrate.predict import Told, predicted_cost
from planner.cost.mfu import MfuConvention

AS_PREDICTED: Final = 4.0  # prior of nothing being wrong, on the scale of the causes'
TOGETHER: Final = 0.1  # prior of two causes at once, over the product of their own
MARKED: Final = 60.0  # how much more probable a cause is that the log names; against: how much less
_CLOSE: Final = 0.02
_NEAR: Final = 6.0  # log probability below the best within which severities are refined
_FIRST: Final = 4  # causes that are tried together with every other one


@dataclass(frozen=True)
class Suspect:
    """A cause and its probability. `seconds`: what it alone takes of a step of the first run at `severity`; `share`:
    of the measured step [1]; `marked`: the log's own words for it."""

    cause: Cause | None
    probability: float
    severity: float
    seconds: float
    share: float
    marked: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """`findings` from the most to the least probable; `together`: the likeliest two causes at once and the
    probability that it is two; `measured`, `predicted`: the first run's step [s]; `beyond`: what the first run, as
    described, needs more than its device has, 0 within the error of that [bytes]; `band`: error of the first run's
    prediction that four of five runs stay within [1]; `job`: the first run as described."""

    findings: tuple[Suspect, ...]
    together: tuple[Cause, Cause] | None
    two: float
    measured: float
    predicted: float
    flops: float
    peak: float
    beyond: float
    band: float
    job: Observation

    @property
    def gap(self) -> float:
        """Measured over predicted time, less 1."""
        return self.measured / self.predicted - 1

    def explains(self, suspect: Suspect) -> bool:
        """Does a cause take half of what the first run takes longer? One of what is reported explains that alone."""
        if suspect.cause is None or suspect.cause.reported or self.gap <= 0:
            return True
        return suspect.seconds >= 0.5 * (self.measured - self.predicted)

    @property
    def too_fast(self) -> bool:
        """Is the first run faster than the error of its prediction allows?"""
        return self.predicted > (1 + self.band) * self.measured


def diagnose(evidence: Sequence[Evidence], marks: frozenset[str] = frozenset()) -> Diagnosis:
    """What explains the gap of the first run, and of the others of the same machine. Raises `PlannerError`.

    Where no run is slower than predicted, nothing that takes time is a cause: what is reported of it alone may be.
    """
    evidence = with_widths(evidence)
    usual = [predicted_cost(part.seen.problem, part.seen.config) for part in evidence]
    reported = any(part.mfu or part.flops for part in evidence)
    slower = any(part.seen.seconds > told.seconds for part, told in zip(evidence, usual, strict=True))
    causes = causes_on(evidence[0].seen.problem.cluster.accelerator.architecture)
    possible = [
        cause for cause in causes
        if any(cause.needs(part.seen) for part in evidence) and (reported if cause.reported else slower)
    ]  # fmt: skip

    costs = Costs()
    tried = [
        found for parts in [(), *(((c, s),) for c in possible for s in c.severities)]
        if (found := explained(parts, evidence, usual, costs)) is not None
    ]  # fmt: skip
    tried = _refined(tried, evidence, usual, costs, marks)
    several = sum(any(word in marks for word in cause.marks) for cause in possible) > 1
    if several or max(part.likelihood for part in tried) < best_likelihood(evidence) + math.log(TOGETHER):
        tried += [
            found for parts in _pairs(tried, possible, marks)
            if (found := explained(parts, evidence, usual, costs)) is not None
        ]  # fmt: skip
    return _ranked(tried, causes, evidence[0], usual[0], costs, marks)


def weight_of(cause: Cause, marks: frozenset[str]) -> float:
    """How probable a cause is before anything is measured, given the log's words."""
    if any(word in marks for word in cause.marks):
        return cause.prior * MARKED
    return cause.prior / (MARKED if any(word in marks for word in cause.against) else 1.0)


def belief(part: Explained, marks: frozenset[str]) -> float:
    """Log probability of a hypothesis, up to a constant."""
    if not part.parts:
        return math.log(AS_PREDICTED) + part.likelihood
    weights = [weight_of(cause, marks) / len(cause.severities) for cause, _ in part.parts]
    return math.log(math.prod(weights) * TOGETHER ** (len(weights) - 1)) + part.likelihood


def _refined(
    tried: list[Explained],
    evidence: Sequence[Evidence],
    usual: Sequence[Told],
    costs: Costs,
    marks: frozenset[str],
) -> list[Explained]:
    """Each likely cause with a severity between those listed where that explains more; its weight stays."""
    top = max(belief(part, marks) for part in tried)
    found = list(tried)
    for index, part in enumerate(tried):
        if len(part.parts) != 1 or belief(part, marks) < top - _NEAR:
            continue
        ((cause, severity),) = part.parts
        near = [math.sqrt(severity * other) for other in cause.severities if other != severity]
        for between in sorted(near, key=lambda value: abs(math.log(value / severity)))[:2]:
            better = explained(((cause, between),), evidence, usual, costs)
            if better is not None and better.likelihood > found[index].likelihood:
                found[index] = better
    return found


def _pairs(tried: Sequence[Explained], possible: Sequence[Cause], marks: frozenset[str]) -> Iterator[Parts]:
    """Each of the likeliest causes with every other one, at all severities."""
    possible = [cause for cause in possible if not cause.alone]
    real = [part for part in tried if part.parts and not part.parts[0][0].alone]
    order = sorted(real, key=lambda part: -belief(part, marks))
    first = list(dict.fromkeys(part.parts[0][0].name for part in order))[:_FIRST]
    firsts = [cause for cause in possible if cause.name in first]
    seen: set[frozenset[str]] = set()
    for one, other in product(firsts, possible):
        names = frozenset((one.name, other.name))
        if one is not other and names not in seen and not (one.stretch and other.stretch):
            seen.add(names)
            yield from (((one, s), (other, t)) for s in one.severities for t in other.severities)


def _ranked(
    tried: Sequence[Explained],
    causes: Sequence[Cause],
    part: Evidence,
    usual: Told,
    costs: Costs,
    marks: frozenset[str],
) -> Diagnosis:
    """Causes by the probability of all hypotheses that they are in. `part`: the first run."""
    first = part.seen
    beliefs = [belief(part, marks) for part in tried]
    norm = _log_sum(beliefs)
    shares: dict[str, float] = defaultdict(float)
    likeliest: dict[str, tuple[float, Explained]] = {}
    pairs: dict[tuple[str, str], float] = defaultdict(float)
    for value, found in zip(beliefs, tried, strict=True):
        share = math.exp(value - norm)
        for name in [cause.name for cause, _ in found.parts] or [""]:
            shares[name] += share
            if name not in likeliest or value > likeliest[name][0]:
                likeliest[name] = value, found
        if len(found.parts) == 2:
            pairs[found.parts[0][0].name, found.parts[1][0].name] += share
    findings = [Suspect(None, shares[""], 0.0, 0.0, 0.0, ())]
    for cause in (cause for cause in causes if cause.name in shares):
        severity = next(s for c, s in likeliest[cause.name][1].parts if c is cause)
        alone = costs.told(0, ((cause, severity),), first, usual)
        assert alone is not None, "it was in a hypothesis"
        seconds = alone.seconds - usual.seconds
        marked = tuple(word for word in cause.marks if word in marks)
        findings.append(
            Suspect(cause, shares[cause.name], severity, seconds, seconds / first.seconds, marked)
        )
    findings.sort(key=lambda finding: -finding.probability)
    by_name = {cause.name: cause for cause in causes}
    best = max(pairs, key=lambda names: pairs[names], default=None)
    return Diagnosis(
        findings=tuple(findings),
        together=(by_name[best[0]], by_name[best[1]]) if best else None,
        two=sum(pairs.values()),
        measured=first.seconds,
        predicted=usual.seconds,
        flops=model_flops(first, MfuConvention.CAUSAL_HALF),
        peak=peak_of(first),
        beyond=_beyond(first, usual),
        band=math.expm1(HOLDS_80 * part.width) if part.width else band_shown(first.problem, usual.time),
        job=first,
    )


def _beyond(first: Observation, usual: Told) -> float:
    room = first.problem.cluster.accelerator.memory
    more = usual.device - room
    return more if more > first.problem.stack.overhead.error * room else 0.0


def _log_sum(values: Sequence[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def best_change(diagnosis: Diagnosis) -> Suspect | None:
    """The cause whose cure is expected to pay most: probability times seconds."""
    real = [f for f in diagnosis.findings if f.cause is not None and f.seconds > _CLOSE * diagnosis.measured]
    return max(
        real,
        key=lambda f: f.probability * min(f.seconds, diagnosis.measured - diagnosis.predicted),
        default=None,
    )

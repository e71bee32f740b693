"""What does one size of a cluster achieve, and what does the next bring? Points of a curve over the number of devices.

Left out: which sizes to look at (`size.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.answer.outcome import BINDS, COMPUTE, best_of, run_days, why_nothing
from planner.campaign.duration import SECONDS_PER_DAY
from planner.spec.findings import Finding, finding
from planner.spec.planfile import Choice, Plan, Run

PAYING_SPEEDUP = 1.5  # of a doubling: device-hours grow by a third at most
WORTH_SAYING = 0.01  # of the step
# what a run loses beside steps of its last batch: to stops, to a batch that takes more steps, to smaller ones before it
OF_RUNS = ("stops", "tokens", "batch_schedule")
PASSING_GAIN = 0.04  # of the time: full effort on splits brought 3.2 % at most, 19 sizes of 7 models


@dataclass(frozen=True)
class Point:
    """One size and its fastest plan."""

    nodes: int
    gpus: int
    plan: Plan
    settled: bool = True  # planned with full effort

    @property
    def best(self) -> Choice | None:
        """The fastest configuration that fits."""
        return best_of(self.plan)

    @property
    def batch(self) -> int:
        """Its global batch [sequences]."""
        return self.plan.subject.job.global_batch

    @property
    def run(self) -> Run | None:
        """The whole run of the fastest configuration."""
        return self.best.run if self.best else None

    @property
    def days(self) -> float:
        """Days with stops; infinite where nothing fits. Without tokens: days of one step."""
        if self.best is None:
            return math.inf
        return run_days(self.best.run) if self.best.run else self.best.step_time / 86400

    @property
    def run_over_last(self) -> float:
        """Days of the run without stops over those of as many tokens in steps of its last batch [1]."""
        assert self.best is not None, "where something runs"
        assert self.run is not None, "a run with tokens"
        steps = (self.run.tokens or 0.0) / self.plan.subject.job.tokens_per_step
        return self.run.days * SECONDS_PER_DAY / (steps * self.best.step_time)

    @property
    def cost(self) -> float:
        """Price of the run [$]; infinite where there is none."""
        return self.run.cost if self.run and self.run.cost is not None else math.inf

    @property
    def possible(self) -> float:
        """The share of its time that full effort could leave [1]."""
        certificate = self.plan.search.certificate
        if self.settled or self.best is None or certificate is None or certificate.bound is None:
            return 1.0
        return max(certificate.bound / self.best.step_time, 1 - PASSING_GAIN)

    @property
    def reason(self) -> tuple[Finding, ...]:
        """Why nothing runs at this size, and what would help; empty where something does."""
        return () if self.best else why_nothing(self.plan)


@dataclass(frozen=True)
class Doubling:
    """From one point of the curve to the next: `speedup` [1], whether it pays, and what held it back.

    `excess`: seconds of the second step, by term, beyond what the larger number of devices would leave of the first,
    of as many sequences; with those that its run loses to more stops, to a batch that takes more tokens, and to the
    smaller batches of its schedule.
    """

    start: Point
    end: Point
    speedup: float
    pays: bool
    excess: tuple[tuple[str, float], ...]
    binds: Finding | None


def doubling(start: Point, end: Point) -> Doubling:
    """What more devices bring, and which terms of the step did not shrink with them."""
    a, b = start.best, end.best
    assert a is not None, "the curve holds sizes at which something fits"
    assert b is not None, "the curve holds sizes at which something fits"
    growth = end.gpus / start.gpus
    # of the first step, if its time followed sequences and devices alone
    share = end.batch / start.batch / growth
    names = sorted({*a.time, *b.time})
    excess = {name: b.time.get(name, 0.0) - a.time.get(name, 0.0) * share for name in names}
    if start.run and end.run and start.run.goodput and end.run.goodput:
        excess["stops"] = b.step_time * (start.run.goodput / end.run.goodput - 1)
    if start.run and end.run and start.run.tokens and end.run.tokens:
        excess["tokens"] = b.step_time * (end.run.tokens / start.run.tokens - 1)
        if end.plan.subject.job.batch_schedule:
            excess["batch_schedule"] = b.step_time * (end.run_over_last / start.run_over_last - 1)
    ordered = tuple(sorted(excess.items(), key=lambda item: (-item[1], item[0])))
    speedup = start.days / end.days
    pays = speedup >= PAYING_SPEEDUP ** math.log2(growth)
    return Doubling(start, end, speedup, pays, ordered, _what_binds(dict(excess), a.step_time * share, end))


def _what_binds(excess: dict[str, float], fair: float, end: Point) -> Finding | None:
    """The cause of most of the time that more devices did not save; none where they saved all but 1 %. Where they saved
    more than their share, the term that shrank most.

    `fair`: the step time if every term had shrunk with the devices and grown with the batch [s].
    """
    if sum(excess.values()) < -WORTH_SAYING * fair:
        name = min(excess, key=lambda name: excess[name])
        return finding("holds_back", cause="none", terms=(name,), shares=(excess[name] / fair,))
    causes: dict[str, float] = {}
    for name, lost in excess.items():
        cause = name if name in OF_RUNS else BINDS.get(name, COMPUTE)
        causes[cause] = causes.get(cause, 0.0) + lost
    worst = max(causes, key=lambda cause: causes[cause])
    if causes[worst] < WORTH_SAYING * fair:
        return None
    terms = [(name, lost) for name, lost in excess.items() if lost >= WORTH_SAYING * fair]
    mine = [item for item in terms if BINDS.get(item[0], COMPUTE) == worst or item[0] == worst]
    mine.sort(key=lambda item: (-item[1], item[0]))
    config = end.best.config if end.best and worst == "bubble" else None
    return finding(
        "holds_back", cause=worst, terms=tuple(name for name, _ in mine[:2]),
        shares=tuple(lost / fair for _, lost in mine[:2]), pp=config.pp if config else None,
        num_microbatches=config.num_microbatches if config else None,
    )  # fmt: skip

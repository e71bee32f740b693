"""A question as a problem, its space, and what costs it: made once for whoever searches it.

Left out: what a search makes of it (`plan.py`, `over_members.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.ask.request import Request, cost_model, resolve, room_of
from planner.cost.chunks import PipelineSimulator
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.frameworks import explicit_splits
from planner.solve.dealing import Source
from planner.solve.layouts import outside_of
from planner.solve.open import open_configurations
from planner.solve.outside import Outside
from planner.solve.relax import legal_batches
from planner.solve.search import SearchResult, search
from planner.solve.splits.pipe import Pipe
from planner.solve.splits.relaxed import Known
from planner.space.enumerate import Space
from planner.space.framework_rules import rules_for
from planner.spec.config import ConfigTable
from planner.spec.findings import Finding, finding
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryRoom


@dataclass(frozen=True, eq=False)
class Posed:
    """`assumed`: what nobody said. `room`: what a peak is judged by. `known`: of pipelines, which may be of others as
    well."""

    request: Request
    problem: Problem
    assumed: tuple[Finding, ...]
    space: Space
    model: CostModel
    simulator: PipelineSimulator
    room: MemoryRoom
    known: dict[Pipe, Known] = field(default_factory=dict)

    @cached_property
    def source(self) -> Source:
        """The blocks of the space, dealt for all searches of it together."""
        return Source(self.model, self.space, self.room.most)

    @property
    def allowed(self) -> float:
        """The largest peak that an answer may take, if something surely fits [bytes]."""
        return self.room.limit if self.request.borderline else self.room.sure

    @property
    def _tiers(self) -> tuple[float, ...]:
        """Largest peaks that an answer may take, where nothing fits with less [bytes]."""
        return (self.allowed, *(tier for tier in self.room.tiers if tier > self.allowed))

    def fastest(
        self, stopped: Callable[[], bool], known: Screened | None = None, near: float = 0.0
    ) -> Screened:
        """The best under the stack's own splits; where another is `known`, only one that fits more surely, or takes at
        most a share `near` longer."""
        most = np.inf if known is None else known.allowed
        for allowed in self._tiers:
            cutoff = np.inf if known is None or allowed < most else known.step_time * (1 + near)
            found = search(
                self.model, self.source, allowed, 1, stopped=stopped, name_smallest=False, cutoff=cutoff
            )
            if len(found.best) or allowed >= most or stopped():
                break
        if not len(found.best):
            return Screened(self, found, np.inf, np.inf)
        time = float(evaluate_exactly(self.model, found.best, self.simulator).step_time[0])
        return Screened(self, found, time, allowed)

    def outside(
        self, best: float, peak: float, effort: float, stopped: Callable[[], bool]
    ) -> tuple[Outside, float]:
        """Configurations that may take less than `best` [s] under a layout of their own, where the best needs `peak`
        [bytes], and what of an effort it took to tell."""
        if not explicit_splits(self.problem.stack.framework):
            return Outside(0, np.inf), 0.0
        allowed = next((tier for tier in self._tiers if tier >= peak), self._tiers[-1])
        further = open_configurations(self.model, self.source, allowed, best)
        return outside_of(self.model, self.simulator, allowed, further, best, effort, self.known, stopped)


@dataclass(frozen=True, eq=False)
class Screened:
    """The fastest of a posed question under the stack's own splits, if anything fits, its step time [s], and what its
    peak was allowed to be [bytes]."""

    posed: Posed
    found: SearchResult
    step_time: float
    allowed: float

    @property
    def best(self) -> ConfigTable:
        """It as a table of one row, or of none."""
        return self.found.best


def pose(request: Request) -> Posed:
    """The problem that a request stands for, what was assumed, and its legal configurations: where nobody named a
    batch and none divides that of about 4M tokens, under the nearest that one divides. Raises `PlannerError`."""
    problem, assumed = resolve(request)
    rules = rules_for(problem.stack)
    space = Space(problem, rules, request.restrict, request.without)
    undivided = not request.global_batch and any(removed.rule == "batch-dp" for removed in space.removed)
    batches = legal_batches(problem, rules, request.restrict) if undivided and space.is_empty() else []
    if batches:
        batch = min(batches, key=lambda legal: abs(legal - problem.job.global_batch))
        problem, assumed = resolve(replace(request, global_batch=str(batch)))
        nearest = finding("global_batch", batch=batch, seq_len=problem.job.seq_len, basis="nearest")
        assumed = (*assumed, nearest)
        space = Space(problem, rules, request.restrict, request.without)
    model = cost_model(problem)
    room = room_of(request, problem)
    return Posed(request, problem, assumed, space, model, simulator_of(model), room)

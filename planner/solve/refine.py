"""Which of the best configurations is the best when their pipelines are simulated and their splits are solved?

The search ranks by closed forms, exact for 1F1B and near for interleaved pipelines, under the stack's own split; the
finalists are costed again with their pipelines simulated pass by pass, and the split of each that could overtake the
best is solved. Left out: configurations behind the finalists, which an error of the closed form larger than their
distance, or a better split, could hide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.chunks import PipelineSimulator
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.solve.search import SearchResult
from planner.solve.split import (
    TOLERANCE,
    SplitResult,
    only_split,
    quick_bound,
    solvable,
    solve_split,
)
from planner.spec.config import ConfigTable, ParallelConfig

FINALISTS = 16
EFFORT = 1.0  # deterministic time of CP-SAT for all finalists, about as many seconds


def refine(model: CostModel, simulator: PipelineSimulator, found: SearchResult) -> SearchResult:
    """`found` with its best rows in the order of their simulated step times."""
    if not len(found.best):
        return found
    cost = evaluate_exactly(model, found.best, simulator)
    order = np.lexsort((np.arange(len(found.best)), cost.device_memory, cost.step_time))
    return replace(found, best=found.best.take(order), solved=len(found.best))


@dataclass(frozen=True)
class SplitsSolved:
    """`best`: the finalists, fastest first, each under the split of `splits` (those of them that were solved), else
    under the stack's own. `bound`: what no split of a finalist beats [s]."""

    best: ConfigTable
    splits: dict[ParallelConfig, SplitResult]
    bound: float


def solve_splits(
    model: CostModel, simulator: PipelineSimulator, found: SearchResult, limit: float, explicit: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> SplitsSolved:  # fmt: skip
    """Solve the splits of finalists (fastest first) as far as they could overtake the best.

    `explicit`: the framework can be told a split; else one is only compared with its own, never taken.
    """
    rows = [found.best.row(i) for i in range(len(found.best))]
    cost = evaluate_exactly(model, found.best, simulator)
    own = dict(zip(rows, cost.step_time.tolist(), strict=True))
    splits: dict[ParallelConfig, SplitResult] = {}
    best, bound, effort = min(own.values(), default=np.inf), np.inf, EFFORT
    for place, row in enumerate(rows):
        least = own[row]
        if solvable(row) and not only_split(model, row):
            least = min(least, quick_bound(model, row, own[row]))
        if least >= best * (1 - TOLERANCE) or effort <= 0 or stopped():
            bound = min(bound, max(least, 0.0) if least < best * (1 - TOLERANCE) else best)
            continue
        cutoff = np.inf if not place else best
        result = solve_split(model, row, limit, cutoff, effort)
        effort -= result.effort
        splits[row] = result
        bound = min(bound, result.bound)
        if explicit:
            best = min(best, result.step_time)
    taken = {row: splits[row].step_time if row in splits and explicit else own[row] for row in rows}
    order = np.array(sorted(range(len(rows)), key=lambda i: (taken[rows[i]], i)), dtype=np.intp)
    return SplitsSolved(found.best.take(order), splits, min(bound, best))

"""Which of the best configurations is the best when their pipelines are simulated and their splits are solved?

The search ranks by closed forms, exact for 1F1B and near for other pipelines, under the stack's own split; the fastest
are costed again with their pipelines simulated pass by pass: ever more of them, until those further behind would not be
among the best even if their closed forms were as far above the truth as any seen. Of the finalists the split of each
that could overtake the best is solved, starting from a few simple ones. Left out: configurations behind those
simulated, which a larger error of the closed form, or a better split, could hide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import PipelineSimulator
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.solve.search import SearchResult
from planner.solve.splits.bound import LayerCosts, quick_bound
from planner.solve.splits.split import TOLERANCE, SplitResult, SplitSearch, only_split, solvable, solve_split
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

FINALISTS = 20  # whose splits are solved
LISTED = 10  # that differ in more than virtual stages, however few are asked for
SIMULATED, PASSING_SIMULATED = 512, 64  # at most; where the answer is one of many
MORE = 4  # times as many are simulated where that may change the best
SHORTENED = 0.97  # of a closed form a simulation takes, unless those simulated say less
DIFFERING_EFFORT = 0.3  # of what no launcher can be told
SLICE = 0.3  # of it that one of them gets before another has its turn
EFFORT = 1.0  # deterministic time of CP-SAT for all finalists: up to three seconds of a processor
# where the answer is one of many: steps 0.1 % longer at most than with `EFFORT`, at 11 sizes of llama-3.1-70b and
# deepseek-v3 on dgx-h100; with 0.03 up to 2.2 %
PASSING_EFFORT, PASSING_FINALISTS = 0.1, 4


def refine(
    model: CostModel, simulator: PipelineSimulator, found: SearchResult, look: Callable[[int], SearchResult],
    finalists: int = FINALISTS, listed: int = LISTED, most: int = SIMULATED,
) -> SearchResult:  # fmt: skip
    """The fastest with their pipelines simulated, fastest first: `finalists` of them, and the first `listed` that
    differ in more than virtual stages. `look`: a search like `found` for another number of the fastest by closed forms;
    `most` of them are simulated."""
    asked, shortened = finalists, SHORTENED
    while len(found.best):
        cost, closed = evaluate_exactly(model, found.best, simulator), model.evaluate(found.best).step_time
        order = np.lexsort((np.arange(len(closed)), cost.device_memory, cost.step_time))
        alone = np.flatnonzero(~_again(found.best.take(order)))[:listed]
        shortened = min(shortened, float((cost.step_time / closed).min()))
        sure = len(alone) == listed and closed[-1] * shortened >= cost.step_time[order[alone[-1]]]
        if sure or asked >= most or len(closed) < asked or np.isfinite(found.unseen):
            kept = np.union1d(np.arange(min(finalists, len(closed))), alone)
            return replace(found, best=found.best.take(order[kept]), solved=len(closed))
        asked = min(MORE * asked, most)
        found = look(asked)
    return found


@dataclass(frozen=True)
class SplitsSolved:
    """`best`: the finalists, fastest first, each under the split of `splits` (those of them that were solved) and with
    as many recomputed layers as that needs, else under the stack's own. `bound`: what no split of a finalist beats
    [s]. `per_stage`: the fastest with numbers of recomputed layers that differ between ranks, which no launcher can be
    told; None where the best recomputes none."""

    best: ConfigTable
    splits: dict[ParallelConfig, SplitResult]
    bound: float
    per_stage: SplitResult | None = None


def solve_splits(
    model: CostModel, simulator: PipelineSimulator, found: SearchResult, limit: float, explicit: bool,
    stopped: Callable[[], bool] = lambda: False,
    choices: Callable[[ParallelConfig], Sequence[int]] = lambda config: (config.recompute_layers,),
    effort: float = EFFORT,
) -> SplitsSolved:  # fmt: skip
    """Solve the splits of finalists (fastest first) as far as they could overtake the best.

    `explicit`: the framework can be told a split; else one is only compared with its own, never taken. `choices`:
    numbers of layers that the ranks of a configuration may recompute. `effort`: of CP-SAT for all of them, as `EFFORT`;
    with less, what no launcher can be told is not solved.
    """
    rows = [found.best.row(i) for i in range(len(found.best))]
    own = evaluate_exactly(model, found.best, simulator).step_time.tolist()
    taken: list[tuple[float, ParallelConfig]] = list(zip(own, rows, strict=True))
    best, left = min(own, default=np.inf), effort
    # fewer recomputed layers than the stack's own split needs are for a split that can be told
    counts = [choices(row) if explicit else (row.recompute_layers,) for row in rows]
    bounds, searches = list(own), dict[int, SplitSearch]()
    for i, row in enumerate(rows):
        if solvable(row) and not only_split(model, row):
            costs = LayerCosts(model, row)
            bounds[i] = min(own[i], quick_bound(model, row, own[i], costs=costs))
            if bounds[i] < best * (1 - TOLERANCE) and not stopped():  # what memory leaves costs more to know
                searches[i] = SplitSearch(model, row, limit, counts[i], simulator=simulator, costs=costs)
                bounds[i] = searches[i].result.bound
                if explicit and searches[i].result.step_time < own[i]:
                    taken[i] = (searches[i].result.step_time, searches[i].result.config)
                    best = min(best, taken[i][0])
    # the fastest first: what it finds saves others the work; then always the least bound
    following = 0 if rows and bounds[0] < best * (1 - TOLERANCE) else int(np.argmin([*bounds, np.inf]))
    while following in searches and left > 0 and bounds[following] < best * (1 - TOLERANCE) and not stopped():
        search = searches[following]
        before = search.result.effort
        search.advance(best if following else np.inf, min(left, SLICE))
        left -= search.result.effort - before
        bounds[following] = search.result.bound
        if explicit and search.result.step_time < taken[following][0]:
            taken[following] = (search.result.step_time, search.result.config)
            best = min(best, search.result.step_time)
        open_ = [i for i in searches if not searches[i].done]
        following = min(open_, key=bounds.__getitem__, default=-1)
    order = sorted(range(len(rows)), key=lambda i: (taken[i][0], i))
    per_stage = None
    if order and explicit and effort >= EFFORT and not stopped():
        per_stage = _differing(model, taken[order[0]][1], limit, best)
    splits = {taken[i][1] if explicit else rows[i]: search.result for i, search in searches.items()}
    bound = min([best, *bounds])
    return SplitsSolved(ConfigTable.of([taken[i][1] for i in order]), splits, bound, per_stage)


def worth_listing(table: ConfigTable, top: int) -> ConfigTable:
    """`top` rows of a table, in its order: of those that differ in virtual stages (and the layers recomputed with them)
    alone the first; more of them only where there are too few others."""
    chosen = np.argsort(_again(table), kind="stable")[:top]
    return table.take(np.sort(chosen))


def _again(table: ConfigTable) -> NDArray[np.bool_]:
    """Which rows differ from one before in virtual stages and the layers recomputed with them alone?"""
    seen: set[ParallelConfig] = set()
    again = []
    for i in range(len(table)):
        config = table.row(i)
        if config.schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
            config = replace(config, vpp=1, schedule=0, recompute_layers=min(config.recompute_layers, 1))
        again.append(config in seen)
        seen.add(config)
    return np.array(again, dtype=np.bool_)


def _differing(model: CostModel, config: ParallelConfig, limit: float, best: float) -> SplitResult | None:
    """The fastest split of a configuration if every rank could recompute a number of layers of its own."""
    if not config.recompute_layers or not solvable(config):
        return None
    counts = range(-(-model.problem.model.num_layers // config.pp) + 1)
    found = solve_split(model, config, limit, best, DIFFERING_EFFORT, counts, per_stage=True)
    return found if found.step_time < best * (1 - TOLERANCE) else None

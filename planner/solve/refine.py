"""Which of the best configurations are the best when their pipelines are simulated, and which of them are listed?

The search ranks by a time that no configuration beats once its pipeline is simulated, under the stack's own split; the
first are costed again with their pipelines simulated pass by pass: ever more of them, until that time of all further
behind is no less than the step of the best. Those that differ in CUDA graphs alone and tie stand by what the framework
does by itself. Left out: layouts of their own (`layouts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import PipelineSimulator
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.solve.search import SearchResult
from planner.spec.config import ConfigTable, ParallelConfig, Schedule
from planner.spec.planfile import CLOSED_GAP
from planner.spec.rule import Problem

FINALISTS = 20  # whose splits are solved
LISTED = 10  # that are not like one before them, however few are asked for
LISTED_ONCE = ("vpp", "cp_kind", "hsdp", "cuda_graph_impl")
SIMULATED, PASSING_SIMULATED = 2048, 64  # at most; where the answer is one of many
MORE = 4  # times as many are simulated where that may change the best


def refine(
    model: CostModel, simulator: PipelineSimulator, found: SearchResult, look: Callable[[int], SearchResult],
    finalists: int = FINALISTS, listed: int = LISTED, most: int = SIMULATED,
) -> SearchResult:  # fmt: skip
    """The fastest with their pipelines simulated, fastest first: `finalists` of them, and the first `listed` that are
    not like one before them (see `worth_listing`). `look`: a search like `found` for another number of the first;
    `most` of them are simulated."""
    asked = finalists
    while len(found.best):
        cost, least = evaluate_exactly(model, found.best, simulator), model.least_step_time(found.best)
        own, graphs = model.problem.stack.limits.own_graphs, found.best["cuda_graph_impl"]
        order = ranked(found.best, cost.step_time, np.lexsort((cost.device_memory, graphs != own)))
        alone = np.flatnonzero(~_again(found.best.take(order), cost.step_time[order], LISTED_ONCE))[:listed]
        every = len(least) < asked
        sure = len(alone) == listed and least[-1] >= cost.step_time[order[alone[-1]]]
        if sure or asked >= most or every or np.isfinite(found.unseen):
            kept = np.union1d(np.arange(min(finalists, len(least))), alone)
            behind = np.inf if every else float(least[-1])
            return replace(found, best=found.best.take(order[kept]), solved=len(least), behind_solved=behind)
        asked = min(MORE * asked, most)
        found = look(asked)
    return found


def listed_once(problem: Problem, restrict: Collection[str]) -> tuple[str, ...]:
    """Axes in which alone rows of a list should not differ, where the stack leaves a choice: those asked about
    (`restrict`) are each worth a line."""
    limits, asked = problem.stack.limits, set(restrict)
    once = {
        "vpp": not {"vpp", "recompute_layers"} & asked,
        "cp_kind": len(problem.context_kinds) > 1 and "cp_kind" not in asked,
        "hsdp": 3 in limits.hybrid_sharding and "hsdp" not in asked,
        "cuda_graph_impl": len(limits.cuda_graphs) > 1
        and not {"cuda_graph_impl", "cuda_graph_modules"} & asked,
    }
    return tuple(axis for axis in LISTED_ONCE if once[axis])


def worth_listing(
    table: ConfigTable, time: NDArray[np.float64], top: int, once: Collection[str] = LISTED_ONCE
) -> ConfigTable:
    """`top` rows of a table, in its order: of those that differ in an axis of `once` alone the first; more of them only
    where there are too few others. With vpp go the layers recomputed; with CUDA graphs only step times `time` [s] that
    tie."""
    chosen = np.argsort(_again(table, time, once), kind="stable")[:top]
    return table.take(np.sort(chosen))


def _again(table: ConfigTable, time: NDArray[np.float64], once: Collection[str]) -> NDArray[np.bool_]:
    """Which rows are like one before, as `worth_listing` has it?"""
    seen: set[ParallelConfig] = set()
    last: dict[ParallelConfig, float] = {}  # of those that differ in graphs alone, the step time listed last
    again = []
    for i in range(len(table)):
        config = table.row(i)
        if "vpp" in once and config.schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
            config = replace(config, vpp=1, schedule=0, recompute_layers=min(config.recompute_layers, 1))
        config = replace(config, **{axis: 0 for axis in ("cp_kind", "hsdp") if axis in once})
        plain, like = _without_graphs(config), config in seen
        if "cuda_graph_impl" in once and not like and plain in last:
            like = abs(time[i] - last[plain]) <= CLOSED_GAP * last[plain]
        if not like:
            last[plain] = float(time[i])
        seen.add(config)
        again.append(like)
    return np.array(again, dtype=np.bool_)


def ranked(table: ConfigTable, time: NDArray[np.float64], preferred: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows of a table, fastest first by their step times [s]; those that tie with the fastest of those from which they
    differ in CUDA graphs alone follow one another in the order `preferred` of rows, as do equal times."""
    rank = np.argsort(preferred)
    order = np.lexsort((rank, time))
    leaders: dict[ParallelConfig, int] = {}
    leader = np.zeros(len(order), dtype=np.intp)  # of each row, the place of the one that it ties with
    for place, row in enumerate(order):
        first = leaders.setdefault(_without_graphs(table.row(int(row))), place)
        if time[row] > time[order[first]] * (1 + CLOSED_GAP):
            first = leaders[_without_graphs(table.row(int(row)))] = place
        leader[row] = first
    return np.lexsort((rank, leader))


def _without_graphs(config: ParallelConfig) -> ParallelConfig:
    return replace(config, cuda_graph_impl=0, cuda_graph_modules=0)

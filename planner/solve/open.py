"""Which configurations may be faster than the best known one under a layout of their layers that nobody has tried?

Those that a search dealt and whose bounds over every layout are not behind; of these only where some layout may fit.
Left out: which layout it is (`solve.splits`), and stacks that cannot be told one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.any_fit import least_slowest
from planner.cost.any_split import AnyLayout, least_of_any_layout
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.solve.dealing import Source
from planner.solve.splits.dealt import with_recomputed
from planner.spec.config import ConfigTable, ParallelConfig, Recompute

Counts = Mapping[int, float]  # by number of recomputed layers, what no layout beats [s]

ROWS_AT_A_TIME = 65536


@dataclass(frozen=True)
class Open:
    """Configurations, of those that differ in how many whole layers they recompute the one with the least bound;
    `counts` (n): numbers of layers of a rank that they may recompute, and what no layout of theirs beats then [s]."""

    table: ConfigTable
    counts: tuple[Counts, ...]


def like(config: ParallelConfig) -> ParallelConfig:
    """A configuration but for how many whole layers it recomputes, which is solved for together with its layout."""
    if config.recompute != Recompute.FULL:
        return config
    return replace(config, recompute=int(Recompute.NONE), recompute_layers=0)


def open_counts(
    model: CostModel, table: ConfigTable, counts: Sequence[Sequence[int]], limit: float, best: float
) -> list[Counts]:
    """Of rows (n,) and numbers of layers that their ranks may recompute: those of the numbers under which some layout
    may take less than `best` [s] within `limit` [bytes], and what none beats then (n) [s]."""
    pairs = [(i, count) for i, of_row in enumerate(counts) for count in of_row]
    leaves = ConfigTable.of([with_recomputed(table.row(i), count) for i, count in pairs])
    found: list[dict[int, float]] = [{} for _ in range(len(table))]
    for (i, count), least in zip(pairs, _least(model, leaves, limit, best).tolist(), strict=True):
        if least < best:
            found[i][count] = least
    return list(found)


def _least(model: CostModel, table: ConfigTable, limit: float, best: float) -> NDArray[np.float64]:
    """A step time that no layout of some rows beats which fits, at most `best` (n,) [s]."""
    if not len(table):
        return np.zeros(0)
    any_layout, slowest = AnyLayout(model, table, best), np.zeros(len(table))
    open_ = np.flatnonzero(any_layout.least() < best)
    slowest[open_] = least_slowest(model, table.take(open_), limit, best)
    return np.where(np.isfinite(slowest), any_layout.least(slowest), best)


def open_configurations(model: CostModel, source: Source, limit: float, best: float) -> Open:
    """Those that may take less than `best` [s] within `limit` [bytes], by rising bound."""
    found, bounds, names = [ConfigTable.of([])], [np.zeros(0)], [np.zeros(0, dtype=np.intp)]
    for dealt in source.done:
        stems = np.flatnonzero((dealt.least.time < best) & (dealt.least.memory <= limit))
        stems = stems[dealt.block.stems["pp"][stems] > 1]
        some = dealt.block.stems.take(stems)
        plain = least_of_any_layout(model, some, best)
        # recomputing takes longer, unless the user's own runs say otherwise or something lives on the host
        unsure = (some["offload"] > 0) | bool(model.problem.stack.measured)
        stems = stems[(plain < best) | unsure]
        if not len(stems):
            continue
        part = dealt.block.part(stems)
        of_leaf = dealt.start + stems[np.repeat(np.arange(len(stems)), part.counts)]
        table = part.table()
        for start in range(0, len(table), ROWS_AT_A_TIME):
            some, name = (
                table.take(slice(start, start + ROWS_AT_A_TIME)),
                of_leaf[start : start + ROWS_AT_A_TIME],
            )
            least = _least(model, some, limit, best)
            kept = np.flatnonzero(least < best)
            found.append(some.take(kept))
            bounds.append(least[kept])
            names.append(name[kept])
    table, bound, stem = ConfigTable.joined(found), np.concatenate(bounds), np.concatenate(names)
    order = np.lexsort((table["recompute_layers"], bound))
    group = np.stack([stem[order], table["recompute_modules"][order]], axis=1)
    _, first, of = np.unique(group, axis=0, return_index=True, return_inverse=True)
    counts: list[dict[int, float]] = [{} for _ in first]
    leaves = zip(
        of.ravel().tolist(), table["recompute_layers"][order].tolist(), bound[order].tolist(), strict=True
    )
    for place, count, least in leaves:
        counts[place].setdefault(count, least)
    chosen = np.argsort(first)
    table = table.take(order[first[chosen]])
    hosted = on_host(model, table) if len(table) else np.zeros(0, dtype=np.bool_)
    return Open(table.take(hosted), tuple(counts[place] for place in chosen[hosted].tolist()))

"""What do leaves of some stems cost? Each stem prepared once for every list of modules that a leaf of it recomputes.

Left out: which leaves are worth it (`search.py`, `pareto.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from planner.cost.host_memory import always_on_host, on_host
from planner.cost.model import CostModel
from planner.cost.table import CostTable
from planner.space.enumerate import Enumeration
from planner.space.recomputations import Recomputations
from planner.spec.config import ConfigTable, Mask, Recompute, distinct

PREPARED_ROWS = 131072  # leaves whose stems are prepared at a time
BATCH_ROWS = 32768  # completed at a time: about what a core's cache holds

Index = NDArray[np.intp]


def costed_leaves(
    model: CostModel, stems: ConfigTable, leaf: Index, ways: Recomputations, least: bool = False
) -> Iterator[tuple[slice, CostTable]]:
    """The leaves in order, some at a time: which, and what they cost.

    `leaf`: the stem of each, ascending; `ways`: what each recomputes; `least`: as `PreparedCosts.evaluate` takes it.
    """
    for start in range(0, len(leaf), PREPARED_ROWS):
        block = slice(start, min(start + PREPARED_ROWS, len(leaf)))
        modules = ways.modules[block]
        first, stem = distinct(leaf[block], modules)
        chosen = stems.take(leaf[block][first])
        selective = np.where(modules[first] > 0, np.int32(Recompute.SELECTIVE), chosen["recompute"])
        chosen = ConfigTable({**chosen.columns, "recompute": selective, "recompute_modules": modules[first]})
        prepared = model.prepare(chosen)
        for low in range(block.start, block.stop, BATCH_ROWS):
            rows = slice(low, min(low + BATCH_ROWS, block.stop))
            own = stem[rows.start - start : rows.stop - start]
            part = slice(int(own.min()), int(own.max()) + 1)
            yield rows, prepared.evaluate(part, own - part.start, ways.layers[rows], least=least)


def places_behind_first(numbers: NDArray[np.int64]) -> tuple[Index, Index]:
    """So many leaves of each of some stems, in order: which stem, and its place among the choices, 1 the first."""
    leaf = np.repeat(np.arange(len(numbers)), numbers)
    return leaf, 1 + np.arange(len(leaf)) - (np.cumsum(numbers) - numbers)[leaf]


def first_is_fastest(model: CostModel, space: Enumeration) -> Mask:
    """Of which stems of a space the first leaf surely takes least time, (n,). The user's own runs may say otherwise of
    lists of modules, of which each has a factor of its own; and where something lives on the host, recomputing more
    leaves less to copy, or hides it."""
    own = bool(model.problem.stack.measured)
    ordered = [ways.starts_with_least and not (own and bool(ways.modules.any())) for ways in space.choices]
    return np.array([*ordered, True], dtype=np.bool_)[space.kind] & (space.stems["offload"] == 0)


class HostRoom:
    """Which leaves have room on their hosts? Asked only where any configuration of a space may have none."""

    def __init__(self, model: CostModel, stems: ConfigTable) -> None:
        self.model, self.stems = model, stems
        self.always = always_on_host(model, stems)

    def holds(self, stems: Index, ways: Recomputations) -> Mask:
        """True where the hosts of a leaf hold what it asks of them."""
        if self.always or not len(stems):
            return np.ones(len(stems), dtype=np.bool_)
        return on_host(self.model, ways.given_to(self.stems.take(stems)))

"""What does a configuration cost under each of many layouts?

Rows whose layers are dealt each in a way of its own are costed all at once, by the program's equations: a row costs
what it costs under `CostModel.with_split` of its layout (tests/test_brute_force.py). Left out: which rows are worth it
(`benchmarks/least_times.py`), and pipelines without an exact equation, which `evaluate_exactly` simulates.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from math import comb
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.cost.pipeline.stages import StageClasses
from planner.cost.table import CostTable
from planner.spec.config import ConfigTable, Schedule, distinct

Index = NDArray[np.intp]
Layout = tuple[int, ...]

ROWS: Final = 16384  # costed at once
_PLACEMENTS: Final = np.array([schedule.placement for schedule in Schedule], dtype=np.int32)
_WIDE: Final = ("count", "stage", "first", "last", "layers", "leading", "run_class", "run_length")
_ARRAYS: Final = (*_WIDE, "copies")
_TUPLES: Final = ("members", "chunks", "again_of_chunk")


def number_of_layouts(layers: int, chunks: int) -> int:
    """Ways to deal layers to chunks of 0 or more."""
    return comb(layers + chunks - 1, chunks - 1)


def all_layouts(layers: int, chunks: int) -> NDArray[np.int32]:
    """All of them, (n, chunks)."""
    rows = np.zeros((1, 0), dtype=np.int32)
    left = np.array([layers])
    for last in range(chunks - 1, 0, -1):
        del last
        number = left + 1
        source = np.repeat(np.arange(len(rows)), number)
        here = np.arange(len(source)) - (np.cumsum(number) - number)[source]
        rows = np.column_stack([rows[source], here.astype(np.int32)])
        left = left[source] - here
    return np.column_stack([rows, left.astype(np.int32)])


class _Laid(CostModel):
    """The model with every row's layers dealt as `layouts[of_row]` says."""

    def __init__(
        self, model: CostModel, layouts: Sequence[Layout], of_row: Index, known: dict[Any, Any]
    ) -> None:
        self.__dict__.update(copy(model).__dict__)
        self._plain, self._layouts, self._of_row, self._known = model, layouts, of_row, known

    def _stage_classes(self, table: ConfigTable) -> StageClasses:
        columns = (self._of_row.astype(np.int32), table["pp"], _PLACEMENTS[table["schedule"]])
        first, inverse = distinct(*columns)
        each = []
        for row in first.tolist():
            key = self._layouts[self._of_row[row]], *(int(column[row]) for column in columns[1:])
            if key not in self._known:
                found = self._plain.with_split(key[0])._stage_classes(table.take(slice(row, row + 1)))
                self._known[key] = _widened(found, int(table["pp"][row]), self.problem.model.num_layers + 1)
            each.append(self._known[key])
        return _together(each, inverse)


def _widened(one: StageClasses, width: int, depth: int) -> StageClasses:
    """The same with room for so many classes, runs and recomputed layers, as `stage_classes` pads them."""
    steps = np.minimum(np.arange(depth), one.leading.shape[2] - 1)
    again = tuple(tuple(of_chunk[steps] for of_chunk in pipeline) for pipeline in one.again_of_chunk)
    wide: dict[str, Any] = {}
    for name in _WIDE:
        column = getattr(one, name)
        column = column[:, :, steps] if name == "leading" else column
        wide[name] = np.zeros((1, width, *column.shape[2:]), column.dtype)
        wide[name][:, : column.shape[1]] = column
    return replace(one, again_of_chunk=again, **wide)


def _together(each: Sequence[StageClasses], of_row: Index) -> StageClasses:
    """Classes of equally wide single pipelines as those of many."""
    joined: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in each]) for name in _ARRAYS}
    for name in _TUPLES:
        joined[name] = tuple(getattr(one, name)[0] for one in each)
    return StageClasses(of_row=of_row, **joined)


def cost_under(
    model: CostModel, table: ConfigTable, layouts: Sequence[Layout], of_row: Index, known: dict[Any, Any],
    keep_terms: bool = False,
) -> CostTable:  # fmt: skip
    """Costs of a table whose row i is dealt as `layouts[of_row[i]]`. `known`: kept between calls."""
    return _Laid(model, layouts, of_row, known).evaluate(table, keep_terms)

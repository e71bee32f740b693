"""What is the fastest of all configurations that `planner estimate` calls legal and that fit, under all layouts?

The oracle by which proofs are judged. Rows are left uncosted only where `LeastTimes` shows that they cannot be faster
than the best one known; pipelines without an exact equation are simulated for all layouts at once. Whatever is faster
than the answer counts only once `evaluate_exactly` and then `planner estimate` itself say so. Left out: how questions
are made (`benchmarks/random_questions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.layouts import ROWS, all_layouts, cost_under
from benchmarks.least_times import LeastTimes, by_group
from benchmarks.legal_space import LegalSpace
from planner.cost.chunks import PipelineSimulator, are_simulated
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.cost.pipeline.step import straggling
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.cost.table import CostTable
from planner.spec.config import ConfigTable, ParallelConfig

Floats = NDArray[np.float64]
Index = NDArray[np.intp]
Layout = tuple[int, ...]  # none: as the stack deals them
Confirm = Callable[[ParallelConfig, Layout, float], str]  # why it does not count; empty where it does

MOST_PAIRS: Final = 1_000_000  # of configurations and layouts, costed
MOST_CASES: Final = 1_000_000  # pipelines simulated
MOST_REFUSED: Final = 40
ROUNDING: Final = 1e-9
# terms of a step that are not the work of its slowest stage
_BESIDE: Final = ("dp_comm", "optimizer", "step_overhead", "host_transfer")
_NOT_WORK: Final = ("pipeline_bubble", "pp_comm", "stragglers", "own_runs", "memory_pressure", *_BESIDE)


@dataclass
class Hunt:
    """What was found so far. `least`: the step time to beat [s]; `any_will_do`: the first found ends it; `complete`:
    was nothing left out for its number?"""

    least: float
    any_will_do: bool = False
    step: float = math.inf
    config: ParallelConfig | None = None
    layout: Layout = ()
    costed: int = 0
    simulated: int = 0
    complete: bool = True
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """Configurations of one pp and vpp, with the layouts they can have and bounds of them; none: the stack's own."""

    table: ConfigTable
    layouts: NDArray[np.int32] | None = None
    least: LeastTimes | None = None
    known: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def under(cls, model: CostModel, table: ConfigTable, layouts: NDArray[np.int32]) -> Part:
        """Configurations under layouts (n, pp x vpp)."""
        return cls(table, layouts, LeastTimes(model, table, layouts))

    def layout(self, number: int) -> Layout:
        return () if self.layouts is None else tuple(self.layouts[number].tolist())


@dataclass(frozen=True)
class _Waiting:
    """Rows of a part under layouts, to be simulated (n,). `work`: of the slowest stage, `beside`: what a step takes
    beside the pipeline, `pressure`: what nothing slows down, `least`: what the whole takes at least [s]."""

    row: Index
    layout: Index
    work: Floats
    beside: Floats
    pressure: Floats
    least: Floats

    def take(self, places: Index | NDArray[np.bool_]) -> _Waiting:
        """Some of the rows."""
        return _Waiting(
            self.row[places], self.layout[places], self.work[places], self.beside[places], self.pressure[places],
            self.least[places],
        )  # fmt: skip


class Oracle:
    """The best of what is asked about, within `allowed` bytes a device. `confirm`: asks `planner estimate`."""

    def __init__(self, model: CostModel, allowed: float, confirm: Confirm) -> None:
        self.model, self.allowed, self.confirm = model, allowed, confirm
        self.simulator: PipelineSimulator = simulator_of(model)

    def of_space(self, space: LegalSpace, known: float) -> Hunt:
        """The best of a space, under all layouts, that takes less than `known` seconds; any, where that is infinite."""
        layers, parts = self.model.problem.model.num_layers, [Part(space.own)]
        for (pp, vpp), table in space.told.items():
            parts.append(Part.under(self.model, table, all_layouts(layers, pp * vpp)))
        return self.best(parts, Hunt(known, known == math.inf))

    def best(self, parts: Sequence[Part], hunt: Hunt) -> Hunt:
        """The best of some parts that takes less than the hunt's `least`."""
        waiting = [(part, some) for part in parts for some in self._costed(hunt, part)]
        for part, some in sorted(waiting, key=lambda one: float(one[1].least.min())):
            if part.layouts is None:
                self._simulate_own(hunt, part, some)
            else:
                self._simulate(hunt, part, some)
        return hunt

    def _costed(self, hunt: Hunt, part: Part) -> Iterator[_Waiting]:
        """Cost a part, least bound first; yield what has to be simulated."""
        if part.least is None:
            rows = np.arange(len(part.table))
            layouts, bounds = np.zeros_like(rows), np.zeros(len(rows))
        else:
            rows, layouts, bounds = _pairs(hunt, part.least)
        order = np.argsort(bounds, kind="stable")
        simulated = are_simulated(part.table)[rows]
        for start in range(0, len(order), ROWS):
            pairs = order[start : start + ROWS]
            pairs = pairs[bounds[pairs] < hunt.least]
            for apart in (False, True):
                some = pairs[simulated[pairs] == apart]
                if len(some):
                    cost = self._cost(part, rows[some], layouts[some], apart)
                    yield from self._weigh(hunt, part, (rows[some], layouts[some], bounds[some]), cost)

    def _cost(self, part: Part, rows: Index, layouts: Index, keep_terms: bool) -> CostTable:
        table = part.table.take(rows)
        if part.layouts is None:
            return self.model.evaluate(table, keep_terms)
        used, of_row = np.unique(layouts, return_inverse=True)
        dealt = [part.layout(number) for number in used.tolist()]
        return cost_under(self.model, table, dealt, of_row, part.known, keep_terms)

    def _weigh(
        self, hunt: Hunt, part: Part, pairs: tuple[Index, Index, Floats], cost: CostTable
    ) -> Iterator[_Waiting]:
        """Take the best of costed rows; yield those that have no exact time yet. `pairs`: rows, layouts, bounds."""
        rows, layouts, bounds = pairs
        hunt.costed += len(rows)
        fits = cost.device_memory <= self.allowed
        if cost.detail is None:
            assert (bounds <= cost.step_time * (1 + ROUNDING)).all(), "a bound above what it bounds"
            self._offer(hunt, part, rows[fits], layouts[fits], cost.step_time[fits])
            return
        terms = cost.detail.time
        work = np.asarray(sum(terms[name] for name in terms if name not in _NOT_WORK))
        beside = np.asarray(sum(terms[name] for name in _BESIDE if name in terms))
        pressure = terms["memory_pressure"]
        least = self._step(np.maximum(work, bounds) + beside, pressure)
        fits &= least < hunt.least
        if fits.any():
            yield _Waiting(rows, layouts, work, beside, pressure, least).take(fits)

    def _step(self, subtotal: Floats, pressure: Floats) -> Floats:
        """A step of these parts, waiting for the slowest node included, rounded down [s]."""
        problem = self.model.problem
        slowed = straggling(subtotal, problem)
        return np.asarray((subtotal + slowed + pressure) * (1 - ROUNDING))

    def _offer(self, hunt: Hunt, part: Part, rows: Index, layouts: Index, time: Floats) -> None:
        """Take the fastest of some rows that fit, if it is faster than what is known and `planner estimate` agrees."""
        for i in np.argsort(time, kind="stable").tolist():
            if time[i] >= hunt.least:
                return
            if len(hunt.refused) >= MOST_REFUSED:
                hunt.complete = False
                return
            config, layout = part.table.row(int(rows[i])), part.layout(int(layouts[i]))
            if not on_host(self._under(layout), ConfigTable.of([config]))[0]:
                continue
            refusal = self.confirm(config, layout, float(time[i]))
            if not refusal:
                hunt.step, hunt.config, hunt.layout = float(time[i]), config, layout
                hunt.least = 0.0 if hunt.any_will_do else hunt.step
                return
            hunt.refused.append(refusal)

    def _under(self, layout: Layout) -> CostModel:
        return self.model.with_split(layout) if layout else self.model

    def _simulate_own(self, hunt: Hunt, part: Part, some: _Waiting) -> None:
        """Simulate rows that the stack deals, in the order of what they take at least."""
        order = np.argsort(some.least, kind="stable")
        for start in range(0, len(order), 64):
            here = order[start : start + 64]
            here = here[some.least[here] < hunt.least]
            if not len(here):
                return
            cost = evaluate_exactly(self.model, part.table.take(some.row[here]), self.simulator)
            hunt.simulated += len(here)
            assert (some.least[here] <= cost.step_time).all(), "a bound above what it bounds"
            self._offer(hunt, part, some.row[here], some.layout[here], cost.step_time)

    def _simulate(self, hunt: Hunt, part: Part, some: _Waiting) -> None:
        """Simulate rows of one key at a time under all their layouts; cost exactly what is then fastest."""
        assert part.least is not None, "of what can be told a layout"
        groups = [some.take(mine) for mine in by_group([part.least.of_row[some.row]])]
        for group in sorted(groups, key=lambda one: float(one.least.min())):
            mine = group.take(group.least < hunt.least)
            if not len(mine.row):
                return
            layouts, of_row = np.unique(mine.layout, return_inverse=True)
            hunt.simulated += len(layouts)
            if hunt.simulated > MOST_CASES:
                hunt.complete = False
                return
            first = part.table.row(int(mine.row[0]))
            key = int(part.least.of_row[mine.row[0]])
            free, real = part.least.makespans(key, layouts, first)[of_row].T
            exposed = self.model.problem.stack.communication.p2p_exposed
            time = np.maximum(mine.work, free) + exposed * (real - free) + mine.beside
            self._settle(hunt, part, replace(mine, least=self._step(time, mine.pressure)))

    def _settle(self, hunt: Hunt, part: Part, mine: _Waiting) -> None:
        """Cost rows exactly, those that take least first."""
        for i in np.argsort(mine.least, kind="stable").tolist():
            if mine.least[i] >= hunt.least:
                return
            row, layout = mine.row[i : i + 1], mine.layout[i : i + 1]
            under = self._under(part.layout(int(layout[0])))
            cost = evaluate_exactly(under, part.table.take(row), self.simulator.dealt(under.layers))
            assert mine.least[i] <= cost.step_time[0], "a bound above what it bounds"
            self._offer(hunt, part, row, layout, cost.step_time)


def _pairs(hunt: Hunt, least: LeastTimes) -> tuple[Index, Index, Floats]:
    """Row, layout and bound of all pairs of a row and a layout whose bound is below what is known."""
    found = [(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0))]
    by_key, total = np.argsort(least.of_row, kind="stable"), 0
    ends = np.searchsorted(least.of_row[by_key], np.arange(len(least) + 1))
    anyhow = least.of_any_layout()
    for key in np.argsort(anyhow, kind="stable").tolist():
        if anyhow[key] >= hunt.least:
            break
        bound = least.of_layouts(key)
        layouts, rows = np.flatnonzero(bound < hunt.least), by_key[ends[key] : ends[key + 1]]
        total += len(layouts) * len(rows)
        if total > MOST_PAIRS:
            hunt.complete = False
            break
        each = np.repeat(bound[layouts], len(rows))
        found.append((np.tile(rows, len(layouts)), np.repeat(layouts, len(rows)), each))
    rows, layouts, bounds = (np.concatenate(column) for column in zip(*found, strict=True))
    return rows, layouts, bounds


def holds(space: LegalSpace, config: ParallelConfig, layout: Layout) -> bool:
    """Is a configuration among those that the oracle looks at?"""
    table = space.told.get((config.pp, config.vpp)) if layout else space.own
    if table is None:
        return False
    wanted = replace(config, hsdp=0) if config.hsdp == config.dp * config.cp else config
    same = np.ones(len(table), dtype=np.bool_)
    for axis, column in table.columns.items():
        same &= column == getattr(wanted, axis)
    return bool(same.any())

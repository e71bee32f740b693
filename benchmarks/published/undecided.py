"""Which of the configurations that a published row leaves open did it run? One that fits; of several the fastest.

Left out: which there are (`degrees.py`, `jobs.py`), and orders of simulated pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from planner.calibrate.binding_rules import broken_rule
from planner.catalog.cluster_rates import rates_of
from planner.cost.model import CostModel
from planner.cost.table import CostTable
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryRoom

if TYPE_CHECKING:
    from benchmarks.published.runs import Run

FITS, MAY_FIT, RECOMPUTED_FITS, TOO_LARGE = range(4)
_NEVER: Final = (TOO_LARGE, np.inf)


def fits(run: Run) -> bool:
    """Whether a run may fit, if need be with the recomputation that its row leaves open."""
    return _ranked([run])[0][0] < TOO_LARGE


def first_that_fits(runs: Sequence[Run]) -> Run:
    """The first of the runs that fits as it is, whatever the error of the memory model; else the last."""
    ranked = _ranked(runs)
    return next((run for run, (grade, _) in zip(runs, ranked, strict=True) if grade == FITS), runs[-1])


def fastest_that_fits(runs: Sequence[Run]) -> Run | None:
    """The fastest of the runs that surely fit; else of those that may, or would with all recomputed; else none."""
    ranked = _ranked(runs)
    best = min(range(len(runs)), key=lambda i: ranked[i], default=None)
    return None if best is None or ranked[best][0] == TOO_LARGE else runs[best]


def _ranked(runs: Sequence[Run]) -> list[tuple[int, float]]:
    """How well each fits, and its step time [s]; runs of one problem are evaluated as one table."""
    groups: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        config = run.config
        whole = config.tp * config.cp * config.dp % (config.ep * config.etp) == 0
        if whole and not broken_rule(config, run.problem):
            groups.setdefault(id(run.problem), []).append(index)
    found = [_NEVER] * len(runs)
    for members in groups.values():
        problem = runs[members[0]].problem
        as_is = _costs(problem, [runs[i].config for i in members])
        frugal = _costs(problem, [runs[i].fallback or runs[i].config for i in members])
        room = MemoryRoom.of(problem, headroom=0.0)
        sure, most = room.sure, room.most
        for row, index in enumerate(members):
            sizes, seconds = (as_is.device_memory[row], frugal.device_memory[row]), as_is.step_time[row]
            if not np.isfinite([*sizes, seconds]).all():
                continue
            grades = (sizes[0] <= sure, sizes[0] <= most, sizes[1] <= most)
            found[index] = (grades.index(True) if any(grades) else TOO_LARGE, float(seconds))
    return found


def _costs(problem: Problem, configs: list[ParallelConfig]) -> CostTable:
    return CostModel(problem, *rates_of(problem.cluster)).evaluate(ConfigTable.of(configs))

"""How long does the slowest part of a pipeline keep a step, stage by stage?

1F1B with uneven stages has an exact closed form over runs of equal stages (schedule.uneven). Left out: interleaved
stages that differ, for which the equal-stage form stands in; `solve.refine` simulates the few that matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.stages import StageClasses
from planner.schedule.formulas import fill_and_drain
from planner.schedule.uneven import one_f_one_b_makespan_of_runs

Array = NDArray[np.float64]
Index = NDArray[np.intp]


def bubble_time(
    forward: Array,
    time: Array,
    classes: StageClasses,
    c_row: Index,
    slowest: Array,
    total: Array,
    m: Array,
    v: Array,
) -> Array:
    """Time that a step takes beyond the slowest stage's own work, m x `slowest` [s].

    1F1B: makespan less m x slowest, exact for free hops. Interleaved: (sum - max) / v, exact for equal stages
    where p divides m. `forward`, `time` (rows, C): seconds of a micro-batch in a stage of each class, forward alone
    and with backward; `total` (rows,): their sum over stages. `c_row`: the pipeline of each row in `classes`.
    """
    bubble = np.asarray(fill_and_drain(total, slowest, v))
    uneven = np.flatnonzero((v == 1) & (classes.run_length[c_row, 1:] > 0).any(axis=1))
    if len(uneven):
        pipeline = c_row[uneven]
        length = classes.run_length[pipeline]
        width = int((length > 0).sum(axis=1).max())
        run, length = classes.run_class[pipeline, :width], length[:, :width]
        f = np.take_along_axis(forward[uneven], run, axis=1)
        b = np.take_along_axis(time[uneven], run, axis=1) - f
        makespan = one_f_one_b_makespan_of_runs(f, b, length, m[uneven])
        bubble[uneven] = np.maximum(makespan - m[uneven] * slowest[uneven], 0.0)
    return bubble


def least_makespan(
    time: Array, classes: StageClasses, c_row: Index, total: Array, m: Array, v: Array
) -> Array:
    """A time that no order of the passes beats, given each stage's own time [s].

    1F1B: for every stage, the forwards and backwards of the stages before it and m of its own; the last stage also
    waits for nothing else, so W + (m - 1) T of it. Interleaved: the form that `bubble_time` uses.
    """
    length = classes.run_length[c_row]
    run = np.take_along_axis(time, classes.run_class[c_row], axis=1)
    before = np.cumsum(length * run, axis=1) - run
    path = np.where(length > 0, before + m[:, None] * run, -np.inf).max(axis=1)
    slowest = np.where(length > 0, run, -np.inf).max(axis=1)
    return np.where(v > 1, m * slowest + fill_and_drain(total, slowest, v), path)

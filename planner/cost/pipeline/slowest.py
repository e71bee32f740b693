"""How long does the slowest part of a pipeline keep a step, stage by stage?

1F1B with uneven stages has an exact closed form over runs of equal stages (schedule.uneven), GPipe one over all
stages. The others have one for equal stages, for which uneven ones take the mean of all stages but the slowest; what
`solve.refine` answers with is simulated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.pipeline.stages import StageClasses, largest, sum_of_columns
from planner.schedule.formulas import (
    dualpipe_bubble,
    fill_and_drain,
    zb_h1_bubble,
    zb_h2_bubble,
    zb_v_bubble,
)
from planner.schedule.uneven import one_f_one_b_makespan
from planner.spec.config import IntColumn, Schedule

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
    runs = (classes.run_length > 0).sum(axis=1)
    uneven = np.flatnonzero((v == 1) & (runs > 1)[c_row])
    if len(uneven):
        pipeline = c_row[uneven]
        of_run = range(int(runs[pipeline].max()))
        length = np.stack([classes.run_length[:, r].take(pipeline) for r in of_run])
        places = [uneven * time.shape[1] + classes.run_class[:, r].take(pipeline) for r in of_run]
        f, both = (np.stack([of.take(at) for at in places]) for of in (forward, time))
        makespan = one_f_one_b_makespan(f.T, (both - f).T, length.T, m[uneven])
        bubble[uneven] = np.maximum(makespan - m[uneven] * slowest[uneven], 0.0)
    return bubble


def bubble_apart(
    schedule: IntColumn, forward: Array, time: Array, weight: Array, hidden: Array, count: Array, p: Array, v: Array,
    m: Array,
) -> Array:  # fmt: skip
    """Time beyond m x the slowest stage's work, for rows of schedules other than 1F1B and interleaved [s].

    `forward`, `time`, `weight`, `hidden` (rows, C): forward pass, whole work, weight gradients and what overlapped
    pairs save, of a micro-batch in a stage of each class; `count` (rows, C): stages. GPipe's one chunk is exact; the
    others are exact where all stages are equal and m is at least what `schedule.formulas` says.
    """
    work = np.where(count > 0, time - hidden, -np.inf)
    slowest, rows = work.argmax(axis=1), np.arange(len(time))
    others = np.maximum(p - 1, 1)

    def mean_chunk(x: Array) -> Array:
        return (sum_of_columns(count * x) - x[rows, slowest]) / others / v

    f, b, w = mean_chunk(forward), mean_chunk(time - forward - weight), mean_chunk(weight)
    pair = f + b + w - mean_chunk(hidden)
    alive = count > 0
    longest = largest(np.where(alive, forward, 0.0)) + largest(np.where(alive, time - forward, 0.0))
    whole = sum_of_columns(count * time) + (m - 1) * longest - m * work[rows, slowest]
    depth = np.where(schedule == Schedule.DUALPIPE, p / 2, p)
    # fewer micro-batches than a V is laid out for: one through it and back, then the others' drain
    few = 2 * p * (f + b) + m * w + (m - 1) * b - 2 * m * (f + b + w)
    looped = (np.maximum(m * v + p - 1, p * v + m - 1) - m * v) * (f + b + w)
    return np.select(
        [
            *(schedule == kind for kind in (Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_V)),
            np.isin(schedule, (Schedule.V_HALF, Schedule.V_MIN)),
        ],
        [
            np.where(v > 1, looped, whole),
            zb_h1_bubble(f, b, w, p),
            zb_h2_bubble(f, b, w, p),
            np.maximum(zb_v_bubble(f, b, w, p), few),
            np.maximum((p - 1) * (f + b + w), few),  # between ZB-V's and twice this, 1F1B's
        ],
        dualpipe_bubble(f, b, w, pair, depth),
    )


def least_makespan(
    time: Array, forward: Array, hidden: Array, classes: StageClasses, c_row: Index, schedule: IntColumn, m: Array,
    v: Array,
) -> Array:  # fmt: skip
    """A time that no order of the passes beats, given each stage's own time [s].

    1F1B: for every stage, the forwards and backwards of the stages before it and m of its own; the last stage also
    waits for nothing else, so W + (m - 1) T of it. Others: the work of the slowest stage, after the forwards before it
    where a rank has one chunk.
    """
    length = classes.run_length[c_row]
    run = np.take_along_axis(time, classes.run_class[c_row], axis=1)
    before = np.cumsum(length * run, axis=1) - run
    path = np.where(length > 0, before + m[:, None] * run, -np.inf).max(axis=1)
    slowest = np.where(length > 0, run, -np.inf).max(axis=1)
    usual = np.where(v > 1, m * slowest, path)
    apart = np.flatnonzero(schedule > Schedule.INTERLEAVED)
    if not len(apart):
        return usual
    length, of_run = length[apart], classes.run_class[c_row[apart]]
    ahead = np.take_along_axis(forward[apart], of_run, axis=1)
    work = run[apart] - np.take_along_axis(hidden[apart], of_run, axis=1)
    one_chunk = (v[apart] == 1) & (schedule[apart] != Schedule.DUALPIPE)
    start = np.where(one_chunk[:, None], np.cumsum(length * ahead, axis=1) - length * ahead, 0.0)
    usual[apart] = np.where(length > 0, start + m[apart, None] * work, -np.inf).max(axis=1)
    return usual

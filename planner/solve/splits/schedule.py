"""How long does 1F1B take with stages that a solver chooses, and which of its ranks hold less in flight? Constraints of
CP-SAT.

Times are expressions in whole units. Left out: the time of interleaved schedules, of which `SplitModel` takes paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from planner.schedule.held import interleaved_moments
from planner.spec.config import ParallelConfig

Expression = Any  # of CP-SAT: a variable, a sum of them, or a number


def one_f_one_b(
    cp: Any, forward: list[Expression], backward: list[Expression], m: int, makespan: Any, longest: int
) -> None:
    """`makespan` is no shorter than `schedule.uneven.one_f_one_b_makespan`, and as long where it is minimised: of every
    stage s how a path enters its steady phase, stays and leaves. `longest`: no time is longer."""
    p = len(forward)
    first = max(p - m, 0)

    def variables() -> list[Any]:
        return [cp.new_int_var(0, longest, "") for _ in range(p)]

    def through(ahead: list[Expression], back: list[Expression]) -> tuple[list[Any], list[Any]]:
        """Of every stage the work `ahead` until it, and the latest end of a path that turns there or later."""
        done, deepest, turned = variables(), variables(), variables()
        for variable, so_far in zip(done, accumulate(ahead), strict=True):
            cp.add(variable == so_far)
        returned = list(accumulate(back))
        for s in range(p):
            cp.add(deepest[s] >= ahead[s])
            cp.add(turned[s] >= done[s] + (p - 1 - s) * deepest[s] + returned[s])
        for before, after in pairwise(deepest):
            cp.add(after >= before)
        for before, after in pairwise(turned[first:]):
            cp.add(before >= after)
        return done, turned

    done_forward, enter = through(forward, backward)
    done_backward, leave = through(backward, forward)
    for s in range(first, p):
        steady = (m - p + s) * (forward[s] + backward[s])
        cp.add(makespan >= enter[s] - done_backward[s] + steady + leave[s] - done_forward[s])


def less_in_flight(
    config: ParallelConfig, rank: int, chunks: Sequence[Sequence[Expression]], held: Sequence[Sequence[int]]
) -> list[Expression]:
    """Of these constraints one holds where `chunks` (v, kinds) have fewer layers of some kind in flight than an
    interleaved rank with `held` of them, at some moment that may be its worst."""
    p = config.pp
    moments = interleaved_moments(p, config.vpp, config.num_microbatches, rank)
    found = []
    for weights in np.concatenate(moments[: 2 if rank == p - 1 else 1]).astype(int).tolist():
        for kind in range(len(held[0])):
            there = sum(weight * of[kind] for weight, of in zip(weights, held, strict=True))
            if there:
                here = sum(weight * of[kind] for weight, of in zip(weights, chunks, strict=True) if weight)
                found.append(here < there)
    return found

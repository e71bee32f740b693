"""Which order is fast when a rank may hold at most so many chunks? The order of zb-auto, V-Half and V-Min.

    1. lay out how urgent each pass is: straight pipelines by how many forwards a rank starts with, folded ones
       by a pattern of four passes that repeats every six slots and moves by a constant from rank to rank;
    2. list scheduling runs each layout with the times at hand, under the limit (list_scheduling.py);
    3. the fixed zero-bubble orders that stay within the limit compete too; the shortest makespan wins, the first
       tried among equals.

The patterns are the uniform building blocks of Qi 2024 (arXiv 2405.15362, section 3 and appendix A); everything
else is a search of planner's own, so it promises a good order, not the best one. Against the recorded orders of
the zero-bubble project it is nowhere slower at the same limit (tests/schedule/test_memory_limited.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Final

from planner.errors import InputError
from planner.schedule.actions import ActionTable, peak_in_flight
from planner.schedule.generate import action_table, check_shape
from planner.schedule.list_scheduling import ListScheduler, Pipeline, Urgency, written_table
from planner.schedule.simulate import StageTimes, simulate
from planner.spec.config import Schedule

MOST_PASSES: Final = 150_000  # beyond it one layout alone takes seconds
_PASSES_TRIED: Final = 110_000  # over all layouts: about a second
_FEWEST_LAYOUTS, _MOST_LAYOUTS = 4, 24

# (slots from rank to rank, gap before the first late backward, gap at the turn before the first early backward)
_PATTERNS: Final = ((1, 2, 0), (1, 4, 0), (1, 0, 0), (2, 3, 1), (2, 0, 1), (5, 0, 0), (3, 0, 0), (5, 1, 4))
_MANNERS: Final = ((0.0, False), (1.0, False), (0.0, True), (0.5, True))  # patience, weights first


def default_limit(schedule: Schedule, p: int) -> int:
    """Chunks a rank may hold where nothing is said [chunks]: V-Min about a third, V-Half half of 1F1B's 2p
    (Qi 2024, arXiv 2405.15362, table 1), zb-auto twice 1F1B's p (ZB-2p of Qi 2023, arXiv 2401.10241)."""
    if schedule is Schedule.V_MIN:
        return 2 * math.ceil((p + 2) / 3)
    return p + 2 if schedule is Schedule.V_HALF else 2 * p


def memory_limited_table(
    schedule: Schedule, p: int, m: int, times: StageTimes, limit: int | None = None, v: int = 1
) -> ActionTable:
    """The fastest order found whose ranks never hold more than `limit` chunks until their weight gradients.

    `schedule` is V_HALF or V_MIN (two stages a rank, folded; they differ in their default limit), or ZB_H2 for
    zb-auto with v = 1 or 2. `times` is one case. Raises `InputError`.
    """
    name = {Schedule.V_HALF: "v-half", Schedule.V_MIN: "v-min"}.get(schedule, "zb-auto")
    v = 2 if name != "zb-auto" else v
    _check(name, p, m, v)
    limit = default_limit(schedule, p) if limit is None else limit
    least = v
    if limit < least:
        must = f"the memory limit of {name} must be at least {least} chunks per rank"
        raise InputError(must, str(limit), f"use {default_limit(schedule, p)}, its default")
    work = _pipeline(p, v == 2, m, times, limit)
    best: tuple[float, ActionTable] | None = None
    for table in _candidates(name, work):
        if peak_in_flight(table).until_weight.max() > limit:
            continue
        makespan = simulate(table, times).makespan
        if best is None or makespan < best[0] * (1 - 1e-12):
            best = makespan, table
    if best is None:
        must = f"{name} must find an order that holds at most {limit} chunks per rank"
        raise InputError(must, f"{p} ranks, {m} micro-batches", f"raise the limit, towards {2 * p}")
    found = best[1]
    return ActionTable(
        name, found.stages, found.microbatches, found.kind, found.stage, found.microbatch, found.joined
    )


def _check(name: str, p: int, m: int, v: int) -> None:
    if v not in (1, 2):
        raise InputError(f"{name} must have one or two stages per rank", f"vpp {v}", "use vpp 1 or 2")
    if 3 * p * v * m > MOST_PASSES:
        must = f"{name} must have at most {MOST_PASSES // 3:,} forwards, since its order is searched for"
        given = f"{p} ranks x {v} stages x {m} micro-batches"
        raise InputError(must, given, "use zb-h1 or zb-v, whose order is fixed")
    check_shape(Schedule.V_HALF if v == 2 else Schedule.ZB_H1, p, m, v)


def _pipeline(p: int, folded: bool, m: int, times: StageTimes, limit: int) -> Pipeline:
    f, b, w, hop = (
        x[0].tolist() for x in (times.forward, times.input_gradient, times.weight_gradient, times.hop)
    )
    return Pipeline(p, folded, m, f, b, w, hop, min(limit, m * (1 + folded)))


def _candidates(name: str, work: Pipeline) -> Iterator[ActionTable]:
    """Orders to compare: the fixed ones, then one for every layout that list scheduling can run."""
    if work.folded:
        yield action_table(Schedule.ZB_V, work.p, work.m)
    else:
        yield action_table(Schedule.ZB_H1, work.p, work.m)
        yield action_table(Schedule.ZB_H2, work.p, work.m)
    layouts = _folded_layouts(work.p) if work.folded else _straight_layouts(work)
    passes = 3 * work.stages * work.m
    tries = max(_FEWEST_LAYOUTS, min(_MOST_LAYOUTS, _PASSES_TRIED // passes))
    found = 0
    for tried, urgency in enumerate(chain(layouts, [_one_by_one(work)])):
        if tried >= tries and found:
            return
        order = ListScheduler(work, urgency).order()
        if order is not None:
            found += 1
            yield written_table(name, work, order)


def _one_by_one(work: Pipeline) -> Urgency:
    """Each micro-batch done before the next: slow, but it fits any limit that holds one."""
    stages = work.stages
    forward = [float(s) for s in range(stages)]
    backward = [float(2 * stages - 1 - s) for s in range(stages)]
    return Urgency(forward, backward, 2.0 * stages, 0.0)


def _straight_layouts(work: Pipeline) -> Iterator[Urgency]:
    """Rank r starts with 1 + steepness x (p - 1 - r) forwards.

    Steepness 1 holds p; filling the round trip to the next rank with forwards, (f + b + 2 hops) / f, leaves no gap.
    """
    p = work.p
    f, b = max(work.forward), max(work.input_gradient)
    trip = (f + b + 2 * max(work.hop, default=0.0)) / f
    for patience, weights_first in ((0.0, False), (1.0, False), (0.5, True), (0.75, True)):
        for steepness in (1.0, trip, trip + 0.3):
            start = [max(1, min(work.limit, math.ceil(1 + (p - 1 - r) * steepness - 1e-9))) for r in range(p)]
            forward = [2.0 - 2.0 * count for count in start]
            yield Urgency(forward, [1.0] * p, 2.0, patience, weights_first)


def _folded_layouts(p: int) -> Iterator[Urgency]:
    for patience, weights_first in _MANNERS:
        for slots, first_gap, turn_gap in _PATTERNS:
            yield _pattern(p, slots, first_gap, turn_gap, patience, weights_first)


def _pattern(
    p: int, slots: int, first_gap: int, turn_gap: int, patience: float, weights_first: bool
) -> Urgency:
    """Urgencies of a folded pattern: down the early stages by `slots` a rank, up the late ones by one, and back."""
    early = [slots * r for r in range(p)]
    late = [early[-1] + p - r for r in range(p)]
    late_back = [late[0] + 1 + first_gap + slots * r for r in range(p)]
    early_back = [late_back[-1] + turn_gap + p - r for r in range(p)]
    forward = [float(x) for x in early + late[::-1]]
    backward = [float(x) for x in early_back + late_back[::-1]]
    return Urgency(forward, backward, 6.0, patience, weights_first)

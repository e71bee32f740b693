"""Which order is fast when a rank may hold at most so many chunks? The order of zb-auto, V-Half and V-Min.

Orders of several kinds compete, and the shortest makespan wins, the first tried among equals:

    1. folded patterns whose passes are moved into the gaps of both ends (reordered.py);
    2. ranks filled round by round for the times at hand (greedy.py), under the limit and every smaller one;
    3. the fixed zero-bubble orders;
    4. list scheduling for the times at hand (list_scheduling.py) by several layouts of how urgent each pass is,
       under the limit and smaller ones: every one of a small pipeline, those of `_ladder` of a large one.

Whatever a limit allows competes under every larger one too, so more memory is never slower. Kinds 1 and 2 hold the
orders of the zero-bubble project, so no answer is slower than its own at the same limit
(tests/schedule/test_memory_limited.py). All is a search, so it promises a good order, not the best one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from planner.errors import InputError
from planner.schedule.actions import ActionTable, peak_in_flight
from planner.schedule.formulas import MOST_PASSES, default_limit
from planner.schedule.generate import action_table, check_shape
from planner.schedule.greedy import Orders
from planner.schedule.list_scheduling import ListScheduler, NoOrderError, Pipeline, Urgency, written_table
from planner.schedule.reordered import Pattern, reordered
from planner.schedule.simulate import StageTimes, simulate
from planner.spec.config import FOLDED_SCHEDULES, Schedule

_PASSES_TRIED: Final = 30_000  # by the layouts of one limit
_FEWEST_LAYOUTS, _MOST_LAYOUTS = 4, 32
_PASSES_MOVED: Final = 20_000  # of a pipeline whose every pattern is reordered, in a fraction of a second
_FEW_PASSES: Final = 1_600  # of a pipeline whose layouts run under every limit
_SOME_PASSES: Final = 10_000  # of one whose ranks are filled under every limit
_SHORTER: Final = 1 - 1e-9  # of a makespan, by which another order has to be shorter

_HALF: Final = (Pattern(2, 3, 1), Pattern(2, 0, 1))  # of an even and an odd number of ranks
_MIN: Final = (Pattern(1, 2, 0), Pattern(1, 0, 0))  # of a multiple of three ranks and of others
_OTHERS: Final = (Pattern(1, 4, 0), Pattern(5, 1, 4), Pattern(5, 0, 0), Pattern(3, 0, 0))
_PATTERNS: Final = (_MIN[0], _OTHERS[0], _HALF[0], _OTHERS[1], _MIN[1], _HALF[1], *_OTHERS[2:])
_MANNERS: Final = ((0.5, True), (0.0, False), (0.0, True), (1.0, False))  # patience, weights first


def memory_limited_table(
    schedule: Schedule, p: int, m: int, times: StageTimes, limit: int | None = None, v: int = 1
) -> ActionTable:
    """The fastest order found whose ranks never hold more than `limit` chunks until their weight gradients.

    `schedule` is V_HALF, V_MIN or ZB_V (two stages a rank, folded; they differ in their default limit), or ZB_H2
    for zb-auto with v = 1 or 2. `times` is one case. Raises `InputError`.
    """
    name = {Schedule.V_HALF: "v-half", Schedule.V_MIN: "v-min"}.get(schedule, "zb-auto")
    v = 2 if schedule in FOLDED_SCHEDULES else v
    _check(name, p, m, v)
    limit = default_limit(schedule, p) if limit is None else limit
    if limit < v:
        must = f"the memory limit of {name} must be at least {v} chunks per rank"
        raise InputError(must, str(limit), f"use {default_limit(schedule, p)}, its default")
    search = _Search(name, times, _pipeline(p, v == 2, m, times, limit))
    if schedule in (Schedule.V_HALF, Schedule.V_MIN):
        search.try_patterns(_HALF if schedule is Schedule.V_HALF else _MIN)
    search.try_greedy()
    search.try_fixed()
    if v == 2:
        search.try_patterns((*_HALF, *_MIN, *(_OTHERS if search.passes <= _PASSES_MOVED else ())))
    search.try_layouts()
    assert search.best is not None  # one micro-batch after the other holds v chunks
    return search.best


class _Search:
    """The best order so far of one pipeline under one limit."""

    def __init__(self, name: str, times: StageTimes, work: Pipeline) -> None:
        self.name, self.times, self.work = name, times, work
        self.passes = 3 * work.stages * work.m
        self.best: ActionTable | None = None
        self.latest = math.inf  # when another order has to end
        self.least_held = _chunk_seconds(work)

    def try_table(self, table: ActionTable) -> None:
        if peak_in_flight(table).until_weight.max() <= self.work.limit:
            makespan = simulate(table, self.times).makespan
            if makespan < self.latest:
                self.best, self.latest = replace(table, name=self.name), makespan * _SHORTER

    def try_written(self, order: Sequence[Sequence[tuple[int, int, int]]]) -> None:
        self.try_table(written_table(self.name, self.work, order))

    def try_patterns(self, patterns: Iterable[Pattern]) -> None:
        for pattern in patterns:
            order = reordered(pattern, self.work.p, self.work.m)
            if order is not None:
                self.try_written(order)

    def try_fixed(self) -> None:
        fixed = (Schedule.ZB_V,) if self.work.folded else (Schedule.ZB_H1, Schedule.ZB_H2)
        for schedule in fixed:
            self.try_table(action_table(schedule, self.work.p, self.work.m))

    def try_greedy(self) -> None:
        lowest = self.work.limit + 1  # limit down to which the orders are known
        limits = _ladder(self.work, self.passes <= _SOME_PASSES, self.passes)
        for limit in sorted({self.work.limit, *limits}, reverse=True):
            if limit < lowest and self._can_win(limit):
                orders = Orders(replace(self.work, limit=limit))
                for order in orders.found(lambda: self.latest):
                    self.try_written(order)
                lowest = min(limit, orders.lowest)

    def try_layouts(self) -> None:
        tries = max(_FEWEST_LAYOUTS, min(_MOST_LAYOUTS, _PASSES_TRIED // self.passes))
        # the layouts, and the limits down to which their orders are known
        known: dict[int, tuple[Urgency, int]] = {}
        for limit in _ladder(self.work, self.passes <= _FEW_PASSES, self.passes):
            if not self._can_win(limit):
                break
            work = replace(self.work, limit=limit)
            layouts = _folded_layouts(work.p) if work.folded else _straight_layouts(work)
            for i, urgency in enumerate([_one_by_one(work), *islice(layouts, tries)]):
                layout, lowest = known.get(i, (None, 0))
                if layout != urgency or limit < lowest:
                    known[i] = urgency, self._try_layout(urgency, work)

    def _try_layout(self, urgency: Urgency, work: Pipeline) -> int:
        scheduler = ListScheduler(work, urgency, self.latest)
        with suppress(NoOrderError):
            self.try_written(scheduler.order())
        return min(work.limit, scheduler.most)

    def _can_win(self, limit: int) -> bool:
        """Whether a limit leaves time to hold all chunks before the best order so far ends."""
        least = 1 + self.work.folded
        return limit >= least and self.least_held <= limit * self.latest


def _chunk_seconds(work: Pipeline) -> float:
    """Chunks x seconds that the rank with the most must hold, from forwards to weight gradients, at the least."""
    f, b, w, hop = work.forward, work.input_gradient, work.weight_gradient, work.hop
    turn = work.p - 1 if work.folded else -1  # the boundary within one rank
    after = [0.0] * work.stages  # from the end of a forward to the start of its backward
    for s in range(work.stages - 2, -1, -1):
        after[s] = after[s + 1] + f[s + 1] + b[s + 1] + 2 * hop[s] * (s != turn)
    held = [f[s] + after[s] + b[s] + w[s] for s in range(work.stages)]
    return work.m * max(sum(held[s] for s in work.held_by(r)) for r in range(work.p))


def _ladder(work: Pipeline, every: bool, passes: int) -> list[int]:
    """Limits to try, the largest first, from the pipeline's own: every one, or those that other limits share."""
    p = work.p
    few = {default_limit(schedule, p) for schedule in (Schedule.V_HALF, Schedule.V_MIN, Schedule.ZB_H2)}
    few |= {1, 2, *range(0, p, 1 + passes // 10_000), *range(p, 4 * p + 1, max(1, p // 8))}
    limits = range(work.limit + 1) if every else few
    return sorted((limit for limit in limits if 1 + work.folded <= limit <= work.limit), reverse=True)


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
        for pattern in _PATTERNS:
            early, late, late_back, early_back = pattern.legs(p)
            forward = [float(x) for x in early + late[::-1]]
            backward = [float(x) for x in early_back + late_back[::-1]]
            yield Urgency(forward, backward, 6.0, patience, weights_first)

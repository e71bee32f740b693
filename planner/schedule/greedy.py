"""In which order do zero-bubble pipelines run where each rank is filled round by round for the times at hand?

A round gives every rank one forward and one input gradient. Weight gradients wait until they fit a gap, until the
chunks held reach the limit, or until a gap would make a rank's idle time exceed that of the idlest rank.

Straight pipelines, of one stage a rank (`straight_orders`):
    1. the first forward goes down all ranks; each then takes the forwards that fit before its first backward
       arrives, and at least one fewer than the rank before;
    2. every round, ranks take a forward unless the next is so far behind that its backward can come first, and
       no rank takes one that a later rank skips; the input gradients go up.
Folded pipelines, where rank r holds stages r and 2p - 1 - r (`folded_orders`):
    1. the first micro-batch goes down and up; ranks take further early forwards where all the ranks before can
       take one too, before the late one arrives;
    2. forwards alternate between early and late stages until each rank has begun as many as the rank before;
    3. every round, ranks take the input gradient of the early stage once that of the late stage is ahead and has
       come by, and the forward of the late stage before that of the early one;
    4. run again, with the idle times found as the allowance of each rank, while that shortens the longest one.
Both are run in several manners, each an order to compare.

The rules are those of the zero-bubble project for ZB (Qi 2023, arXiv 2401.10241, section 3.1) and ZB-V (section 6
and appendix), read from sail-sg, megatron/core/pipeline_parallel/zerobubble/scheduler/zb.py and zbv.py; here with
times per stage and boundary. Left out: an integer program's refinement of these orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

from planner.schedule.actions import Pass
from planner.schedule.list_scheduling import NoOrderError, Pipeline, Written

# legs of a micro-batch through a folded pipeline; straight: down, up
_DOWN, _UP, _DOWN_BACK, _UP_BACK = range(4)
_MOST_REPEATS: Final = 20


class _Ranks:
    """What the ranks have done so far; a pass runs as soon as it is given to its rank and its input is there."""

    def __init__(self, work: Pipeline, latest: float, allowance: list[float] | None = None) -> None:
        p = work.p
        self.work, self.latest = work, latest
        self.legs = 4 if work.folded else 2
        self.allowance = allowance
        self.time = [0.0] * p
        self.idle = [0.0] * p  # since the first forward
        self.held = [0] * p
        self.most = 0  # chunks that a test for room has accepted: lower limits down to it give the same order
        self.done = [[0] * p for _ in range(self.legs)]
        self.end: list[list[list[float]]] = [[[] for _ in range(p)] for _ in range(self.legs)]
        self.pending: list[list[tuple[int, int]]] = [[] for _ in range(p)]
        self.weighed = [0] * p
        self.written: list[Written] = [[] for _ in range(p)]
        self.stages = [[r, 2 * p - 1 - r, 2 * p - 1 - r, r] if work.folded else [r, r] for r in range(p)]
        self.left = [work.busy(r) for r in range(p)]
        self.tolerance = 1e-9 * max(work.forward)

    def seconds(self, leg: int, r: int) -> float:
        work, stage = self.work, self.stages[r][leg]
        return work.forward[stage] if 2 * leg < self.legs else work.input_gradient[stage]

    def arrival(self, leg: int, r: int, mb: int) -> float | None:
        """When the input of a pass is on its rank from another, infinite if that one has not run; else None."""
        p = self.work.p
        source = r - 1 if leg % 2 == 0 else r + 1
        if not 0 <= source < p:
            return None
        ends = self.end[leg][source]
        if mb >= len(ends):
            return float("inf")
        return ends[mb] + self.work.hop[min(self.stages[r][leg], self.stages[source][leg])]

    def came(self, leg: int, r: int, mb: int) -> bool:
        return self.arrival(leg, r, mb) != float("inf")

    def fits(self, r: int, more: int) -> bool:
        """Whether a rank has room for so many chunks more."""
        fits = self.held[r] + more <= self.work.limit
        if fits:
            self.most = max(self.most, self.held[r] + more)
        return fits

    def waiting(self, r: int) -> int:
        return len(self.pending[r]) - self.weighed[r]

    def weigh(self, r: int) -> None:
        """Run the weight gradient that has waited longest."""
        if not self.waiting(r):
            raise NoOrderError
        stage, mb = self.pending[r][self.weighed[r]]
        self.weighed[r] += 1
        self.held[r] -= 1
        self._run(r, int(Pass.WEIGHT_GRADIENT), stage, mb, self.work.weight_gradient[stage])

    def put(self, leg: int, r: int) -> None:
        mb, stage = self.done[leg][r], self.stages[r][leg]
        arrival = self.arrival(leg, r, mb)
        forward = 2 * leg < self.legs
        if mb >= self.work.m or arrival == float("inf") or (leg and mb >= self.done[leg - 1][r]):
            raise NoOrderError
        if forward and not self.fits(r, 1):
            raise NoOrderError
        if arrival is not None and arrival > self.time[r]:
            if self.done[0][r]:
                self.idle[r] += arrival - self.time[r]
            self.time[r] = arrival
        self.done[leg][r] += 1
        self._run(r, int(Pass.FORWARD if forward else Pass.INPUT_GRADIENT), stage, mb, self.seconds(leg, r))
        self.end[leg][r].append(self.time[r])
        if forward:
            self.held[r] += 1
        else:
            self.pending[r].append((stage, mb))

    def _run(self, r: int, kind: int, stage: int, mb: int, seconds: float) -> None:
        if self.time[r] + self.left[r] > self.latest:
            raise NoOrderError
        self.time[r] += seconds
        self.left[r] -= seconds
        self.written[r].append((kind, stage, mb))

    def fill(self, leg: int, r: int, small: bool, large: bool) -> None:
        """Weight gradients before the next pass of a leg: those that end by the time its input is there, and one
        more in a gap left that stays within the rank's allowance of idle time (`small`) or not (`large`)."""
        arrival = self.arrival(leg, r, self.done[leg][r])
        if arrival is None:
            return
        if arrival == float("inf"):
            raise NoOrderError
        while self.waiting(r):
            stage = self.pending[r][self.weighed[r]][0]
            if arrival < self.time[r] + self.work.weight_gradient[stage] - self.tolerance:
                break
            self.weigh(r)
        gap = arrival - self.time[r]
        if self.waiting(r) and gap > self.tolerance and (large if self.is_large(gap, r) else small):
            self.weigh(r)

    def is_large(self, gap: float, r: int) -> bool:
        most = max(self.idle)
        if self.allowance is not None:
            most = max(most, max(self.allowance) - self.allowance[r])
        return gap > most - self.idle[r] + self.tolerance

    def make_room(self, r: int) -> None:
        while not self.fits(r, 1):
            self.weigh(r)

    def finish(self) -> list[Written]:
        for r in range(self.work.p):
            while self.waiting(r):
                self.weigh(r)
        if any(len(row) < 3 * self.work.m * self.legs // 2 for row in self.written):
            raise NoOrderError
        return self.written


class Orders:
    """The orders of one limit, in every manner, and the lowest limit that gives just these."""

    def __init__(self, work: Pipeline) -> None:
        self.work, self.lowest = work, 0

    def found(self, latest: Callable[[], float]) -> Iterator[list[Written]]:
        """Orders that end by `latest()`, asked anew for each; `lowest` is known when they are done."""
        for manner in product((True, False), repeat=2 if self.work.folded else 3):
            yield from self._folded(latest, *manner) if self.work.folded else self._straight(latest, *manner)

    def _straight(
        self, latest: Callable[[], float], over: bool, back: bool, small: bool
    ) -> Iterator[list[Written]]:
        ranks = _Ranks(self.work, latest())
        try:
            _start_straight(ranks, over)
            for _ in range(1, self.work.m):
                _straight_round(ranks, back, small)
            yield ranks.finish()
        except NoOrderError:
            pass
        finally:
            self.lowest = max(self.lowest, ranks.most)

    def _folded(
        self, latest: Callable[[], float], fill_backward: bool, fill_forward: bool
    ) -> Iterator[list[Written]]:
        allowance = None
        for _ in range(_MOST_REPEATS):
            ranks = _Ranks(self.work, latest(), allowance)
            try:
                _start_folded(ranks)
                for _ in range(2 * self.work.m):
                    _folded_round(ranks, fill_backward, fill_forward)
                yield ranks.finish()
            except NoOrderError:
                return
            finally:
                self.lowest = max(self.lowest, ranks.most)
            if allowance is not None and max(ranks.idle) >= max(allowance) - ranks.tolerance:
                return
            allowance = ranks.idle


def _start_straight(ranks: _Ranks, over: bool) -> None:
    """Step 1; `over`: the last forward may still run when the first backward arrives."""
    work, p = ranks.work, ranks.work.p
    for r in range(p):
        ranks.put(_DOWN, r)
    more = [0] * p
    back = ranks.time[p - 1] + work.input_gradient[p - 1]
    for r in range(p - 2, -1, -1):
        time, arrival = ranks.time[r], back + work.hop[r]
        while 1 + more[r] < work.m and ranks.fits(r, 1 + more[r]):
            ahead = time < arrival - ranks.tolerance
            if not (ahead if over else time + work.forward[r] <= arrival + ranks.tolerance):
                break
            time += work.forward[r]
            more[r] += 1
        back = max(time, arrival) + work.input_gradient[r]
    for r in range(1, p):
        while more[r] > 0 and more[r] >= more[r - 1] and 1 + more[r] < work.m:
            more[r] -= 1
    for r in range(p):
        for _ in range(more[r]):
            ranks.put(_DOWN, r)
    for r in range(p - 1, -1, -1):
        ranks.put(_UP, r)


def _straight_round(ranks: _Ranks, back: bool, small: bool) -> None:
    """Step 2; `back`: backwards may come before forwards; `small`: weight gradients fill small gaps too."""
    work, p = ranks.work, ranks.work.p
    forward = [ranks.done[_DOWN][r] < work.m and not (back and _lets_back(ranks, r)) for r in range(p)]
    for r in range(p - 2, -1, -1):
        forward[r] &= forward[r + 1]
    for r in range(p):
        if forward[r]:
            ranks.make_room(r)
            ranks.fill(_DOWN, r, small, True)
            ranks.put(_DOWN, r)
    for r in range(p - 1, -1, -1):
        ranks.fill(_UP, r, small, True)
        if r == 0 and ranks.done[_DOWN][r] == work.m:
            while ranks.waiting(r):
                ranks.weigh(r)
        ranks.put(_UP, r)


def _lets_back(ranks: _Ranks, r: int) -> bool:
    """Whether rank r waits for the next backward rather than take a forward."""
    work = ranks.work
    if r + 1 == work.p or ranks.done[_DOWN][r] < ranks.done[_DOWN][r + 1] + 2:
        return False
    comes = ranks.time[r + 1] + work.forward[r + 1] + work.input_gradient[r + 1] + work.hop[r]
    if ranks.time[r] >= comes - ranks.tolerance:
        return True
    surplus = 0 if ranks.fits(r, 1) else ranks.held[r] + 1 - work.limit
    room = min(surplus, ranks.waiting(r)) * work.weight_gradient[r]
    if ranks.time[r] + work.forward[r] + room <= comes + ranks.tolerance:
        return False
    return not ranks.is_large(comes - ranks.time[r], r)


def _start_folded(ranks: _Ranks) -> None:
    """Steps 1 and 2."""
    work, p = ranks.work, ranks.work.p
    for r in range(p):
        ranks.put(_DOWN, r)
    for r in range(p - 1, -1, -1):
        arrival = ranks.arrival(_UP, r, 0)
        while (
            arrival is not None
            and ranks.done[_DOWN][r] < work.m
            and ranks.time[r] + work.forward[r] <= arrival + ranks.tolerance
            and ranks.fits(r, 2 + 2 * r)
        ):
            for before in range(r + 1):
                ranks.put(_DOWN, before)
        ranks.put(_UP, r)
    early, late = ranks.done[_DOWN], ranks.done[_UP]
    leg = _DOWN
    for r in range(1, p):
        while early[r] + late[r] < early[r - 1] + late[r - 1] or late[r] <= late[r - 1] < work.m:
            for after in range(p - 1, r - 1, -1):
                if ranks.done[leg][after] < work.m:
                    ranks.put(leg, after)
            leg = _UP if leg == _DOWN else _DOWN


def _folded_round(ranks: _Ranks, fill_backward: bool, fill_forward: bool) -> None:
    """Step 3; `fill_...`: weight gradients fill large gaps before early input gradients, or forwards."""
    p, m = ranks.work.p, ranks.work.m
    late, early = ranks.done[_DOWN_BACK], ranks.done[_UP_BACK]
    up = [
        r
        for r in range(p)
        if early[r] < late[r] and (r == p - 1 or ranks.came(_UP_BACK, r, early[r]) or late[r] >= m)
    ]
    for r in reversed(up):
        ranks.fill(_UP_BACK, r, False, True)
        ranks.put(_UP_BACK, r)
    for r in sorted(set(range(p)) - set(up)):
        ranks.fill(_DOWN_BACK, r, False, fill_backward)
        ranks.put(_DOWN_BACK, r)
    for r in range(p):
        leg = _next_forward(ranks, r)
        if leg is not None:
            ranks.make_room(r)
            ranks.fill(leg, r, False, fill_forward)
            ranks.put(leg, r)


def _next_forward(ranks: _Ranks, r: int) -> int | None:
    m, early, late = ranks.work.m, ranks.done[_DOWN][r], ranks.done[_UP][r]
    if late >= m:
        return None
    if late < early and ranks.came(_UP, r, late):
        return _UP
    return _DOWN if early < m and (late >= early or ranks.came(_DOWN, r, early)) else None

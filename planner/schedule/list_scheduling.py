"""Given how urgent each pass is, in which order do the ranks run them without holding too many chunks?

A rank that is free takes the most urgent pass that has its input. It may overtake a more urgent pass that is still
waiting, if the chunks held stay within the limit when that one comes; weight gradients fill gaps and make room.
Left out: where the urgencies come from (memory_limited.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.schedule.actions import EMPTY, ActionTable, Pass

_FOREVER: Final = float("inf")
Written = list[tuple[int, int, int]]  # (kind, stage, micro-batch)


@dataclass(frozen=True)
class Pipeline:
    """What is to be scheduled: seconds per stage, hop per boundary, and the limit on chunks held by a rank.

    One stage per rank, or two, folded: rank r holds stages r and 2p - 1 - r.
    """

    p: int
    folded: bool
    m: int
    forward: list[float]
    input_gradient: list[float]
    weight_gradient: list[float]
    hop: list[float]
    limit: int

    @property
    def stages(self) -> int:
        return self.p * (1 + self.folded)

    def held_by(self, rank: int) -> list[int]:
        """The stages of a rank."""
        return [rank, self.stages - 1 - rank] if self.folded else [rank]

    def busy(self, rank: int) -> float:
        """Seconds of all passes of a rank."""
        passes = (self.forward, self.input_gradient, self.weight_gradient)
        return self.m * sum(seconds[s] for s in self.held_by(rank) for seconds in passes)


@dataclass(frozen=True)
class Urgency:
    """Urgency of the passes of micro-batch 0, per stage; micro-batch i comes `period` i later. Less is sooner.

    `patience`: a gap is left open, rather than filled with a weight gradient, when the pass awaited comes within
    this fraction of the filler's time. `weights_first`: a forward overtakes only when no weight gradient waits.
    """

    forward: list[float]
    backward: list[float]
    period: float
    patience: float
    weights_first: bool = False


class NoOrderError(Exception):
    """A rank has no room or no input for any pass that is left, or cannot end by the time asked for."""


class _Rank:
    """What one rank has done so far."""

    def __init__(self, number: int, work: Pipeline) -> None:
        stages = work.held_by(number)
        self.number = number
        # forwards in order of stage, backwards in reverse: the way a micro-batch comes by
        self.types = [(0, s) for s in stages] + [(1, s) for s in reversed(stages)]
        self.done = [0] * len(self.types)
        self.held = 0
        self.pending: list[tuple[int, int]] = []  # weight gradients, oldest first
        self.first_pending = 0
        self.free = self.early = 0.0
        self.left = work.busy(number)
        self.written: Written = []

    @property
    def waiting(self) -> int:
        return len(self.pending) - self.first_pending


class ListScheduler:
    """One run of list scheduling; `most` is the most chunks that a test for room accepted, so that lower limits
    down to it give the same order."""

    def __init__(self, work: Pipeline, urgency: Urgency, latest: float) -> None:
        self.work, self.urgency, self.latest, self.most = work, urgency, latest, 0
        shape = (2, work.stages)
        self.arrival = [[[_FOREVER] * work.m for _ in range(shape[1])] for _ in range(shape[0])]
        self.arrival[0][0] = [0.0] * work.m
        # the same where no gap is left open for a pass that another then overtakes: when the order, run, has it
        self.ready = [[[0.0] * work.m for _ in range(shape[1])] for _ in range(shape[0])]
        self.ranks = [_Rank(r, work) for r in range(work.p)]
        self.events: list[tuple[float, int]] = [(0.0, r) for r in range(work.p)]
        self.tolerance = 1e-9 * max(work.forward)

    def order(self) -> list[Written]:
        """The written order of each rank. Raises `NoOrderError`, as soon as it cannot end by `latest`."""
        while self.events:
            now, number = heapq.heappop(self.events)
            rank = self.ranks[number]
            if rank.free > now + self.tolerance:
                continue  # it comes back when it is free
            self._decide(rank, now)
        total = self.work.m * len(self.ranks[0].types) // 2 * 3
        if any(len(rank.written) < total for rank in self.ranks):
            raise NoOrderError
        return [rank.written for rank in self.ranks]

    def _decide(self, rank: _Rank, now: float) -> None:
        next_up = sorted(
            ((self._key(kind, stage, rank.done[i]), i) for i, (kind, stage) in enumerate(rank.types)
             if rank.done[i] < self.work.m)
        )  # fmt: skip
        soonest = _FOREVER  # when an allowed pass that is on its way arrives
        for place, (_, i) in enumerate(next_up):
            kind, stage = rank.types[i]
            if kind == 0 and not self._has_room(rank, next_up, place):
                continue
            arrival = self.arrival[kind][stage][rank.done[i]]
            if arrival <= now + self.tolerance:
                if kind == 0 and rank.held >= self.work.limit:
                    break  # room must be made first
                self.most = max(self.most, rank.held + 1 - kind)
                if place and kind == 0 and rank.waiting and self.urgency.weights_first:
                    break
                if soonest - now < self.urgency.patience * self._seconds(kind, stage):
                    break  # leave the gap open for the more urgent one
                self._run(rank, now, i)
                return
            soonest = min(soonest, arrival)
        if rank.waiting:
            stage = rank.pending[rank.first_pending][0]
            if soonest - now >= self.urgency.patience * self.work.weight_gradient[stage] or (
                rank.held >= self.work.limit and soonest == _FOREVER
            ):
                self._run_weight(rank, now)
                return
        if now < soonest < _FOREVER:
            heapq.heappush(self.events, (soonest, rank.number))

    def _key(self, kind: int, stage: int, mb: int) -> float:
        urgency = self.urgency
        return (urgency.backward if kind else urgency.forward)[stage] + mb * urgency.period

    def _seconds(self, kind: int, stage: int) -> float:
        return (self.work.input_gradient if kind else self.work.forward)[stage]

    def _has_room(self, rank: _Rank, next_up: list[tuple[float, int]], place: int) -> bool:
        """Whether a forward fits with all more urgent passes still to come, weight gradients done as needed."""
        level = most = rank.held - rank.waiting + 1
        if level > self.work.limit:
            return False
        key = next_up[place][0]
        passes = []  # the more urgent passes of every type, as (key, +1 or -1)
        for first, i in next_up[:place]:
            step = -1 if rank.types[i][0] else 1
            left = self.work.m - rank.done[i]
            for ahead in range(left):
                at = first + ahead * self.urgency.period
                if at >= key:
                    break
                passes.append((at, step))
        passes.sort()
        for _, step in passes:
            level += step
            if level > self.work.limit:
                return False
            most = max(most, level)
        self.most = max(self.most, most)
        return True

    def _run(self, rank: _Rank, now: float, i: int) -> None:
        kind, stage = rank.types[i]
        mb = rank.done[i]
        rank.done[i] += 1
        end = now + self._seconds(kind, stage)
        ready = self._take(rank, end, self.ready[kind][stage][mb], self._seconds(kind, stage))
        rank.written.append((int(Pass.INPUT_GRADIENT if kind else Pass.FORWARD), stage, mb))
        if kind == 0:
            rank.held += 1
        else:
            rank.pending.append((stage, mb))
        heapq.heappush(self.events, (end, rank.number))
        last = self.work.stages - 1
        if kind == 0 and stage == last:
            self.arrival[1][stage][mb] = end
            self.ready[1][stage][mb] = ready
        elif kind == 0 or stage > 0:
            target = stage + (1 if kind == 0 else -1)
            holder = min(target, last - target) if self.work.folded else target
            delay = self.work.hop[min(stage, target)] if holder != rank.number else 0.0
            self.arrival[kind][target][mb] = end + delay
            self.ready[kind][target][mb] = ready + delay
            if holder != rank.number:
                heapq.heappush(self.events, (end + delay, holder))

    def _take(self, rank: _Rank, end: float, ready: float, seconds: float) -> float:
        """Give a rank a pass; returns when it ends as the order is run, without gaps left open."""
        rank.early = max(rank.early, ready)
        if rank.early + rank.left > self.latest:
            raise NoOrderError
        rank.early += seconds
        rank.left -= seconds
        rank.free = end
        return rank.early

    def _run_weight(self, rank: _Rank, now: float) -> None:
        stage, mb = rank.pending[rank.first_pending]
        rank.first_pending += 1
        rank.held -= 1
        seconds = self.work.weight_gradient[stage]
        self._take(rank, now + seconds, 0.0, seconds)
        rank.written.append((int(Pass.WEIGHT_GRADIENT), stage, mb))
        heapq.heappush(self.events, (rank.free, rank.number))


def written_table(name: str, work: Pipeline, order: Sequence[Sequence[tuple[int, int, int]]]) -> ActionTable:
    """The action table of written orders."""
    rows = np.array(order, dtype=np.int32)
    kind = rows[:, :, 0].astype(np.int8)
    assert not (kind == EMPTY).any()
    return ActionTable(
        name,
        work.stages,
        work.m,
        kind,
        np.ascontiguousarray(rows[:, :, 1]),
        np.ascontiguousarray(rows[:, :, 2]),
        np.zeros(kind.shape, dtype=np.bool_),
    )

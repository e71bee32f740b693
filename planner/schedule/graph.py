"""Which passes of a schedule wait for which, and in what sequence can they be timed? Times come later.

A pass waits for the one before it on its rank and for its data: a forward for the stage before it, an input
gradient for the stage after it (on the last stage, for its forward), a weight gradient for its input gradient.
Passes are sorted by depth in this graph, so that all of one depth are timed at once; a schedule of p ranks has at
most p of them. An order in which ranks wait for each other in a circle is refused, with the passes at its head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.schedule.actions import EMPTY, ActionTable, Integers, Pass
from planner.schedule.generate import action_table
from planner.spec.config import Schedule

NO_HOP = -1
_KEPT_PASSES: Final = 400_000  # of a schedule whose graph is kept for the next split: about 20 MB
_SHOWN = 6  # blocked ranks that an error names
_NAMES = {
    Pass.FORWARD: "forward",
    Pass.INPUT_GRADIENT: "input gradient",
    Pass.WEIGHT_GRADIENT: "weight gradient",
    Pass.BACKWARD: "backward",
}


@dataclass(frozen=True, eq=False)
class DependencyGraph:
    """A schedule's passes, sorted by depth; entry i of every array is pass i in that sequence.

    An overlapped pair is one entry with two inputs. Entry `size` of a time array stands for "nothing to wait for".
    `before` and `needs` (size, 2) are entries; `hop` (size, 2) is the boundary crossed to get the input (stage s to
    s + 1 is s, and back), or NO_HOP; `duration` (size,) an index into the duration table (see simulate.py);
    `place` (size,) the position r * positions + k in the action table; `bounds` where each depth starts.
    """

    table: ActionTable
    before: NDArray[np.int64]
    needs: NDArray[np.int64]
    hop: Integers
    duration: Integers
    place: NDArray[np.int64]
    bounds: NDArray[np.int64]
    partner: Integers  # (stages,) stage of the backward that a stage's forward is overlapped with

    @property
    def has_pairs(self) -> bool:
        return self.needs.shape[1] > 1 and bool((self.needs[:, 1] < self.size).any())

    @property
    def size(self) -> int:
        return int(self.place.size)


def dependency_graph(table: ActionTable) -> DependencyGraph:
    """The graph of a schedule. Raises `InputError` naming the blocked passes if its order cannot be run."""
    needs, hop = _inputs(table, _places(table))
    return _sorted_by_depth(table, needs, hop, table.joined.ravel())


def schedule_graph(schedule: Schedule, p: int, m: int, v: int) -> DependencyGraph:
    """The graph of a named schedule, which does not depend on the times of its passes. Raises `InputError`."""
    kept = 3 * p * v * m <= _KEPT_PASSES
    return _kept_graph(schedule, p, m, v) if kept else dependency_graph(action_table(schedule, p, m, v))


@lru_cache(maxsize=8)
def _kept_graph(schedule: Schedule, p: int, m: int, v: int) -> DependencyGraph:
    return dependency_graph(action_table(schedule, p, m, v))


def _places(table: ActionTable) -> NDArray[np.int64]:
    """Flat position of a (backward?, micro-batch, stage), the pass others wait for; EMPTY if there is none."""
    where = np.full((2, table.microbatches, table.stages), EMPTY, dtype=np.int64)
    for direction, kinds in enumerate(((Pass.FORWARD,), (Pass.INPUT_GRADIENT, Pass.BACKWARD))):
        position = np.flatnonzero(table.where(*kinds).ravel())
        where[direction, table.microbatch.ravel()[position], table.stage.ravel()[position]] = position
    return where


def _inputs(table: ActionTable, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], Integers]:
    """Flat position of the pass that each pass gets its data from (EMPTY: none), and the boundary crossed."""
    kind, stage, mb = table.kind.ravel(), table.stage.ravel(), table.microbatch.ravel()
    needs = np.full(kind.size, EMPTY, dtype=np.int64)
    hop = np.full(kind.size, NO_HOP, dtype=np.int32)
    last = table.stages - 1

    def link(rows: NDArray[np.bool_], direction: int, step: int) -> None:
        at = np.flatnonzero(rows)
        needs[at] = places[direction, mb[at], stage[at] + step]
        positions = table.kind.shape[1]
        if step:
            crossing = at[needs[at] // positions != at // positions]
            hop[crossing] = stage[crossing] - (step < 0)

    forward = kind == Pass.FORWARD
    backward = (kind == Pass.INPUT_GRADIENT) | (kind == Pass.BACKWARD)
    link(forward & (stage > 0), 0, -1)
    link(backward & (stage < last), 1, 1)
    link(backward & (stage == last), 0, 0)
    link(kind == Pass.WEIGHT_GRADIENT, 1, 0)
    return needs, hop


def _sorted_by_depth(
    table: ActionTable, needs: NDArray[np.int64], hop: Integers, pair: NDArray[np.bool_]
) -> DependencyGraph:
    p, positions = table.kind.shape
    length = np.count_nonzero(table.kind != EMPTY, axis=1)
    follower = np.zeros(pair.size, dtype=np.bool_)
    follower[1:] = pair[:-1]
    second = np.full(pair.size, EMPTY, dtype=np.int64)  # the second input of a pair is its backward's
    second[:-1][pair[:-1]] = needs[1:][pair[:-1]]
    done = np.zeros(pair.size + 1, dtype=np.bool_)
    done[EMPTY] = True  # "nothing to wait for"
    head = np.arange(p, dtype=np.int64) * positions
    end = head + length
    head, end = head[length > 0], end[length > 0]
    width = 1 + pair.astype(np.int64)
    waves: list[NDArray[np.int64]] = []
    any_pair = bool(pair.any())
    while head.size:
        ready = done[needs[head]]
        if any_pair:
            ready &= done[second[head]]
        moved = head[ready]
        if not moved.size:
            raise _deadlock(table, head, needs)
        waves.append(moved)
        done[moved] = True
        if any_pair:
            done[moved + width[moved] - 1] = True
            head[ready] += width[moved]
        else:
            head[ready] += 1
        unfinished = head < end
        if not unfinished.all():
            head, end = head[unfinished], end[unfinished]
    place = np.concatenate(waves)
    bounds = np.concatenate(([0], np.cumsum([wave.size for wave in waves])))
    return _renumbered(table, place, bounds, needs, second, hop, pair, follower)


def _renumbered(
    table: ActionTable,
    place: NDArray[np.int64],
    bounds: NDArray[np.int64],
    needs: NDArray[np.int64],
    second: NDArray[np.int64],
    hop: Integers,
    pair: NDArray[np.bool_],
    follower: NDArray[np.bool_],
) -> DependencyGraph:
    """Positions in the action table replaced by positions in the sorted sequence."""
    size, positions = place.size, table.kind.shape[1]
    number = np.full(pair.size + 1, size, dtype=np.int64)  # the last entry: nothing to wait for
    number[place] = np.arange(size)
    tail = np.flatnonzero(follower)
    number[tail] = number[tail - 1]
    first = place % positions == 0
    before = np.where(first, size, number[place - 1])
    inputs = np.stack((number[needs[place]], number[second[place]]), axis=1)
    hops = np.full((size, 2), NO_HOP, dtype=np.int32)
    hops[:, 0] = hop[place]
    joined = pair[place]
    hops[joined, 1] = hop[place[joined] + 1]
    kind, stage = table.kind.ravel()[place].astype(np.int32), table.stage.ravel()[place]
    duration = np.where(joined, PAIR * table.stages + stage, kind * table.stages + stage).astype(np.int32)
    partner = np.arange(table.stages, dtype=np.int32)
    partner[stage[joined]] = table.stage.ravel()[place[joined] + 1]
    return DependencyGraph(table, before, inputs, hops, duration, place, bounds, partner)


PAIR = len(Pass)  # row of the duration table that holds overlapped pairs, by the stage of their forward


def _deadlock(table: ActionTable, head: NDArray[np.int64], needs: NDArray[np.int64]) -> InputError:
    positions = table.kind.shape[1]

    def said(place: int) -> str:
        rank, k = divmod(place, positions)
        kind = _NAMES[Pass(int(table.kind[rank, k]))]
        return (
            f"{kind} of micro-batch {table.microbatch[rank, k]} on stage {table.stage[rank, k]} (rank {rank})"
        )

    blocked = [
        f"{said(int(at))} waits for "
        + (said(int(needs[at])) if needs[at] >= 0 else "a pass that no rank runs")
        for at in head[:_SHOWN]
    ]
    more = f" and {head.size - _SHOWN} more ranks" if head.size > _SHOWN else ""
    return InputError(
        f"the order of {table.name} must let some rank run at every moment",
        "; ".join(blocked) + more,
        "put each pass after those it waits for",
    )

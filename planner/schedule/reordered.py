"""Which order does a folded pattern have once its passes have moved up into the gaps at both ends?

    1. repeat the pattern of four passes (early and late forward, late and early backward) every six slots for every
       micro-batch, and give weight gradients the slots that are left, the oldest first;
    2. until rank 0 has its first early backward, and after the first rank has all its early forwards, move every
       pass in turn into the first free slot after what it needs, where its rank then holds no more than any rank
       did before; slots in between stay as they are;
    3. push all passes together in that order, each taking one unit, and take the weight gradients out;
    4. do 2 and 3 again for the second end alone, each rank doing a waiting weight gradient in every free slot;
    5. give weight gradients the free slots, those of the late stage first.

The order depends on neither times nor hops. Patterns: Qi 2024 (arXiv 2405.15362, section 3 and appendix A); the
steps are those by which the zero-bubble project reorders V-Half and V-Min (sail-sg, megatron/core/
pipeline_parallel/zerobubble/scheduler/zbv_greedy.py), for any pattern. Left out: the times (greedy.py,
list_scheduling.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from planner.schedule.actions import Pass
from planner.schedule.list_scheduling import Written

_PERIOD: Final = 6  # slots from one micro-batch to the next: four passes and two weight gradients
_IDLE, _FORWARD, _BACKWARD, _WEIGHT = range(4)
_LEGS: Final = (_FORWARD, _FORWARD, _BACKWARD, _BACKWARD)  # down and up the V, down and up it again
Slots = list[list[int]]  # of one rank: per leg, the slot of every micro-batch
Turn = tuple[int, int, int, int]  # slot, rank, leg, micro-batch; leg 4 is a weight gradient


@dataclass(frozen=True)
class Pattern:
    """Where the passes of the first micro-batch stand: down the early stages by `slots` a rank, up the late ones by
    one, and back the same way after `first_gap` and `turn_gap` slots."""

    slots: int
    first_gap: int
    turn_gap: int

    def legs(self, p: int) -> list[list[int]]:
        """Slot of each rank's pass, per leg; shape (4, p)."""
        early = [self.slots * r for r in range(p)]
        late = [early[-1] + p - r for r in range(p)]
        late_back = [late[0] + 1 + self.first_gap + self.slots * r for r in range(p)]
        early_back = [late_back[-1] + self.turn_gap + p - r for r in range(p)]
        return [early, late, late_back, early_back]

    def repeats(self, p: int) -> bool:
        """Whether no two passes of a rank fall on one slot when it repeats."""
        return all(len({slot % _PERIOD for slot in rank}) == 4 for rank in zip(*self.legs(p), strict=True))


@lru_cache(maxsize=64)
def reordered(pattern: Pattern, p: int, m: int) -> tuple[tuple[tuple[int, int, int], ...], ...] | None:
    """Written order of each rank, (kind, stage, micro-batch), or None where passes of the pattern collide."""
    if not pattern.repeats(p):
        return None
    rows = [[[leg[r] + _PERIOD * i for i in range(m)] for leg in pattern.legs(p)] for r in range(p)]
    rows = _squeezed(_moved(rows, explicit=True))
    rows = _squeezed(_moved(rows, explicit=False))
    return tuple(tuple(_written(row, r, p)) for r, row in enumerate(rows))


class _Row:
    """What stands in every slot of a rank, and how many chunks it holds after each."""

    def __init__(self, row: Slots) -> None:
        size = max(leg[-1] for leg in row) + 1
        self.kind = [_IDLE] * size
        for leg, slots in enumerate(row):
            for slot in slots:
                self.kind[slot] = (*_LEGS, _WEIGHT)[leg]
        # explicit: weight gradients stand in slots of their own; else one that waits is done in every idle slot
        self.explicit = len(row) > len(_LEGS)
        self.pending, self.held = [0] * size, [0] * size
        for slot, pending, held in self._walk(0):
            self.pending[slot], self.held[slot] = pending, held

    def _walk(self, start: int) -> Iterator[tuple[int, int, int]]:
        pending, held = (self.pending[start - 1], self.held[start - 1]) if start else (0, 0)
        for slot in range(start, len(self.kind)):
            kind = self.kind[slot]
            if kind == _FORWARD:
                held += 1
            elif kind == _BACKWARD:
                pending += 1
            elif kind == _WEIGHT or (not self.explicit and pending):
                pending -= 1
                held -= 1
            yield slot, pending, held

    def move(self, old: int, new: int, most: int) -> bool:
        """Move a pass to a free slot before its own, unless more than `most` chunks would then be held."""
        kind = self.kind
        kind[old], kind[new] = kind[new], kind[old]
        changed = []
        for slot, pending, held in self._walk(new):
            if held > most:
                kind[old], kind[new] = kind[new], kind[old]
                return False
            if slot >= old and pending == self.pending[slot] and held == self.held[slot]:
                break
            changed.append((pending, held))
        end = new + len(changed)
        self.pending[new:end] = [pending for pending, _ in changed]
        self.held[new:end] = [held for _, held in changed]
        return True


def _moved(rows: list[Slots], explicit: bool) -> list[Slots]:
    """Steps 2 or 4: passes moved up, weight gradients in slots of their own."""
    if explicit:
        rows = [[*row, sorted(_weight_slots(row))] for row in rows]
    ranks = [_Row(row) for row in rows]
    most = max(max(rank.held) for rank in ranks)
    last = len(rows[0][0]) - 1
    middle_begun = middle_over = False
    for slot, r, leg, mb in _turns(rows):
        if not middle_begun and leg == 3 and r == 0:
            middle_begun = True
        if middle_begun and not middle_over:
            middle_over = leg == 0 and mb == last
            continue
        if not middle_begun and not explicit:
            continue
        for free in range(_needed(rows, r, leg, mb), slot):
            if ranks[r].kind[free] == _IDLE and ranks[r].move(slot, free, most):
                rows[r][leg][mb] = free
                break
    return rows if explicit else [[*row, sorted(_weight_slots(row))] for row in rows]


def _turns(rows: list[Slots]) -> list[Turn]:
    return sorted(
        (slot, r, leg, mb)
        for r, row in enumerate(rows)
        for leg, slots in enumerate(row)
        for mb, slot in enumerate(slots)
    )


def _needed(rows: list[Slots], r: int, leg: int, mb: int) -> int:
    """The first slot after all that a pass needs."""
    after = rows[r][leg][mb - 1] if mb else -1
    if leg == len(_LEGS):
        return max(after, sorted(rows[r][2] + rows[r][3])[mb]) + 1
    neighbour = r - 1 if leg in (0, 2) else r + 1
    if 0 <= neighbour < len(rows):
        after = max(after, rows[neighbour][leg][mb])
    if leg:
        after = max(after, rows[r][leg - 1][mb])
    return after + 1


def _squeezed(rows: list[Slots]) -> list[Slots]:
    """Step 3: passes of one unit each as early as their order allows; weight gradients taken out again."""
    free = [0] * len(rows)
    starts = [[list(slots) for slots in row[:4]] for row in rows]
    for _, r, leg, mb in _turns(rows):
        start = free[r]
        if leg < len(_LEGS):
            neighbour = r - 1 if leg in (0, 2) else r + 1
            if 0 <= neighbour < len(rows):
                start = max(start, starts[neighbour][leg][mb] + 1)
            starts[r][leg][mb] = start
        free[r] = start + 1
    return starts


def _weight_slots(row: Slots) -> dict[int, tuple[int, int]]:
    """Slots left for weight gradients, each with the leg and micro-batch of its backward, the late stage first."""
    passes = {slot: (leg, mb) for leg, slots in enumerate(row) for mb, slot in enumerate(slots)}
    waiting: tuple[list[int], list[int]] = ([], [])
    done = [0, 0]
    found: dict[int, tuple[int, int]] = {}
    slot, end = 0, max(passes)
    while slot <= end or any(len(waiting[i]) > done[i] for i in (0, 1)):
        if slot in passes:
            leg, mb = passes[slot]
            if leg >= 2:
                waiting[leg - 2].append(mb)
        else:
            for i in (0, 1):
                if len(waiting[i]) > done[i]:
                    found[slot] = i + 2, waiting[i][done[i]]
                    done[i] += 1
                    break
        slot += 1
    return found


def _written(row: Slots, r: int, p: int) -> Written:
    """Step 5: the order of rank r."""
    stage = (r, 2 * p - 1 - r, 2 * p - 1 - r, r)
    kinds = (Pass.FORWARD, Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.INPUT_GRADIENT)
    order = {
        slot: (int(kinds[leg]), stage[leg], mb)
        for leg, slots in enumerate(row)
        for mb, slot in enumerate(slots)
    }
    for slot, (leg, mb) in _weight_slots(row).items():
        order[slot] = int(Pass.WEIGHT_GRADIENT), stage[leg], mb
    return [order[slot] for slot in sorted(order)]

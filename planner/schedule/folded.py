"""In which order do ZB-V, DualPipe and DualPipeV run? Ranks hold both an early and a late stage.

ZB-V and DualPipeV fold the model into a V: rank r holds stages r and 2p - 1 - r. DualPipe runs two copies in
opposite directions: rank r holds stage r for one half of the micro-batches and stage p - 1 - r for the other.
Orders: Qi 2023 (arXiv 2401.10241, section 6) as in torch 2.13; DeepSeek-V3 (arXiv 2412.19437, figure 5) as in the
DualPipe repository, whose two schedules are one rule here; checked against their action lists (tests/schedule).
Left out: V schedules that adapt to the times or to a memory limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from planner.schedule.actions import EMPTY, ActionTable, Integers, Kinds, Mask, Pass, running_count

# A step is a string of passes: F, I, W, B (full backward) of the early (0) or late (1) stage; "W" alone takes the
# input gradient that has waited longest; "F0+B1" is an overlapped pair.
Step = tuple[str, int]  # passes, times repeated

_KIND: Final = {
    "F": Pass.FORWARD,
    "I": Pass.INPUT_GRADIENT,
    "W": Pass.WEIGHT_GRADIENT,
    "B": Pass.BACKWARD,
}
_OLDEST: Final = 2  # the stage slot of a bare "W"


def _written(passes: str) -> tuple[Kinds, Kinds, Mask]:
    """Kind, slot and overlap of the passes of a step."""
    kinds, slots, joined = [], [], []
    for word in passes.split():
        pair = word.split("+")
        for position, one in enumerate(pair):
            kinds.append(_KIND[one[0]])
            slots.append(int(one[1]) if len(one) > 1 else _OLDEST)
            joined.append(position + 1 < len(pair))
    return np.array(kinds, np.int8), np.array(slots, np.int8), np.array(joined, np.bool_)


def _numbered(kind: Kinds, slot: Kinds) -> tuple[Kinds, Integers]:
    """Slots with "oldest" resolved, and the micro-batch of each pass, counted per slot."""
    weight, split = kind == Pass.WEIGHT_GRADIENT, kind == Pass.INPUT_GRADIENT
    slot = slot.copy()
    oldest = weight & (slot == _OLDEST)
    if oldest.any():
        slot[weight] = slot[split]  # first in, first out
    # full and split backwards share a counter; a weight gradient takes its slot's next split backward
    step = np.where(kind == Pass.BACKWARD, Pass.INPUT_GRADIENT, kind).astype(np.int64)
    number = running_count(step * 2 + slot).astype(np.int32)
    for which in (0, 1):
        number[weight & (slot == which)] = number[split & (slot == which)]
    return slot, number


def folded_table(
    name: str, stages: int, m: int, steps: Iterable[list[Step]], slots: Integers, first: Integers
) -> ActionTable:
    """The table of a folded schedule from the steps of each rank.

    `slots` and `first`, shape (ranks, 2): the stage in each slot of a rank and its first micro-batch. Passes of
    micro-batches that do not exist (short steps) are left out.
    """
    p = slots.shape[0]
    rows = []
    for rank, written in enumerate(steps):
        parts = [_written(passes) for passes, times in written if times > 0]
        repeats = [times for _, times in written if times > 0]
        kind, slot, joined = (
            np.concatenate([np.tile(part[i], times) for part, times in zip(parts, repeats, strict=True)])
            for i in range(3)
        )
        slot, number = _numbered(kind.astype(np.int8), slot.astype(np.int8))
        real = number < (m if stages > p else m // 2)
        rows.append(
            (kind[real], slots[rank][slot[real]], number[real] + first[rank][slot[real]], joined[real])
        )
    length = max(row[0].size for row in rows)
    table = np.full((3, p, length), EMPTY, dtype=np.int32)
    overlapped = np.zeros((p, length), dtype=np.bool_)
    for rank, row in enumerate(rows):
        table[:, rank, : row[0].size] = row[:3]
        overlapped[rank, : row[0].size] = row[3]
    return ActionTable(name, stages, m, table[0].astype(np.int8), table[1], table[2], overlapped)


def zb_v(p: int, m: int) -> ActionTable:
    """ZB-V. Its order is laid out for 2p - 1 micro-batches or more; of fewer, the others are left out."""
    full = max(2 * p - 1, m)

    def steps(rank: int) -> list[Step]:
        early = 2 * (p - rank) - 1 + rank  # early forwards before the steady phase
        last = p - rank  # late forwards and backwards of the turn
        return [
            ("F0", 2 * (p - rank) - 1),
            ("F1 F0", rank),
            ("F1 I1 W1", last),
            ("F0 I0 W0 F1 I1 W1", full - early),
            ("I0 W0 F1 I1 W1", early - rank - last),
            ("I0 I1", rank),
            ("I0 W0", last),
            ("W1", rank),
            ("W0", rank),
        ]

    return folded_table("zb-v", 2 * p, m, map(steps, range(p)), _folded_stages(p), np.zeros((p, 2), np.int32))


def dualpipe(p: int, m: int) -> ActionTable:
    """DualPipe over p ranks, p stages and two directions."""
    half = np.minimum(np.arange(p), p - 1 - np.arange(p))
    slots = np.stack((half, p - 1 - half), axis=1).astype(np.int32)
    second = np.arange(p)[:, None] != slots  # the direction that enters at the last rank
    steps = [_dual_steps(int(h), p // 2, m // 2) for h in half]
    return folded_table("dualpipe", p, m, steps, slots, (second * (m // 2)).astype(np.int32))


def dualpipe_v(p: int, m: int) -> ActionTable:
    """DualPipeV: DualPipe cut in half and folded, 2p stages over p ranks."""
    steps = [_dual_steps(rank, p, m) for rank in range(p)]
    return folded_table("dualpipev", 2 * p, m, steps, _folded_stages(p), np.zeros((p, 2), np.int32))


def _folded_stages(p: int) -> Integers:
    rank = np.arange(p, dtype=np.int32)
    return np.stack((rank, 2 * p - 1 - rank), axis=1)


def _dual_steps(rank: int, depth: int, m: int) -> list[Step]:
    """Steps of the rank `rank` places from the open end of a V of `depth` ranks, m micro-batches a slot."""
    below, turn = depth - 1 - rank, rank == depth - 1
    # where the V turns, the first pair runs apart: its forward feeds nothing that the backward could wait for
    steady = m - 2 * depth + rank + 1
    full = (rank + 1) // 2  # rounds of the drain before weight gradients are split off
    drain: list[Step] = [("B1 B0", full)]
    if rank % 2 == 0:
        drain.append(("B1 I0", 1))
    drain.append(("I1 I0", rank + 1 - full - (rank % 2 == 0)))
    return [
        ("F0", 2 * below),
        ("F0 F1", rank + 1),
        ("I1 W F1", below),
        ("F0 B1 F1+B0" if turn else "F0+B1 F1+B0", 1),
        ("F0+B1 F1+B0", steady - 1),
        ("B1 F1+B0", below),
        *drain,
        ("W I0", below),
        ("W", rank + 1),
    ]

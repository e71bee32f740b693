"""Which passes does each rank of a pipeline run, and in which order? The table all schedules are written in.

A row is a rank, a column a position in its order; an entry is a pass of one micro-batch through one stage (a
virtual stage where ranks hold several). Left out: time, which the simulator adds, and how an order is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int32]
Kinds = NDArray[np.int8]
Mask = NDArray[np.bool_]
EMPTY: Final = -1  # entry of a rank that has fewer passes than the longest


class Pass(IntEnum):
    """A pass of a micro-batch through a stage; BACKWARD is both gradients in one piece."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    WEIGHT_GRADIENT = 2
    BACKWARD = 3


@dataclass(frozen=True, eq=False)
class ActionTable:
    """Order of the passes of every rank.

    `kind`, `stage` and `microbatch` have shape (ranks, positions), `EMPTY` past a rank's end. `joined[r, k]`
    says that pass k of rank r, a forward, runs overlapped with pass k + 1, a full backward. A pass, stage and
    micro-batch together occur once. In DualPipe a stage stands on two ranks, each for half the micro-batches.
    """

    name: str
    stages: int
    microbatches: int
    kind: Kinds
    stage: Integers
    microbatch: Integers
    joined: Mask

    @property
    def ranks(self) -> int:
        return int(self.kind.shape[0])

    def where(self, *kinds: Pass) -> Mask:
        """Where passes of these kinds stand, shape (ranks, positions)."""
        found = self.kind == kinds[0]
        for kind in kinds[1:]:
            found |= self.kind == kind
        return found


@dataclass(frozen=True)
class InFlight:
    """Most chunks of micro-batches that each rank holds at a time, int64 of shape (ranks,).

    `until_weight` counts a chunk from its forward to its weight gradient, `until_input` to its input gradient,
    `pending_weight` those between the two.
    """

    until_input: NDArray[np.int64]
    until_weight: NDArray[np.int64]
    pending_weight: NDArray[np.int64]


def peak_in_flight(table: ActionTable) -> InFlight:
    """Most chunks held by each rank [chunks]. They follow from the order alone: a rank runs one pass at a time."""

    def peak(taken: Mask, released: Mask) -> NDArray[np.int64]:
        # a pass releases when it ends, so what it releases still counts while it runs
        held = (
            np.cumsum(taken, axis=1, dtype=np.int32) - np.cumsum(released, axis=1, dtype=np.int32) + released
        )
        return held.max(axis=1).astype(np.int64)

    forward, split = table.where(Pass.FORWARD), table.where(Pass.INPUT_GRADIENT)
    weight = table.where(Pass.WEIGHT_GRADIENT)
    return InFlight(
        until_input=peak(forward, table.where(Pass.INPUT_GRADIENT, Pass.BACKWARD)),
        until_weight=peak(forward, table.where(Pass.WEIGHT_GRADIENT, Pass.BACKWARD)),
        pending_weight=peak(split, weight),
    )


def running_count(code: NDArray[Any]) -> NDArray[np.int64]:
    """How many earlier entries of a sequence equal this one; shape (positions,)."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    new = np.ones(code.size, dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(new)
    count = np.empty(code.size, dtype=np.int64)
    count[order] = np.arange(code.size) - starts[np.cumsum(new) - 1]
    return count

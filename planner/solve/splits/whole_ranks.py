"""Which makespan does no split beat whose ranks hold whole layers, and which prices say so of others as well?

Where the layers of a rank are cut, either it holds fewer or more: a linear programme for each, and so on. That every
split lies in one of the boxes that come of it is true whatever layers cost, so that their prices together bound other
profiles of the pipeline. Left out: that the layers of every chunk are whole (`programme.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.solve.splits.pipe import Pipe
from planner.solve.splits.relaxed import Prices, Relaxed, Sum

Array = NDArray[np.float64]

WHOLE: Final = 1e-5  # layers from a whole number that do not matter


@dataclass(frozen=True)
class Boxes:
    """Boxes in one of which every split lies that none of `prices` rules out. `least`: the makespan that none beats, as
    a share of what is allowed."""

    prices: tuple[Prices, ...]
    least: float


def whole_ranks(relaxed: Relaxed, enough: float, effort: float) -> Boxes:
    """Boxes of a programme that is solved, as long as some are below what would be `enough` and the programme's effort
    is below so much."""
    assert relaxed.prices is not None, "it is solved"
    assert relaxed.layers is not None, "it is solved"
    number, root = count(), dict[Sum, tuple[int, int]]()
    waiting = [(relaxed.least, next(number), root, relaxed.prices, relaxed.layers)]
    while waiting and waiting[0][0] < enough and relaxed.effort < effort:
        least, _, box, prices, layers = heappop(waiting)
        cut = _cut(relaxed.pipe, layers)
        if cut is None:
            heappush(waiting, (least, next(number), box, prices, layers))
            break
        some, held = cut
        low, high = box.get(some, (0, int(relaxed.kinds.number[some.kind])))
        for ends in ((low, int(held)), (int(held) + 1, high)):
            inner = {**box, some: ends}
            relaxed.prices = prices
            found = relaxed.solve_within(inner, enough, least)
            if found is None:
                if np.isfinite(relaxed.least):  # it could not be solved
                    heappush(waiting, (least, next(number), inner, prices, layers))
                continue  # it is empty
            heappush(waiting, (max(relaxed.least, least), next(number), inner, relaxed.prices, found))
    return Boxes(
        tuple(prices for _, _, _, prices, _ in waiting), min([one[0] for one in waiting], default=np.inf)
    )


def _cut(pipe: Pipe, layers: Array) -> tuple[Sum, float] | None:
    """A rank's layers of a kind that are no whole number, and how many they are."""
    best, found = WHOLE, None
    for rank in range(pipe.p):
        chunks = tuple(np.flatnonzero(pipe.rank_of == rank).tolist())
        for kind, held in enumerate(layers[list(chunks)].sum(axis=0).tolist()):
            if (off := abs(held - round(held))) > best:
                best, found = off, (Sum(chunks, kind), held)
    return found

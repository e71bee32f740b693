"""Which of many configurations have no room or no time for their layers, rank by rank, whatever their chunks are?

Where layers are of several kinds: a linear programme in layers of every kind on every rank, of which each does all its
passes and holds the fewest micro-batches that any of its chunks is held of. It says the same of all numbers of chunks
and micro-batches, and its prices of configurations whose layers cost something else. Left out: ways through several
ranks (`relaxed.py`), and layers of one kind, for which there is a closed form (`cost.any_fit`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.any_fit import in_flight_at_least
from planner.solve.splits.paths import Ways
from planner.solve.splits.pipe import Kinds, Pipe
from planner.solve.splits.profiles import Profiles
from planner.solve.splits.relaxed import Known, Relaxed
from planner.solve.splits.whole_ranks import whole_ranks
from planner.spec.config import FOLDED_SCHEDULES, ConfigTable, Schedule

Array = NDArray[np.float64]
Index = NDArray[np.intp]

TIMES = 4  # that a programme is solved for configurations alike
EACH = 0.02  # seconds of a processor, about, for one
APART = (Schedule.DUALPIPE, *FOLDED_SCHEDULES)  # whose ranks hold both ends, or stages of both directions


def alike(table: ConfigTable) -> list[Index]:
    """Rows whose ranks hold as many micro-batches at least, each group apart; those of which this is told."""
    rows = np.flatnonzero((table["pp"] > 1) & ~np.isin(table["schedule"], APART))
    if not len(rows):
        return []
    some = table.take(rows)
    keys = np.column_stack([some["pp"], in_flight_at_least(some)])
    _, of = np.unique(keys, axis=0, return_inverse=True)
    return [rows[of.ravel() == group] for group in range(int(of.max()) + 1)]


def least_loads(kinds_of: tuple[int, ...], table: ConfigTable, own: Profiles) -> tuple[Array, float]:
    """Of rows of one group (see `alike`) and their profiles: the least makespans, as shares of what is allowed (n,);
    and the effort."""
    p, m = int(table["pp"][0]), table["num_microbatches"].astype(float)
    flight = in_flight_at_least(table.take(slice(0, 1)))[0, :p]
    pipe = Pipe(Schedule.ONE_F_ONE_B, p, 1, 1, kinds_of, 0)
    own = replace(
        own,
        passes=own.passes * m[:, None, None],
        again=own.again * m[:, None],
        ends=own.ends * m[:, None, None],
        hops=np.zeros((len(own), p - 1)),
        recomputed=np.where(own.recomputed > 0, float(len(kinds_of)), 0.0),
    )
    kinds = Kinds(pipe, own)
    kinds.lines = [[] for _ in kinds.number]  # a rank's chunks are no neighbours
    ways = Ways(np.zeros((0, 4, p)), np.zeros((0, p - 1)))
    known = Known(ways, [(rank, (float(held),)) for rank, held in enumerate(flight.tolist())], every=True)
    least, told, effort = np.where(own.allowed > 0, 0.0, np.inf), np.zeros(len(own), dtype=np.bool_), 0.0
    for _ in range(TIMES):
        open_ = np.flatnonzero((least < 1.0) & ~told)
        if not len(open_):
            break
        chosen = open_[[least[open_].argmin()]]
        relaxed = Relaxed(pipe, own.take(chosen), known, kinds)
        relaxed.solve()
        told[chosen] = True
        if relaxed.prices is not None:
            known.remember(kinds, (relaxed.prices,))
            if relaxed.least < 1.0:
                known.remember(kinds, whole_ranks(relaxed, 1.0, relaxed.effort + EACH).prices)
            least = np.maximum(least, known.least(pipe, own, kinds))
        effort += relaxed.effort
    return least, effort

"""For which configurations can no layout of the layers fit in memory and in a step time?

Rank by rank: as many whole layers as there is room for beside the micro-batches in flight, and as there is time for;
where all ranks' together are too few, no layout does both. Layouts: any number of layers in any chunk, none too. Left
out: what chunks of several ranks have to do with each other (`solve.splits`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.any_split import allowed_seconds, layers_by_kind
from planner.cost.bounds import ends_at_work, layer_states_at_work
from planner.cost.levels import layer_level
from planner.cost.model import CostModel
from planner.cost.pipeline.stages import mean_classes
from planner.cost.stage_memory import least_buffers
from planner.schedule.held import most_held
from planner.spec.config import FOLDED_SCHEDULES, OFFLOAD_ACTIVATIONS, ConfigTable, Schedule, distinct

Array = NDArray[np.float64]

ROUNDING = 1e-9


def may_fit(model: CostModel, table: ConfigTable, limit: float, most: float) -> NDArray[np.bool_]:
    """False where no layout of a row's layers fits in `limit` bytes of a device and takes `most` a step [s] (n,)."""
    if not len(table):
        return np.zeros(0, dtype=np.bool_)
    ranks = _Ranks(model, table, limit, most)
    found = ranks.hold(ranks.layers > 0)
    # light layers may lie where there is little room: without them the others must find theirs
    heaviest = ranks.states[:, (ranks.states.mean(axis=0) * ranks.layers).argmax()]
    heavy = (ranks.layers > 0) & (ranks.states >= heaviest[:, None] * (1 - ROUNDING)).all(axis=0)
    if (heavy != (ranks.layers > 0)).any():
        found &= ranks.hold(heavy)
    return found


class _Ranks:
    """Room and time of the ranks of rows. `layers` (K,): of every kind; `states` (n, K): of a layer [bytes]; `kept`,
    `again` (K, n): of a micro-batch, kept whole and recomputed [bytes]; `time` (K, n): of its passes, `repeat` (n,): of
    recomputing one [s]; `first` (n,): layers that a rank recomputes at most; `flight` (n, p): micro-batches held."""

    def __init__(self, model: CostModel, table: ConfigTable, limit: float, most: float) -> None:
        self.table, self.p, self.layers = table, table["pp"].astype(float), layers_by_kind(model)
        level = layer_level(model.layers, table)
        rows, classes = level.of_row, mean_classes(table["pp"], self.layers)
        bare = replace(classes.without_ends(), layers=0.0 * classes.layers)
        self.states = layer_states_at_work(model.shards, table, bare)
        self.ends = ends_at_work(model.shards, table, bare)
        away = (table["offload"] & OFFLOAD_ACTIVATIONS) > 0
        self.kept = np.where(away, 0.0, level.kept[:, rows])
        self.again = np.where(away, 0.0, np.minimum(level.kept, level.kept_full)[:, rows])
        recomputes = table["recompute_layers"] > 0
        working = np.where(recomputes, level.working_full[rows], level.working[rows])
        context = model.problem.stack.overhead.context
        outside = context + least_buffers(model.problem, table, level)
        self.free = limit * (1 + ROUNDING) - outside - np.minimum(working, level.working[rows])
        whole = table["recompute_layers"] >= np.ceil(model.problem.model.num_layers / self.p)
        self.first = np.where(whole, np.inf, table["recompute_layers"].astype(float))
        paired = np.isin(table["schedule"], (Schedule.DUALPIPE, Schedule.DUALPIPE_V))
        repeat = np.maximum((level.time_full - level.time)[self.layers > 0].min(axis=0)[rows], 0.0)
        if model.problem.model.mtp_layers:  # which are never recomputed, and count among layers here
            repeat = 0.0 * repeat
        time = level.time[:, rows] - np.where(paired, level.saved[:, rows], 0.0)
        self.time, self.repeat = time + np.where(whole, repeat, 0.0), np.where(whole, 0.0, repeat)
        # both directions of a mirrored pipeline lie on every rank: its time is left to others
        mirrored, m = table["schedule"] == Schedule.DUALPIPE, table["num_microbatches"].astype(float)
        self.tick = np.where(mirrored, np.inf, allowed_seconds(model, table, most)[0] / m * (1 + ROUNDING))
        self.edges = level.embedding[rows], level.head[rows]
        self.flight = _in_flight_at_least(table)
        self.last = np.where(np.isin(table["schedule"], FOLDED_SCHEDULES), 0.0, self.p - 1)

    def hold(self, some: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Is there room and time for the layers of `some` kinds (K,) on all ranks together (n,)?"""
        states, kept, again = (
            self.states[:, some].min(axis=1),
            self.kept[some].min(axis=0),
            self.again[some].min(axis=0),
        )
        least, longest = self.time[some].min(axis=0), self.time[some].max(axis=0)
        longest = longest + np.where(self.first > 0, self.repeat, 0.0)
        room = time = np.zeros(len(self.table))
        possible = np.ones(len(self.table), dtype=np.bool_)
        for rank, flight in enumerate(self.flight.T):
            here = [rank == 0, rank == self.last]
            left, tick = (
                of - np.where(here[0], ends[0], 0.0) - np.where(here[1], ends[1], 0.0)
                for of, ends in ((self.free, self.ends), (self.tick, self.edges))
            )
            possible &= (np.minimum(left, tick) >= 0) | (rank >= self.p)
            left, tick = np.maximum(left, 0.0), np.maximum(tick, 0.0)
            cheap, full = np.maximum(states + again * flight, 1.0), np.maximum(states + kept * flight, 1.0)
            held = _Rank(left, tick, cheap, full, np.maximum(least, 1e-12), self.repeat).layers(self.first)
            room = room + np.where(rank < self.p, held, 0.0)
            time = time + np.where(rank < self.p, np.minimum(held * longest, tick), 0.0)
        number = self.layers[some]
        return np.asarray(
            possible
            & (room >= number.sum() * (1 - ROUNDING))
            & (time >= number @ self.time[some] * (1 - ROUNDING))
        )


@dataclass(frozen=True)
class _Rank:
    """One rank of rows (n,): `left` bytes and `tick` seconds; a layer takes `cheap` bytes where it is recomputed, else
    `full`, and `each` seconds, `more` where it is recomputed."""

    left: Array
    tick: Array
    cheap: Array
    full: Array
    each: Array
    more: Array

    def layers(self, first: Array) -> Array:
        """The most whole layers, of which up to `first` are recomputed (n,)."""
        slower = self.each + self.more
        most = np.minimum(np.minimum(first, self.left / self.cheap), self.tick / slower)
        # what is recomputed first gives room, then takes time: where both are short there are most
        slope = np.maximum(self.full * slower - self.cheap * self.each, 1e-300)
        balance = np.clip((self.full * self.tick - self.left * self.each) / slope, 0.0, most)
        room, time = (
            (self.left - balance * self.cheap) / self.full,
            (self.tick - balance * slower) / self.each,
        )
        found = np.where(np.isfinite(first), balance + np.minimum(room, time), most)
        return np.asarray(np.floor(np.maximum(found, 0.0) * (1 + ROUNDING) + ROUNDING))


def _in_flight_at_least(table: ConfigTable) -> Array:
    """Micro-batches that every rank holds of any of its chunks, at its fullest, at the least (n, ranks) [1]."""
    schedule, rank = table["schedule"][:, None], np.arange(int(table["pp"].max()))[None, :].astype(float)
    p, v, m = (table[axis].astype(float)[:, None] for axis in ("pp", "vpp", "num_microbatches"))
    queue = np.clip(p - rank, 1.0, None)
    waves = np.minimum(p, 2.0 * np.clip(p - 1.0 - rank, 0.0, None) + 1.0)
    found = np.where(schedule == Schedule.GPIPE, m, np.where(v > 1, waves, queue))
    found = np.minimum(found, m)
    # of other schedules chunks count as equal
    apart = np.flatnonzero((table["schedule"] > Schedule.INTERLEAVED) & (table["schedule"] != Schedule.GPIPE))
    if len(apart):
        some = table.take(apart)
        first, inverse = distinct(*(some[axis] for axis in ("schedule", "pp", "vpp", "num_microbatches")))
        of_key = np.ones((len(first), found.shape[1]))
        for key, row in enumerate(first.tolist()):
            kind, ranks, chunks = (
                Schedule(int(some["schedule"][row])),
                int(some["pp"][row]),
                int(some["vpp"][row]),
            )
            if kind is not Schedule.DUALPIPE:  # whose ranks hold a stage of either direction
                held = most_held(kind, ranks, chunks, int(some["num_microbatches"][row]))
                of_key[key, :ranks] = [moments[0][0] / chunks for moments in held]
        found[apart] = of_key[inverse]
    return found

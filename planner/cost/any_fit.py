"""For which configurations can no layout of the layers fit in memory and in a step time?

Rank by rank: as many whole layers as there is room for beside the micro-batches in flight, and as there is time for;
where all ranks' together are too few, no layout does both. Layouts: any number of layers in any chunk, none too. Left
out: what chunks of several ranks have to do with each other (`solve.splits`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.any_split import allowed_seconds, layers_by_kind
from planner.cost.bounds import ends_at_work, layer_states_at_work
from planner.cost.levels import Layers, layer_level
from planner.cost.model import CostModel
from planner.cost.pipeline.stages import mean_classes
from planner.cost.stage_memory import least_buffers
from planner.schedule.held import most_held
from planner.spec.config import FOLDED_SCHEDULES, OFFLOAD_ACTIVATIONS, ConfigTable, Schedule, distinct

Array = NDArray[np.float64]

ROUNDING = 1e-9
HALVINGS = 10  # of what the slowest rank may take


def least_slowest(model: CostModel, table: ConfigTable, limit: float, most: float) -> Array:
    """What the slowest rank takes for a micro-batch at least in any layout of a row's layers that fits in `limit` bytes
    of a device; infinity where none does that takes `most` a step (n,) [s]."""
    if not len(table):
        return np.zeros(0)
    ranks = _Ranks.of(model, table, limit, most)
    longest = ranks.tick
    found = np.where(ranks.may_fit(longest), 0.0, np.inf)
    mean = np.minimum(ranks.layers @ ranks.time / ranks.p, longest)
    # where not even time is short, or it is left to others
    rows = np.flatnonzero((found == 0.0) & np.isfinite(longest))
    if len(rows):
        rows = rows[~ranks.take(rows).may_fit(mean[rows])]
    if not len(rows):
        return found
    some, low, high = ranks.take(rows), mean[rows], longest[rows]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = some.may_fit(middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    found[rows] = low
    return found


@dataclass(frozen=True)
class LeastMemory:
    """What n rows need at least, however their layers are dealt [bytes]. `states` (n, K): of a layer of every kind,
    `ends` (2, n): of embedding and head; `kept`, `again` (K, n): of a layer and a micro-batch, kept whole and
    recomputed; `fixed` (n,): of every rank, with a layer at work."""

    states: Array
    ends: Array
    kept: Array
    again: Array
    fixed: Array

    @classmethod
    def of(cls, model: CostModel, table: ConfigTable, level: Layers) -> LeastMemory:
        """That of a table of these levels."""
        rows, overhead = level.of_row, model.problem.stack.overhead
        classes = mean_classes(table["pp"], np.zeros(len(level.kept)))
        bare = replace(classes.without_ends(), layers=0.0 * classes.layers)
        away = (table["offload"] & OFFLOAD_ACTIVATIONS) > 0
        factor = np.where(away, 0.0, 1.0 + overhead.fragmentation)
        working = np.minimum(level.working, level.working_full)[rows]  # whatever is recomputed
        outside = overhead.context + least_buffers(model.problem, table, level)
        return cls(
            states=layer_states_at_work(model.shards, table, bare),
            ends=np.array(ends_at_work(model.shards, table, bare)),
            kept=factor * level.kept[:, rows],
            again=factor * np.minimum(level.kept, level.kept_full)[:, rows],
            fixed=outside + model.shards.communicators(table, bare) + working,
        )


@dataclass(frozen=True)
class _Ranks:
    """Room and time of the ranks of n rows. `layers` (K,): of every kind; `p` (n,): ranks; `states` (n, K): of a layer,
    `ends` (2, n): of embedding and head [bytes]; `kept`, `again` (K, n): of a micro-batch, kept whole and recomputed
    [bytes]; `free` (n,): room of a rank [bytes]; `time` (K, n): of its passes, `repeat` (n,): of recomputing one,
    `edges` (2, n): of the ends [s]; `most`, `least` (n,): layers that a rank recomputes at most, and that it does at
    least where it holds as many; `flight` (ranks, n): micro-batches held; `last` (n,): the rank of the head; `tick`
    (n,): the longest time of a rank [s]."""

    layers: Array
    p: Array
    states: Array
    ends: Array
    kept: Array
    again: Array
    free: Array
    time: Array
    repeat: Array
    edges: Array
    most: Array
    least: Array
    flight: Array
    last: Array
    tick: Array

    @classmethod
    def of(cls, model: CostModel, table: ConfigTable, limit: float, longest: float) -> _Ranks:
        """Those of a table, whose steps take `longest` at most [s]."""
        p, layers, level = table["pp"].astype(float), layers_by_kind(model), layer_level(model.layers, table)
        rows, needed = level.of_row, LeastMemory.of(model, table, level)
        count = table["recompute_layers"]
        whole = count >= np.ceil(model.problem.model.num_layers / p)
        paired = np.isin(table["schedule"], (Schedule.DUALPIPE, Schedule.DUALPIPE_V))
        repeat = np.maximum((level.time_full - level.time)[layers > 0].min(axis=0)[rows], 0.0)
        if model.problem.model.mtp_layers:  # which are never recomputed, and count among layers here
            repeat = 0.0 * repeat
        time = level.time[:, rows] - np.where(paired, level.saved[:, rows], 0.0)
        # both directions of a mirrored pipeline lie on every rank: its time is left to others
        mirrored, m = table["schedule"] == Schedule.DUALPIPE, table["num_microbatches"].astype(float)
        return cls(
            layers=layers,
            p=p,
            states=needed.states,
            ends=needed.ends,
            kept=needed.kept,
            again=needed.again,
            free=limit * (1 + ROUNDING) - needed.fixed,
            time=time + np.where(whole, repeat, 0.0),
            repeat=np.where(whole, 0.0, repeat),
            edges=np.array([level.embedding[rows], level.head[rows]]),
            most=np.where(whole, np.inf, count.astype(float)),
            least=np.where(whole, 0.0, count // table["vpp"]),
            flight=in_flight_at_least(table).T,
            last=np.where(np.isin(table["schedule"], FOLDED_SCHEDULES), 0.0, p - 1),
            tick=np.where(mirrored, np.inf, allowed_seconds(model, table, longest)[0] / m * (1 + ROUNDING)),
        )

    def take(self, rows: NDArray[np.intp]) -> _Ranks:
        """Some of them."""
        of_row = {field.name: getattr(self, field.name) for field in fields(self)}
        layers, states = of_row.pop("layers"), of_row.pop("states")
        return _Ranks(layers, states=states[rows], **{name: one[..., rows] for name, one in of_row.items()})

    def may_fit(self, tick: Array) -> NDArray[np.bool_]:
        """False where not all layers find room on ranks that take so long at most (n,)."""
        found = self._hold(self.layers > 0, tick)
        # light layers may lie where there is little room: without them the others must find theirs
        heaviest = self.states[:, (self.states.mean(axis=0) * self.layers).argmax()]
        heavy = (self.layers > 0) & (self.states >= heaviest[:, None] * (1 - ROUNDING)).all(axis=0)
        if (heavy != (self.layers > 0)).any():
            found &= self._hold(heavy, tick)
        return found

    def _hold(self, some: NDArray[np.bool_], tick: Array) -> NDArray[np.bool_]:
        """Is there room and time for the layers of `some` kinds (K,) on all ranks together (n,)?"""
        states = self.states[:, some].min(axis=1)
        kept = self.kept[some].min(axis=0)
        again = self.again[some].min(axis=0)
        least, longest = self.time[some].min(axis=0), self.time[some].max(axis=0)
        longest = longest + np.where(self.most > 0, self.repeat, 0.0)
        room = time = np.zeros(len(self.p))
        possible = np.ones(len(self.p), dtype=np.bool_)
        for rank, flight in enumerate(self.flight):
            here = [rank == 0, rank == self.last]
            left, free = (
                of - np.where(here[0], ends[0], 0.0) - np.where(here[1], ends[1], 0.0)
                for of, ends in ((self.free, self.ends), (tick, self.edges))
            )
            possible &= (np.minimum(left, free) >= 0) | (rank >= self.p)
            left, free = np.maximum(left, 0.0), np.maximum(free, 0.0)
            cheap, full = np.maximum(states + again * flight, 1.0), np.maximum(states + kept * flight, 1.0)
            of_rank = _Rank(left, free, cheap, full, np.maximum(least, 1e-12), self.repeat)
            held = of_rank.layers(self.least, self.most)
            room = room + np.where(rank < self.p, held, 0.0)
            time = time + np.where(rank < self.p, np.minimum(held * longest, free), 0.0)
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

    def layers(self, least: Array, most: Array) -> Array:
        """The most whole layers, of which up to `most` are recomputed, and `least` of them, or all (n,)."""
        slower = self.each + self.more
        every = np.minimum(self.left / self.cheap, self.tick / slower)
        rest = replace(
            self,
            left=np.maximum(self.left - least * self.cheap, 0.0),
            tick=np.maximum(self.tick - least * slower, 0.0),
        )
        found = np.where(every < least, every, least + rest._up_to(most - least))
        return np.asarray(np.floor(np.maximum(found, 0.0) * (1 + ROUNDING) + ROUNDING))

    def _up_to(self, first: Array) -> Array:
        """The most layers, of which up to `first` are recomputed (n,)."""
        slower = self.each + self.more
        most = np.minimum(np.minimum(first, self.left / self.cheap), self.tick / slower)
        # what is recomputed first gives room, then takes time: where both are short there are most
        slope = np.maximum(self.full * slower - self.cheap * self.each, 1e-300)
        finite = np.isfinite(self.left) & np.isfinite(self.tick)
        left, tick = np.where(finite, self.left, 0.0), np.where(finite, self.tick, 0.0)
        balance = np.clip((self.full * tick - left * self.each) / slope, 0.0, most)
        room = (self.left - balance * self.cheap) / self.full
        time = (self.tick - balance * slower) / self.each
        return np.where(np.isfinite(first), balance + np.minimum(room, time), most)


def in_flight_at_least(table: ConfigTable) -> Array:
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
            kind = Schedule(int(some["schedule"][row]))
            ranks = int(some["pp"][row])
            chunks = int(some["vpp"][row])
            if kind is not Schedule.DUALPIPE:  # whose ranks hold a stage of either direction
                held = most_held(kind, ranks, chunks, int(some["num_microbatches"][row]))
                of_key[key, :ranks] = [moments[0][0] / chunks for moments in held]
        found[apart] = of_key[inverse]
    return found

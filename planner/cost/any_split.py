"""Which step time does no layout of a configuration's layers beat?

Bounds of many configurations at once, from the mean stage (`pipeline.stages.mean_classes`): some stage of every layout
holds as much or more of whatever adds up over stages. Layouts: any number of layers in any chunk, none too. Left out:
memory (`any_fit.py`), and which layout comes near (`solve.splits`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.bounds import least_slowest
from planner.cost.levels import Layers, Pipelines, layer_level, pipeline_level
from planner.cost.messages.data_parallel import exposed_data_parallel
from planner.cost.model import CostModel
from planner.cost.pipeline.stages import StageClasses, mean_classes
from planner.cost.pipeline.step import measured_factor, straggling
from planner.cost.stems import StemModel
from planner.spec.config import FOLDED_SCHEDULES, ConfigTable, Schedule

Array = NDArray[np.float64]

SLOWEST_TIMES = 8  # at which what the slowest stage hides is looked at
HALVINGS = 8  # of the layer by which the slowest stage may be slower than the mean
_ROUNDING = 1.0 - 1e-9


def layers_by_kind(model: CostModel) -> Array:
    """Layers of each kind in the whole model, prediction modules included (K,) [1]."""
    spec = model.problem.model
    layers = np.bincount(spec.layer_kind_of, minlength=len(spec.layer_kinds)).astype(float)
    for kind, count in spec.mtp_kinds:
        layers[kind] += count
    return layers


def least_of_any_layout(model: CostModel, table: ConfigTable, most: float) -> Array:
    """A step time that no layout of a row's layers beats, `most` at the most (n,) [s]; see `AnyLayout`."""
    return AnyLayout(model, table, most).least() if len(table) else np.zeros(0)


class AnyLayout:
    """What no layout of a row's layers beats, `most` at the most [s]; memory counts where it makes a rank slow
    (`any_fit.least_slowest`).

    The makespan of the slowest stage's work (`_Work`) and what the rest of a step takes where that stage hides as much
    as its time allows: between two of some times of it at least the makespan of the one and the rest of the other.
    Ranks recompute `recompute_layers` each.
    """

    def __init__(self, model: CostModel, table: ConfigTable, most: float) -> None:
        self.model, self.most = model, most
        classes, level = mean_classes(table["pp"], layers_by_kind(model)), layer_level(model.layers, table)
        self.work = _Work(model, table, level, most)
        pipelines = pipeline_level(model.layers, _of_one_chunk(table), level, classes)
        queued = self.work.is_(Schedule.ONE_F_ONE_B, one_chunk=True)
        self.hops = np.where(queued, pipelines.hops[pipelines.of_row], 0.0)
        self.rest = Rest(model, table, classes, level, pipelines)
        self.factor = _ROUNDING * measured_factor(model.problem, table)
        if len(model.problem.model.layer_kinds) > 1:
            self.work.in_a_row(model.problem.model.layer_kind_of, self.least() < most)

    def least(self, slowest: Array | float = 0.0) -> Array:
        """A step time that none beats where the slowest rank takes `slowest` for a micro-batch at least (n,) [s]."""
        most, work, least = self.most, self.work, np.full(len(self.hops), np.inf)
        slowest = np.maximum(work.slowest, np.minimum(slowest, most / work.m))
        highest = np.maximum(most / work.m, slowest * (1 + 1e-9))
        share = (highest / slowest) ** (1 / SLOWEST_TIMES)
        for step in range(SLOWEST_TIMES):
            low, high = slowest * share**step, slowest * share ** (step + 1)
            least = np.minimum(least, work.makespan(low, high) + self.rest.beside(high))
        least = least + self.hops
        slowed = least + straggling(least, self.model.problem)
        return np.asarray(np.minimum(self.factor * slowed, most))


def _of_one_chunk(table: ConfigTable) -> ConfigTable:
    """The same configurations with one chunk a rank, under 1F1B."""
    plain = {
        axis: np.full(len(table), value, dtype=np.int32) for axis, value in (("vpp", 1), ("schedule", 0))
    }
    return ConfigTable({**table.columns, **plain})


class _Work:
    """What the ranks of rows have to do for a micro-batch: `total` over ranks, `slowest` at least [s]."""

    def __init__(self, model: CostModel, table: ConfigTable, level: Layers, most: float) -> None:
        layers, rows, spec = layers_by_kind(model), level.of_row, model.problem.model
        self.p, self.v, self.m = (table[axis].astype(float) for axis in ("pp", "vpp", "num_microbatches"))
        self.schedule = table["schedule"]
        paired = np.isin(self.schedule, (Schedule.DUALPIPE, Schedule.DUALPIPE_V))
        of_layer = level.time[:, rows] - np.where(paired, level.saved[:, rows], 0.0)
        again = (level.time_full - level.time)[layers > 0].min(axis=0)[rows]
        count = table["recompute_layers"].astype(float)
        whole = np.ceil(spec.num_layers / self.p)
        # no rank of a layout that is fast enough holds more; of its layers, so many of a chunk or all are repeated
        deepest = np.maximum(most / (self.m * of_layer[layers > 0].min(axis=0)), 1.0)
        share = np.where(count >= whole, 1.0, np.minimum(count // self.v / deepest, 1.0))
        plain, of_layer = of_layer, of_layer + again * share
        # prediction modules, kinds of their own here, are never recomputed
        behind = sum((count * plain[kind] for kind, count in spec.mtp_kinds), np.zeros(len(table)))
        self.of_layer, self.ends = of_layer, (level.embedding[rows], level.head[rows] + behind)
        own = np.bincount(spec.layer_kind_of, minlength=len(spec.layer_kinds)).astype(float)
        layers = np.concatenate([own, [float(count) for _, count in spec.mtp_kinds]])
        of_layer = np.concatenate([of_layer, *(plain[[kind]] for kind, _ in spec.mtp_kinds)])
        self.total = layers @ of_layer + level.embedding[rows] + level.head[rows]
        slowest = least_slowest(of_layer, (level.embedding[rows], level.head[rows]), layers, self.p)
        # some rank has the head, and where the pipeline is folded the embedding as well
        folded = np.isin(self.schedule, FOLDED_SCHEDULES)
        slowest = np.maximum(
            slowest, np.maximum(self.ends[0], self.ends[1]) + folded * np.minimum(*self.ends)
        )
        self.slowest = np.where(self.schedule == Schedule.DUALPIPE, self.total / self.p, slowest)

    def is_(self, schedule: Schedule, one_chunk: bool) -> NDArray[np.bool_]:
        """Which rows run a schedule with one chunk a rank, or with several?"""
        several = (self.v > 1) & (self.m % self.p == 0)
        return (self.schedule == schedule) & ((self.v == 1) if one_chunk else several) & (self.p > 1)

    def in_a_row(self, kind_of: tuple[int, ...], where: NDArray[np.bool_]) -> None:
        """Raise `slowest` of some rows: where ranks hold one chunk of layers that differ, some rank takes at least as
        long as the slowest does that is filled from the first layer on, for the least time that lets all layers in."""
        rows = np.flatnonzero(where & (self.v == 1) & (self.p > 1) & (self.schedule != Schedule.DUALPIPE))
        if len(set(kind_of)) < 2 or not len(rows):
            return
        keys = np.concatenate(
            [self.of_layer[:, rows], [self.ends[0][rows], self.ends[1][rows], self.p[rows]]]
        )
        _, first, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        at = rows[first]
        before = np.zeros((len(kind_of) + 1, len(at)))
        np.cumsum(self.of_layer[:, at][list(kind_of)], axis=0, out=before[1:])
        every, p = before[-1], self.p[at]
        number = np.min_scalar_type(len(before))
        # with one layer more than its share of all a rank lets all layers in
        most = self.of_layer[list(set(kind_of))][:, at].max(axis=0) + np.maximum(*self.ends)[at]
        low, high = self.slowest[at], np.minimum(self.slowest[at] + most, self.total[at])
        for _ in range(HALVINGS):
            middle, done = (low + high) / 2, np.zeros(len(at))
            for rank in range(int(p.max())):
                outside = np.where(rank == 0, self.ends[0][at], 0.0) + np.where(
                    rank == p - 1, self.ends[1][at], 0.0
                )
                reach = done + np.where(rank < p, middle - outside, 0.0)
                held = np.add.reduce(before <= reach * (1 + 1e-12), axis=0, dtype=number)
                done = np.maximum(done, before[np.maximum(held, 1) - 1, np.arange(len(at))])
            fits = done >= every * (1 - 1e-12)
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        self.slowest[rows] = np.maximum(self.slowest[rows], low[inverse.ravel()])

    def makespan(self, low: Array, high: Array) -> Array:
        """A makespan that no layout beats whose slowest stage takes from `low` to `high` for a micro-batch [s].

        1F1B: the slowest stage is reached by one micro-batch's way through all stages and left by another's, between
        which it does the others' work, m - p of them if it is the first: 2 W + (m - p - 1) T. GPipe: forwards, then
        backwards, of the slowest after one through the others. Interleaved: see `_through_waves`. Where weight
        gradients are not put off, one micro-batch goes through all of them in a row.
        """
        p, m, total = self.p, self.m, self.total
        in_a_row = np.isin(self.schedule, (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE))
        plain = np.maximum(m * low, np.where(in_a_row, total, 0.0))
        ways = 2.0 * total + np.where(m > p, (m - p - 1.0) * low, (m - p - 1.0) * high)
        queued = self.is_(Schedule.ONE_F_ONE_B, one_chunk=True)
        found = np.where(queued, np.maximum(plain, ways), plain)
        gpipe = self.is_(Schedule.GPIPE, one_chunk=True)
        found = np.where(gpipe, np.maximum(plain, total + (m - 1.0) * low), found)
        waves = self.is_(Schedule.INTERLEAVED, one_chunk=False)
        return np.where(waves, np.maximum(plain, self._through_waves(high)), found)

    def _through_waves(self, high: Array) -> Array:
        """Of an interleaved pipeline the mean over ranks r and virtual stages j of a path: the first micro-batch passes
        all ranks in the virtual stages before j and the ranks before r in that one; then come all passes of rank r
        but the first group's in the virtual stages before j, which ran meanwhile; it is left likewise.

        What is passed on other ranks and what was run meanwhile cancel out on average, which leaves m W/p and
        sum_r (p - 1 - r) a_r / (p v) where ranks take a_r, least where late ranks take as much as they may, `high`.
        """
        full = np.floor(self.total / high)
        behind = high * full * (full - 1.0) / 2.0 + full * (self.total - full * high)
        return self.m * self.total / self.p + behind / (self.p * self.v)


class Rest:
    """What a step takes beside its pipeline where stages hold what the mean stage holds."""

    def __init__(
        self, model: CostModel, table: ConfigTable, classes: StageClasses, level: Layers, pipelines: Pipelines
    ) -> None:
        self.rows = np.arange(len(table))
        shards = model.shards.shards(table, classes)
        self.stems = StemModel(model.layers, classes, level, pipelines, shards)
        self.batch = self.stems.batch(table, slice(0, len(table)), memory=False)
        # the mean stage holds either end, and no copy of the other's embedding
        apart = (table["pp"] > 1) & ~np.isin(table["schedule"], (Schedule.DUALPIPE, *FOLDED_SCHEDULES))
        embedding = np.where(apart, model.shards.copied_embedding(table["tp"].astype(float)), 0.0)
        self.copies = self.batch.copies + model.shards.copies_summed(table, embedding)
        spec, rows = model.problem.model, level.of_row
        self.number = np.bincount(spec.layer_kind_of, minlength=len(spec.layer_kinds)).astype(float)
        self.behind = float(sum(spec.last_stage_layers))
        paired = np.isin(table["schedule"], (Schedule.DUALPIPE, Schedule.DUALPIPE_V))
        self.each = level.time[:, rows] - np.where(paired, level.saved[:, rows], 0.0)
        self.order = np.argsort(self.each, axis=0)

    def _deepest(self, slowest: Array) -> Array:
        """Layers that a stage may hold that takes no longer: the shortest first (n,) [1]."""
        left, held = slowest * (1 + 1e-9), np.zeros(len(slowest))
        for kinds in self.order:
            each = np.maximum(self.each[kinds, self.rows], 1e-12)
            some = np.minimum(self.number[kinds], np.floor(left / each))
            left, held = left - some * each, held + some
        return np.maximum(held + self.behind, 1.0)

    @classmethod
    def of(cls, model: CostModel, table: ConfigTable) -> Rest:
        """That of some configurations."""
        classes, level = mean_classes(table["pp"], layers_by_kind(model)), layer_level(model.layers, table)
        return cls(
            model, table, classes, level, pipeline_level(model.layers, _of_one_chunk(table), level, classes)
        )

    def beside(self, slowest: Array) -> Array:
        """Exposed collectives, the update, copies, and the host, where the slowest stage takes so long [s]."""
        batch = self.batch
        host = waits = np.zeros(len(slowest))
        if batch.offload.any():
            kept = np.zeros(len(slowest))
            host, waits = self.stems.host_transfer(batch, self.rows, kept, slowest, batch.data.microbatches)
        exposed = exposed_data_parallel(batch.data, slowest + waits, self._deepest(slowest))
        return np.asarray(exposed + host + self.copies + batch.once + batch.overhead)


def allowed_seconds(model: CostModel, table: ConfigTable, target: float) -> tuple[Array, Array, Array]:
    """What passes and messages of a step of `target` [s] may take at most, what it takes beside [s], and the whole over
    both (n,) each."""
    one = np.ones(len(table))
    factor = measured_factor(model.problem, table) * (one + straggling(one, model.problem))
    beside = Rest.of(model, table).beside(target / factor / table["num_microbatches"])
    return target / factor - beside, beside, factor

"""How long does a pipeline take at least, under every layout at once, and how long exactly?

By arguments of its own, so that an oracle need not cost most rows: a step is no shorter than all micro-batches' work on
any rank, after and before the passes that must come ahead of and behind it. Times of layers are the program's
(`LayerModel.layer`), and `makespans` runs the program's schedules (`planner.schedule`) for many layouts side by side.
Left out: whatever is not the pipeline's, which only adds to a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import hop_seconds
from planner.cost.model import CostModel
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.schedule.graph import schedule_graph
from planner.schedule.simulate import makespans, stage_times
from planner.spec.config import (
    ConfigTable,
    ParallelConfig,
    Placement,
    Recompute,
    Schedule,
    distinct,
    ranks_of_chunks,
)

Floats = NDArray[np.float64]
Index = NDArray[np.intp]

PAIRED: Final = (Schedule.DUALPIPE, Schedule.DUALPIPE_V)  # overlap passes of two micro-batches
_NOTHING: Final = 1e-9  # what the simulator is given for a chunk without a layer [s]


class LeastTimes:
    """Of the distinct ways to cut and schedule micro-batches (keys) of one pp and vpp, under every layout. `of_row`:
    the key of every row of the table."""

    def __init__(self, model: CostModel, table: ConfigTable, layouts: NDArray[np.int32]) -> None:
        self.model, self.spec, self.layouts = model, model.problem.model, layouts
        self.pp, self.vpp = int(table["pp"][0]), int(table["vpp"][0])
        self.most = -(-self.spec.num_layers // self.pp)  # recomputing so many means all
        again = np.where(
            table["recompute"] == Recompute.FULL, np.minimum(table["recompute_layers"], self.most), 0
        )
        columns = (*model.layers.columns(table), table["schedule"], table["num_microbatches"])
        first, self.of_row = distinct(*columns, again)
        self.keys, self.again = table.take(first), again[first]
        kinds = self.spec.layer_kinds
        costs = [model.layers.layer(kind, self.keys) for kind in kinds]
        edges = model.layers.edges(self.keys)
        self.time, self.full, self.forward, self.twice, self.twice_full, self.weight, self.saved = (
            np.array([getattr(cost, name) for cost in costs])
            for name in (
                "time",
                "time_full",
                "forward_time",
                "again",
                "again_full",
                "weight_gradient",
                "hidden",
            )
        )  # (K, keys) each
        self.ends = np.array([edges.embedding, edges.head])  # (2, keys)
        self.among = np.zeros((self.spec.num_layers + 1, len(kinds)))  # of each kind among the first n layers
        self.among[np.arange(1, self.spec.num_layers + 1), list(self.spec.layer_kind_of)] = 1
        self.among = self.among.cumsum(axis=0)
        self.behind = np.zeros(len(kinds))  # layers of prediction modules, on the last chunk
        for kind, count in self.spec.mtp_kinds:
            self.behind[kind] += count
        ends = np.cumsum(layouts, axis=1)
        self.counts = self.among[ends] - self.among[ends - layouts]  # (layouts, chunks, K)
        self.counts[:, -1] += self.behind

    def __len__(self) -> int:
        return len(self.keys)

    def of_any_layout(self) -> Floats:
        """Of every key, whatever the layout: work spread evenly, and the longest layer and the head whole (n,) [s].

        Of fewer recomputed layers than all, none is counted."""
        time = np.where(self.again >= self.most, self.full, self.time)
        time = time - np.where(np.isin(self.keys["schedule"], PAIRED), self.saved, 0.0)
        counts = self.among[-1] + self.behind
        work = counts @ time + self.ends.sum(axis=0)
        alone = np.maximum(time[self.among[-1] > 0].max(axis=0), self.ends.max(axis=0))
        alone = np.where(self.keys["schedule"] == Schedule.DUALPIPE, 0.0, alone)  # two copies share it
        return np.asarray(self.keys["num_microbatches"] * np.maximum(work / self.pp, alone))

    def of_layouts(self, key: int) -> Floats:
        """Of one key under every layout (layouts,) [s]."""
        every = slice(None)
        schedule, m = Schedule(int(self.keys["schedule"][key])), int(self.keys["num_microbatches"][key])
        time = self._time(key, every)
        # gradients of weights may run after all else: then only the forward passes come ahead
        ahead = (
            time if schedule <= Schedule.INTERLEAVED else self._sums(key, every, self.forward, FORWARD_SHARE)
        )
        before = np.cumsum(ahead[:, : self.pp], axis=1) - ahead[:, : self.pp]
        busy = time - self._sums(key, every, self.saved, 0.0) if schedule in PAIRED else time
        rank = np.array(ranks_of_chunks(self.pp, self.vpp, schedule.placement))
        work = np.stack([busy[:, rank == r].sum(axis=1) for r in range(self.pp)], axis=1)
        if schedule.placement is Placement.MIRRORED:
            return np.asarray(m * ((work + work[:, ::-1]) / 2).max(axis=1))
        return np.asarray((before + m * work).max(axis=1))

    def makespans(self, key: int, layouts: Index, config: ParallelConfig) -> Floats:
        """Of one key under some layouts, without and with messages, (layouts, 2) [s]. `config`: any of the key."""
        schedule, hops = Schedule(config.schedule), hop_seconds(self.model.layers, config)
        forward = self._sums(key, layouts, self.forward, FORWARD_SHARE)
        behind, saved = self._time(key, layouts) - forward, self._sums(key, layouts, self.saved, 0.0)
        again = self._sums(key, layouts, self.twice, 0.0)
        again += self._whole(key, layouts) @ (self.twice_full - self.twice)[:, key]
        weight = np.minimum(
            self._sums(key, layouts, self.weight, FORWARD_SHARE), behind - np.minimum(again, behind)
        )
        pairs = None
        if schedule in PAIRED and saved.any():
            pairs = np.maximum(forward + behind[:, ::-1] - (saved + saved[:, ::-1]) / 2, forward)
            pairs = np.maximum(pairs, _NOTHING)
        forward, backward = np.maximum(forward, _NOTHING), np.maximum(behind - weight, _NOTHING)
        graph = schedule_graph(schedule, self.pp, config.num_microbatches, self.vpp)
        found = []
        for hop in (np.zeros_like(hops), hops):
            each = np.tile(hop, (len(forward), 1))
            found.append(makespans(graph, stage_times(len(hop) + 1, forward, backward, weight, each, pairs)))
        return np.stack(found, axis=1)

    def _sums(self, key: int, layouts: Index | slice, of_kind: Floats, share: float) -> Floats:
        """A time of layers summed over every chunk of some layouts, with a share of the ends' (layouts, chunks) [s]."""
        found = self.counts[layouts] @ of_kind[:, key]
        found[:, 0] += share * self.ends[0, key]
        found[:, -1] += share * self.ends[1, key]
        return np.asarray(found)

    def _time(self, key: int, layouts: Index | slice) -> Floats:
        """Of a micro-batch in every chunk, both ways, recomputation included (layouts, chunks) [s]."""
        found = self._sums(key, layouts, self.time, 1.0)
        return (
            found + self._whole(key, layouts) @ (self.full - self.time)[:, key] if self.again[key] else found
        )

    def _whole(self, key: int, layouts: Index | slice) -> Floats:
        """Layers of each kind that are recomputed whole: the first of a chunk, as many in each."""
        dealt, again = self.layouts[layouts], int(self.again[key])
        starts = np.cumsum(dealt, axis=1) - dealt
        each = dealt if again >= self.most else np.minimum(dealt, again // self.vpp)
        return np.asarray(self.among[starts + each] - self.among[starts])


def by_group(groups: Sequence[NDArray[np.signedinteger]]) -> list[Index]:
    """Places of the rows that are alike in all of some columns, group by group."""
    if not len(groups[0]):
        return []
    _, kind = distinct(*groups)
    order = np.argsort(kind, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)

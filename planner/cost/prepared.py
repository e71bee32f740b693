"""What does each leaf of prepared stems cost? Rows completed by their number of fully recomputed layers.

A stem is a configuration without that number. Left out: how the levels a row gathers from are found
(`cost/levels.py`, `cost/shards.py`), and what needs no leaf (`cost/stems.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import are_simulated
from planner.cost.layer import LayerModel
from planner.cost.layer_cost import TIME_TERMS
from planner.cost.levels import Layers, Pipelines
from planner.cost.memory.graph_pool import RowGraphs
from planner.cost.memory.peak import Kept, MemoryCost, memory_cost, worst_moment
from planner.cost.messages.data_parallel import exposed_data_parallel
from planner.cost.pipeline.least_time import least_pipeline_time
from planner.cost.pipeline.slowest import bubble_apart, bubble_time
from planner.cost.pipeline.stages import StageClasses, largest, sum_of_columns, sum_over_kinds
from planner.cost.pipeline.step import (
    chance_of_full_memory,
    measured_factor,
    slow_mode_time,
    straggling,
)
from planner.cost.selective import by_operations
from planner.cost.shards import Shards
from planner.cost.stems import StemModel, Stems
from planner.cost.table import STAGE_TERMS, CostDetail, CostTable
from planner.spec.config import (
    OFFLOAD_ACTIVATIONS,
    ConfigTable,
    IntColumn,
    Schedule,
    distinct,
)

Array = NDArray[np.float64]
Index = NDArray[np.intp]
ROUNDING = 1.0 - 1e-12  # of sums of the same times in another order


@dataclass(frozen=True)
class _Work:
    """Of distinct pipelines with their recomputed layers: `time`, `kept` (n, C) of a micro-batch on a stage of each
    class [s], [bytes]; `slowest`, `total` (n,): the largest over stages and their sum [s]. `in_flight`: `kept` where
    every chunk counts by the micro-batches that are in flight of it [bytes]."""

    time: Array
    slowest: Array
    total: Array
    kept: Array
    in_flight: Kept


class PreparedCosts:
    """Costs of stems, ready to be completed by their leaves. See `CostModel.prepare`."""

    def __init__(
        self, model: LayerModel, stems: ConfigTable, classes: StageClasses, layers: Layers, pipelines: Pipelines,
        shards: Shards,
    ) -> None:  # fmt: skip
        self.model, self.stems, self.classes = model, stems, classes
        self.layers, self.pipelines, self.shards = layers, pipelines, shards
        # what full recomputation of one layer adds and frees, per kind and layer key: (K, l)
        self.slower = layers.time_full - layers.time
        self.again = layers.again_full - layers.again
        self.freed = layers.kept - layers.kept_full
        of_layer = np.concatenate([layers.kept, layers.kept_full])  # (2 K, l)
        self.each = of_layer.T[pipelines.layer_key] if pipelines.uneven is not None else of_layer[:, :0]
        # classes that hold the head, as often as a row has most of them: (P, H)
        holds = classes.last > 0
        order = np.argsort(~holds, axis=1, kind="stable")[:, : int(holds.sum(axis=1).max())]
        self.heads = np.where(np.take_along_axis(holds, order, axis=1), order, order[:, :1])
        # layers of kind k among the first n of a stage, as rows (pipeline, n): K times (P N, C)
        pipelines_, width, self.depth, kinds = classes.leading.shape
        shape = (pipelines_ * self.depth, width)
        self.leading = [classes.leading[..., k].transpose(0, 2, 1).reshape(shape) for k in range(kinds)]
        self.by_stem = StemModel(model, classes, layers, pipelines, shards)
        self.deepest = self.by_stem.deepest

    def evaluate(
        self, part: slice | Index, stem: Index, recompute_layers: IntColumn, keep_terms: bool = False,
        least: bool = False,
    ) -> CostTable:  # fmt: skip
        """Complete the stems `part`: row i is the `stem[i]`-th of them with `recompute_layers[i]` layers."""
        model, pipelines, stack = self.model, self.pipelines, self.model.problem.stack
        stems = self.stems.take(part)
        batch = self.by_stem.batch(stems, part)
        p_row = pipelines.of_row[part][stem]
        c_row, m = pipelines.stage_key[p_row], batch.data.microbatches[stem]
        # sharding leaves a pipeline as it is: its work is summed once for all rows that share it
        first, of_row = distinct(p_row, recompute_layers)
        own = self._pipelines_of(p_row[first], recompute_layers[first])
        slowest, in_flight = own.slowest[of_row], own.in_flight.rows(of_row)
        host, kept, hiding = np.zeros(len(stem)), None, slowest
        if keep_terms or batch.offload.any():
            kept = own.kept.take(of_row, axis=0)
            host, waits = self.by_stem.host_transfer(batch, stem, largest(kept), slowest, m)
            hiding = slowest + waits  # collectives run beside copies to the host
        of_step: dict[str, Array] = {
            "pipeline_bubble": self._bubble(p_row[first], own, m[first], batch.v[stem[first]])[of_row],
            "pp_comm": pipelines.hops[p_row],
            "dp_comm": batch.copies[stem] + self._exposed(batch, stem, recompute_layers, hiding),
            "optimizer": batch.once[stem],
            "step_overhead": batch.overhead[stem],
        }
        if kept is not None:
            of_step["host_transfer"] = host
            if pipelines.uneven is not None:
                in_flight = in_flight.but((batch.offload[stem] & OFFLOAD_ACTIVATIONS) > 0, kept)
        subtotal = sum(of_step.values(), m * slowest)
        cluster = model.problem.cluster
        of_step["stragglers"] = straggling(subtotal, self.model.problem)
        of_step["own_runs"] = np.zeros(len(stem))
        if stack.measured:
            factor = measured_factor(model.problem, stems)[stem]
            of_step["own_runs"] = (factor - 1.0) * (subtotal + of_step["stragglers"])
        memory = self._memory(batch, stem, stems, recompute_layers, p_row, in_flight, keep_terms)
        of_step["memory_pressure"] = np.zeros(len(stem))
        if slow := stack.engine.message_when_full:
            chance = chance_of_full_memory(memory.device, cluster.accelerator.memory, stack.overhead.error)
            of_step["memory_pressure"] = chance * slow_mode_time(m, batch.stages[stem], slow)
        stage = self.classes.stage[c_row, memory.stage_class].astype(np.intp)
        detail = None
        if keep_terms:
            leading = self._leading(c_row, recompute_layers)
            terms = {**self._stage_terms(p_row, leading, own.time[of_row], m), **of_step}
            detail = CostDetail(
                terms, memory.terms, memory.by_class, memory.outside, memory.stage_class, c_row, self.classes,
                own.kept[of_row],
            )  # fmt: skip
        quiet = subtotal + of_step["stragglers"] + of_step["own_runs"]
        step_time, at_least = quiet + of_step["memory_pressure"], None
        if least:
            shorter = self._shorter(stems, stem, p_row, recompute_layers, m * slowest, of_step)
            # stragglers and own runs are shares of the rest
            at_least = quiet * (1.0 - shorter / subtotal) + of_step["memory_pressure"]
        return CostTable(step_time, memory.peak, memory.device, stage, memory.phase, detail, at_least)

    def device_memory(self, recompute_layers: IntColumn) -> Array:
        """Device memory of a stage of each class where all stems are completed so (n, C) [bytes]."""
        every = np.arange(len(self.stems))
        batch, p_row = self.by_stem.batch(self.stems, slice(0, len(every))), self.pipelines.of_row
        own = self._pipelines_of(p_row, recompute_layers)
        in_flight = own.in_flight
        if self.pipelines.uneven is not None:
            in_flight = in_flight.but((batch.offload & OFFLOAD_ACTIVATIONS) > 0, own.kept)
        memory = self._memory(batch, every, self.stems, recompute_layers, p_row, in_flight, keep_terms=False)
        return np.asarray(memory.by_class + memory.outside[:, None])

    def _exposed(self, batch: Stems, stem: Index, recompute_layers: IntColumn, hiding: Array) -> Array:
        """Exposed seconds of data parallelism, under `hiding` seconds of a micro-batch."""
        data, layers = batch.data.take(stem), batch.layers[stem]
        data = replace(data, again=data.again + batch.third[stem] * recompute_layers / layers)
        return exposed_data_parallel(data, hiding, layers)

    def _memory(
        self, batch: Stems, stem: Index, stems: ConfigTable, recompute_layers: IntColumn, p_row: Index, in_flight: Kept,
        keep_terms: bool,
    ) -> MemoryCost:  # fmt: skip
        """The moment of each row at which it needs most memory."""
        l_row, problem = self.pipelines.layer_key[p_row], self.model.problem
        working = np.where(recompute_layers > 0, self.layers.working_full[l_row], self.layers.working[l_row])
        # a stage that recomputes every layer reaches the loss with one layer's blocks unused
        again = (recompute_layers >= batch.layers[stem]) | by_operations(stems)[stem]
        cached, capacity = np.where(again, working, 0.0), problem.cluster.accelerator.memory
        graphs = self._graphs(p_row, l_row, working, in_flight.peak)
        return worst_moment(
            [
                memory_cost(
                    one, stem, in_flight, working, problem.stack, keep_terms, cached, capacity, graphs
                )
                for one in batch.memory
            ]
        )

    def _shorter(
        self, stems: ConfigTable, stem: Index, p_row: Index, recompute_layers: IntColumn, work: Array,
        of_step: dict[str, Array],
    ) -> Array:  # fmt: skip
        """Seconds by which bubble and messages of rows may be shorter once simulated; negative where they are longer.

        `work`: of the slowest stage over all micro-batches [s]."""
        shorter, rows = np.zeros(len(stem)), np.flatnonzero(are_simulated(stems)[stem])
        if len(rows):
            schedule, v, m = (stems[axis][stem[rows]] for axis in ("schedule", "vpp", "num_microbatches"))
            first, of_row = distinct(p_row[rows], recompute_layers[rows], m)
            path = least_pipeline_time(
                self.layers, self.pipelines, self.classes, self.model.problem.model.mtp_kinds, p_row[rows][first],
                recompute_layers[rows][first], schedule[first], v[first], m[first].astype(float),
            )  # fmt: skip
            beyond = np.maximum(ROUNDING * path[of_row] - work[rows], 0.0)
            shorter[rows] = of_step["pipeline_bubble"][rows] + of_step["pp_comm"][rows] - beyond
        return shorter

    def _graphs(self, p_row: Index, l_row: Index, working: Array, peak: Array) -> RowGraphs | None:
        """Memory of the CUDA graphs of rows; None where the stems have none. `peak`: kept of a micro-batch in flight,
        chunks that differ counted by those of their own, with which the buffers of their layers go."""
        pipelines, graphs = self.pipelines, self.layers.graphs
        if pipelines.pooled is None or pipelines.copied is None:
            return None
        kept, whole = pipelines.kept[p_row], graphs.whole[l_row]
        share = np.divide(pipelines.pooled[p_row], kept, out=np.zeros_like(kept), where=kept > 0)
        return RowGraphs(
            share=np.maximum(share, whole[:, None]),
            working=np.where(whole > 0, working, np.minimum(graphs.working[l_row], working)),
            copied=pipelines.copied[p_row] * np.divide(peak, kept, out=np.ones_like(kept), where=kept > 0),
            gradients=graphs.gradients[l_row],
            whole=whole,
        )

    def _pipelines_of(self, p_row: Index, recompute_layers: IntColumn) -> _Work:
        """The work of pipelines with so many recomputed layers in each stage."""
        pipelines, apart = self.pipelines, self.pipelines.apart
        l_row, c_row = pipelines.layer_key[p_row], pipelines.stage_key[p_row]
        leading = self._leading(c_row, recompute_layers)
        time, kept = pipelines.time.take(p_row, axis=0), pipelines.kept.take(p_row, axis=0)
        slowest, total = pipelines.slowest[p_row], pipelines.total[p_row]
        if leading:
            time = time + sum_over_kinds(leading, self.slower[:, l_row])
            work = time if apart is None else time - apart.hidden.take(p_row, axis=0)
            slowest, total = largest(work), sum_of_columns(self.classes.count.take(c_row, axis=0) * work)
            kept = kept - sum_over_kinds(leading, self.freed[:, l_row])
        in_flight = Kept(kept)
        if pipelines.uneven is not None:
            head = self.heads.take(c_row, axis=0)
            in_flight = Kept(*pipelines.uneven.kept(p_row, recompute_layers, self.each, kept, head), head)
        return _Work(time, slowest, total, kept, in_flight)

    def _bubble(self, p_row: Index, own: _Work, m: Array, v: Array) -> Array:
        """Seconds beyond the slowest stage's own work."""
        pipelines, classes, time = self.pipelines, self.classes, own.time
        c_row, forward = pipelines.stage_key[p_row], pipelines.forward.take(p_row, axis=0)
        apart = pipelines.apart
        bubble = bubble_time(forward, time, classes, c_row, own.slowest, own.total, m, v)
        if apart is None:
            return bubble
        rows = np.flatnonzero(apart.schedule[p_row] > Schedule.INTERLEAVED)
        if len(rows):
            key, count = p_row[rows], classes.count[c_row[rows]]
            bubble[rows] = bubble_apart(
                apart.schedule[key], forward[rows], time[rows], apart.weight[key], apart.hidden[key], count,
                count.sum(axis=1), v[rows], m[rows],
            )  # fmt: skip
        return bubble

    def _leading(self, c_row: Index, recompute_layers: IntColumn) -> list[Array]:
        """Recomputed layers by kind (rows, C); an empty list where no row recomputes whole layers."""
        if not recompute_layers.any():
            return []
        at = c_row * self.depth + np.minimum(recompute_layers, self.depth - 1)
        return [kind.take(at, axis=0) for kind in self.leading]

    def _stage_terms(self, p_row: Index, leading: list[Array], time: Array, m: Array) -> dict[str, Array]:
        """The terms of the slowest stage's `time`, over all micro-batches."""
        layers, pipelines, classes = self.layers, self.pipelines, self.classes
        l_row, c_row, index = pipelines.layer_key[p_row], pipelines.stage_key[p_row], np.arange(len(p_row))
        hidden = np.zeros_like(time) if pipelines.apart is None else pipelines.apart.hidden[p_row]
        binding = np.where(classes.count[c_row] > 0, time - hidden, -np.inf).argmax(axis=1)
        counts = classes.layers[c_row, binding].T  # (K, rows)
        terms = {
            name: (counts * layers.terms[:, i][:, l_row]).sum(axis=0) for i, name in enumerate(TIME_TERMS)
        }
        terms["recompute"] = (counts * layers.again[:, l_row]).sum(axis=0)
        for kind, again in zip(leading, self.again, strict=False):
            terms["recompute"] = terms["recompute"] + kind[index, binding] * again[l_row]
        ends = classes.first[c_row, binding] * layers.embedding[l_row]
        ends = ends + classes.last[c_row, binding] * layers.head[l_row]
        rest = time[index, binding] - ends - sum(terms.values())
        # overlapped pairs hide exchanges, and launches behind the other micro-batch's kernels
        pairs = hidden[index, binding]
        exchanged = np.minimum(pairs, terms["ep_comm"])
        rest = rest - (pairs - exchanged)
        terms["ep_comm"] = terms["ep_comm"] - exchanged
        # a repeated forward pass fills the wait for launches that pairs hide, which is no more than it takes
        filled = np.where(pairs > 0, np.minimum(np.maximum(-rest, 0.0), terms["recompute"]), 0.0)
        terms["recompute"] = terms["recompute"] - filled
        terms["host_bound"] = np.maximum(rest, 0.0)  # rounding may leave less than nothing
        terms["embedding_and_loss"] = ends
        return {name: m * terms[name] for name in STAGE_TERMS}

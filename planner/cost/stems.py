"""What do configurations without their number of fully recomputed layers, stems, take and hold?

Left out: what a leaf adds to them (`cost/prepared.py`), and how the levels a row gathers from are found
(`cost/levels.py`, `cost/shards.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.kernels import memory_bound_time
from planner.cost.engines.of_stack import engine_of
from planner.cost.layer import LayerModel
from planner.cost.levels import Layers, Pipelines
from planner.cost.memory.moments import MemoryInputs
from planner.cost.memory.state_bytes import shard_groups
from planner.cost.messages.data_parallel import DataParallel
from planner.cost.muon import WholeMatrices
from planner.cost.offload import copy_rate, host_seconds, host_update_rate
from planner.cost.pipeline.stages import StageClasses, largest
from planner.cost.shards import Shards
from planner.cost.stage_memory import Levels, memory_inputs, two_layers_at_most
from planner.spec.config import OFFLOAD_ACTIVATIONS, OFFLOAD_OPTIMIZER, ConfigTable, Schedule

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Stems:
    """Columns of a batch of stems that its leaves share; C stage classes."""

    data: DataParallel
    third: (
        Array  # gathers for the backward pass that recomputation of every layer adds, as `DataParallel.again`
    )
    longer: Array  # buffers of gradients and weights over their parameters [1]
    v: Array
    stages: Array
    layers: Array
    copies: Array  # beside collectives, and sums of an embedding's two copies [s]
    once: Array  # optimizer update [s]
    overhead: Array  # the host's work once a step [s]
    offload: NDArray[np.int32]
    updated: Array  # parameters that a rank updates
    held: Array  # bytes of a rank's share of the weights
    memory: tuple[MemoryInputs, ...]  # one per moment of the schedule that can bind


class StemModel:
    """Binds prepared stems and their levels; everything that needs no leaf. `least`: stages stand for any that are as
    light or heavier, so that no buffer is longer than what it holds."""

    def __init__(
        self, model: LayerModel, classes: StageClasses, layers: Layers, pipelines: Pipelines, shards: Shards,
        least: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.classes, self.least = model, classes, least
        self.engine = engine_of(model.problem.stack)
        self.layers, self.pipelines, self.shards = layers, pipelines, shards
        self.layers_of = classes.layers.sum(axis=2)
        self.deepest = largest(self.layers_of)

    def batch(self, table: ConfigTable, part: slice | Index, memory: bool = True) -> Stems:
        """Columns of the stems `part`, which `table` holds; without `memory` those of times alone."""
        problem, shards = self.model.problem, self.shards
        s_row, p_row = shards.of_row[part], self.pipelines.of_row[part]
        c_row = self.pipelines.stage_key[p_row]
        t, c, d = (table[axis].astype(float) for axis in ("tp", "cp", "dp"))
        zero, replicas = table["zero"].astype(float), self.classes.copies[c_row] * c * d
        expert_replicas = t * replicas / (table["ep"].astype(float) * table["etp"])
        sharded = zero >= 1
        padding = shards.padding[0][s_row], shards.padding[1][s_row]
        ranks = shard_groups(table["hsdp"].astype(float), replicas, expert_replicas)
        groups = [n / more for n, more in zip(ranks, padding, strict=True)]
        dense = shards.most_dense[s_row] / np.where(sharded, groups[0], 1.0)
        expert = shards.most_expert[s_row] / np.where(sharded, groups[1], 1.0)
        states, overlap = problem.stack.engine, problem.stack.communication.dp_overlap
        held = states.shard_width(self.model.recipe.weight_bytes) * (dense + expert)
        if problem.job.lora_rank is not None:
            parts = (
                each[s_row] / np.where(sharded, n, 1.0) for each, n in zip(shards.frozen, groups, strict=True)
            )
            held = next(parts) + next(parts)
        moved = self.engine.update_traffic(problem.job.optimizer) * (dense + expert)
        hosted = (table["offload"] & OFFLOAD_OPTIMIZER) > 0  # see `host_seconds`
        matrices = self._matrices(table, c_row, (replicas, expert_replicas), sharded)
        scatter, gather, again, third = self._sharded(s_row, zero)
        scatter = np.where(states.reduces_whole(zero), shards.reduce[s_row], scatter)
        once = memory_bound_time(np.where(hosted, 0.0, moved), self.model.bandwidth, self.model.kernels)
        if self.model.listed is not None:
            once = np.where(hosted, once, self.model.listed.update(once, dense + expert))
        longer = np.ones(len(zero))
        carried = shards.most_dense[s_row] + shards.most_expert[s_row]
        padded = padding[0] * shards.most_dense[s_row] + padding[1] * shards.most_expert[s_row]
        if matrices is not None:
            once = once + matrices.seconds
            longer = longer if self.least else matrices.longer(carried)
        fetches = shards.fetches
        copied = self._copies_beside(table, padded, replicas, again)
        data = DataParallel(
            scatter=scatter * longer,
            # frozen weights are gathered only where they are sharded; adapters are too small to count
            gather=gather * longer * (problem.job.lora_rank is None or states.weights_sharded(zero)),
            again=again,
            zero=zero,
            microbatches=table["num_microbatches"].astype(float),
            latency=states.latency_of_bucket * shards.buckets[s_row] * (replicas - 1),
            hidden=(states.hidden_once(overlap, zero), np.full(len(zero), states.hidden_in_layers(overlap))),
            in_each=zero >= states.reduced_in_each_from,
            behind=states.gathers_after_step(zero),
            waits_whole=states.accumulates_whole(table["pp"], table["zero"]),
            reduces_last=states.reduces_last(table["zero"], table["num_microbatches"]),
            aside=states.beside_compute(table["pp"], table["zero"]),
            copies=states.copies_hide * copied / table["num_microbatches"],
            turns=self._turns(table),
            shares=None if fetches is None else fetches.shares[:, s_row],
        )
        return Stems(
            data=data,
            third=third,
            longer=longer,
            v=table["vpp"].astype(float),
            stages=table["pp"].astype(float),
            copies=shards.copied[s_row] + copied,
            layers=self.deepest[c_row],
            offload=table["offload"],
            updated=dense + expert,
            held=held,
            overhead=self._overhead(table, s_row),
            once=once,
            memory=self._memory(table, s_row, p_row, matrices) if memory else (),
        )

    def _memory(
        self, table: ConfigTable, s_row: Index, p_row: Index, matrices: WholeMatrices | None
    ) -> tuple[MemoryInputs, ...]:
        """What the memory of stems is made of, at each moment of their schedule that can bind."""
        levels = Levels(self.layers, self.pipelines, self.shards, self.classes, self.layers_of)
        width, apart = self.model.recipe.weight_bytes, self.pipelines.apart
        inputs = memory_inputs(self.model.problem, width, table, levels, s_row, p_row, matrices)
        if apart is None or not apart.moments:
            return (inputs,)
        usual, copied = self.pipelines.in_flight[p_row], (table["offload"] & OFFLOAD_ACTIVATIONS) > 0
        return tuple(
            _at_moment(inputs, usual, copied, before[p_row], due[p_row]) for before, due in apart.moments
        )

    def _matrices(
        self, table: ConfigTable, c_row: Index, ranks: tuple[Array, Array], sharded: NDArray[np.bool_]
    ) -> WholeMatrices | None:
        """What an update of whole matrices takes; `ranks` (n,): replicas of dense and of expert parameters."""
        if self.model.muon is None:
            return None
        layers = self.classes.copies[c_row][:, None, None] * self.classes.layers[c_row]
        return self.model.muon.update(table, layers, ranks, sharded)

    def _turns(self, table: ConfigTable) -> tuple[Array, Array]:
        """Chunks whose data parallelism hides apart, and the micro-batches that each takes before the next."""
        by_chunk = self.model.problem.stack.engine.turns_by_chunk
        alone = (table["schedule"] > Schedule.INTERLEAVED) | (not by_chunk)
        chunks = np.where(alone, 1, table["vpp"])
        return chunks.astype(float), np.minimum(table["pp"], table["num_microbatches"]).astype(float)

    def _sharded(self, s_row: Index, zero: Array) -> tuple[Array, ...]:
        """Seconds of reduce-scatter and of all-gather, gathers for the backward pass, what recomputation adds to
        them."""
        shards, whole = self.shards, zero < 3
        scatter, gather, none = shards.scatter[s_row], shards.gather[s_row], np.zeros(len(s_row))
        others = (scatter, gather, shards.again[s_row], none)
        if shards.fetches is None:
            return others
        fetches = shards.fetches
        modules = (fetches.scatter, fetches.gather, fetches.again, fetches.third)
        return tuple(np.where(whole, a, b[s_row]) for a, b in zip(others, modules, strict=True))

    def _copies_beside(self, table: ConfigTable, gradients: Array, replicas: Array, again: Array) -> Array:
        """Seconds of a step in which a rank puts gradients and gathered weights in order for collectives [s]; `again`
        as `DataParallel` has it."""
        problem, states = self.model.problem, self.model.problem.stack.engine
        reductions, gathers = self.engine.collectives(table, again)
        gathers = gathers * (problem.job.lora_rank is None)
        moved = (states.reduction_copies * reductions + states.gather_copies * gathers) * gradients
        seconds = memory_bound_time(moved, self.model.bandwidth, self.model.kernels)
        return np.where((replicas > 1) & (table["zero"] >= 1), seconds, 0.0)

    def _overhead(self, table: ConfigTable, s_row: Index) -> Array:
        """Seconds of the host once a step: a fixed time, and one for every tensor of which a rank updates a part, but
        where a graph of the device's update launches all; the host's own update has none."""
        host, shards = self.model.problem.stack.host, self.shards
        tensors = np.where(table["zero"] >= 1, shards.pieces[s_row], shards.tensors[s_row])
        captured = self.model.problem.stack.engine.captures_update & (
            (table["offload"] & OFFLOAD_OPTIMIZER) == 0
        )
        launched = np.where(captured, 0.0, host.tensor_update * tensors)
        return host.step_overhead + self.model.host.slowdown * launched

    def host_transfer(
        self, batch: Stems, stem: Index, kept: Array, slowest: Array, m: Array
    ) -> tuple[Array, Array]:
        """Seconds of copies to the host and of updates there, and of them those of a micro-batch."""
        problem, engine, weight = self.model.problem, self.engine, self.model.recipe.weight_bytes
        states, overlap = problem.stack.engine, problem.stack.communication.dp_overlap
        cluster, updated = problem.cluster, batch.updated[stem]
        rates = copy_rate(cluster.accelerator), host_update_rate(cluster.accelerator)
        sums = engine.sums_on_host(m, batch.data.reduces_last[stem])
        return host_seconds(
            batch.offload[stem], updated, batch.held[stem], kept, slowest, m,
            engine.host_traffic(problem.job.optimizer), float(cluster.devices_per_node),
            rates, states.hidden_in_layers(overlap), engine.copied_to_host(weight),
            sums * states.shard_width(weight) * updated, weight,
        )  # fmt: skip


def _at_moment(
    inputs: MemoryInputs, usual: Array, copied: NDArray[np.bool_], before: Array, due: Array
) -> MemoryInputs:
    """The same with `before` micro-batches in flight, not `usual`, and `due` bytes kept for weight gradients (n, C).

    `copied` (n,): activations wait on the host, but two layers of them.
    """
    ratio = np.divide(before, usual, out=np.ones_like(before), where=usual > 0)
    held = np.where(copied[:, None], two_layers_at_most(before, inputs.layers), before)
    return replace(inputs, in_flight=held, boundary=inputs.boundary * ratio, due=due)

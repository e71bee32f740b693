"""What is the memory of a stem made of? Gathers parameters, activations in flight and states of every stage class.

Left out: what a row's recomputed layers free, and the moments of a step (`memory/moments.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.edges import padded_vocabulary
from planner.cost.engines.of_stack import engine_of, states_of
from planner.cost.levels import Layers, Pipelines
from planner.cost.memory.moments import MemoryInputs
from planner.cost.memory.state_bytes import StateBytes, frozen, shard_groups
from planner.cost.muon import WholeMatrices
from planner.cost.params_fp8 import beyond_wide, gathered_width, narrow_weights
from planner.cost.pipeline.stages import StageClasses
from planner.cost.shards import Shards
from planner.spec.config import FOLDED_SCHEDULES, OFFLOAD_ACTIVATIONS, ConfigTable, Schedule
from planner.spec.job import FROZEN_BYTES
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.engines import FP32
from planner.spec.stack.kinds import KeptWidths

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Levels:
    """What rows gather from; `layers_of` (P, C): layers of every class of stages."""

    layers: Layers
    pipelines: Pipelines
    shards: Shards
    classes: StageClasses
    layers_of: Array


def memory_inputs(
    problem: Problem, weight_bytes: float, table: ConfigTable, levels: Levels, s_row: Index, p_row: Index,
    matrices: WholeMatrices | None = None,
) -> MemoryInputs:  # fmt: skip
    """What the memory of the stems `table` is made of; `s_row`, `p_row`: their rows of shards and pipelines;
    `matrices`: of an optimizer that updates whole ones."""
    layers, pipelines, shards, classes = levels.layers, levels.pipelines, levels.shards, levels.classes
    stack, job = problem.stack, problem.job
    l_row, c_row = pipelines.layer_key[p_row], pipelines.stage_key[p_row]
    t, zero = table["tp"].astype(float), table["zero"].astype(float)
    replicas = classes.copies[c_row] * table["dp"].astype(float) * table["cp"].astype(float)
    expert_replicas = t * replicas / (table["ep"].astype(float) * table["etp"])
    states = _states(problem, shards, s_row, table, weight_bytes, (replicas, expert_replicas))
    last, head = np.ceil(classes.last.take(c_row, axis=0)), layers.head_memory
    # every prediction module has logits of its own, kept until the backward pass, and reads what two norms make of the
    # stream and of an embedding, side by side: inputs of norms and projection
    heads = last * (1 + problem.model.mtp_layers)
    values = layers.hidden[l_row] * np.where(table["sp"] > 0, t, 1.0)
    # that of a rank's own rows where nothing is divided
    begins = (
        np.ceil(classes.first.take(c_row, axis=0)) * (stack.engine.sums_whole_embedding & (t > 1))[:, None]
    )
    rows = padded_vocabulary(problem, t) * float(problem.model.embedding_width)
    offload, engine = table["offload"], engine_of(stack)
    in_flight, depth = pipelines.in_flight.take(p_row, axis=0), levels.layers_of.take(c_row, axis=0)
    held, copied = in_flight, (offload & OFFLOAD_ACTIVATIONS) > 0
    if copied.any():
        held = np.where(copied[:, None], two_layers_at_most(held, depth), held)
    outer, head_weights = shards.outer.take(s_row, axis=0), shards.head.take(s_row, axis=0)
    return MemoryInputs(
        dense=shards.dense.take(s_row, axis=0),
        expert=shards.expert.take(s_row, axis=0),
        outer=outer,
        head=head_weights,
        unit=shards.widest[s_row],
        padded_unit=shards.widest_padded[s_row],
        padding=(shards.padding[0][s_row], shards.padding[1][s_row]),
        layers=depth,
        alive=classes.count.take(c_row, axis=0),
        in_flight=held,
        head_inputs=heads * head.inputs[l_row][:, None]
        + last * (4.0 * problem.model.mtp_layers * layers.stream[l_row])[:, None],
        head_kept=heads * head.kept[l_row][:, None],
        head_transient=last * head.transient[l_row][:, None],
        logit_gradient=last * head.gradient[l_row][:, None],
        boundary=in_flight
        * (stack.kernels.code.boundary_bytes * layers.hidden[l_row] * (table["pp"] > 1))[:, None],
        stage_buffers=engine.stage_buffers(
            table, layers, l_row, (classes.first.take(c_row, axis=0), last), in_flight
        ),
        adapters=states.adapters,
        stream=layers.stream[l_row],
        gather_buffers=gather_buffers(stack, table, layers, l_row),
        deferred=engine.waiting_blocks(table, layers, l_row, held, depth, values * (t > 1))
        + engine.lone_gradient(problem, table, classes, c_row, values, outer),
        states=engine.on_device(states.dense, offload),
        expert_states=engine.on_device(states.experts, offload),
        zero=zero,
        shards=states.shared,
        expert_shards=states.expert_shared,
        accumulates=engine.gradients_wait(table, in_flight).astype(np.float64),
        waits_whole=stack.engine.accumulates_whole(table["pp"], table["zero"]).astype(np.float64),
        reduces_last=stack.engine.reduces_last(table["zero"], table["num_microbatches"]),
        reduces_aside=stack.engine.beside_compute(table["pp"], table["zero"]),
        weight_bytes=weight_bytes,
        step_elements=shards.step_elements[s_row],
        communicators=shards.communicators[s_row],
        update_bytes=engine.update_bytes(job),
        trained=float(job.lora_rank is None or stack.engine.grades_frozen),
        holds_head=last > 0,
        narrow=states.beside,
        narrow_gathered=states.gathered_widths,
        beside=0.0
        if matrices is None
        else matrices.beside(outer, (states.dense, states.experts), states.shared),
        whole_embedding=begins * rows[:, None],
        embedding_part=begins * (rows / t)[:, None],
        head_forward=last * head.forward[l_row][:, None],
        norm_gradient=last * head.norm_gradient[l_row][:, None],
        layer_forward=layers.ahead[l_row],
        matrix_bytes=0.0 if matrices is None else matrices.temporaries,
    )


@dataclass(frozen=True)
class _States:
    """Bytes of states of a dense and of an expert parameter, the ranks that share one, fewer of padded ones (n,);
    `adapters`, `beside` and `gathered_widths` as in `MemoryInputs`."""

    dense: StateBytes
    experts: StateBytes
    shared: Array
    expert_shared: Array
    adapters: Array
    beside: tuple[Array, Array | None] | None
    gathered_widths: Array | None


def _states(
    problem: Problem, shards: Shards, s_row: Index, table: ConfigTable, weight_bytes: float,
    replicas: tuple[Array, Array],
) -> _States:  # fmt: skip
    """States of parameters that `replicas` ranks hold, dense and expert ones; those of adapters beside frozen ones."""
    stack, job, zero = problem.stack, problem.job, table["zero"].astype(float)
    groups = shard_groups(table["hsdp"].astype(float), *replicas)
    shared, expert_shared = (n / more[s_row] for n, more in zip(groups, shards.padding, strict=True))
    dense = states_of(problem, zero, shared, replicas[0])
    experts = states_of(problem, zero, expert_shared, replicas[1])
    beside, widths = _narrow(problem, shards, s_row, table, (shared, expert_shared))
    outer = shards.outer.take(s_row, axis=0)
    if job.lora_rank is None:
        return _States(dense, experts, shared, expert_shared, np.zeros_like(outer), beside, widths)
    bytes_, sharded = FROZEN_BYTES[job.frozen_bits], stack.engine.weights_sharded(zero)
    wider = 2.0 if problem.widens_adapters else 1.0
    adapters = shards.adapters.take(s_row, axis=0) * wider * dense.total[:, None]
    if bytes_ < weight_bytes:
        upcast = stack.kernels.kept_widths is KeptWidths.FP32_STREAM
        wide = FP32 if upcast else weight_bytes
        unquantised = np.where(sharded, 1.0 / shared, 1.0) * (wide - bytes_)
        beside, widths = (outer * unquantised[:, None], None), np.full_like(outer, bytes_)
    kinds = ((dense, shared), (experts, expert_shared))
    dense, experts = (frozen(of, sharded, n, bytes_, stack.engine.grades_frozen) for of, n in kinds)
    return _States(dense, experts, shared, expert_shared, adapters, beside, widths)


def two_layers_at_most(held: Array, depth: Array) -> Array:
    """Micro-batches in flight that stay on a device whose activations wait on the host: two of its `depth` layers, one
    at work and one on its way [1]."""
    return np.minimum(held, 2.0 / np.maximum(depth, 1.0))


def _narrow(
    problem: Problem, shards: Shards, s_row: Index, table: ConfigTable, ranks: tuple[Array, Array]
) -> tuple[tuple[Array, Array | None] | None, Array | None]:
    """What 8- and 4-bit weights take beyond 16-bit ones with their copies, and bytes of one in a gathered layer.

    `ranks`: those that share dense and expert parameters. None: the recipe has none; nothing is kept of weights that
    are cast for every gather.
    """
    narrow = narrow_weights(problem)
    if narrow is None:
        return None, None
    zero, offload = table["zero"].astype(float), table["offload"]
    wide = [of.take(s_row, axis=0) for of in shards.wide]
    dense, outer, expert = (of.take(s_row, axis=0) for of in (shards.dense, shards.outer, shards.expert))
    linear = dense - outer - wide[0], expert - wide[1]
    kept: tuple[Array, Array | None] | None
    kept = None if narrow.cast else beyond_wide(narrow, offload, zero, tuple(zip(linear, ranks, strict=True)))
    return kept, gathered_width(narrow, zero, offload, wide[0] + wide[1])


def gather_buffers(stack: Stack, table: ConfigTable, layers: Layers, l_row: Index) -> Array:
    """Gathered inputs of a layer, made once (n,) [bytes]."""
    t = table["tp"].astype(float)
    return np.asarray(
        engine_of(stack).gather_buffer_bytes
        * layers.hidden[l_row]
        * np.where(table["sp"] > 0, t, 1.0)
        * (t > 1)
    )


def least_buffers(problem: Problem, table: ConfigTable, layers: Layers) -> Array:
    """Buffers that every rank of rows has at least, whatever layers it holds (n,) [bytes]."""
    stack, rows = problem.stack, layers.of_row
    p, m = (table[axis].astype(float) for axis in ("pp", "num_microbatches"))
    most = np.where(table["schedule"] == Schedule.GPIPE, m, np.minimum(m, 2.0 * p))  # in flight
    folded = np.isin(table["schedule"], FOLDED_SCHEDULES)[:, None]
    first = np.broadcast_to(np.array([1.0, 0.0]), (len(table), 2))
    last = np.where(folded, first, 1.0 - first)
    held = engine_of(stack).stage_buffers(table, layers, rows, (first, last), most[:, None] * np.ones((1, 2)))
    staged = np.where(table["schedule"] == Schedule.DUALPIPE, 0.0, held.min(axis=1))
    return np.asarray(staged + gather_buffers(stack, table, layers, rows) + stack.overhead.workspace)

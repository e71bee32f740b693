"""Which step time and which memory can no completion of a stem beat?

Lower bounds from few columns, on distinct keys only, so that a search can leave most stems without costing them.
Left out of them is named by each; what is left out is never negative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.of_stack import engine_of, states_of
from planner.cost.layer import LayerModel
from planner.cost.levels import layer_level
from planner.cost.memory.state_bytes import frozen, shard_groups
from planner.cost.params_fp8 import beyond_wide, narrow_weights
from planner.cost.pipeline.slowest import least_makespan
from planner.cost.pipeline.stages import StageClasses, largest, mean_classes, sum_over_kinds
from planner.cost.pipeline.step import measured_factor, straggling
from planner.cost.shards import ShardModel
from planner.spec.config import FOLDED_SCHEDULES, OFFLOAD_ACTIVATIONS, ConfigTable, Schedule, distinct
from planner.spec.job import FROZEN_BYTES

Array = NDArray[np.float64]

# What each bound depends on. A stem recomputes nothing: its leaves do.
TIME_AXES = (
    "tp", "sp", "cp", "cp_kind", "ep", "etp", "micro_batch", "pp", "vpp", "schedule", "num_microbatches",
    "cuda_graph_impl", "cuda_graph_modules",
)  # fmt: skip
MEMORY_AXES = ("tp", "cp", "pp", "vpp", "schedule", "dp", "ep", "etp", "zero", "hsdp", "offload")
CUT_AXES = ("tp", "sp", "cp", "cp_kind", "ep", "etp", "micro_batch", "pp", "dp", "num_microbatches")
KEYS_AT_A_TIME = 16384  # cuts of a micro-batch: about what a core's cache holds
_ROUNDING = 1.0 - 1e-9


def least_step_time(model: LayerModel, stems: ConfigTable, classes: StageClasses) -> Array:
    """A step time that no completion of a stem beats, from the work of its layers alone [s].

    Left out: embedding and loss, recomputed layers, point-to-point, data-parallel collectives, the optimizer.
    """
    layers = layer_level(model, stems)
    counts = np.moveaxis(classes.layers[classes.of_row], 2, 0)
    time = sum_over_kinds(counts, layers.time[:, layers.of_row])
    v, m = (stems[axis].astype(float) for axis in ("vpp", "num_microbatches"))
    stack = model.problem.stack
    schedule, forward, hidden = stems["schedule"], time, time
    if (schedule > Schedule.INTERLEAVED).any():
        forward = sum_over_kinds(counts, layers.forward_time[:, layers.of_row])
        pairs = np.isin(schedule, (Schedule.DUALPIPE, Schedule.DUALPIPE_V))[:, None]
        hidden = np.where(pairs, sum_over_kinds(counts, layers.saved[:, layers.of_row]), 0.0)
    least = least_makespan(time, forward, hidden, classes, classes.of_row, schedule, m, v)
    least = least + stack.host.step_overhead
    least = least + straggling(least, model.problem)
    # one stem stands for all that differ in other axes
    known = ConfigTable({axis: stems[axis] for axis in TIME_AXES})
    return _ROUNDING * least * measured_factor(model.problem, known, least=True)


def least_memory(model: ShardModel, stems: ConfigTable, classes: StageClasses) -> Array:
    """Device memory that no completion of a stem needs less than: all states at the update, workspace, and what lies
    outside the allocator [bytes].

    Left out: activations, logits, gathered parameters and every buffer that only some moments hold.
    """
    alive = classes.count[classes.of_row] > 0
    held = np.where(alive, states_held(model, stems, classes), 0.0)
    return _ROUNDING * (largest(held) + model.problem.stack.overhead.context)


def states_at_work(model: ShardModel, stems: ConfigTable, classes: StageClasses) -> Array:
    """What a stage of each class holds of its parameters at least while a layer's backward pass runs with as many
    micro-batches in flight as ever: states, and under `fully_shard` gathered weights and gradients of earlier
    micro-batches, which pile up whole where they are reduced once (n, C) [bytes]."""
    problem = model.problem
    held = states_held(model, stems, classes, gradients=problem.stack.engine.lasting_gradients)
    beyond = engine_of(problem.stack).whole_at_work(problem, stems)
    if beyond is None:
        return held
    whole, earlier = beyond
    shards = model.stage_parameters(stems, classes)
    held = held + whole[:, None] * (shards.dense + shards.expert)[shards.of_row]
    with_shards = states_held(model, stems, classes, gradients=True)
    return np.where(earlier[:, None], np.maximum(held, with_shards), held)


def ends_at_work(model: ShardModel, stems: ConfigTable, bare: StageClasses) -> tuple[Array, Array]:
    """What the embedding and the head add to a stage at least, as `states_at_work` has it, of `bare` stages with
    neither (n,) [bytes]: where one rank has both, no copy of the embedding goes with the head."""
    one, folded = np.ones_like(bare.first), np.isin(stems["schedule"], FOLDED_SCHEDULES)
    first, last, both = (
        states_at_work(model, stems, replace(bare, first=begins * one, last=ends * one))[:, 0]
        for begins, ends in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    )
    return first, np.where(folded | (stems["pp"] == 1), np.maximum(both - first, 0.0), last)


def layer_states_at_work(model: ShardModel, stems: ConfigTable, bare: StageClasses) -> Array:
    """What a layer of every kind adds to a stage at least, as `states_at_work` has it, of `bare` stages with none
    (n, K) [bytes]."""
    number = bare.layers.shape[-1]
    held = [
        states_at_work(model, stems, replace(bare, layers=bare.layers + (np.arange(number) == kind)))[:, 0]
        for kind in range(number)
    ]
    nothing = states_at_work(model, stems, bare)[:, 0]
    return np.maximum(np.stack(held, axis=1) - nothing[:, None], 0.0)


def lasting_gradients(model: LayerModel) -> bool:
    """Are gradients there from start to end, whatever runs?"""
    return model.problem.stack.engine.lasting_gradients


def states_held(
    model: ShardModel, stems: ConfigTable, classes: StageClasses, gradients: bool = True
) -> Array:
    """States that a stage of each class holds between steps, without `gradients` where these come and go (n, C)
    [bytes]."""
    problem, shards = model.problem, model.stage_parameters(stems, classes)
    engine, job = engine_of(problem.stack), problem.job
    t, c, d, zero, hybrid = (stems[axis].astype(float) for axis in ("tp", "cp", "dp", "zero", "hsdp"))
    replicas = classes.copies[classes.of_row] * c * d
    expert_replicas = t * replicas / (stems["ep"].astype(float) * stems["etp"])
    held, linear = np.zeros_like(shards.dense[shards.of_row]), []
    groups = shard_groups(hybrid, replicas, expert_replicas)
    sizes = (shards.dense, shards.expert)
    for size, ranks, padding in zip(sizes, groups, shards.padding, strict=True):
        shared = ranks / padding[shards.of_row]
        states = states_of(problem, zero, shared, replicas)
        if job.lora_rank is not None:
            sharded = problem.stack.engine.weights_sharded(zero)
            states = frozen(states, sharded, shared, FROZEN_BYTES[job.frozen_bits])
        each = engine.on_device(states, stems["offload"])
        linear.append((size[shards.of_row], shared))
        per_parameter = each.weights + each.optimizer + (each.gradients if gradients else 0.0)
        held = held + size[shards.of_row] * per_parameter[:, None]
    narrow = narrow_weights(problem)
    if narrow is not None and not narrow.cast:
        outside = shards.outer + shards.wide[0], shards.wide[1]
        linear = [
            (size - left[shards.of_row], ranks) for (size, ranks), left in zip(linear, outside, strict=True)
        ]
        held = held + sum(beyond_wide(narrow, stems["offload"], zero, linear))
    return held


@dataclass(frozen=True)
class LateAxes:
    """What a cut leaves open, as far as its bounds must allow for it. `zero`: the most that may be sharded; `offload`:
    all that may live on the host; `graphs`: what may capture CUDA graphs, the most of all (`CudaGraphs`). `paired`:
    may passes of two micro-batches overlap? `mirrored`: may a rank hold two stages and share their work? `queued`: does
    every schedule have as many micro-batches in flight on a rank as stages from it on?"""

    zero: int
    offload: int
    graphs: int
    paired: bool
    mirrored: bool
    queued: bool


def least_of_cuts(
    model: LayerModel, shards: ShardModel, cuts: ConfigTable, late: LateAxes, limit: float = np.inf
) -> tuple[Array, Array]:
    """Step time [s] and device memory [bytes] that no completion of a cut beats, whatever its layout, schedule and
    recomputation; a time of infinity where the memory is above `limit`. (n,) each.

    Time: a rank's layers over all micro-batches, the rank being that which has most of them (`least_slowest`).
    Memory: the mean stage's states; and with some activations the harmonic mean over ranks of what a layer takes there.
    """
    spec, context = model.problem.model, model.problem.stack.overhead.context
    layers = np.bincount(spec.layer_kind_of, minlength=len(spec.layer_kinds)).astype(float)
    for kind, count in spec.mtp_kinds:
        layers[kind] += count
    first, inverse = distinct(*(cuts[axis] for axis in ("tp", "cp", "pp", "dp", "ep", "etp")))
    keys = cuts.take(first)
    offload, zero = (np.full(len(keys), value, dtype=np.int32) for value in (late.offload, late.zero))
    keys = ConfigTable({**keys.columns, "offload": offload, "zero": zero})
    classes = mean_classes(keys["pp"], layers)
    states = states_held(shards, keys, classes)[:, 0][inverse]
    memory, time = states + context, np.full(len(cuts), np.inf)
    rows = np.flatnonzero(_ROUNDING * memory <= limit)
    if len(rows):
        lasting = states_held(shards, keys, classes.without_ends(), lasting_gradients(model))
        lasting = lasting[:, 0][inverse[rows]]
        some = cuts.take(rows)
        least = _least_of_keys(model, some, layers > 0, late)
        active = _least_with_activations(least, some, lasting, float(layers.sum()), late)
        memory[rows] = np.maximum(memory[rows], active + context)
        time[rows] = _least_work(model, least, some, layers, late)
    return time, _ROUNDING * memory


@dataclass(frozen=True)
class _LeastOfKeys:
    """Of the distinct ways to cut a micro-batch, `of_row` that of each cut: least seconds of a layer of each kind
    (K, l), of embedding and head; least bytes that a layer keeps, and that it works in (l,)."""

    of_row: NDArray[np.intp]
    of_layer: Array
    ends: tuple[Array, Array]
    kept: Array
    working: Array


def _least_of_keys(
    model: LayerModel, cuts: ConfigTable, present: NDArray[np.bool_], late: LateAxes
) -> _LeastOfKeys:
    """What a layer takes at least, some keys at a time."""
    if model.problem.casts_listed:  # of sharded weights the fewest copies are kept
        cuts = ConfigTable({**cuts.columns, "zero": np.full(len(cuts), late.zero, dtype=np.int32)})
    first, of_row = distinct(*model.columns(cuts))
    parts = []
    for start in range(0, len(first), KEYS_AT_A_TIME):
        keys = cuts.take(first[start : start + KEYS_AT_A_TIME])
        level = layer_level(model, keys)
        of_layer, ends = level.time, (level.embedding, level.head)
        if late.graphs:  # the device's time alone; of the ends that of a host which launches nothing
            graphs = np.full(len(keys), late.graphs, dtype=np.int32)
            captured = model.edges(ConfigTable({**keys.columns, "cuda_graph_impl": graphs}))
            of_layer = level.terms.sum(axis=1)
            ends = np.minimum(ends[0], captured.embedding), np.minimum(ends[1], captured.head)
        if late.paired:
            of_layer = of_layer - level.saved
        kept = np.minimum(level.kept, level.kept_full)[present].min(axis=0)
        working = np.minimum(level.working, level.working_full)
        parts.append(np.vstack([of_layer, *ends, kept, working])[:, level.of_row])
    found = np.concatenate(parts, axis=1)
    return _LeastOfKeys(of_row, found[:-4], (found[-4], found[-3]), found[-2], found[-1])


def _least_with_activations(
    least: _LeastOfKeys, cuts: ConfigTable, states: Array, layers: float, late: LateAxes
) -> Array:
    """Bytes that some rank needs in its backward passes, whatever the split: a layer takes P + A k there, P of states,
    A of activations of a micro-batch, k of these in flight, min(m, p - r) on rank r; if no rank needed more than T,
    these could hold T sum 1/(P + A k) layers, all in all. The sum over ranks is bounded by an integral."""
    p, m = cuts["pp"].astype(float), cuts["num_microbatches"].astype(float)
    each, kept = p * states / layers, least.kept[least.of_row]
    if late.offload & OFFLOAD_ACTIVATIONS:
        kept = 0.0 * kept
    depth = np.minimum(p, m) if late.queued else np.ones_like(p)
    at_one = np.maximum(each + kept, 1.0)
    growth = np.maximum(kept * (depth - 1.0), 1e-9 * at_one)
    sums = 1.0 / at_one + (depth - 1.0) / growth * np.log1p(growth / at_one) + (p - depth) / (at_one + growth)
    return layers / sums + least.working[least.of_row]


def _least_work(
    model: LayerModel, least: _LeastOfKeys, cuts: ConfigTable, layers: Array, late: LateAxes
) -> Array:
    """`least_of_cuts`' time [s]."""
    problem, rows = model.problem, least.of_row
    p, m = (cuts[axis].astype(float) for axis in ("pp", "num_microbatches"))
    ends = least.ends[0][rows], least.ends[1][rows]
    slowest = least_slowest(least.of_layer[:, rows], ends, layers, p, not late.mirrored)
    seconds = m * slowest + problem.stack.host.step_overhead
    seconds = seconds + straggling(seconds, problem)
    known = ConfigTable({axis: cuts[axis] for axis in CUT_AXES})
    return _ROUNDING * seconds * measured_factor(problem, known, least=True)


def least_slowest(
    of_layer: Array, ends: tuple[Array, Array], layers: Array, p: Array, whole: bool = True
) -> Array:
    """Seconds that the slowest of p ranks takes for a micro-batch at least, whatever layers each holds (n,) [s].

    The mean; where each layer is one rank's (`whole`), of each kind so many layers as some rank holds, the mean rounded
    up; and of layers of one kind the least T at which floor((T - e) / l) + floor((T - h) / l) + (p - 2) floor(T / l)
    of them have room, or where one rank has both ends. `of_layer` (K, n): of a layer of each kind; `ends`: of embedding
    and head, (n,) each; `layers` (K,).
    """
    present = np.flatnonzero(layers)
    total = layers @ of_layer + ends[0] + ends[1]
    if not whole:
        return np.asarray(total / p)
    slowest = np.maximum(total / p, (np.ceil(layers[:, None] / p) * of_layer)[present].max(axis=0))
    if len(present) > 1:
        return np.asarray(slowest)
    one = np.maximum(of_layer[present[0]], 1e-30)
    count, first, last = layers[present[0]], ends[0] / one, ends[1] / one
    apart = np.maximum(_filled(count, p, first, last), np.maximum(first, last))
    together = np.maximum(_filled(count, p, first + last, 0.0 * last), first + last)
    held = np.where(p > 1, one * np.minimum(apart, together), total)
    return np.asarray(np.maximum(slowest, _ROUNDING * held))


def _filled(count: float, p: Array, one: Array, other: Array) -> Array:
    """The least T at which p ranks, two of them with `one` and `other` less room, have room for `count` wholes [1]."""
    parts = np.sort([one % 1.0, other % 1.0], axis=0)
    needed = count + np.floor(one) + np.floor(other)
    depth = np.ceil(needed / p)
    spare = depth * p - needed
    return depth + np.where(spare >= 2, 0.0, np.where(spare == 1, parts[0], parts[1]))

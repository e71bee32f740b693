"""Which step time and which memory can no completion of a stem beat?

Lower bounds from few columns, on distinct keys only, so that a search can leave most stems without costing them.
Left out of them is named by each; what is left out is never negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.layer import LayerModel
from planner.cost.levels import layer_level
from planner.cost.memory.state_bytes import frozen, on_device, shard_groups, state_bytes, weights_sharded
from planner.cost.params_fp8 import beyond_wide, narrow_weights
from planner.cost.pipeline.slowest import least_makespan
from planner.cost.pipeline.stages import StageClasses, largest, sum_over_kinds
from planner.cost.pipeline.step import measured_factor, straggling
from planner.cost.shards import ShardModel
from planner.spec.config import ConfigTable, Schedule
from planner.spec.job import FROZEN_BYTES

Array = NDArray[np.float64]

# What each bound depends on. A stem recomputes nothing: its leaves do.
TIME_AXES = (
    "tp", "sp", "cp", "cp_kind", "ep", "etp", "micro_batch", "pp", "vpp", "schedule", "num_microbatches",
    "cuda_graph_impl", "cuda_graph_modules",
)  # fmt: skip
MEMORY_AXES = ("tp", "cp", "pp", "vpp", "schedule", "dp", "ep", "etp", "zero", "hsdp", "offload")
_ROUNDING = 1.0 - 1e-9


def least_step_time(model: LayerModel, stems: ConfigTable, classes: StageClasses) -> Array:
    """A step time that no completion of a stem beats, from the work of its layers alone [s].

    Left out: embedding and loss, recomputed layers, point-to-point, data-parallel collectives, the optimizer.
    """
    layers = layer_level(model, stems)
    counts = np.moveaxis(classes.layers[classes.of_row], 2, 0)
    time = sum_over_kinds(counts, layers.time[:, layers.of_row])
    v, m = (stems[axis].astype(float) for axis in ("vpp", "num_microbatches"))
    stack, nodes = model.problem.stack, float(model.problem.cluster.num_nodes)
    schedule, forward, hidden = stems["schedule"], time, time
    if (schedule > Schedule.INTERLEAVED).any():
        forward = sum_over_kinds(counts, layers.forward_time[:, layers.of_row])
        pairs = np.isin(schedule, (Schedule.DUALPIPE, Schedule.DUALPIPE_V))[:, None]
        hidden = np.where(pairs, sum_over_kinds(counts, layers.saved[:, layers.of_row]), 0.0)
    least = least_makespan(time, forward, hidden, classes, classes.of_row, schedule, m, v)
    least = least + stack.host.step_overhead
    least = least + straggling(least, nodes, stack.communication)
    # one stem stands for all that differ in other axes
    known = ConfigTable({axis: stems[axis] for axis in TIME_AXES})
    return _ROUNDING * least * measured_factor(model.problem, known, least=True)


def least_memory(model: ShardModel, stems: ConfigTable, classes: StageClasses) -> Array:
    """Device memory that no completion of a stem needs less than: all states at the update, workspace, and what lies
    outside the allocator [bytes].

    Left out: activations, logits, gathered parameters and every buffer that only some moments hold.
    """
    problem, shards = model.problem, model.shards(stems, classes)
    stack, job = problem.stack, problem.job
    t, c, d, zero, hybrid = (stems[axis].astype(float) for axis in ("tp", "cp", "dp", "zero", "hsdp"))
    replicas = classes.copies[classes.of_row] * c * d
    expert_replicas = t * replicas / (stems["ep"].astype(float) * stems["etp"])
    held, linear = np.zeros_like(shards.dense[shards.of_row]), []
    groups = shard_groups(hybrid, replicas, expert_replicas)
    for size, shared in zip((shards.dense, shards.expert), groups, strict=True):
        states = state_bytes(zero, shared, replicas, stack, job)
        if job.lora_rank is not None:
            states = frozen(
                states, weights_sharded(zero, stack.states.engine), shared, FROZEN_BYTES[job.frozen_bits]
            )
        each = on_device(states, stems["offload"], stack.states.engine)
        linear.append((size[shards.of_row], shared))
        held = held + size[shards.of_row] * (each.weights + each.gradients + each.optimizer)[:, None]
    narrow = narrow_weights(problem)
    if narrow is not None and not narrow.cast:
        outside = shards.outer + shards.wide[0], shards.wide[1]
        linear = [
            (size - left[shards.of_row], ranks) for (size, ranks), left in zip(linear, outside, strict=True)
        ]
        held = held + sum(beyond_wide(narrow, stems["offload"], zero, linear))
    alive = classes.count[classes.of_row] > 0
    return _ROUNDING * (largest(np.where(alive, held, 0.0)) + stack.overhead.context)

"""How long does a step take: which exposed terms, summed?

`step_time` is by definition the sum of its named terms. Rows are candidates. Left out: input pipeline and
evaluation; checkpoints and failures belong to the whole run.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import ConfigTable
from planner.spec.rule import Problem

Array = NDArray[np.float64]

FORWARD_SHARE: Final = 1 / 3
# Step growth per doubling of nodes; five stacks whose rows tell it were fitted to 0.0085 to 0.0093.
STRAGGLING: Final = 0.009
# Share of nanotron's published multi-node runs in its slow mode, by the most devices (residual study 3.1).
SLOW_MODE_SHARES: Final = ((128, 0.18), (256, 0.42), (math.inf, 0.88))


def slow_mode_time(microbatches: Array, stages: Array, slow_message: float) -> Array:
    """Seconds that a step loses in a stack's slow mode: every message of a stage takes `slow_message` [s].

    (m + (p - 1)/2) x min(2 (p - 1), 4) x slow_message: a stage between two others sends and receives twice a
    micro-batch. Source: nanotron's runs, +0.54 s a slot at p = 2 and +1.05 s at p >= 4 whatever the model, tensor
    parallelism or micro-batch (sd 0.10 s, 257 runs): all that filled the device, and a share that grows with the
    network. Without a pipeline it is not known.
    """
    messages = np.minimum(2.0 * (stages - 1.0), 4.0)
    return slow_message * messages * (microbatches + (stages - 1.0) / 2.0)


def slow_mode_share(devices: int) -> float:
    """Share of runs on so many devices that a stack's slow mode caught, where it has one."""
    return next(share for most, share in SLOW_MODE_SHARES if devices <= most)


def chance_of_full_memory(device: Array, capacity: float, error: float) -> Array:
    """Chance that a device fills up, its predicted memory being right to within `error` [1].

    Uniform between device x (1 - error) and (1 + error): 0 where the verdict is "fits", 1 where it is "does not fit",
    the same band as the borderline between them.
    """
    spread = 2.0 * max(error, 1e-6)
    return np.clip(0.5 + (device / capacity - 1.0) / spread, 0.0, 1.0)


def straggling(subtotal: Array, problem: Problem) -> Array:
    """Seconds lost to the slowest of many nodes: a fixed share of the step per doubling of nodes.

    0.9 % per doubling fitted on Megatron runs; 0 to 5 % from the smallest run to 2,048 GPUs measured in bf16. None
    where XLA compiles steps for devices without NCCL and launching hosts.
    """
    alone = problem.cluster.accelerator.architecture.is_compiled_for or not problem.stack.engine.straggles
    share = 0.0 if alone else STRAGGLING
    return subtotal * share * np.log2(max(float(problem.cluster.num_nodes), 1.0))


def measured_factor(problem: Problem, table: ConfigTable, least: bool = False) -> Array:
    """What the user's own runs say of a step, each as far as its configuration is alike: factors (n,) [1].

    f^k of the run that is most alike, k its likeness, 0 for runs of another model, job or axes. `least`: of the axes
    that `table` has, a factor that no completion of a row falls below.
    """
    found, nearest = np.zeros(len(table)), np.zeros(len(table))
    for run in problem.stack.measured:
        if run.of_job(problem.model, problem.job):
            likeness = run.likeness(table.columns)
            own = likeness * math.log(run.factor)
            found = np.minimum(found, own) if least else np.where(likeness > nearest, own, found)
            nearest = np.maximum(nearest, likeness)
    return np.exp(found)

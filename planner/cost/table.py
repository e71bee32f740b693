"""What does a table of costs hold? Step time and peak memory of every row and, on demand, the terms behind them.

Left out: how they are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.layer_cost import TIME_TERMS
from planner.cost.pipeline.stages import StageClasses

Array = NDArray[np.float64]

STAGE_TERMS = (*TIME_TERMS, "recompute", "host_bound", "embedding_and_loss")


@dataclass(frozen=True)
class CostDetail:
    """The terms behind a table. `time`: by term, sums to the step time (n,) [s]. `memory[phase][term]` (n, C)
    [bytes]. `by_class` (n, C): the allocator's peaks; `outside` (n,): bytes beside the allocator. `stage_class`
    (n,): the binding class of `classes`, of which `class_row` (n,) is the pipeline of a row. `kept` (n, C): what a
    micro-batch keeps from its forward to its backward pass [bytes]."""

    time: dict[str, Array]
    memory: dict[str, dict[str, Array]]
    by_class: Array
    outside: Array
    stage_class: NDArray[np.intp]
    class_row: NDArray[np.intp]
    classes: StageClasses
    kept: Array


@dataclass(frozen=True)
class CostTable:
    """Cost of every candidate (n,). `step_time` [s]; `peak_memory`: what the stack's counter logs, `device_memory`:
    with everything outside the allocator [bytes]. `stage`: earliest stage of the binding class, `phase`: index
    into `memory.peak.PHASES`. `least`: the step time that none has beaten once simulated (`cost.simulated`) (n,) [s].
    `least` and `detail` only where they were asked for."""

    step_time: Array
    peak_memory: Array
    device_memory: Array
    stage: NDArray[np.intp]
    phase: NDArray[np.intp]
    detail: CostDetail | None = None
    least: Array | None = None


def join(parts: Sequence[CostTable]) -> CostTable:
    """Consecutive tables as one, without terms."""
    return CostTable(
        np.concatenate([part.step_time for part in parts]),
        np.concatenate([part.peak_memory for part in parts]),
        np.concatenate([part.device_memory for part in parts]),
        np.concatenate([part.stage for part in parts]),
        np.concatenate([part.phase for part in parts]),
    )

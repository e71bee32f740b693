"""What do configurations cost when their pipelines are simulated pass by pass, not estimated?

The vectorised cost is exact for 1F1B; an interleaved pipeline of uneven stages has no closed form, so the few
configurations that matter are simulated here. Left out: 1F1B, which needs none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.chunks import PipelineSimulator, are_simulated
from planner.cost.model import CostModel
from planner.cost.pipeline.step import measured_factor, straggling
from planner.cost.table import STAGE_TERMS, CostTable
from planner.spec.config import ConfigTable


def simulator_of(model: CostModel) -> PipelineSimulator:
    """A simulator for the pipelines of one problem; worth keeping between calls."""
    return PipelineSimulator(model.layers, model.embedding_in_layers, model.head_in_layers)


def evaluate_exactly(
    model: CostModel, table: ConfigTable, simulator: PipelineSimulator | None = None
) -> CostTable:
    """Cost and terms of a short table; bubble, messages and step time of interleaved rows are simulated ones."""
    cost = model.evaluate(table, keep_terms=True)
    if cost.detail is None:
        return cost
    simulator = simulator or simulator_of(model)
    time = {name: values.copy() for name, values in cost.detail.time.items()}
    problem = model.problem
    configs = {row: table.row(row) for row in np.flatnonzero(are_simulated(table)).tolist()}
    for row, (free, real) in zip(configs, simulator.makespans(list(configs.values())), strict=True):
        work = sum(float(time[name][row]) for name in STAGE_TERMS)
        time["pipeline_bubble"][row] = max(free - work, 0.0)
        time["pp_comm"][row] = problem.stack.communication.p2p_exposed * (real - free)
    beside = ("stragglers", "memory_pressure", "own_runs")  # not slowed down by the slowest node
    subtotal = sum((values for name, values in time.items() if name not in beside), np.zeros(len(table)))
    time["stragglers"] = straggling(subtotal, problem)
    quiet = subtotal + time["stragglers"]
    time["own_runs"] = (measured_factor(problem, table) - 1.0) * quiet
    detail = replace(cost.detail, time=time)
    return replace(cost, step_time=quiet + time["own_runs"] + time["memory_pressure"], detail=detail)

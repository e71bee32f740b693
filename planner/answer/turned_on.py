"""What did a search turn on, what is it worth, and which of several stacks wins? Facts of plan files.

Left out: which options are tried (`space/members.py`), and the search itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from planner.ask.request import cost_model
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import SEPARATOR
from planner.cost.host_memory import on_host
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.space.members import turned_on
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.findings import Finding
from planner.spec.planfile import CLOSED_GAP, Choice
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.tried import StackStanding, TurnedOn


def opened(config: ParallelConfig, stack: Stack) -> int:
    """How many things a configuration has on that a search opens by itself, beside what the stack does anyway."""
    graphs, pipelines = config.cuda_graph_impl != stack.limits.own_graphs, config.pp > 1
    return config.offload.bit_count() + graphs + (pipelines and not stack.pipelines_tried)


def plainest(table: ConfigTable, time: NDArray[np.float64], stack: Stack) -> int:
    """The row with the fewest of these of those that tie with the fastest, the first of equals. `time`: of rows [s]."""
    tied = np.flatnonzero(time <= time.min() * (1 + CLOSED_GAP))
    return int(min(tied, key=lambda row: opened(table.row(int(row)), stack)))


def step_time_of(problem: Problem, choice: Choice) -> float | None:
    """Step time of a choice's configuration and split under a problem [s]; None where it does not fit."""
    model = cost_model(problem)
    if choice.split is not None:
        model = model.with_split(choice.split.layers_per_chunk)
    table = ConfigTable.of([choice.config.parallel()])
    cost = evaluate_exactly(model, table, simulator_of(model))
    fits = cost.device_memory[0] <= choice.memory.limit and on_host(model, table)[0]
    return float(cost.step_time[0]) if fits else None


def time_of(problem: Problem, table: ConfigTable, limit: float) -> float | None:
    """Step time of the one configuration of a table under a problem [s]; None where it does not fit in `limit`
    [bytes]."""
    model = cost_model(problem)
    cost = evaluate_exactly(model, table, simulator_of(model))
    return float(cost.step_time[0]) if cost.device_memory[0] <= limit and on_host(model, table)[0] else None


def turned_on_facts(
    best: Choice, named: str, times: Mapping[str, float], alone: Mapping[str, float | None]
) -> tuple[TurnedOn, ...]:
    """Options of the best that nobody named, with what the best without each takes.

    `times`: best step time of every member, by the name of its stack, those in which nothing fits left out [s];
    `alone`: of options that every member has, step time of the best configuration without [s].
    """
    found = []
    for name in turned_on(best.stack, named):
        others = [time for stack, time in times.items() if name not in stack.split(SEPARATOR)[1:]]
        least = min(others, default=None) if name not in alone else alone[name]
        gain = None if least is None else max(1 - best.step_time / least, 0.0)
        found.append(TurnedOn(name=name, without_step_time=least, gain=gain))
    return tuple(found)


def standing(named: str, best: Choice | None, reason: tuple[Finding, ...] = ()) -> StackStanding:
    """How one of several stacks stands, with its best choice or why it has none."""
    stack = load_stack(named)
    return StackStanding(
        name=stack.name, framework=stack.framework, released=stack.released, reason=reason,
        stack=best.stack if best else "", configuration=best.config.text if best else "",
        step_time=best.step_time if best else None,
    )  # fmt: skip

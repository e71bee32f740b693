"""Which rules can no run break, whatever its framework?

Left out: predictions of runs (`predict.py`), and where runs come from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.space.framework_rules import all_rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Dispatcher

# a framework's own limits are not held against a run that exists, nor is the number of ranks over which its stack deals
# experts
BINDING_RULES: Final = ("heads-tp", "layers-pp", "stages-filled", "experts-ep")


def broken_rule(config: ParallelConfig, problem: Problem) -> str:
    """The rule that makes a run impossible, with its values; empty if none."""
    problem = _with_any_ep(problem)
    table = ConfigTable.of([config])
    row = {axis: int(column[0]) for axis, column in table.columns.items()}
    for rule in all_rules_for(problem.stack.framework):
        if rule.id in BINDING_RULES and not bool(rule.holds(table.columns, problem)[0]):
            return f"{rule.id}: {rule.explain(row, problem).reason}"
    return ""


def impossible(config: ParallelConfig, problem: Problem) -> str:
    """Why no run can have a configuration of which every axis is stated; empty where one can."""
    used, devices = config.tp * config.cp * config.pp * config.dp, problem.cluster.num_devices
    ranks, experts = config.tp * config.cp * config.dp, config.ep * config.etp
    if ranks % experts or (config.ep > 1 and not problem.model.is_moe):
        return f"ep {config.ep} x etp {config.etp} on the {ranks} ranks of a stage"
    if used != devices:
        return f"tp x cp x pp x dp is {used} of {devices} devices"
    if broken := broken_rule(config, problem):
        return broken
    batch, together = problem.job.global_batch, config.dp * config.micro_batch
    if batch % together:
        dealt = f"dp {config.dp} x micro_batch {config.micro_batch} = {together}"
        return f"{dealt} does not divide the global batch, {batch:,} sequences"
    return ""


def _with_any_ep(problem: Problem) -> Problem:
    """The problem on a stack that deals experts over any number of ranks."""
    any_ranks = problem.stack.communication.model_copy(update={"dispatcher": Dispatcher.ALL_TO_ALL})
    return replace(problem, stack=problem.stack.model_copy(update={"communication": any_ranks}))

"""How much faster would a fused dispatcher of tokens make a configuration, where its stack can be asked for one?

Left out: other configurations, which it may favour more: a search on the stack with the option finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from planner.catalog.load_stacks import is_shipped
from planner.catalog.stack_options import SEPARATOR, options_for, with_options
from planner.cost.model import CostModel
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from planner.spec.stack_kinds import Dispatcher

WORTH_SAYING: Final = 0.01  # of the step
# Megatron-Bridge's guide to dispatchers has DeepEP first where both run (067f987 skills, moe dispatcher)
_IN_ORDER: Final = (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)


def faster_dispatch(
    problem: Problem, config: ParallelConfig, limit: float, model_of: Callable[[Problem], CostModel]
) -> tuple[str, ...]:
    """The first fused dispatcher that is legal for a configuration, as a sentence; empty where it gains nothing.

    `limit`: memory that the configuration may take with it [bytes].
    """
    stack = problem.stack
    plain = stack.communication.dispatcher is Dispatcher.ALL_TO_ALL
    if not (plain and problem.model.is_moe and config.ep * config.etp > 1 and is_shipped(stack.name)):
        return ()
    known = [option.name for option in options_for(stack)]
    for name in (name for name in _IN_ORDER if name in known):
        other = replace(problem, stack=with_options(stack, [name]))
        if explain_config(config, other, all_rules_for(stack.framework)):
            continue
        table = ConfigTable.of([config])
        before, after = (model_of(each).evaluate(table) for each in (problem, other))
        saved = 1 - float(after.step_time[0] / before.step_time[0])
        if saved < WORTH_SAYING or float(after.device_memory[0]) > limit:
            return ()
        return (
            f"tokens dispatched by {name} instead of NCCL's all-to-all would take {saved:.0%} off this step: "
            f"--stack {stack.name}{SEPARATOR}{name}, where it is installed",
        )
    return ()

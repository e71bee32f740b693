"""Would recomputing other modules be faster? A search takes the stack's own selection, or whole layers, unless told to.

Left out: degrees that no listed configuration has, which a search with the modules named finds
(`--set recompute_modules=...`), and stacks that recompute their own selection alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from typing import Final

from planner.errors import PlannerError
from planner.request import Request
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.space.restriction import value_text
from planner.spec.config import RECOMPUTE_MODULES, ParallelConfig, Recompute
from planner.spec.planfile import Plan
from planner.spec.rule import Problem
from planner.stopping import Stopwatch

# axes at the values of the listed configurations
HELD: Final = ("tp", "cp", "pp", "ep", "etp", "micro_batch", "zero")
WITHIN: Final = {"moe": ("moe_act", "shared_experts")}  # modules that another one holds
WORTH_SAYING: Final = 0.01  # of the step


def module_sets(names: Iterable[str]) -> tuple[int, ...]:
    """Masks of `recompute_modules` of those names, without sets in which one module lies within another."""
    known = list(names)
    sets = (set(chosen) for size in range(1, len(known) + 1) for chosen in combinations(known, size))
    apart = (chosen for chosen in sets if not any(chosen & set(WITHIN.get(name, ())) for name in chosen))
    return tuple(sum(1 << RECOMPUTE_MODULES.index(name) for name in chosen) for chosen in apart)


def _recomputing(config: ParallelConfig, name: str) -> ParallelConfig:
    """The configuration recomputing that module alone."""
    mask = 1 << RECOMPUTE_MODULES.index(name)
    return replace(
        config, recompute=int(Recompute.SELECTIVE), recompute_layers=0, recompute_modules=mask,
    )  # fmt: skip


def with_chosen_modules(
    plan: Plan, request: Request, problem: Problem, best: ParallelConfig, plan_of: Callable[[Request], Plan],
    watch: Stopwatch,
) -> Plan:  # fmt: skip
    """The plan, and among what would help the modules whose recomputation makes its step shorter.

    `best`: the plan's first configuration. The other one is searched for as a plan is, at the degrees of those listed.
    """
    if {"recompute", "recompute_layers", "recompute_modules"} & set(request.restrict) or watch.stopped():
        return plan
    rules, free = rules_for(problem.stack), problem.stack.limits.recompute_modules
    legal = [name for name in free if not explain_config(_recomputing(best, name), problem, rules)]
    if not legal:
        return plan
    left = watch.left()
    held = {axis: tuple({getattr(each.config, axis) for each in plan.choices}) for axis in HELD}
    modules = {"recompute": (int(Recompute.SELECTIVE),), "recompute_modules": module_sets(legal)}
    asked = replace(
        request, top=1, front=False, thorough=False, seek_batch=False, seq_len=problem.job.seq_len,
        global_batch=str(problem.job.global_batch), restrict={**request.restrict, **held, **modules},
        time_limit=left if math.isfinite(left) else None,
    )  # fmt: skip
    try:
        other = plan_of(asked)
    except PlannerError:  # degrees that do not suit
        return plan
    change = "; or ".join(filter(None, (plan.smallest_change, _said(plan, other))))
    search = plan.search.model_copy(update={"seconds": watch.seconds()})
    return plan.model_copy(update={"smallest_change": change, "search": search})


def _said(plan: Plan, other: Plan) -> str:
    """What the modules of the other plan take off the step, in words; empty where it is not worth saying."""
    best = plan.choices[0]
    saved = 1 - other.choices[0].step_time / best.step_time if other.choices else 0.0
    if saved < WORTH_SAYING:
        return ""
    names = value_text("recompute_modules", other.choices[0].config.recompute_modules)
    instead = " instead of whole layers" if best.config.recompute == Recompute.FULL else ""
    return (
        f"recomputing {names.replace('+', ', ')} in every layer{instead} would take {saved:.0%} off this step: "
        f"--set recompute_modules={names}"
    )

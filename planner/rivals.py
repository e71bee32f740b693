"""Which other configurations of the list should be weighed against the first?

Those as fast as far as a prediction can tell, simpler or with more memory free, and the one that is faster where
experts are not balanced. Left out: what makes any of them as fast as it is (`reasons.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.cost.model import CostModel
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.planfile import Choice, PlannedConfig
from planner.spec.rule import Problem
from planner.units import format_capacity

# Of the step: no stack's error is as small, and of sweeps never fitted the picks lose 2 % at the median
# (benchmarks/RESULTS.md, "On groups never seen")
TIE = 0.01
ROOMIER = 0.05  # of a device's memory
BALANCED_LEAD = 0.05  # of the step: a few more tokens for the busiest rank undo it
FEWER_RANKS = 4  # times fewer share the experts: much less is lost where these are not balanced
UNBALANCED = 1.1  # tokens of the busiest rank over the mean, where the slope of the step is taken


def rivals(
    problem: Problem,
    config: ParallelConfig,
    choices: Sequence[Choice],
    model_of: Callable[[Problem], CostModel],
) -> tuple[str, ...]:
    """All of them, in sentences. `config`: the first of `choices`, which come fastest first."""
    return (
        *simpler_tie(choices),
        *roomier_tie(choices),
        *balanced_lead(problem, config, choices, model_of),
    )


def simpler_tie(choices: Sequence[Choice]) -> tuple[str, ...]:
    """The fastest of those that are as fast as the first, as far as a prediction can tell, with fewest of its kinds of
    parallelism and no other: degrees above 1 but dp's; nor CUDA graphs or offloading that the first does without."""
    best = choices[0]
    kinds, extras = _kinds(best.config), _extras(best.config)
    simpler = [
        i
        for i, c in enumerate(choices)
        if c.step_time <= best.step_time * (1 + TIE)
        and _kinds(c.config) < kinds
        and _extras(c.config) <= extras
    ]
    if not simpler:
        return ()
    i = min(simpler, key=lambda i: (len(_kinds(choices[i].config)), i))
    return (
        f"#{i + 1} ({choices[i].config.text}) is simpler and as fast, as far as a prediction can tell "
        f"(+{choices[i].step_time / best.step_time - 1:.1%})",
    )


def _kinds(config: PlannedConfig) -> frozenset[str]:
    return frozenset(axis for axis in ("tp", "cp", "pp", "vpp", "ep", "etp") if getattr(config, axis) > 1)


def _extras(config: PlannedConfig) -> frozenset[str]:
    return frozenset(name for name in ("cuda_graph_impl", "offload") if getattr(config, name))


def roomier_tie(choices: Sequence[Choice]) -> tuple[str, ...]:
    """Which one is as fast as the first, as far as a prediction can tell, and leaves the most memory free."""
    best = choices[0]
    ties = [i for i, c in enumerate(choices) if c.step_time <= best.step_time * (1 + TIE)]
    most = min(ties, key=lambda i: choices[i].memory.peak)
    tie, limit = choices[most], best.memory.limit
    if best.memory.peak - tie.memory.peak < ROOMIER * limit:
        return ()
    free, more = (format_capacity(max(limit - c.memory.peak, 0.0)) for c in (best, tie))
    return (
        f"#{most + 1} is as fast, as far as a prediction can tell (+{tie.step_time / best.step_time - 1:.1%}), "
        f"and leaves {more} free instead of {free}",
    )


def balanced_lead(
    problem: Problem,
    config: ParallelConfig,
    choices: Sequence[Choice],
    model_of: Callable[[Problem], CostModel],
) -> tuple[str, ...]:
    """Which one is next with experts shared by ranks of fast links alone, or by much fewer, and how many more tokens
    than the mean the busiest rank of the first may get before its lead is gone."""
    first, fast, ranks = choices[0], problem.cluster.scale_up_domain, config.ep * config.etp
    if config.ep == 1 or ranks <= fast or problem.job.expert_imbalance not in (1.0, ()):
        return ()
    fewer = max(fast, ranks // FEWER_RANKS)
    near = (
        i
        for i, c in enumerate(choices)
        if c.config.ep * c.config.etp <= fewer and c.step_time <= first.step_time * (1 + BALANCED_LEAD)
    )
    i = next(near, None)
    if i is None:
        return ()
    uneven = replace(problem, job=replace(problem.job, expert_imbalance=UNBALANCED))
    table = ConfigTable.of([config])
    even_time, uneven_time = (
        float(model_of(each).evaluate(table).step_time[0]) for each in (problem, uneven)
    )
    lead = choices[i].step_time / first.step_time - 1
    undone = lead * (UNBALANCED - 1) / max(uneven_time / even_time - 1, 1e-9)
    return (
        f"its {lead:.1%} lead over #{i + 1} ({choices[i].config.text}) assumes balanced experts: it disappears if the "
        f"busiest rank gets {undone:.0%} more tokens than average (--expert-loads)",
    )

"""Which other configuration of the list is faster where experts are not balanced?

Left out: which is to be taken of those that are as fast as a prediction can tell (`recommend.py`), and what makes any
of them as fast as it is (`reasons.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.cost.model import CostModel
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.findings import Finding, finding
from planner.spec.planfile import Choice
from planner.spec.rule import Problem

BALANCED_LEAD = 0.05  # of the step: a few more tokens for the busiest rank undo it
FEWER_RANKS = 4  # times fewer share the experts: much less is lost where these are not balanced
UNBALANCED = 1.1  # tokens of the busiest rank over the mean, where the slope of the step is taken


def balanced_lead(
    problem: Problem,
    config: ParallelConfig,
    choices: Sequence[Choice],
    model_of: Callable[[Problem], CostModel],
) -> tuple[Finding, ...]:
    """Which one is next with experts shared by ranks of fast links alone, or by much fewer, and how many more tokens
    than the mean the busiest rank of the first may get before its lead is gone."""
    first, fast, ranks = choices[0], problem.cluster.scale_up_domain, config.ep * config.etp
    if config.ep == 1 or ranks <= fast or problem.job.expert_imbalance not in (1.0, ()):
        return ()
    fewer = max(fast, ranks // FEWER_RANKS)
    listed = (
        i
        for i, c in enumerate(choices)
        if c.config.ep * c.config.etp <= fewer and c.step_time <= first.step_time * (1 + BALANCED_LEAD)
    )
    i = next(listed, None)
    if i is None:
        return ()
    uneven = replace(problem, job=replace(problem.job, expert_imbalance=UNBALANCED))
    table = ConfigTable.of([config])
    even_time, uneven_time = (
        float(model_of(each).evaluate(table).step_time[0]) for each in (problem, uneven)
    )
    lead = choices[i].step_time / first.step_time - 1
    undone = lead * (UNBALANCED - 1) / max(uneven_time / even_time - 1, 1e-9)
    near = choices[i].config.text
    return (finding("balanced_lead", place=i + 1, configuration=near, lead=lead, undone_by=undone),)

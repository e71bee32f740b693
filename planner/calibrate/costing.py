"""At which rates is a run costed, and what makes one impossible?

Left out: predictions of runs (`predict.py`), and where runs come from.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from planner.catalog.load_links import load_link_rates
from planner.catalog.loader import load_kernel_rates
from planner.space.framework_rules import all_rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.machine.accelerator import Architecture
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.links import LinkRates
from planner.spec.machine.rates import KernelRates
from planner.spec.rule import Problem

# What no run can break, whatever its framework; a framework's own limits are not held against a run that exists, nor is
# the number of ranks over which its stack deals experts.
BINDING_RULES: Final = ("heads-tp", "layers-pp", "stages-filled", "experts-ep")
LIMITLESS: Final = 10**6  # ranks, as in the limits of a stack that states none


@lru_cache(maxsize=256)
def _rates(
    accelerator: str, architecture: str, scale_up: str, fabric: str, products: float
) -> tuple[KernelRates, LinkRates]:
    kernels = load_kernel_rates(accelerator, Architecture(architecture))
    if products != 1.0:
        kernels = kernels.multiplying(products, f"this machine's products run at {products:g} of that")
    return kernels, load_link_rates(accelerator, architecture, scale_up, fabric)


def rates_of(cluster: Cluster) -> tuple[KernelRates, LinkRates]:
    """The measured rates that hold on a cluster, its own or its kin's."""
    chip = cluster.accelerator
    names = chip.name, str(chip.architecture), str(chip.scale_up_kind), str(cluster.fabric)
    kernels, links = _rates(*names, cluster.products)
    return kernels, links.scaled(cluster.links)


def broken_rule(config: ParallelConfig, problem: Problem) -> str:
    """The rule that makes a run impossible, with its values; empty if none."""
    problem = _with_any_ep(problem)
    table = ConfigTable.of([config])
    row = {axis: int(column[0]) for axis, column in table.columns.items()}
    for rule in all_rules_for(problem.stack.framework):
        if rule.id in BINDING_RULES and not bool(rule.legal(table.columns, problem)[0]):
            return f"{rule.id}: {rule.explain(row, problem)}"
    return ""


def _with_any_ep(problem: Problem) -> Problem:
    """The problem on a stack that deals experts over any number of ranks."""
    limits = problem.stack.limits.model_copy(update={"max_ep": LIMITLESS})
    return replace(problem, stack=problem.stack.model_copy(update={"limits": limits}))

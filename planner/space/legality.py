"""Which rules does one configuration break, and which legal one is nearest?

Left out: the whole space (`enumerate.py`) and what the rules are (`rules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.space.axes import stack_modules
from planner.space.enumerate import enumerate_configs
from planner.spec.config import (
    FIXED_SHAPES,
    ConfigTable,
    Mask,
    ParallelConfig,
    Recompute,
    Schedule,
    default_schedule,
    module_mask,
)
from planner.spec.rule import Problem, Rule, Violation

RECOMPUTE_CHANGES: Final = 2  # by which two recomputations differ at most, as `changed_axes` counts
# (rule, another that is always broken with it)
IMPLIED: Final = (("batch-dp", "batch"),)


def explain_config(config: ParallelConfig, problem: Problem, rules: Sequence[Rule]) -> tuple[Violation, ...]:
    """Every rule that one configuration breaks, with its values; empty if it is legal.

    Rules about dp are left out where the degrees do not make up the devices, since dp then means nothing, and those
    that another broken one implies.
    """
    table = ConfigTable.of([config])
    row = {axis: int(column[0]) for axis, column in table.columns.items()}
    broken = [rule for rule in rules if not bool(rule.legal(table.columns, problem)[0])]
    names = {rule.id for rule in broken}
    if "world-size" in names:
        derived = {"dp", "num_microbatches"}
        broken = [rule for rule in broken if rule.id == "world-size" or derived.isdisjoint(rule.needs)]
    implied = {name for of, name in IMPLIED if of in names}
    broken = [rule for rule in broken if rule.id not in implied]
    return tuple(rule.explain(row, problem) for rule in broken)


def are_legal(table: ConfigTable, problem: Problem, rules: Sequence[Rule]) -> Mask:
    """Which configurations break no rule, (n,)."""
    legal = np.ones(len(table), dtype=np.bool_)
    for rule in rules:
        legal &= rule.legal(table.columns, problem)
    return legal


def legal_rows(
    problem: Problem, rules: Sequence[Rule], names: tuple[str, ...], rows: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The rows of some columns, called `names`, that no rule about these alone forbids."""
    columns = {name: np.array([row[i] for row in rows], dtype=np.int32) for i, name in enumerate(names)}
    alive = np.ones(len(rows), dtype=np.bool_)
    for rule in rules:
        if rule.needs and set(names).issuperset(rule.needs):
            alive &= rule.legal(columns, problem)
    return [row for row, legal in zip(rows, alive.tolist(), strict=True) if legal]


def changed_axes(table: ConfigTable, config: ParallelConfig) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Axes in which each row differs from `config`, and the sum of the factors as |log2|; dp follows from others."""
    free = ("tp", "cp", "pp", "ep", "etp", "vpp", "micro_batch", "sp", "zero", "recompute_layers")
    # chunks and schedule go together: two changes only where a schedule was named that the chunks do not mean
    mine = int(config.schedule != default_schedule(config.vpp))
    changed = np.zeros(len(table), dtype=np.int64)
    distance = np.zeros(len(table))
    for axis in free:
        wanted = getattr(config, axis)
        changed += table[axis] != wanted
        distance += np.abs(np.log2((table[axis] + 1.0) / (wanted + 1.0)))
    usual = np.where(table["vpp"] > 1, Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B)
    changed += np.where(mine, table["schedule"] != config.schedule, table["schedule"] != usual)
    changed += (table["recompute"] == Recompute.SELECTIVE) != (config.recompute == Recompute.SELECTIVE)
    changed += (table["recompute_modules"] != config.recompute_modules) & (
        table["recompute"] == config.recompute
    )
    changed += (table["cp"] > 1) & (table["cp_kind"] != config.cp_kind)
    changed += table["hsdp"] != config.hsdp
    captures = table["cuda_graph_impl"] == config.cuda_graph_impl
    changed += ~captures | (table["cuda_graph_modules"] != config.cuda_graph_modules)
    distance += ~captures  # other modules are nearer than no graphs
    return changed, distance


def without_recomputation(config: ParallelConfig) -> ParallelConfig:
    """The same recomputing nothing, as stems are."""
    return replace(config, recompute=int(Recompute.NONE), recompute_layers=0, recompute_modules=0)


def _graphs_near(config: ParallelConfig) -> dict[str, tuple[int, ...]]:
    """Graphs to look among for one with graphs: none, or its own of its modules or of those with fixed shapes."""
    if not config.cuda_graph_impl and not config.cuda_graph_modules:
        return {}
    modules = dict.fromkeys((0, config.cuda_graph_modules, module_mask(FIXED_SHAPES)))
    return {
        "cuda_graph_impl": tuple(dict.fromkeys((0, config.cuda_graph_impl))),
        "cuda_graph_modules": tuple(modules),
    }


def _modules_near(config: ParallelConfig, problem: Problem) -> dict[str, tuple[int, ...]]:
    """Lists of modules to look among: its own and the stack's selection."""
    lists = (stack_modules(problem), config.recompute_modules)
    return {"recompute_modules": tuple(dict.fromkeys(mask for mask in lists if mask))}


def nearest_legal(config: ParallelConfig, problem: Problem, rules: Sequence[Rule]) -> ParallelConfig | None:
    """The legal configuration that changes the fewest axes, then by the smallest factors; None if none is legal."""
    space = enumerate_configs(problem, rules, {**_graphs_near(config), **_modules_near(config, problem)})
    if not len(space):
        return None
    changed, _ = changed_axes(space.stems, without_recomputation(config))
    # what leaves recompute is at most so many changes: the best one's stem is no further behind
    near = space.part(np.flatnonzero(changed <= changed.min() + RECOMPUTE_CHANGES)).table()
    changed, distance = changed_axes(near, config)
    return near.row(int(np.lexsort((distance, changed))[0]))

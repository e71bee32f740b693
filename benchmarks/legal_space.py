"""Which configurations does `planner estimate` call legal? All of them, by the product of every axis's values.

Written apart from the program's own enumeration, which it judges: no value is left out because it is seldom fast.
Only the rules are the program's, those that `explain_config` applies to one named configuration. Left out: layouts,
which `benchmarks/every_layout.py` deals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from planner.frameworks import explicit_splits
from planner.space.framework_rules import all_rules_for
from planner.spec.config import (
    AXES,
    CUDA_GRAPH_MODULES,
    OFFLOAD_LABELS,
    RECOMPUTE_MODULES,
    ConfigTable,
    CudaGraphs,
    IntColumn,
    Mask,
    Recompute,
    Schedule,
)
from planner.spec.planfile import EMPTY_CHUNKS
from planner.spec.rule import Problem, Rule

Allowed = Mapping[str, tuple[int, ...]]
Values = Sequence[int]
Columns = dict[str, IntColumn]
_RECOMPUTED: Final = ("recompute", "recompute_modules", "recompute_layers")


@dataclass(frozen=True)
class LegalSpace:
    """`own`: legal where the stack deals the layers; `told` by (pp, vpp): legal where a layout deals them."""

    own: ConfigTable
    told: dict[tuple[int, int], ConfigTable]

    def __len__(self) -> int:
        return len(self.own) + sum(map(len, self.told.values()))

    def where(self, masks: Callable[[ConfigTable], Sequence[Mask]]) -> LegalSpace:
        """The configurations that are in all masks of their table."""

        def kept(table: ConfigTable) -> ConfigTable:
            found = np.ones(len(table), dtype=np.bool_)
            for mask in masks(table):
                found &= mask
            return table.take(found)

        left = {chunks: kept(table) for chunks, table in self.told.items()}
        return LegalSpace(kept(self.own), {chunks: table for chunks, table in left.items() if len(table)})


def divisors(number: int) -> tuple[int, ...]:
    """Of a number of 1 or more, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def legal_space(problem: Problem, restrict: Allowed, most: int = 10**9) -> LegalSpace | None:
    """All legal configurations within a restriction; None where there are more than `most`."""
    axes, explicit = _Axes(problem, restrict), explicit_splits(problem.stack.framework)
    own, told, number = [ConfigTable.of([])], dict[tuple[int, int], ConfigTable](), 0
    for pp, vpp in axes.pipelines():
        for under in (problem, any_layout(problem, pp * vpp) if explicit and pp > 1 else None):
            found = ConfigTable.of([]) if under is None else _legal(axes, under, pp, vpp, most)
            number += len(found)
            if number > most:
                return None
            if under is problem:
                own.append(found)
            elif len(found):
                told[pp, vpp] = found
    return LegalSpace(ConfigTable.joined(own), told)


def any_layout(problem: Problem, chunks: int) -> Problem:
    """The problem under a layout of so many chunks: which one, no rule of a configuration asks."""
    layout = (problem.model.num_layers, *[0] * (chunks - 1))
    return replace(problem, stack=problem.stack.model_copy(update={"split": layout}))


class _Axes:
    """The values of every axis, narrowed by a restriction as `--set` narrows it."""

    def __init__(self, problem: Problem, restrict: Allowed) -> None:
        self.layers, self.batch = problem.model.num_layers, problem.job.global_batch
        self.devices, self.own_kind = problem.cluster.num_devices, int(problem.context_kinds[0])
        self.restrict = restrict

    def _of(self, axis: str, values: Iterable[int]) -> Values:
        asked = self.restrict.get(axis)
        return [value for value in values if asked is None or value in asked]

    def pipelines(self) -> list[tuple[int, int]]:
        """Every pp and vpp that any layout could have."""
        return [
            (pp, vpp)
            for pp in self._of("pp", divisors(self.devices))
            for vpp in self._of("vpp", range(1, (self.layers + EMPTY_CHUNKS) // pp + 1) if pp > 1 else (1,))
        ]

    def degrees(self, pp: int) -> list[tuple[int, int, int]]:
        """Every (tp, cp, dp) of the devices that pp leaves."""
        left = self.devices // pp
        return [
            (tp, cp, left // (tp * cp))
            for tp, cp in product(self._of("tp", divisors(left)), self._of("cp", divisors(left)))
            if left % (tp * cp) == 0 and self._of("dp", (left // (tp * cp),))
        ]

    def exchanges(self, cp: int) -> Values:
        """Of `cp_kind`: the first kind is written 0, and asked for by its own name."""
        if cp == 1:
            return (0,)
        asked = self.restrict.get("cp_kind", (0, 1, 2))
        others = [kind for kind in asked if kind and kind != self.own_kind]
        return [0, *others] if self.own_kind in asked else others

    def shares(self, ranks: int) -> Values:
        """Of `hsdp`: a group of all ranks is written 0."""
        asked = self.restrict.get("hsdp")
        groups = (0, *divisors(ranks)[:-1])
        return [g for g in groups if asked is None or g in asked or (not g and ranks in asked)]

    def recomputed(self, pp: int) -> list[tuple[int, int, int]]:
        """Every (recompute, recompute_modules, recompute_layers); a number above a stage's layers means all of it."""
        most, asked = -(-self.layers // pp), self.restrict.get("recompute_layers")
        counts = None if asked is None else {min(count, most) for count in asked}
        masks = self._of("recompute_modules", range(1, 2 ** len(RECOMPUTE_MODULES)))
        ways = [(int(Recompute.NONE), 0, 0), *((int(Recompute.SELECTIVE), mask, 0) for mask in masks)]
        ways += [(int(Recompute.FULL), 0, count) for count in range(1, most + 1)]
        kinds = self.restrict.get("recompute", tuple(Recompute))
        return [way for way in ways if way[0] in kinds and (counts is None or way[2] in counts)]

    def steps(self, pp: int, vpp: int) -> list[tuple[str, tuple[str, ...], Callable[..., Values]]]:
        """(axis, axes its values depend on, its values), in the order in which columns are made."""

        def free(axis: str, values: Iterable[int]) -> tuple[str, tuple[str, ...], Callable[..., Values]]:
            found = self._of(axis, values)
            return axis, (), lambda: found

        shards, batch = divisors(self.devices), self.batch
        return [
            free("sp", (0, 1)),
            ("cp_kind", ("cp",), self.exchanges),
            free("ep", shards),
            free("etp", shards),
            free("schedule", range(len(Schedule))),
            ("micro_batch", ("dp",), lambda dp: self._of("micro_batch", divisors(max(batch // dp, 1)))),
            ("num_microbatches", ("dp", "micro_batch"), lambda dp, size: (max(batch // (dp * size), 1),)),
            free("zero", range(4)),
            ("hsdp", ("dp", "cp"), lambda dp, cp: self.shares(dp * cp)),
            free("offload", range(max(OFFLOAD_LABELS.values()) + 1)),
            free("cuda_graph_impl", range(len(CudaGraphs))),
            free("cuda_graph_modules", range(2 ** len(CUDA_GRAPH_MODULES))),
        ]  # fmt: skip


def _legal(axes: _Axes, problem: Problem, pp: int, vpp: int, most: int) -> ConfigTable:
    """The legal configurations of one pp and vpp: a rule is applied as soon as its columns exist. Where there are far
    more than `most`, some of them."""
    degrees = np.array(axes.degrees(pp), dtype=np.int32).reshape(-1, 3)
    columns: Columns = dict(zip(("tp", "cp", "dp"), degrees.T, strict=True))
    columns |= {axis: np.full(len(degrees), value, np.int32) for axis, value in (("pp", pp), ("vpp", vpp))}
    waiting = list(all_rules_for(problem.stack.framework))
    columns, waiting = _kept(columns, waiting, problem)
    for axis, keys, values in axes.steps(pp, vpp):
        columns, waiting = _kept(_grown(columns, axis, keys, values), waiting, problem)
    ways = np.array(axes.recomputed(pp), dtype=np.int32).reshape(-1, 3)
    whole = [rule for rule in waiting if set(rule.needs) <= {*_RECOMPUTED, "pp", "vpp"}]
    alone: Columns = dict(zip(_RECOMPUTED, ways.T, strict=True))
    alone |= {axis: np.full(len(ways), value, np.int32) for axis, value in (("pp", pp), ("vpp", vpp))}
    alone, _ = _kept(alone, whole, problem)
    number = len(alone["pp"])
    if len(columns["tp"]) * number > 8 * most:
        columns = {axis: column[: 8 * most // number + 1] for axis, column in columns.items()}
    rows = len(columns["tp"])
    columns = {axis: np.repeat(column, number) for axis, column in columns.items()}
    columns |= {axis: np.tile(alone[axis], rows) for axis in _RECOMPUTED}
    columns, waiting = _kept(columns, [rule for rule in waiting if rule not in whole], problem)
    assert not waiting, f"rules of unknown columns: {[rule.id for rule in waiting]}"
    return ConfigTable({axis: columns[axis] for axis in AXES})


def _kept(columns: Columns, waiting: Sequence[Rule], problem: Problem) -> tuple[Columns, list[Rule]]:
    """The rows that break no rule whose columns are all there, and the rules that wait for others."""
    alive = np.ones(len(columns["pp"]), dtype=np.bool_)
    left = []
    for rule in waiting:
        if set(rule.needs) <= set(columns):
            alive &= rule.legal(columns, problem)
        else:
            left.append(rule)
    return {axis: column[alive] for axis, column in columns.items()}, left


def _grown(columns: Columns, axis: str, keys: tuple[str, ...], values: Callable[..., Values]) -> Columns:
    """Every row once for each value of `axis`, which depends on the row's `keys`."""
    rows = list(zip(*(columns[key].tolist() for key in keys), strict=True)) or [()] * len(columns["pp"])
    known = {row: np.array(values(*row), dtype=np.int32) for row in set(rows)}
    found = [known[row] for row in rows]
    source = np.repeat(np.arange(len(rows)), [len(one) for one in found])
    grown = {name: column[source] for name, column in columns.items()}
    grown[axis] = np.concatenate(found) if found else np.zeros(0, np.int32)
    return grown

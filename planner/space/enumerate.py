"""Which configurations are there, and which of them are legal?

The space is the product of these axes; every value is a whole number, not only powers of two:
  tp, cp, pp       divisors of the device count; dp follows from them
  sp               off, and on where tp > 1
  ep               divisors of the number of experts; etp divisors of tp
  vpp              1 .. layers / pp
  micro_batch      divisors of the sequences per data-parallel rank
  zero             0 .. 3
  recompute        none, selective, full with 1 .. layers / pp layers of each stage
Axes are expanded one after another and a rule is applied as soon as its columns exist, but each removed
row counts for all the candidates it stands for: the counts are those of the whole product.
Left out: HSDP shard sizes below dp x cp, module lists, offload and other schedules, which are columns with
one value so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.spec.config import (
    AXES,
    RECOMPUTE_MODULES,
    ConfigTable,
    IntColumn,
    ParallelConfig,
    Recompute,
    Schedule,
)
from planner.spec.rule import Problem, Rule, Violation

Restriction = Mapping[str, tuple[int, ...]]
Domain = tuple[tuple[int, ...], ...]  # values of the axis (or pair of axes) as tuples

RESTRICTABLE: Final = (
    "tp", "cp", "pp", "dp", "sp", "ep", "etp", "vpp", "micro_batch", "zero", "recompute", "recompute_layers",
)  # fmt: skip
LARGEST_DEGREE: Final = 2**20


@dataclass(frozen=True)
class Removed:
    """How many candidates one rule removed."""

    rule: str
    candidates: int


@dataclass(frozen=True)
class Enumeration:
    """The legal configurations, the size of the whole space, and what each rule removed from it."""

    table: ConfigTable
    total: int
    removed: tuple[Removed, ...]


def divisors(number: int) -> tuple[int, ...]:
    """Divisors of `number` >= 1, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))


def check_restriction(restrict: Restriction) -> None:
    """Raise `InputError` where an axis is unknown or a value cannot be a degree."""
    for axis, values in restrict.items():
        if axis not in RESTRICTABLE:
            raise InputError("--set names an axis", axis, "axes: " + ", ".join(RESTRICTABLE))
        lowest = 0 if axis in ("sp", "zero", "recompute", "recompute_layers") else 1
        highest = {"sp": 1, "zero": 3, "recompute": 2}.get(axis, LARGEST_DEGREE)
        for value in values:
            if not lowest <= value <= highest:
                raise InputError(f"{axis} must be between {lowest} and {highest}", str(value))


class _Axes:
    """The values of every axis as a function of the degrees chosen first."""

    def __init__(self, problem: Problem, restrict: Restriction) -> None:
        model = problem.model
        self.restrict = restrict
        self.layers = model.num_layers
        self.batch = problem.job.global_batch
        self.moe = model.is_moe
        experts = [layer.moe.experts for layer in model.layer_kinds if layer.moe]
        self.ep_values = divisors(int(np.gcd.reduce(experts))) if experts else (1,)

    def _restricted(self, axis: str, values: Sequence[int]) -> Domain:
        return tuple((v,) for v in self.restrict.get(axis, tuple(values)))

    def sp(self, tp: int) -> Domain:
        return self._restricted("sp", (0, 1) if tp > 1 else (0,))

    def ep(self, tp: int) -> Domain:
        return self._restricted("ep", self.ep_values)

    def etp(self, tp: int) -> Domain:
        return self._restricted("etp", divisors(tp) if self.moe else (1,))

    def vpp(self, pp: int) -> Domain:
        return self._restricted("vpp", range(1, max(1, self.layers // pp) + 1) if pp > 1 else (1,))

    def micro_batch(self, dp: int) -> Domain:
        share = self.batch // dp
        return self._restricted("micro_batch", divisors(share) if share else (1,))

    def zero(self, tp: int) -> Domain:
        return self._restricted("zero", (0, 1, 2, 3))

    def recompute(self, pp: int) -> Domain:
        most = -(-self.layers // pp)
        kinds = self.restrict.get("recompute", (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL))
        counts = self.restrict.get("recompute_layers")
        if counts is None:
            counts = (most,) if "recompute" in self.restrict else tuple(range(1, most + 1))
        partial = sorted({min(count, most) for count in counts if count > 0})
        pairs: list[tuple[int, int]] = [(int(k), 0) for k in kinds if k != Recompute.FULL]
        if Recompute.FULL in kinds:
            pairs += [(int(Recompute.FULL), count) for count in partial]
        return tuple(pairs)


# (axes it sets, the column its values depend on, method of _Axes)
_STEPS: Final[tuple[tuple[tuple[str, ...], str, Callable[[_Axes, int], Domain]], ...]] = (
    (("sp",), "tp", _Axes.sp),
    (("ep",), "tp", _Axes.ep),
    (("etp",), "tp", _Axes.etp),
    (("vpp",), "pp", _Axes.vpp),
    (("micro_batch",), "dp", _Axes.micro_batch),
    (("zero",), "tp", _Axes.zero),
    (("recompute", "recompute_layers"), "pp", _Axes.recompute),
)


def _degree_grid(problem: Problem, restrict: Restriction) -> dict[str, IntColumn]:
    """All (tp, cp, pp) of divisors or given values, with the dp that follows (rounded down)."""
    devices = problem.cluster.num_devices
    axes = [restrict.get(axis, divisors(devices)) for axis in ("tp", "cp", "pp")]
    tp, cp, pp = (grid.reshape(-1) for grid in np.meshgrid(*(np.array(a, dtype=np.int64) for a in axes)))
    product = tp * cp * pp
    pinned = restrict.get("dp")
    if pinned is None:
        dp = np.maximum(devices // product, 1)
        free = [axis for axis in ("tp", "cp", "pp") if axis not in restrict]
        keep = (product * dp == devices) if free else np.ones(len(dp), dtype=np.bool_)
        if not keep.any():
            keep = np.ones(len(dp), dtype=np.bool_)
    else:
        tp, cp, pp = (np.repeat(column, len(pinned)) for column in (tp, cp, pp))
        dp = np.tile(np.array(pinned, dtype=np.int64), len(product))
        keep = np.ones(len(dp), dtype=np.bool_)
    named = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
    return {axis: column[keep].astype(np.int32) for axis, column in named.items()}


def _expand(
    columns: dict[str, IntColumn], axes: tuple[str, ...], key: str, domain: Callable[[int], Domain]
) -> dict[str, IntColumn]:
    """Repeat every row once per value of `axes`, whose values depend on column `key`."""
    keys, inverse = np.unique(columns[key], return_inverse=True)
    domains = [domain(int(k)) for k in keys]
    counts = np.array([len(d) for d in domains], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    values = np.array([v for d in domains for v in d], dtype=np.int32).reshape(-1, len(axes))
    repeats = counts[inverse]
    ends = np.cumsum(repeats)
    total = int(ends[-1]) if len(ends) else 0
    source = np.repeat(np.arange(len(inverse)), repeats)
    within = np.arange(total) - np.repeat(ends - repeats, repeats)
    picked = values[starts[inverse][source] + within]
    grown = {axis: column[source] for axis, column in columns.items()}
    grown.update({axis: np.ascontiguousarray(picked[:, i]) for i, axis in enumerate(axes)})
    return grown


def _derive(columns: dict[str, IntColumn], problem: Problem) -> None:
    if "micro_batch" in columns and "num_microbatches" not in columns:
        ranks = columns["dp"].astype(np.int64) * columns["micro_batch"]
        columns["num_microbatches"] = np.maximum(problem.job.global_batch // ranks, 1).astype(np.int32)


class _Filter:
    """Applies rules as their columns appear and counts what each removes."""

    def __init__(self, problem: Problem, rules: Sequence[Rule]) -> None:
        self.problem = problem
        self.waiting = list(rules)
        self.removed: dict[str, int] = {rule.id: 0 for rule in rules}

    def apply(self, columns: dict[str, IntColumn], weights: NDArray[np.float64]) -> dict[str, IntColumn]:
        ready = [rule for rule in self.waiting if all(axis in columns for axis in rule.needs)]
        self.waiting = [rule for rule in self.waiting if rule not in ready]
        alive = np.ones(len(columns["tp"]), dtype=np.bool_)
        for rule in ready:
            bad = alive & ~rule.legal(columns, self.problem)
            if bad.any():
                self.removed[rule.id] += int(weights[bad].sum())
                alive &= ~bad
        return columns if alive.all() else {axis: column[alive] for axis, column in columns.items()}


def _stack_modules(problem: Problem) -> int:
    names = problem.stack.limits.selective_recompute
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)


def complete_columns(columns: dict[str, IntColumn], problem: Problem) -> ConfigTable:
    """Add the columns that follow from the others or have one value so far."""
    selective = columns["recompute"] == Recompute.SELECTIVE
    columns["recompute_modules"] = np.where(selective, _stack_modules(problem), 0).astype(np.int32)
    columns["schedule"] = np.where(columns["vpp"] > 1, Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B).astype(
        np.int32
    )
    for axis in AXES:
        if axis not in columns:
            columns[axis] = np.zeros(len(columns["tp"]), dtype=np.int32)
    return ConfigTable({axis: columns[axis] for axis in AXES})


def enumerate_configs(
    problem: Problem, rules: Sequence[Rule], restrict: Restriction | None = None
) -> Enumeration:
    """Every legal configuration of the space, restricted to the given values of some axes.

    Raises `InputError` if `restrict` names an unknown axis or an impossible value.
    """
    restrict = restrict or {}
    check_restriction(restrict)
    axes = _Axes(problem, restrict)
    columns = _degree_grid(problem, restrict)
    sieve = _Filter(problem, rules)

    def sizes(step: int) -> NDArray[np.float64]:
        weight = np.ones(len(columns["tp"]))
        for _, key, domain in _STEPS[step:]:
            keys, inverse = np.unique(columns[key], return_inverse=True)
            weight *= np.array([len(domain(axes, int(k))) for k in keys], dtype=np.float64)[inverse]
        return weight

    total = int(sizes(0).sum())
    columns = sieve.apply(columns, sizes(0))
    for step, (names, key, domain) in enumerate(_STEPS, start=1):
        columns = _expand(columns, names, key, lambda value, domain=domain: domain(axes, value))  # type: ignore[misc]
        _derive(columns, problem)
        columns = sieve.apply(columns, sizes(step))
    removed = tuple(Removed(rule, count) for rule, count in sieve.removed.items() if count)
    return Enumeration(complete_columns(columns, problem), total, removed)


def explain_config(config: ParallelConfig, problem: Problem, rules: Sequence[Rule]) -> tuple[Violation, ...]:
    """Every rule that one configuration breaks, with its values; empty if it is legal."""
    table = ConfigTable.of([config])
    row = {axis: int(column[0]) for axis, column in table.columns.items()}
    broken = [rule for rule in rules if not bool(rule.legal(table.columns, problem)[0])]
    return tuple(Violation(rule.id, rule.explain(row, problem), rule.hint) for rule in broken)


def nearest_legal(config: ParallelConfig, problem: Problem, rules: Sequence[Rule]) -> ParallelConfig | None:
    """The legal configuration that changes the fewest axes, then by the smallest factors; None if none is legal."""
    table = enumerate_configs(problem, rules).table
    if not len(table):
        return None
    free = (
        "tp",
        "cp",
        "pp",
        "ep",
        "etp",
        "vpp",
        "micro_batch",
        "sp",
        "zero",
        "recompute",
        "recompute_layers",
    )
    changed = np.zeros(len(table))
    distance = np.zeros(len(table))
    for axis in free:
        wanted = getattr(config, axis)
        changed += table[axis] != wanted
        distance += np.abs(np.log2((table[axis] + 1.0) / (wanted + 1.0)))
    return table.row(int(np.lexsort((distance, changed))[0]))

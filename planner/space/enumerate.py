"""Which configurations are there, and which of them are legal?

The space is the product of these axes; every value is a whole number, not only powers of two:
  tp, cp, pp       divisors of the device count; dp follows from them
  sp               off, and on where tp > 1
  ep               divisors of the number of experts; etp divisors of tp
  vpp              1 .. (layers + 2) / pp: embedding and loss can fill a chunk
  micro_batch      divisors of the sequences per data-parallel rank
  schedule         those of the stack that run so many chunks a rank
  zero             0 .. 3
  recompute        none, selective, full with vpp, 2 vpp .. layers / pp layers of each stage
A configuration is a stem (everything but the number of fully recomputed layers) and a leaf (that number): stems
are held as columns, leaves are made in small batches that stay in a core's cache. Axes are expanded one after
another and a rule is applied as soon as its columns exist, but each removed row counts for all the candidates
it stands for: the counts are those of the whole product.
Left out: HSDP shard sizes below dp x cp and module lists, which are columns with one value so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.spec.config import (
    AXES,
    RECOMPUTE_MODULES,
    SCHEDULE_LABELS,
    ConfigTable,
    IntColumn,
    ParallelConfig,
    Recompute,
    Schedule,
    default_schedule,
    distinct,
)
from planner.spec.model import AttentionKind
from planner.spec.rule import Problem, Rule, Violation

Restriction = Mapping[str, tuple[int, ...]]
Domain = tuple[tuple[int, ...], ...]  # values of the axis (or pair of axes) as tuples

RESTRICTABLE: Final = (
    "tp", "cp", "pp", "dp", "sp", "ep", "etp", "vpp", "schedule", "micro_batch", "zero", "recompute",
    "recompute_layers", "offload",
)  # fmt: skip
# (rule, another that is always broken with it)
IMPLIED: Final = (("batch-dp", "batch"),)
LARGEST_DEGREE: Final = 2**20
LATE_STEP: Final = 6  # from this step of `_STEPS` on, rows are expanded in blocks
BLOCK_ROWS: Final = 2**17


@dataclass(frozen=True)
class Removed:
    """How many candidates one rule removed."""

    rule: str
    candidates: int


@dataclass(frozen=True)
class Leaves:
    """A batch of configurations: consecutive stems and, for each configuration, its stem and recomputed layers."""

    stems: slice
    stem: NDArray[np.intp]  # counted from stems.start
    recompute_layers: IntColumn


@dataclass(frozen=True)
class Enumeration:
    """The legal configurations, the size of the whole space, and what each rule removed from it.

    `stems`: everything but the recomputed layers. `counts`: how many leaves each stem has; `layer_choices[j]`
    the recomputed layers of the leaves of stems of kind j, `kind` the kind of every stem.
    """

    stems: ConfigTable
    kind: NDArray[np.intp]
    layer_choices: tuple[IntColumn, ...]
    total: int
    removed: tuple[Removed, ...]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Leaves per stem."""
        return np.array([len(c) for c in self.layer_choices], dtype=np.int64)[self.kind]

    def __len__(self) -> int:
        return int(self.counts.sum()) if len(self.stems) else 0

    def batches(self, rows: int = 16384) -> Iterator[Leaves]:
        """All configurations, about `rows` at a time, in a fixed order."""
        counts = self.counts
        ends = np.cumsum(counts)
        flat = np.concatenate(self.layer_choices) if self.layer_choices else np.zeros(0, dtype=np.int32)
        starts = np.cumsum([0, *(len(c) for c in self.layer_choices)])[self.kind]
        start = 0
        while start < len(counts):
            done = ends[start - 1] if start else 0
            stop = max(int(np.searchsorted(ends, done + rows, side="right")), start + 1)
            part = counts[start:stop]
            stem = np.repeat(np.arange(stop - start), part)
            within = np.arange(len(stem)) - (ends[start:stop] - part - done)[stem]
            yield Leaves(slice(start, stop), stem, flat[starts[start:stop][stem] + within])
            start = stop

    def part(self, stems: NDArray[np.intp]) -> Enumeration:
        """Only these stems."""
        return replace(self, stems=self.stems.take(stems), kind=self.kind[stems])

    def table(self) -> ConfigTable:
        """All configurations as one table; for small spaces and for tests."""
        parts = []
        for batch in self.batches():
            part = self.stems.take(batch.stems).take(batch.stem)
            parts.append(with_recomputed_layers(part, batch.recompute_layers))
        if not parts:
            return self.stems
        return ConfigTable({a: np.concatenate([part[a] for part in parts]) for a in AXES})


def with_recomputed_layers(table: ConfigTable, layers: IntColumn) -> ConfigTable:
    """The table with `recompute_layers` set, and recompute FULL where there are any."""
    full = np.where(layers > 0, np.int32(Recompute.FULL), table["recompute"])
    return ConfigTable({**table.columns, "recompute_layers": layers, "recompute": full})


def divisors(number: int) -> tuple[int, ...]:
    """Divisors of `number` >= 1, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))


def check_restriction(restrict: Restriction) -> None:
    """Raise `InputError` where an axis is unknown or a value cannot be a degree."""
    for axis, values in restrict.items():
        if axis not in RESTRICTABLE:
            raise InputError("--set names an axis", axis, "axes: " + ", ".join(RESTRICTABLE))
        lowest = 0 if axis in ("sp", "zero", "schedule", "recompute", "recompute_layers", "offload") else 1
        highest = {"sp": 1, "zero": 3, "recompute": 2, "schedule": len(Schedule) - 1, "offload": 7}.get(
            axis, LARGEST_DEGREE
        )
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
        self.partial = problem.stack.limits.partial_full_recompute
        self.schedules = [Schedule(SCHEDULE_LABELS.index(name)) for name in problem.stack.limits.schedules]
        self.selective = selects_anything(problem)
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
        return self._restricted("vpp", range(1, max(1, (self.layers + 2) // pp) + 1) if pp > 1 else (1,))

    def schedule(self, vpp: int) -> Domain:
        """Never empty: chunks that no schedule of the stack runs are counted where a rule removes them."""
        fitting = [int(schedule) for schedule in self.schedules if schedule.runs_chunks(vpp)]
        return self._restricted("schedule", fitting or (int(default_schedule(vpp)),))

    def micro_batch(self, dp: int) -> Domain:
        share = self.batch // dp
        return self._restricted("micro_batch", divisors(share) if share else (1,))

    def zero(self, tp: int) -> Domain:
        return self._restricted("zero", (0, 1, 2, 3))

    def offload(self, tp: int) -> Domain:
        """Nothing, unless asked for: what lives on the host is slow."""
        return self._restricted("offload", (0,))

    def _recomputes(self, kind: Recompute) -> bool:
        """Do the pins of `recompute` and `recompute_layers` leave this kind?"""
        counts = self.restrict.get("recompute_layers", (0, 1))
        possible = any(counts) if kind is Recompute.FULL else 0 in counts
        return possible and kind in self.restrict.get("recompute", tuple(Recompute))

    def recompute(self, pp: int) -> Domain:
        """NONE stands for none and full, which are told apart by the recomputed layers.

        No selective one where the model has none of the stack's modules, unless it is asked for.
        """
        wanted = self._recomputes(Recompute.SELECTIVE) and (self.selective or "recompute" in self.restrict)
        selective = ((int(Recompute.SELECTIVE),),) if wanted else ()
        plain = self._recomputes(Recompute.NONE) or self._recomputes(Recompute.FULL)
        return (*selective, *(((int(Recompute.NONE),),) if plain else ()))

    def recompute_layers(self, pp: int, vpp: int, recompute: int) -> tuple[int, ...]:
        """Leaves: 0 for none and selective, then the multiples of vpp up to the largest stage, and all of it.

        A pinned number above that means all of it.
        """
        if recompute == Recompute.SELECTIVE:
            return (0,)
        most = -(-self.layers // pp)
        choices: list[int] = [0] if self._recomputes(Recompute.NONE) else []
        if self._recomputes(Recompute.FULL):
            wanted = self.restrict.get("recompute_layers")
            if wanted is not None:
                choices += [min(count, most) for count in wanted if count > 0]
            elif "recompute" in self.restrict or not self.partial:
                choices.append(most)
            else:
                choices += [*range(vpp, most, vpp), most]
        return tuple(sorted(set(choices)))

    def recomputations(self, pp: int, vpp: int) -> int:
        """How many ways to recompute a stage there are."""
        return sum(len(self.recompute_layers(pp, vpp, kind)) for (kind,) in self.recompute(pp))


def recompute_choices(problem: Problem, restrict: Restriction, config: ParallelConfig) -> tuple[int, ...]:
    """The numbers of fully recomputed layers with which the configuration is in the space."""
    kind = Recompute.SELECTIVE if config.recompute == Recompute.SELECTIVE else Recompute.NONE
    return _Axes(problem, restrict).recompute_layers(config.pp, config.vpp, kind)


# (axis, the column its values depend on, method of _Axes)
_STEPS: Final[tuple[tuple[str, str, Callable[[_Axes, int], Domain]], ...]] = (
    ("sp", "tp", _Axes.sp),
    ("ep", "tp", _Axes.ep),
    ("etp", "tp", _Axes.etp),
    ("vpp", "pp", _Axes.vpp),
    ("schedule", "vpp", _Axes.schedule),
    ("micro_batch", "dp", _Axes.micro_batch),
    ("zero", "tp", _Axes.zero),
    ("recompute", "pp", _Axes.recompute),
    ("offload", "tp", _Axes.offload),
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


def _per_value(column: IntColumn, size: Callable[[int], float]) -> NDArray[np.float64]:
    """`size` of every value of a column of small whole numbers, asked once per distinct value."""
    table = np.zeros(int(column.max(initial=0)) + 1)
    for value in np.flatnonzero(np.bincount(column, minlength=1)) if len(column) else ():
        table[value] = size(int(value))
    return table[column]


def _expand(
    columns: dict[str, IntColumn], axis: str, key: str, domain: Callable[[int], Domain]
) -> dict[str, IntColumn]:
    """Repeat every row once per value of `axis`, whose values depend on column `key`."""
    if not len(columns[key]):
        return {**columns, axis: columns[key]}
    keys = np.flatnonzero(np.bincount(columns[key]))
    domains = {int(k): np.array([v for (v,) in domain(int(k))], dtype=np.int32) for k in keys}
    counts, starts = np.zeros(int(keys[-1]) + 1, dtype=np.int64), np.zeros(int(keys[-1]) + 1, dtype=np.int64)
    counts[keys] = [len(d) for d in domains.values()]
    starts[keys] = np.cumsum([0, *counts[keys][:-1]])
    repeats = counts[columns[key]]
    if counts[keys].max() == 1 == counts[keys].min():
        return {**columns, axis: np.concatenate(list(domains.values()))[starts[columns[key]]]}
    source = np.repeat(np.arange(len(repeats)), repeats)
    within = np.arange(len(source)) - (np.cumsum(repeats) - repeats)[source]
    flat = np.concatenate(list(domains.values()))
    grown = {name: column[source] for name, column in columns.items()}
    grown[axis] = flat[starts[columns[key]][source] + within]
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
        alive = np.ones(len(weights), dtype=np.bool_)
        for rule in ready:
            bad = alive & ~rule.legal(columns, self.problem)
            if bad.any():
                self.removed[rule.id] += int(weights[bad].sum())
                alive &= ~bad
        return columns if alive.all() else {axis: column[alive] for axis, column in columns.items()}


def stack_modules(problem: Problem) -> int:
    """Bit mask of what the stack recomputes when asked to recompute selectively."""
    names = problem.stack.limits.selective_recompute
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in names)


def selects_anything(problem: Problem) -> bool:
    """Has any layer a module that the stack recomputes selectively? A mixture of experts has no dense `mlp`."""
    kinds = problem.model.layer_kinds
    present = {"core_attn", "layernorm"}
    if any(layer.mlp for layer in kinds):
        present.add("mlp")
    if any(layer.moe for layer in kinds):
        present |= {"moe", "moe_act"}
    if any(layer.moe and layer.moe.shared_ffn for layer in kinds):
        present.add("shared_experts")
    if any(layer.attention.kind is AttentionKind.MLA for layer in kinds):
        present.add("mla_up_proj")
    return not present.isdisjoint(problem.stack.limits.selective_recompute)


def complete_columns(columns: dict[str, IntColumn], problem: Problem) -> ConfigTable:
    """Add the columns that follow from the others or have one value so far."""
    selective = columns["recompute"] == Recompute.SELECTIVE
    columns["recompute_modules"] = np.where(selective, stack_modules(problem), 0).astype(np.int32)
    # axes with one value so far, and the leaf's: a column of zeros that takes no memory
    zeros = np.broadcast_to(np.int32(0), len(columns["tp"]))
    for axis in AXES:
        columns.setdefault(axis, zeros)
    return ConfigTable({axis: columns[axis] for axis in AXES})


def _stem_kinds(
    columns: dict[str, IntColumn], axes: _Axes, sieve: _Filter
) -> tuple[NDArray[np.intp], tuple[IntColumn, ...]]:
    """Stems with the same choices of recomputed layers: the kind of each, and the legal choices per kind."""
    leaf = ("pp", "vpp", "recompute", "recompute_layers")
    others = sorted({axis for rule in sieve.waiting for axis in rule.needs} - {*leaf})
    shared = ("pp", "vpp", "recompute", *others)
    first, kind = distinct(*(columns[axis] for axis in shared))
    choices = [
        np.array(axes.recompute_layers(*(int(columns[a][row]) for a in leaf[:3])), dtype=np.int32)
        for row in first
    ]
    if not choices:
        return kind, ()
    kind_of = np.repeat(np.arange(len(first)), [len(c) for c in choices])
    leaves = {axis: columns[axis][first][kind_of] for axis in shared}
    leaves["recompute_layers"] = np.concatenate(choices)
    full = leaves["recompute_layers"] > 0
    leaves["recompute"] = np.where(full, np.int32(Recompute.FULL), leaves["recompute"])
    leaves["kind"] = kind_of.astype(np.int32)
    left = sieve.apply(leaves, np.bincount(kind).astype(np.float64)[kind_of])
    ends = np.searchsorted(left["kind"], np.arange(len(first) + 1))
    return kind, tuple(left["recompute_layers"][a:b] for a, b in pairwise(ends))


def _sizes(columns: dict[str, IntColumn], axes: _Axes, step: int) -> NDArray[np.float64]:
    """Candidates that each row stands for before step `step`."""
    weight = np.ones(len(columns["tp"]))
    for axis, key, domain in _STEPS[step:]:
        if axis in ("vpp", "recompute") or key not in columns:
            continue
        weight *= _per_value(columns[key], lambda value, domain=domain: len(domain(axes, value)))  # type: ignore[misc]
    if "vpp" not in columns:
        ways = {
            int(pp): sum(
                axes.recomputations(int(pp), v) * len(axes.schedule(v)) for (v,) in axes.vpp(int(pp))
            )
            for pp in np.flatnonzero(np.bincount(columns["pp"], minlength=1))
        }
        return weight * _per_value(columns["pp"], ways.__getitem__)
    first, inverse = distinct(columns["pp"], columns["vpp"], columns.get("recompute", columns["pp"]))
    if "recompute" in columns:
        left = [
            len(axes.recompute_layers(*(int(columns[a][row]) for a in ("pp", "vpp", "recompute"))))
            for row in first
        ]
    else:
        left = [axes.recomputations(int(columns["pp"][row]), int(columns["vpp"][row])) for row in first]
    return weight * np.array(left, dtype=np.float64)[inverse]


def _grow(columns: dict[str, IntColumn], axes: _Axes, sieve: _Filter, steps: range) -> dict[str, IntColumn]:
    """Expand the axes of some steps, each followed by the rules that can then be applied."""
    for step in steps:
        name, key, domain = _STEPS[step]
        columns = _expand(columns, name, key, lambda value, domain=domain: domain(axes, value))  # type: ignore[misc]
        _derive(columns, sieve.problem)
        columns = sieve.apply(columns, _sizes(columns, axes, step + 1))
    return columns


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

    total = int(_sizes(columns, axes, 0).sum())
    columns = sieve.apply(columns, _sizes(columns, axes, 0))
    columns = _grow(columns, axes, sieve, range(LATE_STEP))
    waiting, parts = sieve.waiting, []
    for start in range(0, max(len(columns["tp"]), 1), BLOCK_ROWS):
        sieve.waiting = waiting
        block = {axis: column[start : start + BLOCK_ROWS] for axis, column in columns.items()}
        parts.append(_grow(block, axes, sieve, range(LATE_STEP, len(_STEPS))))
    columns = {axis: np.concatenate([part.pop(axis) for part in parts]) for axis in list(parts[0])}
    kind, choices = _stem_kinds(columns, axes, sieve)
    assert not sieve.waiting or not len(kind), f"rules that read unknown columns: {sieve.waiting}"
    if any(not len(layers) for layers in choices):
        has_leaves = np.array([len(layers) > 0 for layers in choices])[kind]
        columns = {axis: column[has_leaves] for axis, column in columns.items()}
        used, kind = np.unique(kind[has_leaves], return_inverse=True)
        choices = tuple(choices[number] for number in used)
    removed = tuple(Removed(rule, count) for rule, count in sieve.removed.items() if count)
    return Enumeration(complete_columns(columns, problem), kind, choices, total, removed)


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
    return tuple(Violation(rule.id, rule.explain(row, problem), rule.hint) for rule in broken)


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
    return changed, distance


def nearest_legal(config: ParallelConfig, problem: Problem, rules: Sequence[Rule]) -> ParallelConfig | None:
    """The legal configuration that changes the fewest axes, then by the smallest factors; None if none is legal."""
    space = enumerate_configs(problem, rules)
    if not len(space):
        return None
    changed, distance = changed_axes(space.stems, config)
    # a stem's leaves differ in recomputed layers only: stems within one change of the best hold the best leaf
    near = space.part(np.flatnonzero(changed <= changed.min() + 1)).table()
    changed, distance = changed_axes(near, config)
    return near.row(int(np.lexsort((distance, changed))[0]))

"""Which configurations are there, and which of them are legal?

The space is the product of these axes; every value is a whole number, not only powers of two:
  tp, cp, pp       divisors of the device count; dp follows from them
  sp               off, and on where tp > 1
  ep               divisors of the number of experts; etp divisors of tp
  vpp              1 .. (layers + 2) / pp: embedding and loss can fill a chunk
  micro_batch      divisors of the sequences per data-parallel rank
  schedule         those of the stack that run so many chunks a rank
  zero             0 .. 3
  hsdp             0: all of dp x cp ranks share a shard; where weights are sharded, divisors of that for groups
  cp_kind          with cp every exchange that the framework knows
  offload          what the stack can keep in CPU memory
  cuda_graph_impl  none, and what the stack can capture: whole layers, or all modules of a fixed shape
  recompute        none; the stack's own selection, and every list of modules that it recomputes one by one (without
                   attention that keeps no scores); full with vpp, 2 vpp .. layers / pp layers of each stage
A configuration is a stem (everything but what it recomputes) and a leaf (that): stems are held as columns, leaves are
made in small batches that stay in a core's cache. Axes are expanded one after another and a rule is applied as soon as
its columns exist, but each removed row counts for all the candidates it stands for: the counts are those of the whole
product. A search that knows what no candidate of a *cut* (degrees, exchanges and micro-batch: the first axes) can beat
deals the later axes to those cuts alone that may hold the best (`Space`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.space.axes import Axes, Domain, Restriction, check_restriction, divisors
from planner.space.recomputations import RECOMPUTE_AXES, Recomputations
from planner.space.without import ALL
from planner.spec.config import AXES, ConfigTable, IntColumn, distinct
from planner.spec.rule import Problem, Rule

LATE_STEP: Final = 5  # from this step of `_STEPS` on, axes are expanded cut by cut
BLOCK_ROWS: Final = 2**15  # cuts whose later axes are expanded at a time
FEW_CUTS: Final = 2**9  # the same where one legal configuration is enough


@dataclass(frozen=True)
class Removed:
    """How many candidates one rule removed."""

    rule: str
    candidates: int


@dataclass(frozen=True)
class Leaves:
    """A batch of configurations: consecutive stems and, for each configuration, its stem and what it recomputes."""

    stems: slice
    stem: NDArray[np.intp]  # counted from stems.start
    recomputed: Recomputations


@dataclass(frozen=True)
class Enumeration:
    """The legal configurations, the size of the whole space, and what each rule removed from it.

    `stems`: everything but what is recomputed. `choices[j]`: what the leaves of stems of kind j recompute, `kind` the
    kind of every stem.
    """

    stems: ConfigTable
    kind: NDArray[np.intp]
    choices: tuple[Recomputations, ...]
    total: int = 0
    removed: tuple[Removed, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[Enumeration]) -> Enumeration:
        """The configurations of one or more enumerations, one after another."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.choices) for part in parts)])
        kind = np.concatenate([part.kind + start for part, start in zip(parts, starts, strict=False)])
        choices = tuple(ways for part in parts for ways in part.choices)
        return cls(ConfigTable.joined([part.stems for part in parts]), kind, choices)

    @cached_property
    def _flat(self) -> tuple[Recomputations, NDArray[np.int64], NDArray[np.int64]]:
        """The choices of all kinds one after another; where those of each begin, and how many they are."""
        number = np.array([len(choices) for choices in self.choices], dtype=np.int64)
        return Recomputations.joined(self.choices), np.cumsum(number) - number, number

    @property
    def counts(self) -> NDArray[np.int64]:
        """Leaves per stem."""
        return self._flat[2][self.kind]

    def __len__(self) -> int:
        return int(self.counts.sum()) if len(self.stems) else 0

    def recomputed(self, stems: NDArray[np.intp], places: NDArray[np.intp]) -> Recomputations:
        """What leaves recompute, each named by its stem and its place among that one's choices."""
        flat, start, _ = self._flat
        return flat.take(start[self.kind[stems]] + places)

    def leaves(self, stems: NDArray[np.intp], places: NDArray[np.intp]) -> ConfigTable:
        """Leaves as configurations, named as `recomputed` has it."""
        return self.recomputed(stems, places).given_to(self.stems.take(stems))

    def batches(self, rows: int = 16384) -> Iterator[Leaves]:
        """All configurations, about `rows` at a time, in a fixed order."""
        counts = self.counts
        ends = np.cumsum(counts)
        start = 0
        while start < len(counts):
            done = ends[start - 1] if start else 0
            stop = max(int(np.searchsorted(ends, done + rows, side="right")), start + 1)
            part = counts[start:stop]
            stem = np.repeat(np.arange(stop - start), part)
            within = np.arange(len(stem)) - (ends[start:stop] - part - done)[stem]
            yield Leaves(slice(start, stop), stem, self.recomputed(start + stem, within))
            start = stop

    def part(self, stems: NDArray[np.intp]) -> Enumeration:
        """Only these stems."""
        return replace(self, stems=self.stems.take(stems), kind=self.kind[stems])

    def table(self) -> ConfigTable:
        """All configurations as one table; for small spaces and for tests."""
        parts = [
            batch.recomputed.given_to(self.stems.take(batch.stems).take(batch.stem))
            for batch in self.batches()
        ]
        return ConfigTable.joined(parts) if parts else self.stems


# (axis, the column its values depend on, method of Axes)
_STEPS: Final[tuple[tuple[str, str, Callable[[Axes, int], Domain]], ...]] = (
    ("sp", "tp", Axes.sp),
    ("cp_kind", "cp", Axes.cp_kind),
    ("ep", "tp", Axes.ep),
    ("etp", "tp", Axes.etp),
    ("micro_batch", "dp", Axes.micro_batch),
    ("vpp", "pp", Axes.vpp),
    ("schedule", "vpp", Axes.schedule),
    ("zero", "tp", Axes.zero),
    ("offload", "tp", Axes.offload),
    ("hsdp", "sharing", Axes.hsdp),
    ("cuda_graph_impl", "tp", Axes.cuda_graph_impl),
    ("cuda_graph_modules", "tp", Axes.cuda_graph_modules),
)


def _degree_grid(problem: Problem, restrict: Restriction, pipelines: bool = True) -> dict[str, IntColumn]:
    """All (tp, cp, pp) of divisors or given values, with the dp that follows (rounded down), and the ranks that may
    share a shard."""
    devices = problem.cluster.num_devices
    free = {"tp": divisors(devices), "cp": divisors(devices), "pp": divisors(devices)}
    if not pipelines:
        free["pp"] = (1,)
    axes = [restrict.get(axis, values) for axis, values in free.items()]
    tp, cp, pp = (grid.reshape(-1) for grid in np.meshgrid(*(np.array(a, dtype=np.int64) for a in axes)))
    product = tp * cp * pp
    pinned = restrict.get("dp")
    if pinned is None:
        dp = np.maximum(devices // product, 1)
        unpinned = [axis for axis in free if axis not in restrict]
        keep = (product * dp == devices) if unpinned else np.ones(len(dp), dtype=np.bool_)
        if not keep.any():
            keep = np.ones(len(dp), dtype=np.bool_)
    else:
        tp, cp, pp = (np.repeat(column, len(pinned)) for column in (tp, cp, pp))
        dp = np.tile(np.array(pinned, dtype=np.int64), len(product))
        keep = np.ones(len(dp), dtype=np.bool_)
    named = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "sharing": dp * cp}
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
        self.removed = Counter[str]()

    def apply(
        self, columns: dict[str, IntColumn], sizes: Callable[[dict[str, IntColumn]], NDArray[np.float64]]
    ) -> dict[str, IntColumn]:
        """The rows that are legal as far as can be told; `sizes`: candidates that each of some rows stands for."""
        ready = [rule for rule in self.waiting if all(axis in columns for axis in rule.needs)]
        self.waiting = [rule for rule in self.waiting if rule not in ready]
        alive = np.ones(len(next(iter(columns.values()))), dtype=np.bool_)
        for rule in ready:
            bad = alive & ~rule.holds(columns, self.problem)
            if bad.any():
                rows = np.flatnonzero(bad)
                of_rows = {axis: column[rows] for axis, column in columns.items()}
                self.removed[rule.id] += int(sizes(of_rows).sum())
                alive &= ~bad
        return columns if alive.all() else {axis: column[alive] for axis, column in columns.items()}


def complete_columns(columns: dict[str, IntColumn], problem: Problem) -> ConfigTable:
    """Add the columns that follow from the others or have one value."""
    # axes with one value, and those of leaves: a column of zeros that takes no memory
    zeros = np.broadcast_to(np.int32(0), len(columns["tp"]))
    for axis in AXES:
        columns.setdefault(axis, zeros)
    return ConfigTable({axis: columns[axis] for axis in AXES})


def _stem_kinds(
    columns: dict[str, IntColumn], axes: Axes, sieve: _Filter
) -> tuple[NDArray[np.intp], tuple[Recomputations, ...]]:
    """Stems with the same choices of what to recompute: the kind of each, and the legal choices per kind."""
    others = {axis for rule in sieve.waiting for axis in rule.needs} - {"pp", "vpp", *RECOMPUTE_AXES}
    shared = ("pp", "vpp", *sorted(others))
    first, kind = distinct(*(columns[axis] for axis in shared))
    if not len(first):
        return kind, ()
    choices = [axes.recomputations(int(columns["pp"][row]), int(columns["vpp"][row])) for row in first]
    flat = Recomputations.joined(choices)
    kind_of = np.repeat(np.arange(len(first)), [len(c) for c in choices])
    leaves = {axis: columns[axis][first][kind_of] for axis in shared} | flat.columns
    leaves["leaf"] = np.arange(len(kind_of), dtype=np.int32)
    counts = np.bincount(kind).astype(np.float64)
    left = sieve.apply(leaves, lambda rows: counts[kind_of[rows["leaf"]]])["leaf"]
    ends = np.searchsorted(kind_of[left], np.arange(len(first) + 1))
    return kind, tuple(flat.take(left[a:b]) for a, b in pairwise(ends))


def _sizes(columns: dict[str, IntColumn], axes: Axes, step: int) -> NDArray[np.float64]:
    """Candidates that each row stands for before step `step`."""
    weight = np.ones(len(columns["tp"]))
    for axis, key, domain in _STEPS[step:]:
        if axis == "vpp" or key not in columns:
            continue
        weight *= _per_value(columns[key], lambda value, domain=domain: len(domain(axes, value)))  # type: ignore[misc]
    if "vpp" in columns:
        first, inverse = distinct(columns["pp"], columns["vpp"])
        ways = [len(axes.recomputations(int(columns["pp"][row]), int(columns["vpp"][row]))) for row in first]
        return weight * np.array(ways, dtype=np.float64)[inverse]

    def of_stages(pp: int) -> float:
        return sum(len(axes.recomputations(pp, v)) * len(axes.schedule(v)) for (v,) in axes.vpp(pp))

    return weight * _per_value(columns["pp"], of_stages)


def _grow(columns: dict[str, IntColumn], axes: Axes, sieve: _Filter, steps: range) -> dict[str, IntColumn]:
    """Expand the axes of some steps, each followed by the rules that can then be applied."""
    for step in steps:
        name, key, domain = _STEPS[step]
        columns = _expand(columns, name, key, lambda value, domain=domain: domain(axes, value))  # type: ignore[misc]
        _derive(columns, sieve.problem)
        columns = sieve.apply(columns, lambda rows, step=step: _sizes(rows, axes, step + 1))  # type: ignore[misc]
    return columns


class Space:
    """The configurations of a question by cuts, whose later axes are dealt where they are asked for.

    `cuts`: tp, cp, pp, dp, sp, cp_kind, ep, etp, micro_batch, as far as rules about these leave them; `total`:
    candidates of the whole product, legal or not.
    """

    def __init__(
        self,
        problem: Problem,
        rules: Sequence[Rule],
        restrict: Restriction | None = None,
        without: Sequence[str] = (),
    ) -> None:
        """Raises `InputError` if `restrict` names an unknown axis or an impossible value. `without`: as of `Axes`."""
        restrict = restrict or {}
        check_restriction(restrict)
        self.problem, self.axes, self._rules = problem, Axes(problem, restrict, without), rules
        self._sieve = _Filter(problem, rules)
        columns = _degree_grid(problem, restrict, self.axes.pipelines)
        self.total = int(_sizes(columns, self.axes, 0).sum())
        columns = self._sieve.apply(columns, lambda rows: _sizes(rows, self.axes, 0))
        columns = _grow(columns, self.axes, self._sieve, range(LATE_STEP))
        self._late, self._columns = self._sieve.waiting, columns

    def __len__(self) -> int:
        return len(self._columns["tp"])

    @property
    def removed(self) -> tuple[Removed, ...]:
        """What rules removed so far, the later axes of some cuts perhaps not dealt yet."""
        counts = self._sieve.removed
        return tuple(Removed(rule.id, counts[rule.id]) for rule in self._rules if counts[rule.id])

    @property
    def cuts(self) -> ConfigTable:
        """The cuts as configurations with one chunk a rank and all else neutral."""
        columns = {axis: column for axis, column in self._columns.items() if axis in AXES}
        ones = np.broadcast_to(np.int32(1), len(self))
        return complete_columns({"vpp": ones, **columns}, self.problem)

    def is_empty(self) -> bool:
        """Is no configuration legal? Cuts are dealt until one is."""
        starts = range(0, len(self), FEW_CUTS)
        return not any(len(self.dealt(slice(start, start + FEW_CUTS), counted=False)[0]) for start in starts)

    def candidates(self, rows: NDArray[np.intp]) -> int:
        """How many candidates some cuts stand for, legal or not."""
        part = {axis: column[rows] for axis, column in self._columns.items()}
        return int(_sizes(part, self.axes, LATE_STEP).sum())

    def legal(self, rows: NDArray[np.intp] | slice) -> Enumeration:
        """The legal configurations of some cuts, each to be asked for once: `removed` counts what rules remove."""
        return self.dealt(rows)[0]

    def dealt(
        self, rows: NDArray[np.intp] | slice, counted: bool = True
    ) -> tuple[Enumeration, NDArray[np.int32]]:
        """The same, and of every stem the place of its cut among `rows`; without `counted`, `removed` stays."""
        sieve = self._sieve if counted else _Filter(self.problem, ())
        sieve.waiting = list(self._late)
        block = {axis: column[rows] for axis, column in self._columns.items()}
        block["cut"] = np.arange(len(block["tp"]), dtype=np.int32)
        columns = _grow(block, self.axes, sieve, range(LATE_STEP, len(_STEPS)))
        kind, choices = _stem_kinds(columns, self.axes, sieve)
        assert not sieve.waiting or not len(kind), f"rules read unknown columns: {sieve.waiting}"
        if any(not len(ways) for ways in choices):
            has_leaves = np.array([len(ways) > 0 for ways in choices])[kind]
            columns = {axis: column[has_leaves] for axis, column in columns.items()}
            used, kind = np.unique(kind[has_leaves], return_inverse=True)
            choices = tuple(choices[number] for number in used)
        own = {axis: column for axis, column in columns.items() if axis in AXES}
        return Enumeration(complete_columns(own, self.problem), kind, choices), columns["cut"]


def enumerate_configs(
    problem: Problem,
    rules: Sequence[Rule],
    restrict: Restriction | None = None,
    without: Sequence[str] = (ALL,),
) -> Enumeration:
    """Every legal configuration of the space, restricted to the given values of some axes; what a search opens by
    itself (`space.without`) is as the stack has it, unless `without` says otherwise.

    Raises `InputError` if `restrict` names an unknown axis or an impossible value.
    """
    space = Space(problem, rules, restrict, without)
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, max(len(space), 1), BLOCK_ROWS)]
    whole = Enumeration.joined([space.legal(block) for block in blocks])
    return replace(whole, total=space.total, removed=space.removed)

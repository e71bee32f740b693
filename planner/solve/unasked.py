"""How much faster would an answer be with what nobody asked for: other numerics, or an option of its stack?

Options that change numerics, and recipes of 8 and 4 bits, are tried one by one and together on the configurations of an
answer and on others of their degrees; of one named configuration also the options that a search would turn on. Left
out: other degrees, and splits solved anew: a search with the change finds what is faster still.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.catalog.load_options import OptionKind
from planner.catalog.load_stacks import is_shipped
from planner.catalog.stack_options import (
    DSA_KERNELS,
    SEPARATOR,
    options_for,
    with_options,
)
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.errors import InputError, PlannerError
from planner.frameworks import framework_of_stack
from planner.solve.search import search
from planner.solve.splits.dealt import Dealt
from planner.space.axes import Restriction
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import are_legal
from planner.space.members import options_alone, unnamed_options
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.findings import Change as Changed
from planner.spec.findings import Effect, Finding, finding
from planner.spec.machine.device_kernels import require_recipe, with_device_kernels
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import SparseKernel
from planner.spec.verdict import MemoryVerdict

WORTH_SAYING: Final = 0.01  # of the step
# Tokens above which plans of DeepSeek-V3.2 on 1,024 H100 are faster with TileLang's kernels and context parallelism
LONG: Final = 16384

ModelOf = Callable[[Problem], CostModel]
Splits = Mapping[ParallelConfig, Dealt]


@dataclass(frozen=True)
class Change:
    """What a problem would have beside its own: options of its stack, another precision where one is named."""

    options: tuple[str, ...] = ()
    precision: Precision | None = None

    def beside(self, other: Change) -> Change:
        """Both."""
        return Change((*self.options, *other.options), other.precision or self.precision)

    @property
    def names(self) -> tuple[str, ...]:
        """What is changed, as `Held.axis` has it."""
        return (*(("precision",) if self.precision else ()), *self.options)

    def of(self, problem: Problem) -> Problem:
        """The problem with it. Raises `PlannerError`: it contradicts what is there, or the device lacks it."""
        job = replace(problem.job, precision=self.precision or problem.job.precision)
        chip, stack = problem.cluster.accelerator, problem.stack
        if self.precision:
            _require(problem, self.precision)
        if self.options:
            stack = with_options(stack, list(self.options))
        return replace(problem, job=job, stack=with_device_kernels(stack, problem.model, chip, job.precision))


@dataclass(frozen=True)
class Gain:
    """What a change brings to an answer. `share`: of the best step time that it saves [1], None where the best does not
    fit and a configuration with the change does; `config`: the one it is of, `first`: is that the answer's first?"""

    change: Change
    share: float | None
    config: ParallelConfig
    first: bool


def numeric_changes(problem: Problem) -> list[Change]:
    """Single changes of numerics that a problem's stack and devices have: options, and recipes of fewer bits than 16 in
    place of one of 16."""
    options = [Change((option.name,)) for option in unnamed_options(problem, OptionKind.NUMERICS)]
    wide = RECIPES[problem.job.precision].gemm in (Dtype.BF16, Dtype.FP16)
    narrow = [p for p in Precision if RECIPES[p].gemm in (Dtype.FP8, Dtype.FP4)] if wide else []
    return [*options, *(Change((), precision) for precision in narrow if _runs(problem, precision))]


def _require(problem: Problem, precision: Precision) -> None:
    stack = problem.stack
    require_recipe(stack, problem.cluster.accelerator, precision)
    if precision in stack.limits.no_recipes:
        raise InputError(f"{stack.name} must have the recipe {precision}", stack.released)
    runner = framework_of_stack(stack.framework)
    if runner is not None:
        runner.require_recipe(precision)


def _runs(problem: Problem, precision: Precision) -> bool:
    try:
        _require(problem, precision)
    except PlannerError:
        return False
    return True


class Answer:
    """The configurations of an answer, the best first. `limit`: memory that each may take [bytes]; `splits`: how those
    whose layers were dealt anew hold them, with a change as without; `near`: values of axes among which a change is
    also searched for other configurations, None: it is not."""

    def __init__(
        self, problem: Problem, table: ConfigTable, limit: float, model_of: ModelOf, splits: Splits | None = None,
        near: Restriction | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.table, self.limit, self.model_of = problem, table, limit, model_of
        self.splits, self.near = splits or {}, near
        seconds, fits = self._cost(model_of(problem), [0])
        self.step_time, self.fits = float(seconds[0]), bool(fits[0])

    @cached_property
    def _by_formulas(self) -> tuple[float, bool]:
        """Step time of the first [s] and whether it fits, without lists of operations: what a change that was not read
        off the software is held against."""
        seconds, fits = self._cost(self.model_of(replace(self.problem, listed=None)), [0])
        return float(seconds[0]), bool(fits[0])

    def _cost(self, model: CostModel, rows: list[int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Step time of some configurations [s], and whether they fit."""
        taken = self.table.take(np.array(rows, dtype=np.intp))
        cost = evaluate_exactly(model, taken)
        time, fits = cost.step_time.copy(), (cost.device_memory <= self.limit) & on_host(model, taken)
        for at, row in enumerate(rows):
            if dealt := self.splits.get(self.table.row(row)):
                own, one = dealt.of_model(model), ConfigTable.of([dealt.config(self.table.row(row))])
                split = evaluate_exactly(own, one)
                time[at], fits[at] = (
                    split.step_time[0],
                    split.device_memory[0] <= self.limit and on_host(own, one)[0],
                )
        return time, fits

    def gain(self, change: Change, seek: bool = False) -> Gain | None:
        """What a change brings to the fastest of the configurations that is legal and fits with it, or, to `seek`, to
        any near them; None where there is none."""
        try:
            other = change.of(self.problem)
            model = self.model_of(other)
        except PlannerError:
            return None
        found = [*self._listed(other, model), *(self._near(other, model) if seek else ())]
        seconds, config = min(found, key=lambda each: each[0], default=(np.inf, None))
        if config is None:
            return None
        step_time, fits = self.step_time, self.fits
        if self.problem.lists() is not None and other.lists() is None:
            step_time, fits = self._by_formulas
        share = 1 - seconds / step_time if fits else None
        return Gain(change, share, config, config == self.table.row(0))

    def _listed(self, other: Problem, model: CostModel) -> list[tuple[float, ParallelConfig]]:
        """Step times of the answer's configurations that are legal and fit under another problem [s]."""
        rules = all_rules_for(other.stack.framework)
        legal = np.flatnonzero(are_legal(self.table, other, rules)).tolist()
        if not legal:
            return []
        time, fits = self._cost(model, legal)
        return [(float(time[at]), self.table.row(row)) for at, row in enumerate(legal) if fits[at]]

    def _near(self, other: Problem, model: CostModel) -> list[tuple[float, ParallelConfig]]:
        """Step time of the fastest near them, its layers dealt as the stack does [s]."""
        if self.near is None:
            return []
        space = enumerate_configs(other, rules_for(other.stack), self.near)
        best = search(model, space, self.limit, 1, name_smallest=False).best
        return [(float(evaluate_exactly(model, best).step_time[0]), best.row(0))] if len(best) else []


def degrees_of(table: ConfigTable, restrict: Restriction) -> Restriction:
    """A restriction to the degrees that some configurations have, and to what is restricted anyway."""
    degrees = {
        axis: tuple(int(value) for value in np.unique(table[axis]))
        for axis in ("tp", "cp", "pp")
        if axis not in restrict
    }
    return {**restrict, **degrees}


def numeric_gains(answer: Answer) -> tuple[Gain, ...]:
    """What numerics that nobody asked for would bring, each by itself where that is worth saying, of recipes the best
    of 8 bits and of 4; last what all of these bring together."""
    if not (len(answer.table) and is_shipped(answer.problem.stack.name)):
        return ()
    changes = numeric_changes(answer.problem)
    options = [change for change in changes if change.precision is None]
    recipes = [gain for change in changes if change.precision and (gain := answer.gain(change))]
    sought = (answer.gain(change, seek=True) for change in [*options, *_best_recipes(recipes)])
    singles = sorted(_worth(sought), key=_saved, reverse=True)
    return (*singles, *_together(answer, singles))


def option_gains(answer: Answer) -> tuple[Gain, ...]:
    """What options that a search would turn on bring, each by itself, of those that exclude each other the best."""
    if not (len(answer.table) and is_shipped(answer.problem.stack.name)):
        return ()
    options = {option.name: option for option in options_alone(answer.problem)}
    gains = _worth([answer.gain(Change((name,))) for name in options])
    best: list[Gain] = []
    for gain in sorted(gains, key=_saved, reverse=True):
        option = options[gain.change.options[0]]
        if not any(option.same_fields(options[other.change.options[0]]) for other in best):
            best.append(gain)
    return tuple(best)


def _worth(gains: Iterable[Gain | None]) -> list[Gain]:
    return [gain for gain in gains if gain and (gain.share is None or gain.share >= WORTH_SAYING)]


def _best_recipes(gains: Collection[Gain]) -> list[Change]:
    """The best recipe of 8 bits, and of 4 where that is faster."""
    best: list[Gain] = []
    for dtype in (Dtype.FP8, Dtype.FP4):
        own = [g for g in gains if g.change.precision and RECIPES[g.change.precision].gemm is dtype]
        more = [g for g in own if not best or _saved(g) >= _saved(best[0]) + WORTH_SAYING]
        best += sorted(more, key=_saved)[-1:]
    return [gain.change for gain in best]


def _saved(gain: Gain) -> float:
    return 1.0 if gain.share is None else gain.share


def _together(answer: Answer, singles: Sequence[Gain]) -> list[Gain]:
    """What the best change and all others that go with it bring, where that is worth saying beside it alone."""
    if len(singles) < 2:
        return []
    change = singles[0].change
    for single in singles[1:]:
        both = change.beside(single.change)
        if not (change.precision and single.change.precision) and _possible(answer.problem, both):
            change = both
    gain = answer.gain(change, seek=True) if change is not singles[0].change else None
    return [gain] if gain and _saved(gain) >= _saved(singles[0]) + WORTH_SAYING else []


def _possible(problem: Problem, change: Change) -> bool:
    try:
        change.of(problem)
    except PlannerError:
        return False
    return True


def findings_of(gains: Iterable[Gain], answer: Answer, named: str) -> tuple[Finding, ...]:
    """Gains as findings. `named`: the stack as the user named it, behind which the options of a change are written."""
    known = {option.name: option for option in options_for(answer.problem.stack)}
    found = []
    for gain in gains:
        options = [known[name] for name in gain.change.options]
        precision = str(gain.change.precision) if gain.change.precision else None
        numerics = any(option.kind is OptionKind.NUMERICS for option in options)
        fits = Effect(quantity="verdict", after=MemoryVerdict.FITS)
        found.append(
            finding(
                "untried_option", _asked(gain.change, named),
                fits if gain.share is None else Effect(quantity="step_time", share=-gain.share),
                precision=precision, options=gain.change.options,
                meanings=tuple(option.meaning for option in options),
                needs=tuple(option.needs for option in options if option.needs),
                numerics=numerics or precision is not None,
                configuration=None if gain.first else gain.config.describe(),
            )
        )  # fmt: skip
    return tuple(found)


def _asked(change: Change, named: str) -> Changed:
    """How a change is asked for."""
    stack = None
    if change.options:
        stack = Changed(option="stack", value=SEPARATOR.join([named, *change.options]))
    if change.precision is None:
        assert stack is not None, "one of the two"
        return stack
    return Changed(option="precision", value=str(change.precision), also=stack)


def wide_scores(answer: Answer, named: str, gains: Collection[Gain]) -> tuple[Finding, ...]:
    """That TileLang's kernels may make another configuration faster than any of the answer: cuDNN's backend scores in
    fp32 where context parallelism divides sequences that are not packed. `gains`: what is said of the answer's own."""
    problem = answer.problem
    wide = problem.stack.kernels.sparse_attention is SparseKernel.CUDNN and not problem.job.packed
    long = problem.job.seq_len > LONG and problem.cluster.num_devices > 1
    name = DSA_KERNELS[SparseKernel.TILELANG]
    known = name in (option.name for option in options_for(problem.stack))
    if not (known and wide and long and problem.model.indexers) or problem.model.chooses_blocks:
        return ()
    if any(name in gain.change.options for gain in gains):
        return ()
    return (finding("tilelang_kernels", Changed(option="stack", value=f"{named}{SEPARATOR}{name}")),)

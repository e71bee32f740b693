"""How much faster would options of a stack make an answer, where its software can be asked for them?

Fused dispatchers of tokens, experts fused with their products, exchanges of tokens under another micro-batch's compute,
gradients in 16 bits, and kernels of sparse attention that score in 16 bits under context parallelism. Each is tried on
the configurations of the answer. Left out: configurations that are not among them, which an option may favour more: a
search with it finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.catalog.load_stacks import is_shipped
from planner.catalog.stack_options import (
    DSA_KERNELS,
    EXPERTS_OVERLAPPED,
    FUSED_EXPERTS,
    GRADIENTS_16,
    SEPARATOR,
    options_for,
    with_options,
)
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.errors import InputError
from planner.solve.splits.dealt import Dealt
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Dispatcher, SparseKernel

WORTH_SAYING: Final = 0.01  # of the step
# Tokens above which plans of DeepSeek-V3.2 on 1,024 H100 are faster with TileLang's kernels and context parallelism
LONG: Final = 16384

ModelOf = Callable[[Problem], CostModel]
Splits = Mapping[ParallelConfig, Dealt]


@dataclass(frozen=True)
class _Hint:
    """`options`: of a stack, of which the first that is legal is tried; `what` they do, in words that name `{option}`;
    `where` they may help; `needs`: what the reader must have."""

    options: tuple[str, ...]
    what: str
    where: Callable[[Problem], bool]
    needs: str = ""


def _exchanges_by_nccl(problem: Problem) -> bool:
    plain = problem.stack.communication.dispatcher is Dispatcher.ALL_TO_ALL
    return plain and problem.model.is_moe and problem.cluster.accelerator.architecture.is_nvidia


def _fusable(problem: Problem) -> bool:
    narrow = problem.job.precision is Precision.FP8_MX
    return narrow and problem.model.fusable_experts and not problem.stack.kernels.fused_experts


_HINTS: Final = (
    # Megatron-Bridge's guide to dispatchers has DeepEP first where both run (067f987 skills, moe dispatcher)
    _Hint(
        (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP), "tokens dispatched by {option} instead of NCCL's all-to-all",
        _exchanges_by_nccl, ", if installed",
    ),
    _Hint(
        (EXPERTS_OVERLAPPED,), "expert all-to-all hidden under another micro-batch's compute",
        lambda p: p.model.is_moe and not p.stack.communication.ep_overlap,
    ),
    _Hint((FUSED_EXPERTS,), "experts fused with their GEMMs", _fusable, ", with Megatron-LM from 0.18 on"),
    _Hint(
        (GRADIENTS_16,), "gradients kept and reduced in bf16",
        lambda p: p.stack.states.gradient > 2.0 and p.job.precision is not Precision.FP32,
        " (a choice of numerics; performance recipes of Megatron-Bridge make it)",
    ),
)  # fmt: skip


def faster_kernels(
    problem: Problem, table: ConfigTable, limit: float, model_of: ModelOf, splits: Splits | None = None
) -> tuple[str, ...]:
    """What of a stack's options would make an answer faster, or make it fit, in sentences.

    `table`: its configurations, the best first; `limit`: memory that each may take [bytes]; `splits`: how those whose
    layers were dealt anew hold them, with the option as without.
    """
    if not len(table) or not is_shipped(problem.stack.name):
        return ()
    answer = _Answer(problem, table, limit, model_of, splits or {})
    seconds, fits = answer.cost(model_of(problem), [0])
    base = _Base(float(seconds[0]), bool(fits[0]))
    hints = [hint for hint in _HINTS if hint.where(problem)]
    found = [_said(hint, answer, base) for hint in hints]
    return (*filter(None, found), *_faster_scores(answer, base))


@dataclass(frozen=True)
class _Base:
    """The best configuration without an option: its step time [s], and whether it fits."""

    step_time: float
    fits: bool


@dataclass(frozen=True)
class _Answer:
    """The configurations of an answer, as `faster_kernels` is given them."""

    problem: Problem
    table: ConfigTable
    limit: float
    model_of: ModelOf
    splits: Splits

    def cost(self, model: CostModel, rows: list[int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Step time of some configurations [s], and whether they fit."""
        taken = self.table.take(np.array(rows, dtype=np.intp))
        cost = model.evaluate(taken)
        time, fits = cost.step_time.copy(), (cost.device_memory <= self.limit) & on_host(model, taken)
        for at, row in enumerate(rows):
            if dealt := self.splits.get(self.table.row(row)):
                own, one = dealt.of_model(model), ConfigTable.of([dealt.config(self.table.row(row))])
                split = own.evaluate(one)
                time[at], fits[at] = (
                    split.step_time[0],
                    split.device_memory[0] <= self.limit and on_host(own, one)[0],
                )
        return time, fits


def _said(hint: _Hint, answer: _Answer, base: _Base) -> str:
    """The sentence of a hint; empty where it gains nothing worth saying."""
    problem, table = answer.problem, answer.table
    known = [option.name for option in options_for(problem.stack)]
    for name in (name for name in hint.options if name in known):
        tried = _best_with(answer, len(table), name)
        if tried is None:  # illegal
            continue
        row, seconds = tried
        gain = 1 - seconds / base.step_time
        if not np.isfinite(seconds) or (base.fits and gain < WORTH_SAYING):
            return ""
        instead = f" ({table.row(row).describe()})" if row else ""
        does = f"cut the step time by {gain:.0%}" if base.fits else "make it fit"
        what = hint.what.format(option=name)
        return f"{what} would {does}{instead}: --stack {problem.stack.name}{SEPARATOR}{name}{hint.needs}"
    return ""


def _best_with(answer: _Answer, first: int, name: str) -> tuple[int, float] | None:
    """The fastest of the `first` rows that is legal and fits with an option, and its step time [s], infinite where none
    fits; None where none is legal."""
    problem, table = answer.problem, answer.table
    try:
        other = replace(problem, stack=with_options(problem.stack, [name]))
    except InputError:  # it contradicts one that is named, or needs another
        return None
    rules = all_rules_for(problem.stack.framework)
    legal = [i for i in range(first) if not explain_config(table.row(i), other, rules)]
    if not legal:
        return None
    time, fits = answer.cost(answer.model_of(other), legal)
    seconds = np.where(fits, time, np.inf)
    fastest = int(seconds.argmin())
    return legal[fastest], float(seconds[fastest])


def _faster_scores(answer: _Answer, base: _Base) -> tuple[str, ...]:
    """TileLang's kernels where cuDNN's backend scores in fp32: sequences over several ranks that are not packed.

    Where the best configuration gains nothing by them, or has no memory for them, another one of a long sequence may.
    """
    problem, table = answer.problem, answer.table
    stack, name = problem.stack, DSA_KERNELS[SparseKernel.TILELANG]
    wide = stack.kernels.sparse_attention is SparseKernel.CUDNN and not problem.job.packed
    long = problem.job.seq_len > LONG and problem.cluster.num_devices > 1
    divided = int(table["cp"][0]) > 1
    if problem.model.chooses_blocks or not (wide and problem.model.indexers and (divided or long)):
        return ()
    tried = _best_with(answer, 1, name) if divided else None
    saved = 0.0 if tried is None or not np.isfinite(tried[1]) else 1 - tried[1] / base.step_time
    why = "the others score in fp32 where context parallelism divides sequences that are not packed"
    choose = f"--stack {stack.name}{SEPARATOR}{name}"
    if saved >= WORTH_SAYING:
        return (
            f"TileLang's kernels of sparse attention would cut the step time by {saved:.0%}: {why}: {choose}",
        )
    if not long:
        return ()
    return (
        f"with TileLang's kernels of sparse attention another configuration may be much faster: {why}: plan with "
        f"{choose}, too",
    )

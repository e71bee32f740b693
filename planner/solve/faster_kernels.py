"""How much faster would other kernels make a configuration, where its stack can be asked for them?

Fused dispatchers of tokens, experts fused with their products, and kernels of sparse attention that score in 16 bits
under context parallelism. Left out: how much faster other configurations are, which they may favour more: a search with
the option finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from planner.catalog.load_stacks import is_shipped
from planner.catalog.stack_options import DSA_KERNELS, FUSED_EXPERTS, SEPARATOR, options_for, with_options
from planner.cost.model import CostModel
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Dispatcher, SparseKernel

WORTH_SAYING: Final = 0.01  # of the step
# Tokens above which plans of DeepSeek-V3.2 on 1,024 H100 are faster with TileLang's kernels and context parallelism
LONG: Final = 16384
# Megatron-Bridge's guide to dispatchers has DeepEP first where both run (067f987 skills, moe dispatcher)
_IN_ORDER: Final = (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)


def faster_kernels(
    problem: Problem, config: ParallelConfig, limit: float, model_of: Callable[[Problem], CostModel]
) -> tuple[str, ...]:
    """What of a stack's options would make a configuration faster, in sentences.

    `limit`: memory that the configuration may take with it [bytes].
    """
    found = (
        _faster_dispatch(problem, config, limit, model_of),
        _faster_experts(problem, config, limit, model_of),
        _faster_scores(problem, config, limit, model_of),
    )
    return tuple(sentence for part in found for sentence in part)


def _faster_scores(
    problem: Problem, config: ParallelConfig, limit: float, model_of: Callable[[Problem], CostModel]
) -> tuple[str, ...]:
    """TileLang's kernels where cuDNN's backend scores in fp32: texts over several ranks that are not packed.

    Where this configuration gains nothing by them, or has no memory for them, another one of a long sequence may.
    """
    stack, name = problem.stack, DSA_KERNELS[SparseKernel.TILELANG]
    wide = stack.kernels.sparse_attention is SparseKernel.CUDNN and not problem.job.packed
    long = problem.job.seq_len > LONG and problem.cluster.num_devices > 1
    if problem.model.chooses_blocks:
        return ()
    if not (wide and problem.model.indexers and is_shipped(stack.name) and (config.cp > 1 or long)):
        return ()
    saved = _saved(problem, config, limit, model_of, name) if config.cp > 1 else 0.0
    why = "the others score in fp32 where context parallelism divides texts that are not packed"
    choose = f"--stack {stack.name}{SEPARATOR}{name}"
    if saved is not None and saved >= WORTH_SAYING:
        return (
            f"TileLang's kernels of sparse attention would take {saved:.0%} off this step: {why}: {choose}",
        )
    if not long:
        return ()
    return (
        f"with TileLang's kernels of sparse attention another configuration may be much faster: {why}: plan with "
        f"{choose}, too",
    )


def _saved(
    problem: Problem,
    config: ParallelConfig,
    limit: float,
    model_of: Callable[[Problem], CostModel],
    name: str,
) -> float | None:
    """Share of the step that an option takes off; None where it is illegal [1]."""
    other = replace(problem, stack=with_options(problem.stack, [name]))
    if explain_config(config, other, all_rules_for(problem.stack.framework)):
        return None
    table = ConfigTable.of([config])
    before, after = (model_of(each).evaluate(table) for each in (problem, other))
    if float(after.device_memory[0]) > limit:
        return 0.0
    return 1 - float(after.step_time[0] / before.step_time[0])


def _faster_experts(
    problem: Problem, config: ParallelConfig, limit: float, model_of: Callable[[Problem], CostModel]
) -> tuple[str, ...]:
    """Experts fused with their products, where the stack knows the option and does not have it."""
    stack, narrow = problem.stack, problem.job.precision is Precision.FP8_MX
    known = FUSED_EXPERTS in (option.name for option in options_for(stack)) and is_shipped(stack.name)
    if stack.kernels.fused_experts or not (known and narrow and problem.model.fusable_experts):
        return ()
    saved = _saved(problem, config, limit, model_of, FUSED_EXPERTS)
    if saved is None or saved < WORTH_SAYING:
        return ()
    return (
        f"experts fused with their products would take {saved:.0%} off this step: "
        f"--stack {stack.name}{SEPARATOR}{FUSED_EXPERTS}, with Megatron-LM from 0.18 on",
    )


def _faster_dispatch(
    problem: Problem, config: ParallelConfig, limit: float, model_of: Callable[[Problem], CostModel]
) -> tuple[str, ...]:
    """The first fused dispatcher that is legal for a configuration; empty where it gains nothing, or was not timed."""
    stack = problem.stack
    if not problem.cluster.accelerator.architecture.is_nvidia:
        return ()
    plain = stack.communication.dispatcher is Dispatcher.ALL_TO_ALL
    if not (plain and problem.model.is_moe and config.ep * config.etp > 1 and is_shipped(stack.name)):
        return ()
    known = [option.name for option in options_for(stack)]
    for name in (name for name in _IN_ORDER if name in known):
        saved = _saved(problem, config, limit, model_of, name)
        if saved is None:
            continue
        if saved < WORTH_SAYING:
            return ()
        return (
            f"tokens dispatched by {name} instead of NCCL's all-to-all would take {saved:.0%} off this step: "
            f"--stack {stack.name}{SEPARATOR}{name}, where it is installed",
        )
    return ()

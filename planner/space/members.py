"""Which of a stack's options does a search try, and in which combinations?

A member of a search is a problem: the question under one stack with some of its options. Every member has the options
that the user named. Tried are those that change speed and not numerics, where they can change a configuration of this
model on these devices; contradicting ones never together. Left out: combinations without an option that costs nothing
anywhere (`always`), and stacks of the user's own files, which say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Final

from planner.catalog.load_options import OptionKind, StackOption
from planner.catalog.load_stacks import is_shipped
from planner.catalog.stack_options import (
    ALL_GATHERED,
    DOUBLE_BUFFER,
    EXPERTS_OVERLAPPED,
    FLASH_ATTENTION_3,
    FUSED_EXPERTS,
    LIGER,
    LIGER_FAMILIES,
    NO_SYNC,
    PAGED_STASH,
    SEPARATOR,
    UPDATE_GRAPH,
    options_for,
    with_options,
)
from planner.frameworks.programs import NEWER_FLASH, attention_of
from planner.space.axes import Axes, Restriction, divisors
from planner.space.framework_rules import all_rules_for
from planner.space.legality import legal_rows
from planner.space.without import is_left_out
from planner.spec.config import OFFLOAD_OPTIMIZER, CudaGraphs, ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.machine.accelerator import Architecture
from planner.spec.machine.device_kernels import with_device_kernels
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.kinds import Dispatcher

# Adam's step, whose kernels a graph holds (Megatron-LM core/optimizer/optimizer_cuda_graph.py)
_CAPTURED: Final = (Optimizer.ADAMW, Optimizer.ADAMW_BF16)


def members(problem: Problem, restrict: Restriction, without: Sequence[str] = ()) -> tuple[Problem, ...]:
    """The problems that a search for one stack answers: the stack as named first, but for options that are `always` on,
    then every combination of the others that can change anything."""
    if not is_shipped(problem.stack.name):
        return (problem,)
    tried = [o for o in unnamed_options(problem, OptionKind.SPEED) if not is_left_out(o.name, without)]
    alone = [option for option in tried if SEARCHED[option.name].always]
    alone = [option for option in alone if _member([option], problem, restrict)]
    others = [option for option in tried if not SEARCHED[option.name].always]
    found = (
        _member([option for option in tried if option in (*alone, *some)], problem, restrict)
        for some in _subsets(others)
    )
    return tuple(member for member in found if member is not None)


def options_alone(problem: Problem) -> list[StackOption]:
    """Options that a search would turn on that may change something without any other."""
    found = unnamed_options(problem, OptionKind.SPEED)
    return [option for option in found if _member([option], problem, {}) is not None]


def unnamed_options(problem: Problem, kind: OptionKind) -> list[StackOption]:
    """Options of a kind that the stack could have beside its own: not named, in no contradiction to one that is, and of
    these layers and this precision."""
    stack, model = problem.stack, problem.model
    named = named_options(stack)
    return [
        option
        for option in options_for(stack)
        if option.kind is kind
        and option not in named
        and not any(option.same_fields(other) for other in named)
        and (not option.precisions or problem.job.precision in option.precisions)
        and (model.is_moe or not option.experts)
        and (model.indexers or not option.indexers)
        and _alters(option, stack, problem.job.precision)
    ]


def named_options(stack: Stack) -> list[StackOption]:
    """The options in a stack's name."""
    names = stack.name.split(SEPARATOR)[1:]
    return [option for option in options_for(stack) if option.name in names]


def active_stack(problem: Problem, named: Stack, config: ParallelConfig) -> str:
    """The name of a member's stack without the options that change nothing of one of its configurations: so it is
    launched. `named`: the stack as the user named it."""
    more = problem.stack.name.removeprefix(named.name).split(SEPARATOR)[1:]
    kept = [name for name in more if not SEARCHED[name].idle(config)]
    return SEPARATOR.join([named.name, *kept])


def with_turned_on(problem: Problem, names: Sequence[str]) -> Problem:
    """The problem under its stack with these options as well. Raises `InputError`."""
    if not names:
        return problem
    stack, chip = with_options(problem.stack, list(names)), problem.cluster.accelerator
    return replace(problem, stack=with_device_kernels(stack, problem.model, chip, problem.job.precision))


def turned_on(stack: str, named: str) -> tuple[str, ...]:
    """Options that a stack has beyond the one that was named."""
    asked = named.split(SEPARATOR)
    return tuple(name for name in stack.split(SEPARATOR)[1:] if name not in asked)


def _alters(option: StackOption, stack: Stack, precision: Precision) -> bool:
    """Does an option replace anything? Of a list of recipes only the job's counts."""
    pairs = (
        (getattr(getattr(stack, section), key), value)
        for section, fields in option.fields.items()
        for key, value in fields.items()
    )
    return any(
        (precision in (old or ())) != (precision in new)
        if isinstance(new, tuple) and {*new} <= {*Precision}
        else old != new
        for old, new in pairs
    )


def _subsets(options: Sequence[StackOption]) -> Iterator[tuple[StackOption, ...]]:
    """Every choice of options that do not contradict each other, the fewest first."""
    for number in range(len(options) + 1):
        for some in combinations(options, number):
            if not any(one.same_fields(other) for one, other in combinations(some, 2)):
                yield some


def _member(options: Sequence[StackOption], problem: Problem, restrict: Restriction) -> Problem | None:
    """The problem under the stack with these options; None where one of them lacks another, changes nothing, or is not
    read off the software though the rest is: formulas and lists of operations are not held against each other."""
    dispatchers = {Dispatcher(option.name) for option in options if option.name in [*Dispatcher]}
    dispatchers |= {problem.stack.communication.dispatcher} if not dispatchers else set()
    if any(option.dispatcher not in (None, *dispatchers) for option in options):
        return None
    member = with_turned_on(problem, [option.name for option in options])
    if problem.lists() is not None and member.lists() is None:
        return None
    acts = all(SEARCHED[option.name].changes(member, restrict) for option in options)
    return member if acts else None


@dataclass(frozen=True)
class Searched:
    """`changes`: may an option change a configuration of a problem whose stack has it? `idle`: does it change nothing
    of this one? `always`: in every member, as it makes no configuration slower, larger or illegal."""

    changes: Callable[[Problem, Restriction], bool]
    idle: Callable[[ParallelConfig], bool] = lambda config: False
    always: bool = False


def _groups(problem: Problem, restrict: Restriction) -> list[tuple[int, ...]]:
    """(ep, etp) of several ranks that rules about these alone allow."""
    axes, devices = Axes(problem, restrict), problem.cluster.num_devices
    tensors = restrict.get("tp", divisors(devices))
    shards = {etp for tp in tensors for (etp,) in axes.etp(tp)}
    pairs = [(ep, etp) for (ep,) in axes.ep(1) for etp in sorted(shards) if 1 < ep * etp <= devices]
    return legal_rows(problem, all_rules_for(problem.stack.framework), ("ep", "etp"), pairs)


def _sends(problem: Problem, restrict: Restriction) -> bool:
    """Are there groups that a dispatcher can send tokens in? Fused ones, on NVIDIA's devices: AMD's have ports."""
    ours = problem.cluster.accelerator.architecture.is_nvidia
    return (ours or not problem.stack.communication.dispatcher.fused) and bool(_groups(problem, restrict))


def _overlaps(problem: Problem, restrict: Restriction) -> bool:
    """Are there exchanges, in layers that two micro-batches can run side by side?"""
    ranks = [pair[0] for pair in _groups(problem, restrict) if pair[0] > 1]
    axes = {"pp": (1, 2), "vpp": (1, 2), "recompute": (0,), "recompute_modules": (0,)}
    tried = [restrict.get(axis, values) for axis, values in axes.items()]
    rules = all_rules_for(problem.stack.framework)
    return bool(legal_rows(problem, rules, ("ep", *axes), list(product(ranks, *tried))))


def _fuses(problem: Problem, restrict: Restriction) -> bool:
    blackwell = problem.cluster.accelerator.architecture is Architecture.BLACKWELL
    return blackwell and problem.model.fusable_experts and 1 in restrict.get("etp", (1,))


def _stashes(problem: Problem, restrict: Restriction) -> bool:
    """Only graphs of the full iteration need buffers of one size, which cost memory otherwise."""
    tried = Axes(problem, restrict).cuda_graph_impl(1)
    return (int(CudaGraphs.FULL_ITERATION),) in tried and _sends(problem, restrict)


def _launches(problem: Problem, restrict: Restriction) -> bool:
    """A scaled loss, of fp16, is looked at by the host between its kernels (MixedPrecisionOptimizer.prepare_grads)."""
    job, host = problem.job, problem.stack.host
    return host.tensor_update > 0 and job.optimizer in _CAPTURED and job.precision is not Precision.FP16


def _shards(problem: Problem, restrict: Restriction) -> bool:
    """Are gradients sharded over several ranks?"""
    stages = set(problem.stack.limits.zero) & set(restrict.get("zero", range(4)))
    return problem.cluster.num_devices > 1 and max(stages, default=0) >= 2


def _newer_flash(problem: Problem, restrict: Restriction) -> bool:
    flash = problem.stack.kernels.attention.is_flash
    return flash and attention_of(problem.stack, problem.cluster.accelerator.name) in NEWER_FLASH


_DISPATCHER: Final = Searched(_sends, lambda c: c.ep * c.etp == 1)
SEARCHED: Final[Mapping[str, Searched]] = {
    Dispatcher.DEEPEP: _DISPATCHER,
    Dispatcher.HYBRIDEP: _DISPATCHER,
    ALL_GATHERED: _DISPATCHER,
    EXPERTS_OVERLAPPED: Searched(_overlaps, lambda c: c.ep == 1),
    FUSED_EXPERTS: Searched(_fuses),
    PAGED_STASH: Searched(_stashes, lambda c: c.ep * c.etp == 1),
    # it takes launches off the host, no rule asks about it and no memory is counted for it
    UPDATE_GRAPH: Searched(_launches, lambda c: bool(c.offload & OFFLOAD_OPTIMIZER), always=True),
    DOUBLE_BUFFER: Searched(_shards, lambda c: c.zero < 2),
    NO_SYNC: Searched(_shards, lambda c: c.zero < 2 or c.num_microbatches == 1),
    LIGER: Searched(lambda problem, restrict: problem.model.family in LIGER_FAMILIES),
    # FlashAttention-2 takes 1 to 2 times as long (`cost.device.flash`), with the same memory under the same rules
    FLASH_ATTENTION_3: Searched(_newer_flash, always=True),
}

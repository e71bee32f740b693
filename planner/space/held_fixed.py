"""What does a search hold fixed that the user did not?

Options and recipes that would change numerics, what was left out by name, axes of which `estimate` takes values that no
search tries unasked, and what the stack does in one way alone. Read off the axes of the search against the limits of
the stack and the rules of its framework. Left out: splits of layers, of which a certificate speaks itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from planner.catalog.load_options import OptionKind
from planner.catalog.load_stacks import is_shipped
from planner.frameworks import explicit_splits
from planner.space.axes import Axes, Domain, Restriction, divisors, present_modules
from planner.space.framework_rules import all_rules_for
from planner.space.legality import legal_rows
from planner.space.members import unnamed_options
from planner.space.recomputations import module_lists
from planner.space.without import OpenedAxis, is_left_out
from planner.spec.config import CUDA_GRAPH_MODULES, SCHEDULE_LABELS, CudaGraphs, Recompute, value_text
from planner.spec.planfile import EMPTY_CHUNKS
from planner.spec.rule import Problem
from planner.spec.tried import Held, HeldBy

_BY_NAME: Final[Mapping[str, OpenedAxis]] = {
    "offload": OpenedAxis.OFFLOAD, "cuda_graph_impl": OpenedAxis.CUDA_GRAPHS,
    "cuda_graph_modules": OpenedAxis.CUDA_GRAPHS, "pp": OpenedAxis.PIPELINES,
}  # fmt: skip
OFF: Final = "off"


def held(
    problem: Problem, restrict: Restriction, without: Sequence[str] = (), asked: Collection[str] = ()
) -> tuple[Held, ...]:
    """Everything that a search holds fixed: options of the stack as named, then axes.

    `restrict`: axes that the user fixed, which are not among them. `asked`: what else the user fixed ("precision").
    """
    axes = (*_tried_in_part(problem, restrict, without), *_of_the_stack(problem, restrict))
    precision = (
        [] if "precision" in asked else [_kept("precision", str(problem.job.precision), HeldBy.NUMERICS)]
    )
    return (*precision, *_options(problem, without), *axes)


def with_gains(found: Iterable[Held], gains: Mapping[str, float]) -> tuple[Held, ...]:
    """The same with what freeing some of them saves, by axis: share of the step time [1]."""
    return tuple(
        one.model_copy(update={"gain": gains[one.axis]}) if one.axis in gains else one for one in found
    )


def _kept(axis: str, value: str, why: HeldBy) -> Held:
    return Held(axis=axis, value=value, why=why)


def _options(problem: Problem, without: Sequence[str]) -> Iterator[Held]:
    """Options of the stack that nobody named and no member of the search has."""
    for option in unnamed_options(problem, OptionKind.NUMERICS):
        yield _kept(option.name, OFF, HeldBy.NUMERICS)
    for option in unnamed_options(problem, OptionKind.SPEED):
        if is_left_out(option.name, without):
            yield _kept(option.name, OFF, HeldBy.LEFT_OUT)
        elif not is_shipped(problem.stack.name):
            yield _kept(option.name, OFF, HeldBy.UNTRIED)


def _tried_in_part(problem: Problem, restrict: Restriction, without: Sequence[str]) -> Iterator[Held]:
    """Axes of which rules allow values that the search does not try."""
    for axis, others, tried in _domains(problem, restrict, without):
        if axis not in restrict and others:
            opened = _BY_NAME.get(axis)
            left = opened is not None and is_left_out(opened, without)
            yield _kept(axis, tried, HeldBy.LEFT_OUT if left else HeldBy.UNTRIED)


def _domains(
    problem: Problem, restrict: Restriction, without: Sequence[str]
) -> Iterator[tuple[str, bool, str]]:
    """Axis, whether it could take other values than the search tries, and these in words."""
    axes, limits, devices = (
        Axes(problem, restrict, without),
        problem.stack.limits,
        problem.cluster.num_devices,
    )
    pipelines = axes.pipelines or not limits.schedules or devices == 1
    yield "pp", not pipelines, "1"
    offload = _values(axes.offload(1))
    yield "offload", not offload.issuperset(problem.offloads), _in_words("offload", offload)
    graphs, impls = _graphs(problem), _values(axes.cuda_graph_impl(1))
    others = any(impl not in impls for impl, _ in graphs)
    yield "cuda_graph_impl", others, _in_words("cuda_graph_impl", impls)
    modules = _values(axes.cuda_graph_modules(1))
    others = any(impl in impls and mask not in modules for impl, mask in graphs)
    yield "cuda_graph_modules", others, _in_words("cuda_graph_modules", modules)
    groups = set(divisors(devices)[1:-1]) if limits.hybrid_sharding else set()
    yield "hsdp", not _values(axes.hsdp(devices)).issuperset(groups), "0"
    present = present_modules(problem)
    lists = module_lists(name for name in limits.recompute_modules if name in present)
    yield "recompute_modules", not set(axes.modules).issuperset(lists), _few_lists(axes.modules)
    yield "etp", _other_shards(problem, axes, restrict), "divisors_of_tp"
    full = int(Recompute.FULL) in restrict.get("recompute", ())
    yield "recompute_layers", full and axes.partial, "all"
    yield "chunks", has_other_chunks(problem, restrict), "filled_by_own_split"


def _values(domain: Domain) -> set[int]:
    return {value for (value,) in domain}


def _in_words(axis: str, values: Iterable[int]) -> str:
    return ",".join(value_text(axis, value) for value in sorted(values))


def _few_lists(tried: Sequence[int]) -> str:
    return f"{len(tried)}_lists" if len(tried) > 1 else _in_words("recompute_modules", tried)


def _graphs(problem: Problem) -> list[tuple[int, ...]]:
    """(what captures graphs, what of a layer) that rules about these alone allow, with and without an exchange of
    tokens."""
    kinds = [int(CudaGraphs[name.upper()]) for name in problem.stack.limits.cuda_graphs]
    rows = product((1, 2) if problem.model.is_moe else (1,), (1,), kinds, range(2 ** len(CUDA_GRAPH_MODULES)))
    rules = all_rules_for(problem.stack.framework)
    names = ("ep", "etp", "cuda_graph_impl", "cuda_graph_modules")
    return [row[2:] for row in legal_rows(problem, rules, names, list(rows))]


def _other_shards(problem: Problem, axes: Axes, restrict: Restriction) -> bool:
    """May experts be divided by others than divisors of tp?"""
    if not problem.model.is_moe:
        return False
    tp = min(restrict.get("tp", (1,)))
    rows = [(tp, etp) for etp in divisors(problem.cluster.num_devices) if (etp,) not in axes.etp(tp)]
    return bool(legal_rows(problem, all_rules_for(problem.stack.framework), ("tp", "etp"), rows))


def has_other_chunks(problem: Problem, restrict: Restriction) -> bool:
    """Are there numbers of stages and chunks that a layout could fill and the stack's own split does not?"""
    if not explicit_splits(problem.stack.framework):
        return False
    layers, rules = problem.model.num_layers, all_rules_for(problem.stack.framework)
    degrees = restrict.get("pp", divisors(problem.cluster.num_devices))
    some = [
        (pp, vpp)
        for pp in degrees
        if 1 < pp <= layers + EMPTY_CHUNKS
        for vpp in restrict.get("vpp", range(1, (layers + EMPTY_CHUNKS) // pp + 1))
    ]
    own = set(legal_rows(problem, rules, ("pp", "vpp"), some))
    told = (
        legal_rows(_under_layout(problem, pp * vpp), rules, ("pp", "vpp"), [(pp, vpp)])
        for pp, vpp in some
        if (pp, vpp) not in own and pp * vpp <= layers + EMPTY_CHUNKS
    )
    return any(told)


def _under_layout(problem: Problem, chunks: int) -> Problem:
    """The problem under a layout of so many chunks: which one, no rule of a configuration asks."""
    layout = (problem.model.num_layers, *[0] * (chunks - 1))
    return replace(problem, stack=problem.stack.model_copy(update={"split": layout}))


def _of_the_stack(problem: Problem, restrict: Restriction) -> Iterator[Held]:
    """What its launcher cannot be told of pipelines, where these are searched."""
    limits, tried = problem.stack.limits, problem.stack.pipelines_tried
    stages = restrict.get("pp", divisors(problem.cluster.num_devices) if tried else (1,))
    if not (limits.schedules and any(pp > 1 for pp in stages)):
        return
    if "schedule" not in restrict and set(SCHEDULE_LABELS) - set(limits.schedules):
        yield _kept("schedule", ",".join(limits.schedules), HeldBy.STACK)
    if {"recompute", "recompute_layers"}.isdisjoint(restrict):
        yield _kept("recompute_layers", "as_many_on_every_rank", HeldBy.STACK)

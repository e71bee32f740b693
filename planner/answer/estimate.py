"""What does one named configuration cost, or which rule does it break? `make_estimate`; the search is `plan.py`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from planner.answer.answerer import Answerer
from planner.answer.launchable import with_launch_note
from planner.answer.nearest_run import nearest_run
from planner.ask.option import as_written
from planner.ask.request import Question, check_request, cost_model, kept_back, resolve
from planner.catalog.load_campaign import load_assumptions
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.dialect import option
from planner.errors import InputError
from planner.frameworks import explicit_splits, framework_of_stack
from planner.frameworks.layout import stated_layout
from planner.solve.relax import nearest_fitting
from planner.solve.splits.dealt import Dealt
from planner.solve.unasked import Answer, findings_of, numeric_gains, option_gains, wide_scores
from planner.space.axes import RESTRICTABLE, check_restriction, modules_tried, stack_modules
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config, nearest_legal
from planner.space.rules import RULES
from planner.spec.config import (
    OFFLOAD_OPTIMIZER,
    SCHEDULE_LABELS,
    ConfigTable,
    ParallelConfig,
    Recompute,
    Schedule,
    default_schedule,
    value_text,
)
from planner.spec.findings import Finding, finding
from planner.spec.planfile import Plan, SplitFacts
from planner.spec.rule import Problem


def make_estimate(request: Question) -> Plan:
    """What one named configuration costs; if it is illegal, the rules it breaks and the nearest legal one."""
    started = time.perf_counter()
    check_request(request, search=False)
    neutral = {"tp": (1,), "cp": (1,), "pp": (1,)}
    problem, assumed = resolve(request, {**neutral, **request.restrict})
    config, chunks, defaults = asked_config(request, problem)
    if config.pp > 1 and not chunks and explicit_splits(problem.stack.framework):
        defaults = (*defaults, finding("layers_as_the_stack_deals"))
    found = estimate_of(problem, config, chunks, request, (*assumed, *defaults), started)
    found = found.model_copy(update={"nearest_run": nearest_run(problem), "asked": as_written(request)})
    return with_launch_note(found, problem.model, problem.stack)


def asked_config(
    request: Question, problem: Problem
) -> tuple[ParallelConfig, tuple[int, ...], tuple[Finding, ...]]:
    """The configuration that a question names, the layers of its chunks where it states them, and the axes that were
    filled in. Raises `InputError`."""
    restrict = dict(request.restrict)
    chunks: tuple[int, ...] = ()
    if request.layout:
        chunks = _stated_chunks(request.layout, problem, restrict.get("pp", (None,))[0])
        restrict.setdefault("pp", (max(len(chunks) // max(restrict.get("vpp", (1,))[0], 1), 1),))
        restrict.setdefault("vpp", (len(chunks) // restrict["pp"][0],))
    config, defaults = named_config(restrict, problem)
    check_chunks(config, chunks)
    return config, chunks, defaults


def check_chunks(config: ParallelConfig, chunks: tuple[int, ...]) -> None:
    """Refuse a layout of another number of parts than the configuration has. Raises `InputError`."""
    if chunks and len(chunks) != config.pp * config.vpp:
        must = f"a layout must have pp x vpp = {config.pp * config.vpp} parts"
        given = f"{', '.join(map(str, chunks))}: {len(chunks)}"
        raise InputError(must, given, f"change {option('set', 'vpp=')} or the layout")


def _stated_chunks(layout: str, problem: Problem, pp: int | None) -> tuple[int, ...]:
    """Layers of every chunk that a layout states. Raises `InputError`."""
    framework = problem.stack.framework
    if not explicit_splits(framework):
        must = "layout= needs a framework that can be told how many layers each stage holds"
        raise InputError(must, framework, "leave layout= out: this one assigns layers itself")
    return stated_layout(layout, problem.model.num_layers, pp, problem.model.mtp_layers)


def _as_it_has_them(config: ParallelConfig, named: Mapping[str, int], problem: Problem) -> ParallelConfig:
    """The configuration with axes that are left out as the framework has them, where its rules refuse the usual."""
    broken = {rule.rule for rule in explain_config(config, problem, all_rules_for(problem.stack.framework))}
    schedules = [SCHEDULE_LABELS.index(name) for name in problem.stack.limits.schedules]
    fitting = [kind for kind in schedules if kind and Schedule(kind).runs_chunks(config.vpp)]
    other = (
        ("sp", "sp-expressible", 0),  # plain tensor parallelism is all it has
        ("schedule", "schedule-supported", fitting[0] if fitting else config.schedule),
        ("zero", "width-shards", 1),  # too many ranks, or an odd number, to shard weights over all of them
        ("zero", "sharded-weights", 3),
        ("etp", "experts-mesh", config.tp),
    )
    changed = {axis: value for axis, rule, value in other if rule in broken and axis not in named}
    unsaid = not {"recompute", "recompute_modules", "recompute_layers"} & set(named)
    if "recompute-lists" in broken and unsaid:  # something is always done again: as little as can be
        masks = sorted(modules_tried(problem), key=lambda mask: (mask.bit_count(), mask))
        kinds = ({"recompute": int(Recompute.SELECTIVE), "recompute_modules": mask} for mask in masks)
        rules = [rule for rule in all_rules_for(problem.stack.framework) if rule.id == "recompute-lists"]
        changed |= next(
            (kind for kind in kinds if not explain_config(replace(config, **kind), problem, rules)), {}
        )
    return replace(config, **changed)


def estimate_of(
    problem: Problem, config: ParallelConfig, chunks: tuple[int, ...], request: Question, assumed: tuple[Finding, ...],
    started: float,
) -> Plan:  # fmt: skip
    """`make_estimate` of a configuration whose layers are dealt as `chunks` says; empty: as the stack deals them."""
    check_chunks(config, chunks)
    plain = cost_model(problem)
    model = plain.with_split(chunks) if chunks else plain
    broken = explain_config(config, model.problem, all_rules_for(problem.stack.framework))
    shown = plain if broken else model  # the nearest legal one may have other stages than the layout
    answer = Answerer(
        shown.problem,
        shown,
        simulator_of(shown),
        assumed,
        kept_back(request, problem),
        request.restrict,
        load_assumptions(request.assume),
    )
    nearest = None
    if broken:
        nearest = nearest_legal(config, problem, rules_for(problem.stack))
    elif not chunks and not answer.fits(config):
        nearest = nearest_fitting(config, problem, rules_for(problem.stack), model, answer.room.sure)
    helps = () if broken else _helps(problem, config, chunks, answer.room.sure)
    found = answer.estimate(config, broken, nearest, helps, lambda: time.perf_counter() - started)
    if not chunks or not found.choices:
        return found
    own = (
        evaluate_exactly(plain, ConfigTable.of([config]))
        if not explain_config(config, problem, RULES)
        else None
    )
    split = SplitFacts(
        layers_per_chunk=chunks,
        own_step_time=None
        if own is None or own.device_memory[0] > answer.room.sure
        else float(own.step_time[0]),
        even_step_time=None,
        bound=0.0,
        gap=1.0,
        stated=True,
    )
    return found.model_copy(update={"choices": (found.choices[0].model_copy(update={"split": split}),)})


def _helps(
    problem: Problem, config: ParallelConfig, chunks: tuple[int, ...], limit: float
) -> tuple[Finding, ...]:
    """What options of the stack and other numerics would bring to the configuration."""
    dealt = {config: Dealt(chunks, (config.recompute_layers,))} if chunks else None
    asked = Answer(problem, ConfigTable.of([config]), limit, cost_model, dealt)
    numerics, name = numeric_gains(asked), problem.stack.name
    return (*findings_of((*option_gains(asked), *numerics), asked, name), *wide_scores(asked, name, numerics))


def named_config(
    values: Mapping[str, tuple[int, ...]], problem: Problem
) -> tuple[ParallelConfig, tuple[Finding, ...]]:
    """The one configuration that `--set` names; axes left out are neutral, dp follows. Raises `InputError`."""
    check_restriction(values)
    for axis, given in values.items():
        if len(given) != 1:
            several = ", ".join(value_text(axis, value) for value in given)
            raise InputError(f"an estimate needs one value of {axis}", several, "name one")
    named = {axis: given[0] for axis, given in values.items()}
    tp, cp, pp = (named.get(axis, 1) for axis in ("tp", "cp", "pp"))
    dp = named.get("dp", max(problem.cluster.num_devices // (tp * cp * pp), 1))
    config = ParallelConfig(**{axis: named[axis] for axis in named if axis in RESTRICTABLE})
    zeros = problem.stack.zero_with_pp if pp > 1 else problem.stack.limits.zero
    hosted = bool(config.offload & OFFLOAD_OPTIMIZER)
    framework = framework_of_stack(problem.stack.framework)
    usual = framework.usual_zero if framework is not None else 1
    zero = 0 if dp * cp == 1 and not hosted else (usual if usual in zeros else max(zeros))
    chosen = Schedule(named.get("schedule", default_schedule(config.vpp)))
    filled = {
        "vpp": config.vpp if chosen.runs_chunks(config.vpp) else 2,
        "schedule": int(chosen),
        "dp": dp,
        "sp": int(tp > 1 and 1 in problem.stack.limits.sequence_parallel),
        "etp": 1,
        "zero": zero,
    }
    config = replace(config, **{axis: value for axis, value in filled.items() if axis not in named})
    config = _as_it_has_them(config, named, problem)
    if problem.stack.engine.shards_unasked and config.dp * config.cp > 1:
        config = replace(config, zero=max(config.zero, 1))
    if named.get("recompute_layers") and named.get("recompute", Recompute.FULL) != Recompute.FULL:
        must = "recompute_layers belongs to recompute=full"
        raise InputError(must, f"recompute_layers={named['recompute_layers']}", "leave one of the two out")
    if config.recompute == Recompute.FULL and not config.recompute_layers:
        config = replace(config, recompute_layers=-(-problem.model.num_layers // config.pp))
    if config.recompute_layers and config.recompute == Recompute.NONE:
        config = replace(config, recompute=int(Recompute.FULL))
    usual = named.get("recompute_modules", config.recompute_modules or stack_modules(problem))
    modules = usual if config.recompute == Recompute.SELECTIVE else 0
    config = replace(
        config,
        num_microbatches=max(problem.job.global_batch // (config.dp * config.micro_batch), 1),
        recompute_modules=modules,
    ).in_usual_words()
    unsaid = ("hsdp", "recompute_modules", *(["cp_kind"] if config.cp == 1 else []))  # as others say
    exchange = int(problem.context_kinds[0])  # what a configuration's first kind stands for
    axes = [axis for axis in RESTRICTABLE if axis not in named and axis not in unsaid]
    held = [value_text(axis, exchange if axis == "cp_kind" else getattr(config, axis)) for axis in axes]
    return config, (finding("defaults_used", axes=axes, set=held),)

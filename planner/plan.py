"""How should this model be trained on this cluster? The main path, in about a screen; read this first.

    given     resolve(request)                 model, cluster, job, stack      -> Problem
    legal     enumerate_configs(problem)       every configuration, as columns -> Enumeration
    cost      CostModel(problem, rates)        step time and memory of each
    best      search(model, space, limit)      the fastest that fit            -> SearchResult
              refine(model, found)             in the order of simulated pipelines
              solve_splits(model, found)       layers of every stage           -> SplitsSolved
              pareto_front(model, space)       step time against memory        -> ParetoFront
    answer    Plan                             what the report shows and the plan file holds

Left out: what the whole run takes (`campaign/`), and launch files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from planner.answer import Answerer
from planner.catalog.load_campaign import load_assumptions
from planner.catalog.load_links import load_link_rates
from planner.catalog.load_overlay import load_overlay
from planner.catalog.load_stacks import DEFAULT_STACK, load_stack
from planner.catalog.loader import load_kernel_rates
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.errors import InputError, PlannerError
from planner.frameworks import explicit_splits
from planner.frameworks.layout import stated_layout
from planner.solve.balance import balance_experts, zipf_loads
from planner.solve.pareto import pareto_front
from planner.solve.refine import (
    EFFORT,
    FINALISTS,
    PASSING_EFFORT,
    PASSING_FINALISTS,
    refine,
    solve_splits,
    worth_listing,
)
from planner.solve.relax import (
    better_batch,
    better_batch_advice,
    doubled_batch,
    fitting_changes,
    legal_changes,
    nearest_fitting,
    with_batch,
)
from planner.solve.search import SearchResult, bounds_of, search
from planner.space.axes import RESTRICTABLE, check_restriction, divisors, recompute_choices, stack_modules
from planner.space.batch import global_batch_of, shards_of
from planner.space.enumerate import Enumeration, enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config, nearest_legal
from planner.space.restriction import value_text
from planner.space.rules import RULES
from planner.spec.cluster import Cluster
from planner.spec.config import ConfigTable, ParallelConfig, Recompute, Schedule, default_schedule
from planner.spec.device_kernels import missing_kernels, with_device_kernels
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.load_cluster import load_cluster
from planner.spec.load_loads import load_expert_loads, zipf_exponent
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.planfile import Ending, Objective, Plan, SplitFacts
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.spec.rule import Problem
from planner.spec.verdict import safe_limit
from planner.stopping import Stopwatch

Kind = TypeVar("Kind", Precision, Optimizer, AdapterTargets)

DEFAULT_SEQ_LEN = 8192
LONGEST_SEQUENCE = 2**30
MOST_DOUBLINGS = 5  # of the devices, where nothing fits
BALANCE_EFFORT = 0.1  # of placing experts, at each degree


@dataclass(frozen=True)
class Request:
    """A question, in the user's words. `global_batch`: "2048" sequences or "16Mtok" tokens."""

    model: str
    cluster: str
    gpus: int | None = None
    seq_len: int | None = None
    global_batch: str | None = None
    precision: str | None = None
    optimizer: str = "adamw"
    stack: str | None = None
    tokens: float | None = None
    objective: str = Objective.STEP_TIME
    time_limit: float | None = None  # of the search [s]
    restrict: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    layout: str = ""  # of an estimate: layers of every (virtual) stage, "Et*3|t*4|tttL" or "3,4,3"
    headroom: float = 0.05
    borderline: bool = False  # also take configurations whose memory is borderline where others fit
    top: int = 10
    front: bool = True  # also step time against memory; without it an answer comes sooner
    thorough: bool = (
        True  # else splits are solved with less effort and nothing is advised: for one of many answers
    )
    seek_batch: bool = True  # also advise on a batch that would make it faster
    with_mtp: bool = False
    assume: tuple[str, ...] = ()  # "key=value", as in catalog/campaign.yaml
    lora_rank: int | None = None  # adapters of this rank on a frozen model
    frozen_bits: int = 16
    lora_targets: str = AdapterTargets.ALL_LINEAR
    mean_len: float | None = None  # of sequences, seq_len being the longest
    packed: bool = False
    calibration: str | None = None  # a file of `planner calibrate`
    expert_loads: str | None = None  # a file, or "zipf:0.6"
    expert_replicas: int | None = None


def make_plan(request: Request) -> Plan:
    """The fastest configurations that are legal and fit, or why there are none. Raises `PlannerError`."""
    with Stopwatch(request.time_limit) as watch:
        return _searched(request, watch)


def _searched(request: Request, watch: Stopwatch) -> Plan:
    _check(request)
    problem, assumed = resolve(request)
    rules, model = rules_for(problem.stack), cost_model(problem)
    space = enumerate_configs(problem, rules, request.restrict)
    limit = problem.cluster.accelerator.memory * (1 - request.headroom)
    simulator, objective = simulator_of(model), Objective(request.objective)
    bounds = bounds_of(model, space, limit)
    error = problem.stack.overhead.error
    allowed = limit if request.borderline else safe_limit(limit, problem.cluster.accelerator.memory, error)
    most = max(FINALISTS if request.thorough else PASSING_FINALISTS, 2 * request.top)
    found, splits = search(model, space, allowed, most, bounds, watch.stopped), None
    if allowed < limit and not len(found.best) and not watch.stopped():
        allowed, found = limit, search(model, space, limit, most, bounds, watch.stopped)
    wanted = request.front or objective is Objective.HEADROOM
    front = pareto_front(model, space, limit, bounds, watch.stopped if wanted else lambda: True)
    if objective is Objective.HEADROOM:
        found = replace(found, best=front.table.take(slice(None, None, -1)))
        found = replace(found, best=found.best.take(slice(request.top)))
    else:
        found = refine(model, simulator, found)
        explicit = explicit_splits(problem.stack.framework)
        splits = solve_splits(
            model, simulator, found, allowed, explicit, watch.stopped,
            lambda config: recompute_choices(problem, request.restrict, config),
            EFFORT if request.thorough else PASSING_EFFORT,
        )  # fmt: skip
        alike = {"vpp", "recompute_layers"} & set(request.restrict)  # asked about, each is worth a line
        listed = splits.best.take(slice(request.top)) if alike else worth_listing(splits.best, request.top)
        found = replace(found, best=listed)
    helps = _advice(request, problem, model, space, found, limit, watch) if request.thorough else None
    answer = Answerer(
        problem,
        model,
        simulator,
        assumed,
        request.headroom,
        request.restrict,
        load_assumptions(request.assume),
    )
    return answer.plan(space, found, splits, helps, front, watch.ending, objective, watch.seconds, allowed)


def _advice(
    request: Request, problem: Problem, model: CostModel, space: Enumeration, found: SearchResult, limit: float,
    watch: Stopwatch,
) -> tuple[str, ...]:  # fmt: skip
    """Changes of the request that would make something legal, make it fit, or make it faster."""
    if not len(space):
        return tuple(legal_changes(problem, rules_for(problem.stack), request.restrict))
    if not len(found.best):
        if watch.ending is not Ending.COMPLETE:
            return ()
        larger = _larger(request, problem)
        return tuple(fitting_changes(problem, request.restrict, limit, cost_model, larger))
    if not request.seek_batch:
        return ()
    better = better_batch(problem) or doubled_batch(problem, found.best)
    if not better or watch.stopped():
        return ()
    other = cost_model(with_batch(problem, better))
    return better_batch_advice(model, found.best, other, limit, request.restrict)


def _larger(request: Request, problem: Problem) -> Iterator[Problem]:
    """The same problem on twice the devices, four times, and so on, as far as the cluster has them."""
    held = replace(request, global_batch=str(problem.job.global_batch), seq_len=problem.job.seq_len)
    for doublings in range(1, MOST_DOUBLINGS + 1):
        gpus = problem.cluster.num_devices << doublings
        try:
            yield resolve(replace(held, gpus=gpus))[0]
        except PlannerError:  # the cluster ends here
            return


def make_estimate(request: Request) -> Plan:
    """What one named configuration costs; if it is illegal, the rules it breaks and the nearest legal one."""
    started = time.perf_counter()
    _check(request, estimate=True)
    neutral = {"tp": (1,), "cp": (1,), "pp": (1,)}
    problem, assumed = resolve(request, {**neutral, **request.restrict})
    restrict = dict(request.restrict)
    chunks: tuple[int, ...] = ()
    if request.layout:
        chunks = _stated_chunks(request.layout, problem, restrict.get("pp", (None,))[0])
        restrict.setdefault("pp", (max(len(chunks) // max(restrict.get("vpp", (1,))[0], 1), 1),))
        restrict.setdefault("vpp", (len(chunks) // restrict["pp"][0],))
    config, defaults = named_config(restrict, problem)
    if config.pp > 1 and not chunks and explicit_splits(problem.stack.framework):
        defaults = (
            *defaults,
            "layers dealt to pipeline ranks as the stack does (planner plan solves the split; layout= states one)",
        )
    return estimate_of(problem, config, chunks, request, (*assumed, *defaults), started)


def _stated_chunks(layout: str, problem: Problem, pp: int | None) -> tuple[int, ...]:
    """Layers of every chunk that a layout states. Raises `InputError`."""
    framework = problem.stack.framework
    if not explicit_splits(framework):
        must = "layout= needs a framework that can be told how many layers each stage holds"
        raise InputError(must, framework, "leave layout= out: this one deals layers itself")
    return stated_layout(layout, problem.model.num_layers, pp, problem.model.mtp_layers)


def estimate_of(
    problem: Problem, config: ParallelConfig, chunks: tuple[int, ...], request: Request, assumed: tuple[str, ...],
    started: float,
) -> Plan:  # fmt: skip
    """`make_estimate` of a configuration whose layers are dealt as `chunks` says; empty: as the stack deals them."""
    if chunks and len(chunks) != config.pp * config.vpp:
        must = f"a layout must have pp x vpp = {config.pp * config.vpp} parts"
        raise InputError(
            must, f"{', '.join(map(str, chunks))}: {len(chunks)}", "change --set vpp= or the layout"
        )
    plain = cost_model(problem)
    model = plain.with_split(chunks) if chunks else plain
    broken = explain_config(config, model.problem, all_rules_for(problem.stack.framework))
    answer = Answerer(
        model.problem,
        model,
        simulator_of(model),
        assumed,
        request.headroom,
        request.restrict,
        load_assumptions(request.assume),
    )
    nearest = None
    if broken:
        nearest = nearest_legal(config, problem, rules_for(problem.stack))
    elif not chunks and not answer.fits(config):
        nearest = nearest_fitting(config, problem, rules_for(problem.stack), model, answer.limit)
    found = answer.estimate(config, broken, nearest, lambda: time.perf_counter() - started)
    if not chunks or not found.choices:
        return found
    own = (
        evaluate_exactly(plain, ConfigTable.of([config]))
        if not explain_config(config, problem, RULES)
        else None
    )
    split = SplitFacts(
        layers_per_chunk=chunks,
        own_step_time=None if own is None else float(own.step_time[0]),
        even_step_time=None,
        bound=0.0,
        gap=1.0,
        stated=True,
    )
    return found.model_copy(update={"choices": (found.choices[0].model_copy(update={"split": split}),)})


def cost_model(problem: Problem) -> CostModel:
    """The cost model of a problem with the measured rates of its accelerator and links."""
    device, tiers = problem.cluster.accelerator, problem.cluster.tiers
    kernels = load_kernel_rates(device.name)
    links = load_link_rates(device.name, device.architecture, tiers[0].kind, problem.cluster.fabric)
    return CostModel(problem, kernels, links.scaled(problem.cluster.links))


def resolve(
    request: Request, degrees: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Problem, tuple[str, ...]]:
    """Read everything a request names, fill in defaults, and say which. Raises `PlannerError`.

    `degrees`: those that a batch left open must suit; left out: the request's restriction.
    """
    model = load_model(request.model, with_mtp=request.with_mtp)
    cluster = load_cluster(request.cluster, request.gpus)
    assumed = [*cluster.assumed]
    longest = model.max_position or DEFAULT_SEQ_LEN
    seq_len = request.seq_len
    if seq_len is None:
        seq_len = min(longest, DEFAULT_SEQ_LEN)
        assumed.append(f"sequence length {seq_len} (the model's context or {DEFAULT_SEQ_LEN}, the smaller)")
    elif seq_len > longest and model.position_rows:
        must = f"the sequence must not be longer than the model's learned positions, {model.position_rows}"
        raise InputError(must, str(seq_len), f"use --seq-len {model.position_rows} or less")
    elif seq_len > longest:
        assumed.append(f"sequences of {seq_len} tokens although the config names a context of {longest}")
    shards = shards_of(request.restrict if degrees is None else degrees, cluster.num_devices)
    batch, said = global_batch_of(request.global_batch, seq_len, cluster.num_devices, shards)
    assumed += said
    overlay = load_overlay(request.calibration) if request.calibration is not None else None
    name = request.stack or (overlay.stack if overlay else "")
    if not name:
        assumed.append(f"stack {DEFAULT_STACK} (the newest Megatron)")
    stack = load_stack(name or DEFAULT_STACK)
    if overlay is not None:
        stack, cluster = overlay.of_stack(stack), overlay.of_cluster(cluster)
        assumed.append(f"calibrated with {stack.calibration}")
    precision = _precision(request.precision, cluster, assumed)
    cluster.accelerator.peak_flops(RECIPES[precision].gemm)
    optimizer = _choice("optimizer", request.optimizer, Optimizer)
    imbalance, replicas = _expert_imbalance(request, model, assumed)
    job = Job(
        seq_len, batch, precision, optimizer, request.tokens, request.lora_rank, request.frozen_bits, imbalance,
        replicas, _choice("lora-targets", request.lora_targets, AdapterTargets), request.mean_len, request.packed,
    )  # fmt: skip
    assumed += _fine_tuning(job)
    assumed += missing_kernels(stack, model, cluster.accelerator)
    return Problem(model, cluster, job, with_device_kernels(stack, model, cluster.accelerator)), tuple(
        assumed
    )


def _fine_tuning(job: Job) -> list[str]:
    """What is assumed about adapters and about sequences of several lengths."""
    said = []
    if job.lora_rank is not None:
        where = {AdapterTargets.ALL_LINEAR: "every dense linear layer", AdapterTargets.QKV: "q, k and v"}
        said.append(
            f"LoRA of rank {job.lora_rank} on {where.get(job.lora_targets, 'the projections of attention')}, weights "
            f"frozen in {job.frozen_bits} bits; the time of adapters and of dequantising is not counted"
        )
    if job.packed:
        said.append(
            f"texts of {job.attended_length:g} tokens packed into {job.seq_len:,}, each attending to itself"
        )
    elif job.mean_length is not None:
        said.append(
            f"sequences of {job.mean_length:g} tokens on average and at most {job.seq_len:,}, lengths exponential, "
            "padded to the longest of the micro-batch: memory holds the longest, tokens/s counts no padding"
        )
    return said


def named_config(
    values: Mapping[str, tuple[int, ...]], problem: Problem
) -> tuple[ParallelConfig, tuple[str, ...]]:
    """The one configuration that `--set` names; axes left out are neutral, dp follows. Raises `InputError`."""
    check_restriction(values)
    for axis, given in values.items():
        if len(given) != 1:
            raise InputError(f"an estimate needs one value of {axis}", ", ".join(map(str, given)), "name one")
    named = {axis: given[0] for axis, given in values.items()}
    tp, cp, pp = (named.get(axis, 1) for axis in ("tp", "cp", "pp"))
    dp = named.get("dp", max(problem.cluster.num_devices // (tp * cp * pp), 1))
    config = ParallelConfig(**{axis: named[axis] for axis in named if axis in RESTRICTABLE})
    zeros = problem.stack.limits.zero_with_pp if pp > 1 else problem.stack.limits.zero
    zero = 0 if dp * cp == 1 else (1 if 1 in zeros else max(zeros))
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
    if named.get("recompute_layers") and named.get("recompute", Recompute.FULL) != Recompute.FULL:
        must = "recompute_layers belongs to recompute=full"
        raise InputError(must, f"recompute_layers={named['recompute_layers']}", "leave one of the two out")
    if config.recompute == Recompute.FULL and not config.recompute_layers:
        config = replace(config, recompute_layers=-(-problem.model.num_layers // config.pp))
    if config.recompute_layers and config.recompute == Recompute.NONE:
        config = replace(config, recompute=int(Recompute.FULL))
    modules = stack_modules(problem) if config.recompute == Recompute.SELECTIVE else 0
    config = replace(
        config,
        num_microbatches=max(problem.job.global_batch // (config.dp * config.micro_batch), 1),
        recompute_modules=modules,
    )
    said = ", ".join(
        f"{axis}={value_text(axis, getattr(config, axis))}" for axis in RESTRICTABLE if axis not in named
    )
    return config, (f"axes not named: {said}",)


def _check(request: Request, estimate: bool = False) -> None:
    if request.objective not in [*Objective]:
        raise InputError("the objective must be known", request.objective, "one of: " + ", ".join(Objective))
    if request.time_limit is not None and not request.time_limit > 0:
        raise InputError("the time limit must be above 0 seconds", str(request.time_limit))
    if not 0 <= request.headroom < 1:
        raise InputError("headroom must be a share from 0 to below 1", str(request.headroom), "write 5%")
    if request.layout and not estimate:
        must = "layout= states the split of one configuration, which a search solves itself"
        raise InputError(must, request.layout, "use planner estimate, or leave it out")
    if request.top < 1:
        raise InputError("top must be 1 or more", str(request.top))
    load_assumptions(request.assume)
    if request.seq_len is not None and not 1 <= request.seq_len <= LONGEST_SEQUENCE:
        raise InputError(f"the sequence length must be from 1 to {LONGEST_SEQUENCE}", str(request.seq_len))


def _expert_imbalance(
    request: Request, model: ModelSpec, assumed: list[str]
) -> tuple[tuple[tuple[int, float], ...], int]:
    """Busiest over mean rank at every expert-parallel degree, experts placed as well as can be, and their replicas."""
    if request.expert_loads is None:
        if request.expert_replicas is not None:
            raise InputError("replicas of experts need their loads", hint="add --expert-loads zipf:0.6")
        return (), 0
    counts = {layer.moe.experts for layer in model.layer_kinds if layer.moe}
    if len(counts) != 1:
        raise InputError("expert loads need a model whose layers have equally many experts", model.name)
    experts = counts.pop()
    exponent = zipf_exponent(request.expert_loads)
    loads = (
        load_expert_loads(request.expert_loads, experts)
        if exponent is None
        else zipf_loads(experts, exponent)
    )
    replicas = request.expert_replicas or experts
    factors = []
    for ep in divisors(experts)[1:]:
        placed = balance_experts(loads, -(-replicas // ep) * ep, ep, effort=BALANCE_EFFORT)
        factors.append((ep, placed.imbalance))
    said = ", ".join(f"{factor:.2f} at ep {ep}" for ep, factor in factors)
    assumed.append(
        f"expert loads {request.expert_loads}, {replicas} replicas of {experts} experts placed as "
        f"evenly as can be: the busiest rank has this many times the mean: {said}"
    )
    return tuple(factors), 0 if replicas == experts else replicas


def _choice(what: str, text: str, kinds: type[Kind]) -> Kind:
    try:
        return kinds(text.lower())
    except ValueError:
        raise InputError(f"the {what} must be known", text, f"one of: {', '.join(kinds)}") from None


def _precision(text: str | None, cluster: Cluster, assumed: list[str]) -> Precision:
    """The recipe asked for; bf16 where none is, fp16 on devices without it."""
    if text is not None:
        precision = _choice("precision", text, Precision)
        if precision is Precision.FP32:
            assumed.append("fp32 matrix products run as TF32, which PyTorch does only where it is allowed to")
        return precision
    if dict(cluster.accelerator.peak).get(Dtype.BF16):
        return Precision.BF16
    assumed.append(f"fp16: {cluster.accelerator.name} has no bf16")
    return Precision.FP16

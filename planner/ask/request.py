"""Which problem does a question stand for? Model, cluster, job and stack, and every default taken.

Left out: which options there are (`question.py`), which axes a question holds fixed (`space/restriction.py`), and the
answers (`answer/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from planner.ask.question import Question, Request
from planner.ask.routing import imbalance_of
from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_campaign import load_assumptions, run_settings
from planner.catalog.load_operations import has_operations, posed
from planner.catalog.load_stacks import ADAPTERS_STACK, default_stack, require_release, stack_to_plan
from planner.catalog.several_stacks import BETWEEN, names_several, require_one, stacks_asked
from planner.catalog.stack_options import (
    SEPARATOR,
    TEXTS_IN_TURN,
    UNFUSED_ROTATION,
    idle_options,
    with_options,
)
from planner.cost.model import CostModel
from planner.dialect import option
from planner.errors import InputError
from planner.frameworks import framework_of_stack, written_stacks
from planner.space.batch import global_batch_of, shards_of
from planner.space.without import check_named
from planner.spec.config import ContextKind
from planner.spec.findings import Change, Finding, finding
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.load_model import load_model
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.device_kernels import (
    TRANSFORMER_ENGINE,
    missing_kernels,
    require_recipe,
)
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.machine.topology import said_of_host
from planner.spec.model import ModelSpec
from planner.spec.planfile import Objective
from planner.spec.precision import Dtype, Precision
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.kinds import ContextExchange
from planner.spec.verdict import MemoryRoom
from planner.units import format_capacity

if TYPE_CHECKING:
    pass

__all__ = [
    "Question",
    "Request",
    "check_request",
    "cost_model",
    "each_stack",
    "kept_back",
    "resolve",
    "room_of",
]
Kind = TypeVar("Kind", Precision, Optimizer, AdapterTargets)

DEFAULT_SEQ_LEN = 8192


def check_request(request: Question, search: bool = True) -> None:
    """Refuse what does not suit the kind of question, or is unknown. Raises `InputError`."""
    if isinstance(request, Request) and request.objective not in [*Objective]:
        raise InputError(f"unknown objective {request.objective!r}", hint="one of: " + ", ".join(Objective))
    if request.layout and search:
        must = "layout= states the split of one configuration, which a search solves itself"
        raise InputError(must, request.layout, "use planner estimate, or leave it out")
    if request.without and not search:
        must = f"{option('without')} leaves something out of a search; an estimate has what is named"
        hint = f"leave it out, and name options with {option('stack')}"
        raise InputError(must, ",".join(request.without), hint)
    for name in (request.stack or "").split(BETWEEN):
        check_named(name, request.without)
    load_assumptions(request.assume)


def each_stack(request: Request) -> tuple[Request, ...]:
    """The question under each of the stacks that it names. Raises `InputError`."""
    if request.stack is None or not names_several(request.stack):
        return (request,)
    chip = load_cluster(request.cluster, request.gpus).accelerator
    return tuple(replace(request, stack=name) for name in stacks_asked(request.stack, chip, written_stacks()))


def resolve(
    request: Question, degrees: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Problem, tuple[Finding, ...]]:
    """Read everything a request names, fill in defaults, and say which. Raises `PlannerError`.

    `degrees`: those that a batch left open must suit; left out: the request's restriction.
    """
    model = load_model(request.model, with_mtp=request.mtp)
    cluster = load_cluster(request.cluster, request.gpus)
    assumed = [*cluster.assumed]
    if request.mtp and not model.mtp_layers:
        raise InputError(f"{option('mtp')} needs a model with MTP modules", model.name, "leave it out")
    if request.tokens is None and (idle := _of_runs_alone(request)):
        assumed.append(finding("settings_unused", settings=idle))
    longest = model.max_position or DEFAULT_SEQ_LEN
    seq_len = request.seq_len
    if seq_len is None:
        seq_len = min(longest, DEFAULT_SEQ_LEN)
        assumed.append(finding("usual_length", seq_len=seq_len, usual=DEFAULT_SEQ_LEN))
    elif seq_len > longest and model.position_rows:
        must = f"the sequence must not be longer than the model's learned positions, {model.position_rows}"
        raise InputError(must, str(seq_len), f"use {option('seq_len', model.position_rows)} or less")
    elif seq_len > longest:
        assumed.append(finding("beyond_context", seq_len=seq_len, context=longest))
    shards = shards_of(request.restrict if degrees is None else degrees, cluster.num_devices)
    batch, said = global_batch_of(request.global_batch, seq_len, cluster.num_devices, shards)
    assumed += said
    overlay = None
    if request.calibration is not None:  # few questions have one
        from planner.catalog.load_overlay import calibrated, load_overlay

        overlay = load_overlay(request.calibration)
    name = request.stack if request.stack is not None else (overlay.stack if overlay else "") or None
    if name is None:
        name = default_stack(cluster.accelerator, _by_peft(request))
        of_adapters = name == ADAPTERS_STACK
        assumed.append(
            finding("adapters_stack", stack=name) if of_adapters else finding("default_stack", stack=name)
        )
    require_one(name)
    stack = stack_to_plan(name)
    if overlay is not None:
        stack, cluster = calibrated(stack, overlay), overlay.of_cluster(cluster)
        assumed.append(finding("calibrated", **{"with": overlay.said}))
    if isinstance(request, Request) and request.options:
        stack = with_options(stack, list(request.options))
    precision = _precision(request.precision, stack, cluster, assumed)
    runner = framework_of_stack(stack.framework)
    if runner is not None:
        runner.require_recipe(precision)
    assumed += idle_options(stack, precision, model)
    require_recipe(stack, cluster.accelerator, precision)
    require_release(stack, precision)
    job = job_of(request, seq_len, batch, precision, model, stack, assumed)
    job = replace(job, **batches_of_run(request, seq_len, cluster.num_devices))
    assumed += _fine_tuning(job, stack)
    assumed += (*missing_kernels(stack, model, cluster.accelerator, job.precision), *said_of_host(cluster))
    problem = posed(model, cluster, job, stack)
    if has_operations(stack.base):
        listed = problem.listed if problem.lists() else None
        assumed.append(finding("by_lists", software=listed.releases) if listed else finding("by_formulas"))
    _check_ring(request.restrict, problem)
    _check_tokens(job)
    return problem, tuple(assumed)


def _of_runs_alone(request: Question) -> list[str]:
    """What a question sets that says nothing without the length of the run."""
    options = [name for name in ("critical_batch", "batch_schedule") if getattr(request, name)]
    return [*map(option, options), *run_settings(request.assume)]


def job_of(
    request: Question, seq_len: int, batch: int, precision: Precision, model: ModelSpec, stack: Stack,
    assumed: list[Finding],
) -> Job:  # fmt: skip
    """The job that a question asks for, with the batch and the precision that were chosen, but for `batches_of_run`.

    Raises `InputError`.
    """
    if request.lora_targets is not None and request.lora_rank is None:
        must = f"{option('lora_targets')} needs adapters"
        raise InputError(must, request.lora_targets, f"add {option('lora_rank', 16)}, say")
    imbalance, replicas = imbalance_of(request, model, stack, assumed)
    kept = request.bf16_layers or (0, 0)
    _check_bf16_layers(kept, model.num_layers, stack.framework)
    return Job(
        seq_len, batch, precision, _choice("optimizer", request.optimizer, Optimizer), request.tokens,
        request.lora_rank, request.frozen_bits, imbalance, replicas,
        _choice(option("lora_targets"), request.lora_targets or AdapterTargets.ALL_LINEAR, AdapterTargets),
        request.mean_len, request.packed, kept, load_assumptions(request.assume).stages_checkpoints,
    )  # fmt: skip


def batches_of_run(request: Question, seq_len: int, devices: int) -> dict[str, Any]:
    """What a question says of the batches of its run, as a job has it; those in tokens are rounded as the global one
    is. Raises `InputError`."""
    stages = [
        (global_batch_of(batch, seq_len, devices, name="batch_schedule")[0], end)
        for batch, end in request.batch_schedule
    ]
    return {"critical_batch": request.critical_batch, "batch_schedule": tuple(stages)}


def _check_tokens(job: Job) -> None:
    """Refuse a run that is shorter than a step. Raises `InputError`."""
    if job.tokens is not None and job.tokens < job.tokens_per_step:
        must = f"the tokens of the run must be at least those of one step, {job.tokens_per_step:,.0f}"
        raise InputError(must, f"{job.tokens:g}", "write it like 15.6T, or take a smaller global batch")


def _check_ring(restrict: Mapping[str, tuple[int, ...]], problem: Problem) -> None:
    """Refuse a ring asked for where there is none: a configuration's p2p stands for what is taken unasked.

    Raises `InputError`.
    """
    own, asked = problem.context_kinds[0], restrict.get("cp_kind", ())
    if ContextKind.P2P not in asked or own is ContextKind.P2P or own in asked:
        return
    kinds = " or ".join(kind.label for kind in problem.context_kinds)
    must = f"cp_kind of {problem.model.name} under {problem.stack.name} must be {kinds}"
    given = ", ".join(ContextKind(kind).label for kind in asked)
    raise InputError(must, given, f"leave it out, or write {option('set', f'cp_kind={own.label}')}")


def _check_bf16_layers(counts: tuple[int, int], layers: int, framework: str) -> None:
    """Refuse first and last layers in bf16 that the model or the framework has not. Raises `InputError`."""
    first, last = counts
    if first + last > layers:
        must = f"first and last layers kept in bf16 must be no more than the model's {layers}"
        raise InputError(must, f"{first},{last}", "write 1,1")
    if framework != "megatron" and first + last:
        must = "first and last layers are kept in bf16 by Megatron-LM alone (--first-last-layers-bf16)"
        raise InputError(must, f"a stack of {framework}", "choose a stack of Megatron, or leave it out")


def room_of(request: Question, problem: Problem) -> MemoryRoom:
    """What a peak is judged by, of a question's problem."""
    return MemoryRoom.of(problem, kept_back(request, problem))


def kept_back(request: Question, problem: Problem) -> float:
    """The share of a device's memory that a question keeps back [1]. Raises `InputError` where that is all of it."""
    capacity, free = problem.cluster.accelerator.memory, request.min_free or 0.0
    if free >= capacity:
        must = f"{option('min_free')} must be less than a device has, {format_capacity(capacity)}"
        raise InputError(must, format_capacity(free), f"write {option('min_free', '4GiB')}, say")
    return max(request.headroom, free / capacity)


def cost_model(problem: Problem) -> CostModel:
    """The cost model of a problem with the measured rates of its accelerator and links."""
    return CostModel(problem, *rates_of(problem.cluster))


def _fine_tuning(job: Job, stack: Stack) -> list[Finding]:
    """What is assumed about adapters and about sequences of several lengths."""
    said = []
    if job.lora_rank is not None:
        targets = str(job.lora_targets)
        said.append(finding("adapters", rank=job.lora_rank, targets=targets, bits=job.frozen_bits))
    if job.packed:
        said.append(finding("packed_documents", mean=job.attended_length, seq_len=job.seq_len))
        megatron = stack.framework == "megatron"
        if megatron and not stack.kernels.rotates_texts:
            said.append(finding("rotated_by_one_kernel", _with_option(stack, UNFUSED_ROTATION)))
        if megatron and stack.communication.cp_exchange is ContextExchange.RING:
            said.append(finding("ordered_by_one_kernel", _with_option(stack, TEXTS_IN_TURN)))
    elif job.mean_length is not None:
        said.append(finding("padded_sequences", mean=job.mean_length, seq_len=job.seq_len))
    return said


def _with_option(stack: Stack, name: str) -> Change:
    return Change(option="stack", value=f"{stack.name}{SEPARATOR}{name}")


def _choice(what: str, text: str, kinds: type[Kind]) -> Kind:
    try:
        return kinds(text.lower())
    except ValueError:
        raise InputError(f"unknown {what} {text!r}", hint=f"one of: {', '.join(kinds)}") from None


def named_precision(text: str) -> Precision:
    """The recipe of a name. Raises `InputError`."""
    return _choice("precision", text, Precision)


def _by_peft(request: Question) -> bool:
    """Is a job of adapters, in a precision and degrees that transformers with PEFT runs?"""
    wide = request.precision in (None, Precision.BF16, Precision.FP16, Precision.FP32)
    alone = all(1 in request.restrict.get(axis, (1,)) for axis in ("pp", "vpp", "cp", "ep", "etp"))
    return request.lora_rank is not None and wide and alone


def _precision(text: str | None, stack: Stack, cluster: Cluster, assumed: list[Finding]) -> Precision:
    """The recipe asked for; bf16 where none is, fp16 on devices without it."""
    if text is not None:
        precision = named_precision(text)
        if precision is Precision.FP32:
            has_tf32 = Dtype.TF32 in dict(cluster.accelerator.peak)
            # common/gemm/cublaslt_gemm.cu: CUBLAS_COMPUTE_32F_FAST_TF32
            by = "transformer_engine" if stack.framework in TRANSFORMER_ENGINE else "pytorch"
            chip = cluster.accelerator.name
            assumed.append(finding("fp32_products", by=by if has_tf32 else "fp32", accelerator=chip))
        return precision
    if dict(cluster.accelerator.peak).get(Dtype.BF16):
        return Precision.BF16
    assumed.append(finding("no_bf16", accelerator=cluster.accelerator.name))
    return Precision.FP16

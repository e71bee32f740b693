"""Which training step does a question mean, and what does its dry run say? `make_dryrun`.

Left out: how a step runs (`transformers_step.py`), which alone needs PyTorch and is loaded for a run only.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from planner.answer.estimate import asked_config, make_estimate
from planner.ask.option import as_written
from planner.ask.question import DryrunQuestion, Question
from planner.ask.request import DEFAULT_SEQ_LEN, resolve
from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_host import load_host_rates
from planner.catalog.stack_options import (
    AUTOCAST,
    COMPILE,
    EAGER_ATTENTION,
    EAGER_EXPERTS,
    FOREACH,
    LIGER,
    NO_SYNC,
    SDPA_MASK,
    SEPARATOR,
)
from planner.dialect import option
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.deepspeed_question import DEEPSPEED, deepspeed_recipe
from planner.dryrun.megatron.recipe import RELEASE, MegatronRecipe, megatron_recipe
from planner.dryrun.methods import alone_known, trained_as
from planner.dryrun.most import largest_that_fits
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.recipe import Adapters, Checkpointing, Recipe, Sharding, Texts, Update, Weights
from planner.dryrun.recording import Recording
from planner.dryrun.timing.kernels import Device
from planner.dryrun.timing.step import RankTime, time_of
from planner.dryrun.torchtitan_recipe import TitanRecipe, titan_recipe_of
from planner.errors import InputError, UnsupportedError, install_hint
from planner.frameworks.framework import launch_of
from planner.frameworks.layout import chunk_layers
from planner.spec.config import ParallelConfig, Recompute
from planner.spec.findings import Finding, finding
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.load_model import hf_fields, load_model
from planner.spec.machine.accelerator import HostProcessor
from planner.spec.machine.host import HostRates
from planner.spec.planfile import Plan
from planner.spec.precision import Precision
from planner.spec.rule import Problem

# options of stacks that change what is run
_RUN: Final = {AUTOCAST, COMPILE, EAGER_ATTENTION, EAGER_EXPERTS, FOREACH, LIGER, NO_SYNC, SDPA_MASK}
STACK: Final = "transformers-2026"
STAND_IN: Final = "llama-3.2-1b"
TRANSFORMERS: Final = "transformers"  # as stacks name them
MEGATRON: Final = "megatron"
TORCHTITAN: Final = "torchtitan"
LENGTHS: Final = 256  # tokens by which sequences are tried
MOST_TOKENS: Final = 2**22
MOST_SEQUENCES: Final = 2**14
_SHARDING: Final = {0: Sharding.NONE, 2: Sharding.GRADIENTS, 3: Sharding.WEIGHTS}  # by ZeRO stage
_TARGETS: Final[Mapping[AdapterTargets, tuple[str, ...] | str]] = {
    AdapterTargets.ALL_LINEAR: "all-linear",
    AdapterTargets.ATTENTION: ("q_proj", "k_proj", "v_proj", "o_proj"),
    AdapterTargets.QKV: ("q_proj", "k_proj", "v_proj"),
}
_UPDATES: Final[Mapping[Optimizer, Update]] = {
    Optimizer.ADAMW_8BIT: Update.ADAMW_8BIT,
    Optimizer.ADEMAMIX: Update.ADEMAMIX,
    Optimizer.SGD: Update.SGD,
    Optimizer.SGD_MOMENTUM: Update.SGD_MOMENTUM,
    Optimizer.ADAFACTOR: Update.ADAFACTOR,
    Optimizer.MUON: Update.MUON,
}

AnyRecipe = Recipe | MegatronRecipe | TitanRecipe


@dataclass(frozen=True)
class DryRun:
    """What one configuration does to its devices, by running its software's own step.

    `estimated_peak`: what `planner estimate` says of the same, none for a model that it has no reader for and for
    options that it does not know, `unestimated` [bytes].
    """

    model: str
    accelerator: str
    devices: int
    configuration: str
    stack: str
    software: Mapping[str, str]
    """Packages that were run, and their versions."""
    ranks: tuple[RankMemory, ...]
    estimated_peak: float | None
    unestimated: tuple[str, ...]
    largest_micro_batch: int | None
    """That runs at this sequence length, 0 where none does; None where it was not sought."""
    longest_sequence: int | None
    """That runs at this micro-batch, in steps of `LENGTHS` tokens."""
    assumptions: tuple[Finding, ...]
    times: tuple[RankTime, ...] = ()
    """Of the same ranks; empty where part of the step runs beside the device's one queue."""

    @property
    def fits(self) -> bool:
        """Does every rank's step run?"""
        return self.worst.out_of_memory is None

    @property
    def worst(self) -> RankMemory:
        """The rank that needs most."""
        return max(self.ranks, key=lambda one: one.reserved_peak)

    @property
    def slowest(self) -> RankTime | None:
        """The times of the rank whose step takes longest; None where none are told."""
        return max(self.times, key=lambda one: one.step, default=None)


def make_dryrun(
    asked: Question, settings: AllocatorSettings, largest: bool = False, longest: bool = False
) -> DryRun:
    """The dry run of one named configuration; with the `largest` micro-batch and the `longest` sequence that run.

    Raises `InputError` for an illegal configuration or a missing package, `UnsupportedError` for what cannot be run.
    """
    name, fields = hf_fields(asked.model)
    unsaid: tuple[Finding, ...] = ()
    if asked.stack is None:
        asked, unsaid = replace(asked, stack=STACK), (finding("default_stack", stack=STACK),)
    asked, estimate, positions = _known(asked, fields)
    problem, assumed = resolve(asked, {"tp": (1,), "cp": (1,), "pp": (1,), **asked.restrict})
    config, _, defaults = asked_config(asked, problem)
    framework = problem.stack.framework
    if framework != TRANSFORMERS and (alone := alone_known(asked)):
        must = f"{', '.join(map(option, alone))} need{'s' * (len(alone) == 1)} a step of transformers"
        raise UnsupportedError(must, problem.stack.name, option("stack", STACK))
    recipe: AnyRecipe
    if framework == MEGATRON:
        recipe = _megatron(problem, estimate, name)
        assumed = (*assumed, finding("megatron_core_layers", release=RELEASE))
    elif framework == TORCHTITAN:
        recipe = _titan(problem, config, estimate)
    else:
        recipe = trained_as(asked, recipe_of(problem, config, name, fields))
    software = _SOFTWARE[framework]
    run = _Runs(
        software.recorder(),
        capability_of(problem),
        settings,
        allocator_limit(problem, asked, estimate if framework == MEGATRON else None),
        positions,
    )
    recorded = run.recorded(recipe)
    return DryRun(
        model=name,
        accelerator=problem.cluster.accelerator.name,
        devices=problem.cluster.num_devices,
        configuration=config.describe(problem.context_kinds[0]),
        stack=problem.stack.name,
        software=software.versions(),
        ranks=tuple(memory_of(one, settings, run.limit, rank) for rank, one in recorded),
        times=_times(problem, recipe, recorded),
        estimated_peak=None if estimate is None else estimate.choices[0].memory.peak,
        unestimated=alone_known(asked),
        largest_micro_batch=run.largest_micro_batch(recipe) if largest else None,
        longest_sequence=run.longest_sequence(recipe) if longest else None,
        assumptions=(*unsaid, *assumed, *defaults),
    )


def _known(asked: Question, fields: Mapping[str, Any]) -> tuple[Question, Plan | None, int]:
    """The question as planner can read it, its estimate, and rows of learned positions.

    Of a model that planner has no reader for, everything but the model: it takes the place of one that it has, which
    one device runs as it runs any. What a dry run alone knows has no estimate. Raises `InputError` for an illegal
    configuration.
    """
    try:
        model = load_model(asked.model)
    except (InputError, UnsupportedError):  # of its fields: the file has been read
        longest = fields.get("max_position_embeddings")
        usual = min(longest, DEFAULT_SEQ_LEN) if isinstance(longest, int) else DEFAULT_SEQ_LEN
        return replace(asked, model=STAND_IN, seq_len=asked.seq_len or usual), None, 0
    estimate = make_estimate(asked)
    if estimate.violations:
        broken = estimate.violations[0]
        raise InputError(f"a dry run needs a legal configuration: {broken.reason}", hint=broken.hint)
    return asked, None if alone_known(asked) else estimate, model.position_rows


def _megatron(problem: Problem, estimate: Plan | None, name: str) -> MegatronRecipe:
    """What is run of the configuration that was estimated. Raises `UnsupportedError`."""
    if estimate is None:
        must = "a dry run of Megatron needs a model that planner has a reader for"
        raise UnsupportedError(must, name, f"{option('stack', STACK)} runs it on one device")
    return megatron_recipe(launch_of(estimate, 0, problem.model, problem.stack), problem.stack)


def _titan(problem: Problem, config: ParallelConfig, estimate: Plan | None) -> TitanRecipe:
    """Of torchtitan's stacks, which know their models. Raises `UnsupportedError`."""
    layers = problem.model.num_layers
    choice = None if estimate is None else estimate.choices[0]
    per_rank, layout = ((), "") if choice is None else (choice.layers_per_stage, choice.layout)
    return titan_recipe_of(problem, config, chunk_layers(layers, config.pp, config.vpp, per_rank, layout))


@dataclass(frozen=True)
class _Runs:
    """Dry runs on one device: `limit` is what its allocator can have [bytes]; `positions`: learned ones of the model, 0
    where there are none."""

    record: Callable[[Any, tuple[int, int]], Any]
    capability: tuple[int, int]
    settings: AllocatorSettings
    limit: int
    positions: int

    def recorded(self, recipe: AnyRecipe) -> tuple[tuple[int, Recording], ...]:
        """Ranks that differ, by number."""
        with redirect_stdout(sys.stderr):  # of frameworks' own words
            if isinstance(recipe, MegatronRecipe):
                return tuple(self.record(recipe, self.capability))
            return tuple((rank, self.record(one, self.capability)) for rank, one in recipe.roles())

    def largest_micro_batch(self, recipe: AnyRecipe) -> int:
        def peak(number: int) -> tuple[bool, float]:
            return self._peak(recipe.sized(number, recipe.seq_len))

        return largest_that_fits(peak, recipe.micro_batch, self.limit, MOST_SEQUENCES)

    def longest_sequence(self, recipe: AnyRecipe) -> int:
        def peak(number: int) -> tuple[bool, float]:
            return self._peak(recipe.sized(recipe.micro_batch, number * LENGTHS))

        most = (self.positions or MOST_TOKENS) // LENGTHS
        return LENGTHS * largest_that_fits(peak, recipe.seq_len // LENGTHS, self.limit, most)

    def _peak(self, recipe: AnyRecipe) -> tuple[bool, float]:
        """Of all ranks that differ."""
        each = [memory_of(one, self.settings, self.limit, rank) for rank, one in self.recorded(recipe)]
        return all(one.out_of_memory is None for one in each), max(one.reserved_peak for one in each)


def _times(
    problem: Problem, recipe: AnyRecipe, recorded: Sequence[tuple[int, Recording]]
) -> tuple[RankTime, ...]:
    """Of programs that copy to the host, update there or gather on other streams none yet."""
    operations = (one for _, recording in recorded for one in recording.operations)
    if problem.stack.framework != TRANSFORMERS or any(one.stream for one in operations):
        return ()
    device = Device(problem.cluster.accelerator, rates_of(problem.cluster)[0])
    host = _host(problem)
    return tuple(time_of(recording, device, host, recipe.num_microbatches) for _, recording in recorded)


def _host(problem: Problem) -> HostRates:
    """What issues operations: the stack's factor is of the processors that are not x86."""
    grace = problem.cluster.accelerator.host is HostProcessor.GRACE
    return load_host_rates().slower(problem.stack.host.grace if grace else 1.0)


def allocator_limit(problem: Problem, asked: Question, estimate: Plan | None = None) -> int:
    """What the allocator of a device can have: its memory less the driver's, or all that an estimate has outside it,
    and less what the question keeps back [bytes]."""
    memory, outside = problem.cluster.accelerator.memory, problem.stack.overhead.context
    if estimate is not None:
        outside = estimate.choices[0].memory.terms.get("outside_allocator", outside)
    # of a question for a dry run alone the default is none, of others it is for what an estimate cannot know
    said = isinstance(asked, DryrunQuestion) or "headroom" in as_written(asked)
    kept = max(memory * asked.headroom if said else 0.0, asked.min_free or 0.0)
    return int(memory - outside - kept)


def recipe_of(problem: Problem, config: ParallelConfig, name: str, fields: Mapping[str, Any]) -> Recipe:
    """What is run of a configuration of a model with that `config.json`, on each of its ranks.

    Raises `UnsupportedError` for what is not run.
    """
    job = problem.job
    options = set(problem.stack.name.split(SEPARATOR)[1:])
    if problem.stack.framework == DEEPSPEED:
        return deepspeed_recipe(problem, config, name, fields, options)
    _check(problem, config, options)
    return Recipe(
        config=fields,
        name=name,
        micro_batch=config.micro_batch,
        seq_len=job.seq_len,
        num_microbatches=config.num_microbatches,
        weights=_weights(job, options),
        attention=_attention(job, options),
        experts="eager" if EAGER_EXPERTS in options else None,
        checkpointing=(
            Checkpointing.NON_REENTRANT if config.recompute == Recompute.FULL else Checkpointing.NONE
        ),
        update=_update(job, options),
        sharding=_SHARDING[config.zero],
        shards=(config.hsdp or config.dp) if config.zero else 1,
        replicas=config.dp // (config.hsdp or config.dp) if config.zero else config.dp,
        tensor=config.tp,
        accumulates_whole=NO_SYNC in options,
        adapters=None if job.lora_rank is None else _adapters(job.lora_rank, job),
        liger=LIGER in options,
        texts=None if job.mean_length is None else Texts(int(job.mean_length), job.packed),
        compiled=COMPILE in options,
    )


def _adapters(rank: int, job: Job) -> Adapters:
    return Adapters(rank, _TARGETS[job.lora_targets], frozen_bits=job.frozen_bits)


def _attention(job: Job, options: set[str]) -> str:
    """Texts end to end need FlashAttention (trl 1.16 sft_config.py `padding_free`), or else a mask of the square."""
    if EAGER_ATTENTION in options:
        return "eager"
    return "flash_attention_2" if job.packed and SDPA_MASK not in options else "sdpa"


def _weights(job: Job, options: set[str]) -> Weights:
    half = job.precision is Precision.FP16
    if AUTOCAST in options:
        return Weights.AMP_FP16 if half else Weights.AMP_BF16
    return Weights.FP16 if half else Weights.BF16


def _update(job: Job, options: set[str]) -> Update:
    if job.optimizer in _UPDATES:
        return _UPDATES[job.optimizer]
    return Update.ADAMW_FOREACH if FOREACH in options else Update.ADAMW_FUSED


def _check(problem: Problem, config: ParallelConfig, options: set[str]) -> None:
    """Refuse by name what is not run yet. Raises `UnsupportedError`."""
    job, stack = problem.job, problem.stack
    refused = [
        (f"the stack {stack.name}", stack.framework != TRANSFORMERS),
        (f"the options {', '.join(sorted(options - _RUN))}", bool(options - _RUN)),
        (
            f"{job.optimizer} beside weights of another format",
            job.optimizer is Optimizer.ADAMW_BF16 and _weights(job, options) is not Weights.BF16,
        ),
        (f"+{FOREACH} with {job.optimizer}", FOREACH in options and job.optimizer in _UPDATES),
        (f"the precision {job.precision}", job.precision not in (Precision.BF16, Precision.FP16)),
        (f"frozen weights of {job.frozen_bits} bits", job.frozen_bits not in (16, 8, 4)),
        (
            f"frozen weights of {job.frozen_bits} bits on several devices",
            job.frozen_bits in (8, 4) and problem.cluster.num_devices > 1,
        ),
        ("+compile on several devices", COMPILE in options and problem.cluster.num_devices > 1),
        ("offload", bool(config.offload)),
    ]
    named = [what for what, there in refused if there]
    if named:
        must = "a dry run runs transformers, also under DDP and FSDP2, in bf16 or fp16, also under autocast"
        hint = f"{option('stack', STACK)}{' without it' if stack.framework == TRANSFORMERS else ''}"
        raise UnsupportedError(must, "; ".join(named), hint)


def capability_of(problem: Problem) -> tuple[int, int]:
    """The compute capability of a problem's devices."""
    major, _, minor = (problem.cluster.accelerator.compute_capability or "0.0").partition(".")
    return int(major), int(minor)


@dataclass(frozen=True)
class _Software:
    """What runs a step: the module and its function, its packages, and the extra that brings them."""

    module: str
    function: str
    packages: tuple[str, ...]
    extra: str = "dryrun"

    def recorder(self) -> Callable[[Any, tuple[int, int]], Any]:
        """The function. Raises `InputError` where a package is missing."""
        try:
            with warnings.catch_warnings(action="ignore"), redirect_stdout(sys.stderr):  # of what they use
                module = import_module(f"planner.dryrun.{self.module}")
        except ImportError as error:
            must = f"a dry run needs PyTorch and {self.packages[1]}"
            raise InputError(must, str(error), install_hint(self.extra)) from error
        found: Callable[[Any, tuple[int, int]], Any] = getattr(module, self.function)
        return found

    def versions(self) -> dict[str, str]:
        """Of its packages that are there."""
        from importlib.metadata import PackageNotFoundError, version

        found = {}
        for name in self.packages:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        return found


_SOFTWARE: Final[Mapping[str, _Software]] = {
    TRANSFORMERS: _Software("transformers_step", "record_step", ("torch", "transformers", "peft")),
    DEEPSPEED: _Software("deepspeed_step", "record_deepspeed_step", ("torch", "transformers", "deepspeed")),
    MEGATRON: _Software("megatron.step", "record_ranks", ("torch", "megatron-core")),
    TORCHTITAN: _Software("torchtitan_step", "record_step", ("torch", "torchtitan"), "frameworks"),
}

"""Which training step does a question mean, and what does its dry run say? `make_dryrun`.

Left out: how a step runs (`transformers_step.py`), which alone needs PyTorch and is loaded for a run only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from planner.answer.estimate import asked_config, make_estimate
from planner.ask.option import as_written
from planner.ask.request import DEFAULT_SEQ_LEN, Question, resolve
from planner.catalog.stack_options import (
    AUTOCAST,
    COMPILE,
    EAGER_ATTENTION,
    EAGER_EXPERTS,
    FOREACH,
    SEPARATOR,
)
from planner.dialect import option
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.most import largest_that_fits
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.recipe import Adapters, Checkpointing, Recipe, Update, Weights
from planner.dryrun.recording import Recording
from planner.errors import InputError, UnsupportedError, install_hint
from planner.spec.config import ParallelConfig, Recompute
from planner.spec.findings import Finding, finding
from planner.spec.job import AdapterTargets, Job, Optimizer
from planner.spec.load_model import hf_fields, load_model
from planner.spec.precision import Precision
from planner.spec.rule import Problem

_RUN: Final = {
    AUTOCAST,
    COMPILE,
    EAGER_ATTENTION,
    EAGER_EXPERTS,
    FOREACH,
}  # options of stacks that change what is run
STACK: Final = "transformers-2026"
STAND_IN: Final = "llama-3.2-1b"
LENGTHS: Final = 256  # tokens by which sequences are tried
MOST_TOKENS: Final = 2**22
MOST_SEQUENCES: Final = 2**14
_TARGETS: Final[Mapping[AdapterTargets, tuple[str, ...] | str]] = {
    AdapterTargets.ALL_LINEAR: "all-linear",
    AdapterTargets.ATTENTION: ("q_proj", "k_proj", "v_proj", "o_proj"),
    AdapterTargets.QKV: ("q_proj", "k_proj", "v_proj"),
}


@dataclass(frozen=True)
class DryRun:
    """What one configuration does to its devices, by running its software's own step.

    `estimated_peak`: what `planner estimate` says of the same, none for a model that it has no reader for [bytes].
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
    largest_micro_batch: int | None
    """That runs at this sequence length, 0 where none does; None where it was not sought."""
    longest_sequence: int | None
    """That runs at this micro-batch, in steps of `LENGTHS` tokens."""
    assumptions: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Does every rank's step run?"""
        return self.worst.out_of_memory is None

    @property
    def worst(self) -> RankMemory:
        """The rank that needs most."""
        return max(self.ranks, key=lambda one: one.reserved_peak)


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
    asked, peak, positions = _known(asked, fields)
    problem, assumed = resolve(asked, {"tp": (1,), "cp": (1,), "pp": (1,), **asked.restrict})
    config, _, defaults = asked_config(asked, problem)
    recipe = recipe_of(problem, config, name, fields)
    run = _Runs(_step(), _capability(problem), settings, allocator_limit(problem, asked), positions)
    return DryRun(
        model=name,
        accelerator=problem.cluster.accelerator.name,
        devices=problem.cluster.num_devices,
        configuration=config.describe(problem.context_kinds[0]),
        stack=problem.stack.name,
        software=_software(),
        ranks=(run.memory(recipe),),
        estimated_peak=peak,
        largest_micro_batch=run.largest_micro_batch(recipe) if largest else None,
        longest_sequence=run.longest_sequence(recipe) if longest else None,
        assumptions=(*unsaid, *assumed, *defaults),
    )


def _known(asked: Question, fields: Mapping[str, Any]) -> tuple[Question, float | None, int]:
    """The question as planner can read it, the peak that it estimates [bytes], and rows of learned positions.

    Of a model that planner has no reader for, everything but the model: it takes the place of one that it has, which
    one device runs as it runs any. Raises `InputError` for an illegal configuration.
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
    return asked, estimate.choices[0].memory.peak, model.position_rows


@dataclass(frozen=True)
class _Runs:
    """Dry runs on one device: `limit` is what its allocator can have [bytes]; `positions`: learned ones of the model, 0
    where there are none."""

    record: Callable[[Recipe, tuple[int, int]], Recording]
    capability: tuple[int, int]
    settings: AllocatorSettings
    limit: int
    positions: int

    def memory(self, recipe: Recipe) -> RankMemory:
        return memory_of(self.record(recipe, self.capability), self.settings, self.limit)

    def largest_micro_batch(self, recipe: Recipe) -> int:
        def peak(number: int) -> tuple[bool, float]:
            return self._peak(replace(recipe, micro_batch=number))

        return largest_that_fits(peak, recipe.micro_batch, self.limit, MOST_SEQUENCES)

    def longest_sequence(self, recipe: Recipe) -> int:
        def peak(number: int) -> tuple[bool, float]:
            return self._peak(replace(recipe, seq_len=number * LENGTHS))

        most = (self.positions or MOST_TOKENS) // LENGTHS
        return LENGTHS * largest_that_fits(peak, recipe.seq_len // LENGTHS, self.limit, most)

    def _peak(self, recipe: Recipe) -> tuple[bool, float]:
        memory = self.memory(recipe)
        return memory.out_of_memory is None, memory.reserved_peak


def allocator_limit(problem: Problem, asked: Question) -> int:
    """What the allocator of a device can have: its memory less the driver's, and what the question keeps back
    [bytes]."""
    memory = problem.cluster.accelerator.memory
    kept = max(memory * asked.headroom if "headroom" in as_written(asked) else 0.0, asked.min_free or 0.0)
    return int(memory - problem.stack.overhead.context - kept)


def recipe_of(problem: Problem, config: ParallelConfig, name: str, fields: Mapping[str, Any]) -> Recipe:
    """What is run of a configuration of a model with that `config.json`, on each of its ranks.

    Raises `UnsupportedError` for what is not run.
    """
    job = problem.job
    options = set(problem.stack.name.split(SEPARATOR)[1:])
    _check(problem, config, options)
    return Recipe(
        config=fields,
        name=name,
        micro_batch=config.micro_batch,
        seq_len=job.seq_len,
        num_microbatches=config.num_microbatches,
        weights=_weights(job, options),
        attention="eager" if EAGER_ATTENTION in options else "sdpa",
        experts="eager" if EAGER_EXPERTS in options else None,
        checkpointing=(
            Checkpointing.NON_REENTRANT if config.recompute == Recompute.FULL else Checkpointing.NONE
        ),
        update=Update.ADAMW_FOREACH if FOREACH in options else Update.ADAMW_FUSED,
        adapters=None if job.lora_rank is None else Adapters(job.lora_rank, _TARGETS[job.lora_targets]),
        compiled=COMPILE in options,
    )


def _weights(job: Job, options: set[str]) -> Weights:
    half = job.precision is Precision.FP16
    if AUTOCAST in options:
        return Weights.AMP_FP16 if half else Weights.AMP_BF16
    return Weights.FP16 if half else Weights.BF16


def _check(problem: Problem, config: ParallelConfig, options: set[str]) -> None:
    """Refuse by name what is not run yet. Raises `UnsupportedError`."""
    job, stack = problem.job, problem.stack
    refused = [
        (f"the stack {stack.name}", stack.framework != "transformers"),
        (f"{problem.cluster.num_devices} devices", problem.cluster.num_devices > 1),
        (f"the options {', '.join(sorted(options - _RUN))}", bool(options - _RUN)),
        (f"the optimizer {job.optimizer}", job.optimizer is not Optimizer.ADAMW),
        (f"the precision {job.precision}", job.precision not in (Precision.BF16, Precision.FP16)),
        (f"weights of {job.frozen_bits} bits", job.lora_rank is not None and job.frozen_bits != 16),
        ("offload", bool(config.offload)),
        ("padded or packed batches", job.mean_length is not None or job.packed),
    ]
    named = [what for what, there in refused if there]
    if named:
        must = (
            "a dry run runs transformers on one device: AdamW in bf16 or fp16, also under autocast, and LoRA"
        )
        raise UnsupportedError(must, "; ".join(named), f"{option('stack', STACK)} on one device")


def _capability(problem: Problem) -> tuple[int, int]:
    major, _, minor = (problem.cluster.accelerator.compute_capability or "0.0").partition(".")
    return int(major), int(minor)


def _step() -> Any:
    try:
        from planner.dryrun.transformers_step import record_step
    except ImportError as error:
        must = "a dry run needs PyTorch and transformers"
        raise InputError(must, str(error), install_hint("dryrun")) from error
    return record_step


def _software() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "transformers", "peft"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

"""Which step of transformers does a question mean?

Left out: how it runs (`step.py`); what a dry run alone knows of training (`methods.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.catalog.stack_options import (
    AUTOCAST,
    COMPILE,
    EAGER_ATTENTION,
    EAGER_EXPERTS,
    FOREACH,
    LIGER,
    NO_SYNC,
    SDPA_MASK,
)
from planner.dialect import option
from planner.dryrun.asked import Asked
from planner.dryrun.refused import Refused, leave_out, other_precision, refuse, stack_without
from planner.dryrun.transformers.methods import trained_as
from planner.dryrun.transformers.recipe import (
    Adapters,
    Checkpointing,
    Recipe,
    Sharding,
    Texts,
    Update,
    Weights,
)
from planner.spec.config import Recompute
from planner.spec.job import Job, Optimizer
from planner.spec.precision import Precision

STACK: Final = "transformers-2026"
# options of the stack that are run
_RUN: Final = {AUTOCAST, COMPILE, EAGER_ATTENTION, EAGER_EXPERTS, FOREACH, LIGER, NO_SYNC, SDPA_MASK}
_SHARDING: Final = {0: Sharding.NONE, 2: Sharding.GRADIENTS, 3: Sharding.WEIGHTS}  # by ZeRO stage
_UPDATES: Final[Mapping[Optimizer, Update]] = {
    Optimizer.ADAMW_8BIT: Update.ADAMW_8BIT,
    Optimizer.ADEMAMIX: Update.ADEMAMIX,
    Optimizer.SGD: Update.SGD,
    Optimizer.SGD_MOMENTUM: Update.SGD_MOMENTUM,
    Optimizer.ADAFACTOR: Update.ADAFACTOR,
    Optimizer.MUON: Update.MUON,
}


def transformers_recipe(asked: Asked) -> Recipe:
    """What is run of a configuration on each of its ranks, with what a dry run alone knows of training.

    Raises `UnsupportedError` for what is not run, `InputError` for an option that lacks its other half.
    """
    return trained_as(asked.question, recipe_of(asked))


def recipe_of(asked: Asked) -> Recipe:
    """The same of what every question says. Raises `UnsupportedError`."""
    _check(asked)
    job, config, options = asked.problem.job, asked.config, asked.options
    shards = config.hsdp or config.dp
    return Recipe(
        config=asked.fields,
        name=asked.name,
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
        shards=shards if config.zero else 1,
        replicas=config.dp // shards if config.zero else config.dp,
        tensor=config.tp,
        accumulates_whole=NO_SYNC in options,
        adapters=None if job.lora_rank is None else _adapters(job.lora_rank, job),
        liger=LIGER in options,
        texts=None if job.mean_length is None else Texts(int(job.mean_length), job.packed),
        compiled=COMPILE in options,
    )


def _adapters(rank: int, job: Job) -> Adapters:
    return Adapters(rank, job.lora_targets, frozen_bits=job.frozen_bits)


def _attention(job: Job, options: frozenset[str]) -> str:
    """Texts end to end need FlashAttention (trl 1.16 sft_config.py `padding_free`), or else a mask of the square."""
    if EAGER_ATTENTION in options:
        return "eager"
    return "flash_attention_2" if job.packed and SDPA_MASK not in options else "sdpa"


def _weights(job: Job, options: frozenset[str]) -> Weights:
    half = job.precision is Precision.FP16
    if AUTOCAST in options:
        return Weights.AMP_FP16 if half else Weights.AMP_BF16
    return Weights.FP16 if half else Weights.BF16


def _update(job: Job, options: frozenset[str]) -> Update:
    if job.optimizer in _UPDATES:
        return _UPDATES[job.optimizer]
    return Update.ADAMW_FOREACH if FOREACH in options else Update.ADAMW_FUSED


def _check(asked: Asked) -> None:
    """Refuse by name what is not run yet. Raises `UnsupportedError`."""
    job, options, stack = asked.problem.job, asked.options, asked.problem.stack.name
    several = asked.problem.cluster.num_devices > 1
    unknown = options - _RUN
    refused = [
        Refused(f"the options {', '.join(sorted(unknown))}", bool(unknown), stack_without(stack, unknown)),
        Refused(
            f"{job.optimizer} beside weights of another format",
            job.optimizer is Optimizer.ADAMW_BF16 and _weights(job, options) is not Weights.BF16,
            option("optimizer", Optimizer.ADAMW),
        ),
        Refused(
            f"+{FOREACH} with {job.optimizer}",
            FOREACH in options and job.optimizer in _UPDATES,
            stack_without(stack, [FOREACH]),
        ),
        other_precision(job, Precision.BF16, Precision.FP16),
        Refused(
            f"frozen weights of {job.frozen_bits} bits",
            job.frozen_bits not in (16, 8, 4),
            option("frozen_bits", 16),
        ),
        Refused(
            f"frozen weights of {job.frozen_bits} bits on several devices",
            several and job.frozen_bits in (8, 4),
            f"{option('frozen_bits', 16)}, or {option('gpus', 1)}",
        ),
        Refused(
            f"+{COMPILE} on several devices",
            several and COMPILE in options,
            f"{stack_without(stack, [COMPILE])}, or {option('gpus', 1)}",
        ),
        Refused("offload", bool(asked.config.offload), option("set", "offload=none")),
        Refused("multi-token prediction", asked.question.mtp, leave_out("mtp")),
    ]
    must = "a dry run runs transformers, also under DDP and FSDP2, in bf16 or fp16, also under autocast"
    refuse(must, refused)

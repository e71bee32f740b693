"""Which step of DeepSpeed's does a question mean? Its `ds_config.json`, as `planner export` writes it.

Left out: how it runs (`step.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.dialect import option
from planner.dryrun.asked import Asked
from planner.dryrun.refused import (
    Refused,
    leave_out,
    other_optimizer,
    other_precision,
    refuse,
    stack_without,
    uneven_texts,
)
from planner.dryrun.transformers.recipe import Checkpointing, Recipe, Weights
from planner.frameworks.deepspeed.settings import settings_of
from planner.spec.config import OFFLOAD_ACTIVATIONS, Recompute
from planner.spec.precision import Precision


@dataclass(frozen=True)
class DeepspeedRecipe(Recipe):
    """One rank's training step of a Hugging Face model under DeepSpeed's engine."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """`ds_config.json`."""


def deepspeed_recipe(asked: Asked) -> DeepspeedRecipe:
    """What DeepSpeed runs of a configuration, on each of its ranks. Raises `UnsupportedError` for what is not run."""
    _check(asked)
    config, job = asked.config, asked.problem.job
    return DeepspeedRecipe(
        config=asked.fields,
        name=asked.name,
        micro_batch=config.micro_batch,
        seq_len=job.seq_len,
        num_microbatches=config.num_microbatches,
        weights=Weights.FP16 if job.precision is Precision.FP16 else Weights.BF16,
        checkpointing=(
            Checkpointing.NON_REENTRANT if config.recompute == Recompute.FULL else Checkpointing.NONE
        ),
        shards=config.dp,
        settings=settings_of(asked.launch()),
    )


def _check(asked: Asked) -> None:
    job, config = asked.problem.job, asked.config
    others = sorted(asked.options - {"pure-bf16"})
    plain = {f"{name}=1" for name in ("tp", "pp", "cp") if getattr(config, name) > 1}
    refused = [
        Refused(
            f"the options {', '.join(others)}", bool(others), stack_without(asked.problem.stack.name, others)
        ),
        Refused(
            f"tp={config.tp} pp={config.pp} cp={config.cp}",
            bool(plain),
            ", ".join(option("set", one) for one in sorted(plain)),
        ),
        Refused(
            "offloaded activations",
            bool(config.offload & OFFLOAD_ACTIVATIONS),
            f"leave activations out of {option('set', 'offload=...')}",
        ),
        other_optimizer(job),
        other_precision(job, Precision.BF16, Precision.FP16),
        Refused("adapters", job.lora_rank is not None, leave_out("lora_rank")),
        uneven_texts(job),
        Refused(
            "selective recomputation, which transformers does not have",
            config.recompute == Recompute.SELECTIVE,
            f"{option('set', 'recompute=full')} or none",
        ),
        Refused("multi-token prediction", asked.question.mtp, leave_out("mtp")),
    ]
    must = "a dry run runs DeepSpeed's ZeRO 0 to 3 with AdamW in bf16 or fp16, also with states on the host"
    refuse(must, refused)

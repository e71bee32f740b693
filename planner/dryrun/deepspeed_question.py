"""Which step of DeepSpeed's does a question mean? Its `ds_config.json`, as `planner export` writes it.

Left out: how it runs (`deepspeed_step.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.dialect import option
from planner.dryrun.recipe import Checkpointing, Recipe, Weights
from planner.errors import UnsupportedError
from planner.frameworks.deepspeed.settings import settings_of
from planner.frameworks.details import read_details
from planner.frameworks.framework import Launch
from planner.frameworks.layout import chunk_layers
from planner.spec.config import OFFLOAD_ACTIVATIONS, ParallelConfig, Recompute
from planner.spec.job import Optimizer
from planner.spec.precision import Precision
from planner.spec.rule import Problem

DEEPSPEED = "deepspeed"


def deepspeed_recipe(
    problem: Problem, config: ParallelConfig, name: str, fields: Mapping[str, Any], options: set[str]
) -> Recipe:
    """What DeepSpeed runs of a configuration, on each of its ranks. Raises `UnsupportedError` for what is not run."""
    _check(problem, config, options)
    half = problem.job.precision is Precision.FP16
    return Recipe(
        config=fields,
        name=name,
        micro_batch=config.micro_batch,
        seq_len=problem.job.seq_len,
        num_microbatches=config.num_microbatches,
        weights=Weights.FP16 if half else Weights.BF16,
        checkpointing=(
            Checkpointing.NON_REENTRANT if config.recompute == Recompute.FULL else Checkpointing.NONE
        ),
        shards=config.dp,
        deepspeed=settings_of(_launch(problem, config)),
    )


def _launch(problem: Problem, config: ParallelConfig) -> Launch:
    cluster, model = problem.cluster, problem.model
    return Launch(
        model=model,
        details=read_details(model),
        config=config,
        job=problem.job,
        devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
        accelerator=cluster.accelerator.name,
        chunks=chunk_layers(model.num_layers, 1, 1),
        stack=problem.stack,
    )


def _check(problem: Problem, config: ParallelConfig, options: set[str]) -> None:
    job = problem.job
    others = sorted(options - {"pure-bf16"})
    refused = [
        (f"the options {', '.join(others)}", bool(others)),
        (f"tp={config.tp} pp={config.pp} cp={config.cp}", config.tp * config.pp * config.cp > 1),
        ("offloaded activations", bool(config.offload & OFFLOAD_ACTIVATIONS)),
        (f"the optimizer {job.optimizer}", job.optimizer is not Optimizer.ADAMW),
        (f"the precision {job.precision}", job.precision not in (Precision.BF16, Precision.FP16)),
        ("adapters", job.lora_rank is not None),
        ("padded or packed batches", job.mean_length is not None or job.packed),
    ]
    named = [what for what, there in refused if there]
    if named:
        must = (
            "a dry run runs DeepSpeed's ZeRO 0 to 3 with AdamW in bf16 or fp16, also with states on the host"
        )
        raise UnsupportedError(must, "; ".join(named), f"{option('stack', 'deepspeed-2025')} without them")

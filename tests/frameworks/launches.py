"""Launches that tests of frameworks share: one per framework with a plain configuration, and random legal ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

from planner.ask.request import Request, resolve
from planner.frameworks.details import read_details
from planner.frameworks.framework import Expected, Framework, Launch
from planner.frameworks.layout import chunk_layers
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig, Recompute, Schedule
from planner.spec.precision import Precision
from planner.spec.rule import Problem

STACKS = {
    "megatron": "megatron-2026",
    "megatron-bridge": "megatron-2026",
    "deepspeed": "deepspeed-2025",
    "torchtitan": "torchtitan-2026",
    "accelerate": "fsdp1-2023",
    "nanotron": "nanotron-2024",
    "maxtext": "maxtext-2024",
}
# framework -> a configuration on 128 devices with 256 sequences
CONFIGS = {
    "megatron": ParallelConfig(
        tp=4,
        pp=4,
        dp=8,
        vpp=2,
        micro_batch=1,
        num_microbatches=32,
        sp=1,
        zero=1,
        schedule=Schedule.INTERLEAVED,
    ),
    "deepspeed": ParallelConfig(
        tp=2, dp=64, micro_batch=2, num_microbatches=2, zero=3, recompute=Recompute.FULL, recompute_layers=32
    ),
    "torchtitan": ParallelConfig(
        tp=2,
        cp=2,
        pp=4,
        dp=8,
        vpp=2,
        micro_batch=2,
        num_microbatches=16,
        sp=1,
        zero=3,
        schedule=Schedule.INTERLEAVED,
    ),
    "accelerate": ParallelConfig(cp=2, dp=64, micro_batch=1, num_microbatches=4, zero=3, hsdp=16),
    "nanotron": ParallelConfig(
        tp=4,
        pp=2,
        dp=16,
        micro_batch=2,
        num_microbatches=8,
        sp=1,
        zero=1,
        recompute=Recompute.FULL,
        recompute_layers=16,
    ),
    "maxtext": ParallelConfig(
        tp=2,
        cp=2,
        pp=2,
        dp=16,
        vpp=2,
        micro_batch=1,
        num_microbatches=16,
        sp=1,
        zero=3,
        hsdp=8,
        schedule=Schedule.GPIPE,
        recompute=Recompute.SELECTIVE,
        recompute_modules=1 << RECOMPUTE_MODULES.index("layernorm"),
    ),
}
CONFIGS["megatron-bridge"] = CONFIGS["megatron"]
EXPECTED = Expected(9.03, 7.79, 10.5, 907.0, 54.4 * 2**30, 52.0 * 2**30, 75.1 * 2**30)


@lru_cache(maxsize=64)
def problem(
    model: str, stack: str, gpus: int = 128, batch: str = "256", precision: str = "bf16", cluster: str = ""
) -> Problem:
    """The problem of training a catalog model on H100 nodes, on B200 in MXFP8, or on another cluster."""
    device = "b200" if precision == Precision.FP8_MX else "h100"
    cluster = cluster or f"{max(gpus // 8, 1)}x8 {device} 400G-ib"
    request = Request(
        model, cluster, gpus=gpus, seq_len=4096, global_batch=batch, stack=stack, precision=precision
    )
    return resolve(request)[0]


def launch(model: str, config: ParallelConfig, given: Problem, per_rank: tuple[int, ...] = ()) -> Launch:
    """A launch of a configuration."""
    spec = given.model
    return Launch(
        model=spec,
        details=read_details(spec),
        config=config,
        job=given.job,
        devices=given.cluster.num_devices,
        devices_per_node=given.cluster.devices_per_node,
        accelerator=given.cluster.accelerator.name,
        chunks=chunk_layers(spec.num_layers, config.pp, config.vpp, per_rank),
        expected=EXPECTED,
        stack=given.stack,
        domain=given.cluster.scale_up_domain,
        torus=given.cluster.tiers[0].torus,
    )


def golden_launch(name: str) -> Launch:
    """The launch of a framework's golden files."""
    return launch("llama-3.1-8b", CONFIGS[name], problem("llama-3.1-8b", STACKS[name]))


@lru_cache(maxsize=64)
def _legal(model: str, stack: str) -> ConfigTable:
    given = problem(model, stack)
    return enumerate_configs(given, rules_for(given.stack)).table()


def random_launches(
    framework: Framework, model: str, count: int, seed: int = 0, stack: str = ""
) -> Iterator[Launch]:
    """Launches of random configurations that are legal on a stack, the framework's own where none is named."""
    stack = stack or STACKS[framework.name]
    table = _legal(model, stack)
    rows = random.Random(seed).sample(range(len(table)), min(count, len(table)))
    for row in rows:
        yield launch(model, table.row(row), problem(model, stack))

"""How is a configuration written in torchtitan's settings, whose names both releases share?

Uneven splits: first and last stage lighter by a number of layers, else an explicit list of modules. Left out: the
model and its kernels, which the releases take in different ways (`options.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.frameworks.framework import Launch
from planner.frameworks.layout import ChunkLayers
from planner.frameworks.refuse import is_pure_bf16, require, require_axis, require_whole_recompute
from planner.frameworks.torchtitan.names import (
    CLI,
    FLEX_BLOCK,
    FLOAT8,
    NAME_OF,
    TITLE,
    TOML,
    gathers_float8,
    require_recipe,
    uses_deepep,
)
from planner.spec.config import OFFLOAD_STATES, Recompute, Schedule, offload_text
from planner.spec.job import Optimizer
from planner.spec.precision import Precision


def stages_of(num_layers: int, stages: int, first_less: int, last_less: int) -> ChunkLayers:
    """Layers of every stage as torchtitan deals them: evenly with the ends' weight counted, extras first."""
    weighed = num_layers + first_less + last_less
    counts = [weighed // stages + (i < weighed % stages) for i in range(stages)]
    counts[0] -= first_less
    counts[-1] -= last_less
    return tuple(counts)


def end_weights(chunks: ChunkLayers) -> tuple[int, int] | None:
    """(first, last) stage weights that make torchtitan deal these layers, the smallest; None where none do."""
    total, stages = sum(chunks), len(chunks)
    if stages == 1:
        return (0, 0)
    most = (total // stages + 1) * 2
    for first in range(min(most, 12)):
        for last in range(min(most, 12)):
            fits = max(first, last) <= (total + first + last) // stages
            if fits and stages_of(total, stages, first, last) == chunks:
                return (first, last)
    return None


def settings_of(launch: Launch, version: str) -> dict[str, dict[str, Any]]:
    """Sections of settings, with the names both releases share. Raises `UnsupportedError`."""
    config, job = launch.config, launch.job
    _check(launch, version)
    # With a pipeline all micro-batches of a step are one local batch; without, gradients accumulate.
    local = config.micro_batch * (config.num_microbatches if config.pp > 1 else 1)
    shards = config.hsdp or config.dp * config.cp
    shard = 1 if config.zero == 0 else max(shards // config.cp, 1)
    training: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": job.global_batch,
        "seq_len": job.seq_len,
        "steps": launch.steps,
        "mixed_precision_param": "float32" if job.precision is Precision.FP32 else "bfloat16",
    }
    if is_pure_bf16(launch):
        training["dtype"] = "bfloat16"
    if config.offload:
        training["enable_cpu_offload"] = True
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": config.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if config.zero == 3 else "never",
        "tensor_parallel_degree": config.tp,
        "context_parallel_degree": config.cp,
        "pipeline_parallel_degree": config.pp,
    }
    if launch.model.is_moe:
        parallelism["expert_parallel_degree"] = config.ep
        if version == TOML:
            parallelism["expert_tensor_parallel_degree"] = config.etp if config.ep > 1 else 1
            if uses_deepep(launch):
                parallelism["expert_parallel_comm_backend"] = "deepep"
    if config.pp > 1:
        parallelism |= _pipeline(launch, version)
    return {"training": training, "parallelism": parallelism, "metrics": {"log_freq": 1}}


def _check(launch: Launch, version: str) -> None:
    config, job = launch.config, launch.job
    require_axis(launch, TITLE, "zero", (0, 2, 3) if config.dp * config.cp > 1 else (0, 1, 2, 3))
    if version == CLI:
        require_whole_recompute(launch, f"{TITLE} {CLI}", OFFLOAD_STATES)
    whole = not config.offload or (config.offload == OFFLOAD_STATES and config.zero > 0)
    require(whole, TITLE, "this offloading", f"offload={offload_text(config.offload)} zero={config.zero}")
    require(not any(job.bf16_layers), TITLE, "first and last layers in bf16", job.bf16_layers)
    require(_kind(launch) in NAME_OF, TITLE, "this pipeline schedule", launch.schedule.label)
    overlapped = version == TOML and launch.schedule is Schedule.DUALPIPE_V and config.ep > 1
    recomputes = config.recompute != Recompute.NONE
    require(
        not (overlapped and recomputes),
        f"{TITLE} {version}",
        "DualPipeV with experts and recomputation",
        f"ep={config.ep}",
    )
    require(bool(config.sp) == (config.tp > 1), TITLE, "tp without sequence parallelism", f"sp={config.sp}")
    require_recipe(job.precision)
    allowed = (Precision.BF16, Precision.FP32, FLOAT8)
    require(job.precision in allowed, f"{TITLE} {version}", "this precision by options", job.precision)
    require(job.optimizer is Optimizer.ADAMW, TITLE, "this optimizer", job.optimizer)
    gathers = "a float8 all-gather, which needs one scale a tensor (0.3.0 scales by rows)"
    require(version == TOML or not gathers_float8(launch), f"{TITLE} {version}", gathers, job.precision)
    dealt = config.tp if launch.model.is_moe and config.ep == 1 else 1
    require(config.etp == dealt, TITLE, f"etp other than {dealt} here", config.etp)
    require(not launch.model.mtp_layers, TITLE, "multi-token prediction by options", launch.model.mtp_layers)
    whole = config.cp == 1 or job.seq_len % (config.cp * FLEX_BLOCK) == 0
    parts = f"parts of the sequence that are no multiple of {FLEX_BLOCK}"
    require(whole or version != CLI, f"{TITLE} {version}", parts, f"{job.seq_len} over cp={config.cp}")
    if config.hsdp:
        whole = config.hsdp % config.cp == 0 and (config.dp * config.cp) % config.hsdp == 0
        require(whole, TITLE, "shard groups that do not divide dp x cp", f"hsdp={config.hsdp}")


def _kind(launch: Launch) -> tuple[Schedule, bool]:
    return launch.schedule, launch.config.vpp > 1


def _pipeline(launch: Launch, version: str) -> dict[str, Any]:
    config, chunks = launch.config, launch.chunks
    settings: dict[str, Any] = {
        "pipeline_parallel_schedule": NAME_OF[_kind(launch)],
        "pipeline_parallel_microbatch_size": config.micro_batch,
    }
    weights = end_weights(chunks)
    if weights is None:
        return settings | {"module_fqns_per_model_part": _modules(chunks, version)}
    weighed = launch.model.num_layers + sum(weights)
    each = -(-weighed // len(chunks))
    settings |= {
        "pipeline_parallel_first_stage_less_layers": weights[0],
        "pipeline_parallel_last_stage_less_layers": weights[1],
    }
    if -(-weighed // each) == len(chunks):
        return settings | {"pipeline_parallel_layers_per_stage": each}
    if config.vpp <= 2:
        return settings  # what torchtitan takes where nothing is said
    return settings | {"module_fqns_per_model_part": _modules(chunks, version)}


def _modules(chunks: ChunkLayers, version: str) -> list[list[str]]:
    """Module names of every stage."""
    ends = np.cumsum(chunks).tolist()
    parts = [
        [f"layers.{i}" for i in range(end - count, end)] for end, count in zip(ends, chunks, strict=True)
    ]
    parts[0] = ["tok_embeddings", *parts[0]]
    parts[-1] = [*parts[-1], "norm", "output" if version == TOML else "lm_head"]
    return parts

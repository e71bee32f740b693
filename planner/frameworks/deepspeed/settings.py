"""How does DeepSpeed take a configuration: ds_config.json, and arguments of PipelineModule?

Left out: the program, whose words `programs.py` holds.
"""

from __future__ import annotations

from typing import Any

from planner.frameworks.deepspeed.names import PURE_SETTINGS, TITLE
from planner.frameworks.framework import Launch
from planner.frameworks.layout import is_even
from planner.frameworks.refuse import is_pure_bf16, require, require_axis, require_whole_recompute
from planner.spec.config import OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS, Recompute
from planner.spec.job import Optimizer
from planner.spec.precision import Precision


def settings_of(launch: Launch) -> dict[str, Any]:
    """ds_config.json as settings. Raises `UnsupportedError`."""
    config, job = launch.config, launch.job
    _check(launch)
    zero: dict[str, Any] = {
        "stage": max(config.zero, int(is_pure_bf16(launch))),  # where there is one rank to shard over
        "overlap_comm": config.pp == 1,  # which a pipeline takes back
        "contiguous_gradients": True,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
    }
    if config.zero == 3:
        zero |= {
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
        }
    for bit, what in ((OFFLOAD_OPTIMIZER, "optimizer"), (OFFLOAD_PARAMETERS, "param")):
        if config.offload & bit:
            zero[f"offload_{what}"] = {"device": "cpu", "pin_memory": True}
    settings: dict[str, Any] = {
        # with AutoTP DeepSpeed takes tensor-parallel ranks for copies of the data here, and refuses any other product
        **({"train_batch_size": job.global_batch} if config.tp == 1 else {}),
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": config.num_microbatches,
        "steps_per_print": 1,
        "wall_clock_breakdown": False,
        "gradient_clipping": 1.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
        },
        "zero_optimization": zero,
    }
    if job.precision is not Precision.FP32:
        settings["bf16" if job.precision is Precision.BF16 else "fp16"] = {"enabled": True}
    if is_pure_bf16(launch):
        settings["bf16"] |= dict.fromkeys(PURE_SETTINGS, True)
    if config.tp > 1:
        settings["tensor_parallel"] = {"autotp_size": config.tp}
    if config.cp > 1:
        settings["sequence_parallel_size"] = config.cp
    if config.recompute == Recompute.FULL and config.pp > 1:
        settings["activation_checkpointing"] = {"partition_activations": False}
    return settings


def _check(launch: Launch) -> None:
    config, job = launch.config, launch.job
    for axis, allowed in (("ep", (1,)), ("etp", (1,)), ("vpp", (1,)), ("sp", (0,)), ("schedule", (0,))):
        require_axis(launch, TITLE, axis, allowed)
    require(config.pp == 1 or config.zero <= 1, TITLE, "ZeRO 2 or 3 with a pipeline", f"zero={config.zero}")
    require(
        config.pp == 1 or config.tp * config.cp == 1,
        TITLE,
        "a pipeline with tp or cp by settings",
        config.describe(),
    )
    require(config.tp == 1 or config.cp == 1, TITLE, "AutoTP with Ulysses", config.describe())
    require_whole_recompute(launch, TITLE, OFFLOAD_OPTIMIZER | OFFLOAD_PARAMETERS)
    require(config.pp == 1 or not config.offload, TITLE, "offloading with a pipeline", config.describe())
    require(config.recompute != Recompute.SELECTIVE, TITLE, "selective recomputation", "recompute=selective")
    require(job.optimizer is Optimizer.ADAMW, TITLE, "this optimizer", job.optimizer)
    formats = (Precision.BF16, Precision.FP16, Precision.FP32)
    require(job.precision in formats, TITLE, "this precision", job.precision)
    sharded = config.zero > 0 or config.dp * config.cp == 1
    require(sharded or not is_pure_bf16(launch), TITLE, "full bf16 training without ZeRO", "zero=0")
    require(not config.hsdp, TITLE, "states sharded within groups (it dropped MiCS)", f"hsdp={config.hsdp}")


def pipeline_settings(launch: Launch) -> dict[str, Any]:
    """Arguments of PipelineModule: stages, how layers are dealt, and every how many layers activations are kept."""
    return {
        "num_stages": launch.config.pp,
        "partition_method": "uniform" if is_even(launch.chunks) else "parameters",
        "activation_checkpoint_interval": int(launch.config.recompute == Recompute.FULL),
    }

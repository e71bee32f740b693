"""How is a configuration written in MaxText's settings?

One YAML file that starts from configs/base.yml. Left out: the model (`model.py`), and data, which is made up.
"""

from __future__ import annotations

import math
from typing import Any, Final

from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.frameworks.maxtext.mesh import Mesh
from planner.frameworks.maxtext.model import decoder_block, model_settings, shipped_name
from planner.frameworks.maxtext.names import (
    IN_BLOCKS,
    KEPT,
    LAYER_INPUT,
    MUON_BLOCKS,
    NOT_ACCUMULATED,
    NOT_RUN,
    QUANTIZATION,
    SLICES,
    TITLE,
    Hardware,
    Repeated,
)
from planner.frameworks.maxtext.slices import SPLIT, split_on
from planner.frameworks.refuse import (
    is_pure_bf16,
    require,
    require_axis,
    require_whole_recompute,
)
from planner.frameworks.scripts import job_name
from planner.spec.config import OFFLOAD_ACTIVATIONS, Recompute, Schedule, recomputed_modules
from planner.spec.job import Optimizer
from planner.spec.precision import Precision
from planner.spec.stack.losses import Chunked

BLOCK: Final = 512  # positions of a block of Splash attention, where nothing is said
_QUERY_BLOCKS: Final = ("sa_block_q", "sa_block_q_dkv", "sa_block_q_dq")
_KEY_BLOCKS: Final = (
    "sa_block_kv", "sa_block_kv_compute", "sa_block_kv_dkv", "sa_block_kv_dkv_compute", "sa_block_kv_dq",
)  # fmt: skip
_OPTIMIZERS: Final = {Optimizer.ADAMW: "adamw", Optimizer.SGD: "sgd", Optimizer.MUON: "muon"}


def hardware_of(launch: Launch) -> Hardware:
    """What the processes drive. Raises `UnsupportedError` for a device that MaxText does not run on."""
    name = launch.accelerator
    require(not name.startswith(NOT_RUN), TITLE, "devices other than TPUs and GPUs", name)
    return Hardware.TPU if name in SLICES else Hardware.GPU


def slice_of(launch: Launch) -> int:
    """Devices that the fast links join: of a slice, of an NVLink domain."""
    return min(launch.domain or launch.devices_per_node, launch.devices)


def settings_of(launch: Launch) -> dict[str, Any]:
    """The YAML file as settings. Raises `UnsupportedError`."""
    hardware = hardware_of(launch)
    _require_known(launch, hardware)
    config, job = launch.config, launch.job
    mesh = Mesh.of(config, slice_of(launch))
    if mesh is None:
        must = (
            f"every axis of the mesh must lie in a slice, of {slice_of(launch)} devices, or fill whole slices"
        )
        raise UnsupportedError(must, config.describe(), "choose degrees with the factors of a slice")
    torus = launch.torus if hardware is Hardware.TPU else None
    split = torus is not None and split_on(mesh.ici, launch.accelerator, torus) is not None
    return {
        "base_config": "base.yml",
        "run_name": job_name(launch),
        **model_settings(launch),
        "hardware": str(hardware),
        **mesh.settings(),
        **({SPLIT: True} if split else {}),
        "shard_optimizer_over_data": config.zero == 1,
        **_batch(launch),
        **_pipeline(launch),
        "max_target_length": job.seq_len,
        **_policy(launch),
        **_numbers(launch),
        **_attention(launch, hardware),
        **_experts(launch, hardware),
        "opt_type": _OPTIMIZERS[job.optimizer],
        "steps": launch.steps,
        "dataset_type": "synthetic",
        "packing": False,
        "reuse_example_batch": 1,
        "enable_checkpointing": False,
    }


def _require_known(launch: Launch, hardware: Hardware) -> None:
    """Raise `UnsupportedError` for what MaxText cannot run, or cannot be told; much of it the rules exclude too."""
    config, job = launch.config, launch.job
    require_axis(launch, TITLE, "zero", (0, 1, 3))
    require_whole_recompute(launch, TITLE, OFFLOAD_ACTIVATIONS)
    require(bool(config.sp) == (config.tp > 1), TITLE, "tp without sequence parallelism", f"sp={config.sp}")
    piped = config.pp > 1
    require(
        not piped or launch.schedule is Schedule.GPIPE, TITLE, "this pipeline schedule", launch.schedule.label
    )
    even = launch.model.num_layers % (config.pp * config.vpp) == 0 and len(set(launch.chunks)) == 1
    alike = even and len(launch.model.layer_kinds) == 1
    require(not piped or alike, TITLE, "stages that are not alike", f"pp={config.pp} vpp={config.vpp}")
    require(not piped or config.num_microbatches % config.pp == 0, TITLE, "micro-batches that pp does not divide",
            config.num_microbatches)  # fmt: skip
    known = job.optimizer in _OPTIMIZERS and (config.zero != 1 or job.optimizer is Optimizer.ADAMW)
    require(known, TITLE, "this optimizer, or ZeRO 1 with it", f"{job.optimizer} zero={config.zero}")
    require(job.precision is not Precision.FP16, TITLE, "fp16, which needs scales of the loss", job.precision)
    plain = job.precision in (Precision.BF16, Precision.FP32)
    eight = job.precision in QUANTIZATION and hardware is Hardware.GPU
    require(plain or eight, TITLE, f"this precision on {hardware.upper()}s", job.precision)
    require(not any(job.bf16_layers), TITLE, "first and last layers in bf16", job.bf16_layers)
    whole = config.zero == 3 or config.cp * config.ep == 1
    require(whole, TITLE, "whole weights beside context or expert parallelism", f"zero={config.zero}")
    inner = config.cp * config.ep
    groups = config.hsdp % inner == 0 and (config.zero == 3 or not config.hsdp)
    groups &= not config.hsdp or (config.dp * config.cp) % config.hsdp == 0
    require(groups, TITLE, "shard groups that are no multiple of cp x ep", f"hsdp={config.hsdp}")
    moe = launch.model.is_moe
    dealt = not moe or (config.etp == config.tp and config.dp % config.ep == 0)
    require(
        dealt,
        TITLE,
        "experts not divided by tp, or not over an axis of dp",
        f"ep={config.ep} etp={config.etp}",
    )
    heads = all(a.kv_heads % config.tp == 0 for a in launch.model.attentions)
    require(heads, TITLE, "key/value heads that tp does not divide", f"tp={config.tp}")


def _batch(launch: Launch) -> dict[str, Any]:
    """Sequences a device and step of accumulation. A pipeline takes all of a step's micro-batches at once."""
    config = launch.config
    piped = config.pp > 1
    sequences = config.dp * config.micro_batch * (config.num_microbatches if piped else 1)
    found: dict[str, Any] = {
        "per_device_batch_size": per_device(sequences, launch.devices),
        "gradient_accumulation_steps": 1 if piped else config.num_microbatches,
    }
    name = QUANTIZATION.get(launch.job.precision, "")
    accumulates = found["gradient_accumulation_steps"] > 1
    require(
        not (accumulates and name in NOT_ACCUMULATED),
        TITLE,
        "delayed scaling with accumulated gradients",
        name,
    )
    return found


def per_device(sequences: int, devices: int) -> float | int:
    """The number of which MaxText makes these sequences: int(devices x number) (configs/types.py)."""
    if sequences % devices == 0:
        return sequences // devices
    value = sequences / devices
    return value if int(devices * value) == sequences else math.nextafter(value, math.inf)


def _pipeline(launch: Launch) -> dict[str, Any]:
    config = launch.config
    if config.pp == 1:
        # layer by layer, as recomputation is planned
        return {"scan_layers": False} if shipped_name(launch.model) in IN_BLOCKS else {}
    return {
        "num_pipeline_microbatches": config.num_microbatches,
        "num_layers_per_pipeline_stage": launch.model.num_layers // (config.pp * config.vpp),
        "num_pipeline_repeats": config.vpp,
        "scan_layers": False,  # as configs/base.yml recommends
    }


def _policy(launch: Launch) -> dict[str, str]:
    """What is kept of a layer, and where."""
    config = launch.config
    found = Repeated.of(launch.model).policy(Recompute(config.recompute), config.recompute_modules)
    named = "+".join(recomputed_modules(config.recompute_modules)) or "none"
    require(found is not None, TITLE, "recomputation of these modules alone", named)
    policy = str(found)
    if not config.offload & OFFLOAD_ACTIVATIONS:
        return {"remat_policy": policy}
    hosted = (LAYER_INPUT, *sorted(KEPT[policy]))
    return {"remat_policy": "custom", **dict.fromkeys(hosted, "offload")}


def _numbers(launch: Launch) -> dict[str, Any]:
    job = launch.job
    found: dict[str, Any] = {
        "dtype": "float32" if job.precision is Precision.FP32 else "bfloat16",
        "weight_dtype": "bfloat16" if is_pure_bf16(launch) else "float32",
        "quantization": QUANTIZATION.get(job.precision, ""),
    }
    stack = launch.stack_of("maxtext")
    if stack is not None and isinstance(stack.kernels.loss, Chunked):
        found["num_vocab_tiling"] = stack.kernels.loss.number
    block = decoder_block(launch)
    muon = job.optimizer is not Optimizer.MUON or block in MUON_BLOCKS
    require(muon, TITLE, "Muon on this decoder block", block)
    return found


def _attention(launch: Launch, hardware: Hardware) -> dict[str, Any]:
    cp, length = launch.config.cp, launch.job.seq_len
    found: dict[str, Any] = {"attention": "flash" if hardware is Hardware.TPU else "cudnn_flash_te"}
    if cp > 1:
        found |= {"context_parallel_strategy": "all_gather", "context_parallel_load_balance": True}
    if hardware is Hardware.TPU:
        queries, keys = _block(length // cp), _block(length)
        found |= dict.fromkeys(_QUERY_BLOCKS, queries) if queries != BLOCK else {}
        found |= dict.fromkeys(_KEY_BLOCKS, keys) if keys != BLOCK else {}
    windows = any(a.window is not None for a in launch.model.attentions)
    whole = cp == 1 or hardware is Hardware.TPU or not windows
    require(whole, TITLE, "windows of parts of a sequence on GPUs", f"cp={cp}")
    return found


def _block(length: int) -> int:
    """Positions of a block that divides a length, at most those that MaxText takes unasked."""
    return math.gcd(length, BLOCK)


def _experts(launch: Launch, hardware: Hardware) -> dict[str, Any]:
    """Dropless: Megablox's kernel is Pallas for TPUs, elsewhere jax.lax.ragged_dot multiplies."""
    if not launch.model.is_moe:
        return {}
    return {"sparse_matmul": True, "megablox": hardware is Hardware.TPU, "capacity_factor": -1.0}

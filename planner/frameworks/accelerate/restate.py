"""How would a user's own Accelerate and Trainer files state another configuration?

The export writes FSDP2's YAML, or DeepSpeed's for ZeRO 1, and a program of its own; a user's files keep their plug-in
and their program. Left out: the words of scripts, and FSDP 1, whose strategies are others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.frameworks.accelerate.parse import is_fsdp_2, recognizes
from planner.frameworks.fields import flatten, load_settings
from planner.frameworks.framework import Launch
from planner.frameworks.shell.script import is_script
from planner.frameworks.trainer_yaml import is_trainer_yaml, stated_by_trainer
from planner.spec.config import OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS, ParallelConfig, Recompute

UNSAID: Final = ""  # what no file states
_PARALLEL: Final = "parallelism_config.parallelism_config_"
_FSDP: Final = "fsdp_config.fsdp_"
_DEEPSPEED: Final = "deepspeed_config."


def restated(files: Mapping[str, str], launch: Launch) -> dict[str, dict[str, Any]]:
    """Settings by dotted name that state a launch in each of the `files`, and under `UNSAID` what none of them can."""
    config = launch.config
    settings = {name: text for name, text in files.items() if not is_script(name)}
    trainer = next((name for name, text in settings.items() if is_trainer_yaml(name, text)), None)
    said: dict[str, dict[str, Any]] = {UNSAID: {}}
    loop = {
        "micro_batch": config.micro_batch,
        "accumulate": config.num_microbatches,
        "recompute": config.recompute == Recompute.FULL,
    }
    own = next((name for name in settings if name != trainer and recognizes(name, files[name])), None)
    sharding = {"zero": config.zero, "hsdp": config.hsdp, "cp": config.cp, "offload": config.offload}
    if own is None:
        said[UNSAID] |= sharding
    else:
        document = load_settings(files[own], own)
        kind = str(document.get("distributed_type", "")).upper()
        if kind == "DEEPSPEED":
            said |= _deepspeed(own, document, settings, config)
        elif kind == "FSDP" and is_fsdp_2(own, files[own]) and config.zero >= 2:
            said[own] = _fsdp(config)
            named = f"{_FSDP}activation_checkpointing"
            if trainer is None or flatten(document).get(named):
                said[own][named] = loop.pop("recompute")
        else:
            said[UNSAID] |= sharding
    if trainer is not None:
        said[trainer] = stated_by_trainer(load_settings(files[trainer], trainer), loop)
    else:
        said[UNSAID] |= loop
    return said


def _fsdp(config: ParallelConfig) -> dict[str, Any]:
    """FSDP2's sections (accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin, parallelism_config.py);
    replicas and shards only where there are both or context parallelism, which is nothing unless stated."""
    shard = max((config.hsdp or config.dp * config.cp) // config.cp, 1)
    meshed = config.cp > 1 or config.dp // shard > 1
    return {
        f"{_FSDP}reshard_after_forward": config.zero == 3,
        f"{_FSDP}offload_params": bool(config.offload),
        f"{_PARALLEL}dp_replicate_size": config.dp // shard if meshed else None,
        f"{_PARALLEL}dp_shard_size": shard if meshed else None,
        f"{_PARALLEL}cp_size": config.cp if config.cp > 1 else None,
    }


def _deepspeed(
    own: str, document: Mapping[str, Any], settings: Mapping[str, str], config: ParallelConfig
) -> dict[str, dict[str, Any]]:
    """DeepSpeed's stage and offloading, in the JSON file that the YAML names where there is one; sequences that ranks
    share are Ulysses', sp_size there (accelerate 1.15.0 parallelism_config.py)."""
    section = document.get("deepspeed_config") or {}
    wanted = str(section.get("deepspeed_config_file", "")).split("/")[-1]
    file = next((name for name in settings if wanted and name.split("/")[-1] == wanted), None)
    places = {"optimizer": OFFLOAD_OPTIMIZER, "param": OFFLOAD_PARAMETERS}
    where = {what: "cpu" if config.offload & bit else "none" for what, bit in places.items()}
    shared: dict[str, Any] = {f"{_PARALLEL}sp_size": config.cp if config.cp > 1 else None}
    if not wanted:
        shared[f"{_DEEPSPEED}zero_stage"] = config.zero
        shared |= {f"{_DEEPSPEED}offload_{what}_device": place for what, place in where.items()}
        if "gradient_accumulation_steps" in section:
            shared[f"{_DEEPSPEED}gradient_accumulation_steps"] = config.num_microbatches
        return {own: shared}
    if file is None:
        return {own: shared, UNSAID: {"zero": config.zero, **where}}
    zero = "zero_optimization."
    inside = {f"{zero}stage": config.zero} | {
        f"{zero}offload_{k}.device": place for k, place in where.items()
    }
    return {own: shared, file: inside}

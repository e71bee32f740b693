"""What do ds_config.json, a hostfile and pipeline.json say?

Source: deepspeed 0.19.8 (runtime/config.py, runtime/zero/config.py). Left out: the words of a Trainer beside them
(`frameworks/trainer.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from planner.catalog.stack_options import FLASH_ATTENTION_3, PURE_BF16
from planner.errors import FileInputError, InputError
from planner.frameworks.deepspeed.names import HOSTFILE, PIPELINE, PURE_SETTINGS, VERSION
from planner.frameworks.fields import Settings, flatten, load_settings
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.options import unknown_options
from planner.frameworks.programs import NEWER_FLASH
from planner.frameworks.shell.script import Script, is_script
from planner.frameworks.trainer import Trainer, devices_of, kernels_of, trainer_of, words_of
from planner.frameworks.trainer_yaml import names_deepspeed
from planner.frameworks.zero_settings import with_full_names, zero_settings
from planner.spec.config import Recompute, Schedule
from planner.spec.precision import Precision

# words of the optimizer or scheduler that is named, and sections that the table does not go into
_FREE: Final = (
    "optimizer.params.", "scheduler.params.", "checkpoint.parallel_write.", "compression_training.", "autotuning.",
    "data_efficiency.", "elasticity.", "curriculum_learning.", "weight_quantization.", "timers.",
    "datastates.", "tensor_parallel.partition_config.",
)  # fmt: skip
# sections whose models forbid other names (runtime/config_utils.py DeepSpeedConfigModel); others are asked by name
_STRICT: Final = (
    "zero_optimization.", "bf16.", "fp16.", "compile.", "tensor_parallel.", "expert_parallel.", "hybrid_engine.",
    "tensorboard.", "wandb.", "csv_monitor.", "comet.", "comms_logger.",
)  # fmt: skip


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What ds_config.json, hostfile and pipeline.json say. Raises `FileInputError` naming the setting."""
    files = {**_written(files), **files}
    name = next(
        (file for file, text in files.items() if recognizes(file, text) and file.endswith(".json")), None
    )
    if name is None:
        must = "a DeepSpeed configuration must be a JSON file with train_micro_batch_size_per_gpu"
        wanted = _named(words_of(files))
        raise InputError(must, ", ".join(files), f"name {wanted} beside the script" if wanted else "")
    stated = with_full_names(load_settings(files[name], name))
    words = words_of(files)
    trainer = trainer_of(words)
    s = Settings(trainer.filled(stated), name)
    pipe = next((load_settings(text, f) for f, text in files.items() if f.endswith(PIPELINE)), {})
    pp = Settings(pipe, PIPELINE).count("num_stages", s.count("pipeline.stages", 1))
    tp = max(s.count("tensor_parallel.autotp_size", 1, least=0), 1)
    cp = s.count("sequence_parallel_size", 1)
    stage = s.count("zero_optimization.stage", 0, least=0)
    devices = _devices(files)
    dp, batch, of_batch = _batch(s, max(devices // (tp * cp * pp), 1) if devices else None, tp)
    if dp is not None:
        devices = devices or dp * tp * cp * pp
    axes = {
        "tp": tp, "cp": cp, "pp": pp, "zero": stage, "vpp": 1, "sp": 0, "etp": 1,
        "ep": s.count("expert_parallel.autoep_size", 1), "schedule": int(Schedule.ONE_F_ONE_B),
    }  # fmt: skip
    axes["offload"] = _offload(s)
    notes = [] if dp is not None else ["the number of devices is not in these files"]
    automatic = sorted(n for n, value in s.values.items() if value == "auto" and "batch" in n)
    if stage == 3 and s.count("zero_optimization.zero_hpz_partition_size", 1) > 1:
        notes.append("zero_hpz_partition_size, a second copy of the weights in every group, is not modelled")
    notes += [f"left to the program: {', '.join(automatic)}"] if automatic else []
    recompute = Recompute.FULL if _recomputes(words, trainer, pipe) else Recompute.NONE
    options = kernels_of(words)
    options += (FLASH_ATTENTION_3,) if set(words.get("attention", ())) & NEWER_FLASH else ()
    if s.flag("activation_checkpointing.cpu_checkpointing"):
        notes.append(
            "activation_checkpointing.cpu_checkpointing moves inputs of layers that deepspeed.checkpointing "
            "recomputes, which transformers does not call: not modelled"
        )
    kind = s.text("optimizer.type", "AdamW")
    if kind.lower() not in ("adam", "adamw"):
        notes.append(f"optimizer.type {kind[:40]}: modelled as AdamW with fp32 moments")
    strange, passed = _unknown(stated)
    notes += [f"DeepSpeed passes over what it does not know: {option}" for option in passed]
    axes["recompute"] = int(recompute)
    axes |= of_batch
    automatic_bf16 = s.values.get("bf16.enabled") == "auto" and not s.flag("fp16.enabled")
    precision = Precision.FP16 if s.flag("fp16.enabled") else Precision.FP32
    if s.flag("bf16.enabled") or automatic_bf16:
        precision = Precision.BF16
    settings, said = zero_settings(s, stage)
    notes += said
    pure = [s.flag(f"bf16.{name}") for name in PURE_SETTINGS]
    if any(pure) and not all(pure):
        notes.append(f"modelled with fp32 masters: only {' with '.join(PURE_SETTINGS)} is pure bf16")
    return ParsedConfig(
        framework="deepspeed",
        version=VERSION,
        axes=axes,
        devices=devices,
        seq_len=trainer.seq_len,
        global_batch=batch,
        precision=precision,
        model=trainer.model,
        named=trainer.named,
        optimizer=None if s.has("optimizer.type") else trainer.optimizer,
        unknown=strange,
        notes=(*notes, *trainer.notes),
        adapters=trainer.adapters,
        stack_options=(*((PURE_BF16,) if all(pure) else ()), *options),
        stack_settings=settings,
    )


def _batch(s: Settings, dp: int | None, tp: int) -> tuple[int | None, int | None, dict[str, int]]:
    """Data-parallel ranks, global batch, and the axes that the batch decides; None and left out where the devices
    decide, which `dp` counts where they are known.

    The batch is ranks x micro-batch x steps of accumulation; what is not given follows from the others (DeepSpeed
    0.19.8 runtime/config.py _set_batch_related_parameters). AutoTP's `tp` ranks count as ranks there, though they share
    their data: the global batch is that part of what is stated.
    """
    micro = s.count("train_micro_batch_size_per_gpu", 1) if s.has("train_micro_batch_size_per_gpu") else None
    batch = max(s.count("train_batch_size", 1) // tp, 1) if s.has("train_batch_size") else None
    _require_product(s)
    accumulated, accumulates = s.count("gradient_accumulation_steps", 1), s.has("gradient_accumulation_steps")
    if micro is None and dp is None and batch is not None:
        return None, batch, {"num_microbatches": accumulated}
    if micro is None:
        micro = max((batch or 1) // ((dp or 1) * accumulated), 1)
    if dp is None and batch is not None and accumulates:
        dp = max(batch // (micro * accumulated), 1)
    if dp is not None:
        batch = batch if batch is not None else dp * micro * accumulated
        return dp, batch, {"micro_batch": micro, "dp": dp, "num_microbatches": max(batch // (dp * micro), 1)}
    if batch is None and accumulates:
        return None, None, {"micro_batch": micro, "num_microbatches": accumulated}
    return None, batch, {"micro_batch": micro}


def _require_product(s: Settings) -> None:
    """Raise `FileInputError` where no number of ranks makes the batch the product that DeepSpeed asserts."""
    whole, *parts = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    if not all(s.has(name) for name in (whole, *parts)):
        return
    batch, micro, accumulated = (s.count(name, 1) for name in (whole, *parts))
    if batch % (micro * accumulated):
        must = f"must be {micro} x {accumulated} x N: {' x '.join(parts)} x the number of data-parallel ranks"
        raise FileInputError(
            s.file, must, str(batch), "change one of the three, or leave one out", field=whole
        )


def _offload(s: Settings) -> int:
    """What lies on the host, as bits of `offload`: 1 optimizer states, 2 parameters; under their older names too."""
    found, zero = 0, "zero_optimization"
    for bit, what, older in ((1, "optimizer", "cpu_offload"), (2, "param", "cpu_offload_param")):
        named = s.text(f"{zero}.offload_{what}.device", "cpu" if s.flag(f"{zero}.{older}") else "none")
        found |= bit * (named != "none")
    return found


def _recomputes(words: Mapping[str, list[str]], trainer: Trainer, pipe: Mapping[str, Any]) -> bool:
    """Are layers recomputed: by PipelineModule's arguments, or the program's words?"""
    return bool(pipe.get("activation_checkpoint_interval")) or trainer.recompute or "recompute" in words


def _unknown(document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Settings that DeepSpeed refuses (its sections' models forbid others), and those that it does not look at."""
    names = [name for name in flatten(document) if not name.startswith(_FREE)]
    strange = unknown_options("deepspeed", VERSION, names)
    refused = tuple(name for name in strange if name.startswith(_STRICT))
    return refused, tuple(name for name in strange if name not in refused)


def _named(words: Mapping[str, list[str]]) -> str:
    """The JSON file that a program's words name; empty where they name none."""
    given = (value for name in ("deepspeed", "deepspeed_config") for value in words.get(name, ())[:1])
    return next((value for value in given if value.endswith(".json")), "")


def _devices(files: Mapping[str, str]) -> int | None:
    for file, text in files.items():
        if file.split("/")[-1].startswith("hostfile"):
            slots = re.findall(r"^\s*[^#\s]+\s+slots=(\d{1,6})\s*$", text, re.MULTILINE)
            return sum(int(count) for count in slots) or None
    return devices_of(files)


def _written(files: Mapping[str, str]) -> dict[str, str]:
    """Settings that scripts write before they launch."""
    found: dict[str, str] = {}
    for file, text in files.items():
        if is_script(file):
            written = Script().follow(text).files
            found |= {
                name if name.endswith(".json") else f"{name}.json": body for name, body in written.items()
            }
    return found


def recognizes(name: str, text: str) -> bool:
    """A ds_config.json, a script that names or writes one, a hostfile or pipeline.json."""
    plain = name.split("/")[-1]
    other = "--tensor-model-parallel-size" in text or "--num-layers" in text  # Megatron-DeepSpeed
    if names_deepspeed(name, text):
        return True
    if is_script(name) and "--deepspeed" in text and not other and _named(words_of({name: text})):
        return True
    if is_script(name) and "zero_optimization" in text and "--tensor-model-parallel-size" not in text:
        return any("zero_optimization" in body for body in _written({name: text}).values())
    return (
        plain.endswith(".json") and ("train_micro_batch_size_per_gpu" in text or "zero_optimization" in text)
    ) or plain in (
        HOSTFILE,
        PIPELINE,
    )

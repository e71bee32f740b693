"""Which words of Transformers' Trainer do the YAMLs of LLaMA-Factory, TRL and Axolotl stand for?

Source: LLaMA-Factory hparams/ and model/model_utils/checkpointing.py; trl scripts/utils.py TrlParser; axolotl
utils/schemas/config.py and core/builders. Left out: their data, and every setting that is no word of the Trainer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from planner.dialect import option
from planner.errors import FileInputError
from planner.frameworks.fields import load_settings

_TRAINER: Final = ("model_name_or_path", "per_device_train_batch_size")
_AXOLOTL: Final = ("base_model", "micro_batch_size")
_RENAMED: Final = {
    "base_model": "model_name_or_path", "micro_batch_size": "per_device_train_batch_size", "sequence_len": "seq_len",
    "optimizer": "optim",
}  # fmt: skip
# what trains something other than all tokens of each sequence once, or by another program
_OTHER_TRAINING: Final = {
    "stage": ("sft", "pt"), "rl": (), "unfrozen_parameters": (), "use_kt": (),
}  # fmt: skip
# settings of LLaMA-Factory that make Megatron-LM train in the Trainer's place (its examples/megatron)
_MEGATRON: Final = (
    "use_mca", "use_megatron_bridge", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "expert_model_parallel_size",
)  # fmt: skip
_OTHER_AXES: Final = (
    "tensor_parallel_size",
    "context_parallel_size",
    "dp_replicate_size",
    "expert_parallel_size",
)


def is_trainer_yaml(name: str, text: str) -> bool:
    """Is it a YAML of LLaMA-Factory or TRL, or of Axolotl, that trains?"""
    if not name.endswith((".yaml", ".yml")):
        return False
    return any(
        all(re.search(rf"^{key}:", text, re.MULTILINE) for key in keys) for keys in (_TRAINER, _AXOLOTL)
    )


def stated_by_trainer(settings: Mapping[str, Any], loop: Mapping[str, Any]) -> dict[str, Any]:
    """How its `settings` would state what the training loop does: `micro_batch`, `accumulate`, `recompute`, those that
    are given."""
    axolotl = "base_model" in settings
    batch = "micro_batch_size" if axolotl else "per_device_train_batch_size"
    names = {
        "micro_batch": batch,
        "accumulate": "gradient_accumulation_steps",
        "recompute": "gradient_checkpointing",
    }
    said = {names[what]: value for what, value in loop.items()}
    if not axolotl and {"finetuning_type", "stage"} & settings.keys() and "recompute" in loop:
        del said["gradient_checkpointing"]  # which LLaMA-Factory turns on unless told not to
        said["disable_gradient_checkpointing"] = not loop["recompute"]
    return said


def names_deepspeed(name: str, text: str) -> bool:
    """Is it one that names a DeepSpeed file?"""
    return is_trainer_yaml(name, text) and bool(words_in(name, text).get("deepspeed"))


def words_in(name: str, text: str) -> dict[str, list[str]]:
    """Its settings as words of a program. Raises `FileInputError`."""
    settings = load_settings(text, name)
    megatron = [f"{key}: {settings[key]}" for key in _MEGATRON if settings.get(key) not in (None, False)]
    if megatron:
        must = (
            "must be training by the Trainer: planner does not read LLaMA-Factory's training by Megatron-LM"
        )
        how = f"name the model and these degrees to planner estimate, with {option('stack', 'megatron-2026')}"
        raise FileInputError(name, must, ", ".join(megatron)[:200], how)
    for key, taken in _OTHER_TRAINING.items():
        if settings.get(key) not in (None, False, *taken):
            must = (
                "must be supervised training or pre-training of a whole model, or of adapters, by the Trainer"
            )
            how = "name the degrees to planner estimate; only a training step is modelled"
            raise FileInputError(name, must, str(settings[key])[:40], how, field=key)
    if "base_model" in settings:
        settings = _of_axolotl(settings, name)
    elif "finetuning_type" in settings or "stage" in settings:
        settings = _of_factory(settings)
    return {key: _words(value) for key, value in settings.items() if value is not None}


def _words(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [json.dumps(value)]
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _of_factory(settings: Mapping[str, Any]) -> dict[str, Any]:
    """LLaMA-Factory's defaults: LoRA, recomputation, sequences of 2,048 tokens."""
    said = {"finetuning_type": "lora", "cutoff_len": 2048, **settings}
    if settings.get("pure_bf16"):
        said["bf16"] = True
    return said | {"gradient_checkpointing": not settings.get("disable_gradient_checkpointing", False)}


def _of_axolotl(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Axolotl's settings by the Trainer's names."""
    for axis in _OTHER_AXES:
        if settings.get(axis) not in (None, 1):
            must = "must be 1 or absent: planner reads data parallelism and FSDP of Axolotl"
            how = "name the degrees to planner estimate"
            raise FileInputError(name, must, str(settings[axis])[:40], how, field=axis)
    said = {**settings, **{_RENAMED[key]: value for key, value in settings.items() if key in _RENAMED}}
    kind = settings.get("adapter")
    if kind not in (None, "", "lora", "qlora"):
        must = "must be lora, qlora or absent"
        raise FileInputError(name, must, str(kind)[:40], "plan without", field="adapter")
    said["use_peft"] = bool(kind)
    said["load_in_4bit"] = bool(settings.get("load_in_4bit") or kind == "qlora")
    if settings.get("lora_target_linear"):
        said["lora_target_modules"] = "all-linear"
    said["gradient_checkpointing"] = bool(settings.get("gradient_checkpointing"))
    said["bf16"] = settings.get("bf16") in (True, "auto", "full", "true")
    said["pure_bf16"] = settings.get("bf16") == "full"  # core/builders/base.py: no bf16 of the Trainer's
    said["dtype"] = "bfloat16" if said["bf16"] else "float16" if settings.get("fp16") else "float32"
    said["use_liger_kernel"] = any(settings.get(key) is True for key in settings if key.startswith("liger_"))
    if settings.get("fsdp_config") and not settings.get("fsdp"):
        said["fsdp"] = ["full_shard", "auto_wrap"]
    return said

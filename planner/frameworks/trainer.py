"""What do the words of a program with Transformers' Trainer say? They fill what a settings file leaves to the program.

Source: transformers 5.23 (training_args.py, hf_argparser.py, integrations/deepspeed.py). The sequence's length has no
word of the Trainer: those of its examples, of TRL, of LLaMA-Factory and of FastChat count. Left out: settings that cost
no step anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from planner.catalog.stack_options import LIGER
from planner.frameworks.adapters import Adapters, adapters_of
from planner.frameworks.shell.script import is_script, options_of, product, slurm_devices
from planner.frameworks.trainer_yaml import is_trainer_yaml, words_in
from planner.frameworks.words import first_word, is_on, number
from planner.spec.job import Optimizer
from planner.spec.load_model import catalog_name_at, load_model
from planner.spec.model import ModelSpec

_LENGTHS: Final = (
    "seq_len", "max_seq_length", "max_seq_len", "model_max_length", "max_length", "block_size", "cutoff_len",
)  # fmt: skip
_MODELS: Final = ("model_name_or_path", "model_name", "model_path")
# --optim -> what it is here; those of no entry are said
_OPTIMIZERS: Final = {
    "adamw_torch": Optimizer.ADAMW, "adamw_torch_fused": Optimizer.ADAMW, "adamw_apex_fused": Optimizer.ADAMW,
    "adamw_hf": Optimizer.ADAMW, "adamw_8bit": Optimizer.ADAMW_8BIT, "adamw_bnb_8bit": Optimizer.ADAMW_8BIT,
    "paged_adamw_8bit": Optimizer.ADAMW_8BIT, "paged_adamw_32bit": Optimizer.ADAMW,
    "adamw_torch_8bit": Optimizer.ADAMW_8BIT, "adafactor": Optimizer.ADAFACTOR, "sgd": Optimizer.SGD,
}  # fmt: skip
_RECOMPUTES: Final = ("gradient_checkpointing", "activation_checkpointing")
# options of programs.py by the names that the Trainer has for them
_OWN_NAMES: Final = {
    "--micro-batch": "--per_device_train_batch_size", "--accumulate": "--gradient_accumulation_steps",
    "--recompute": "--gradient_checkpointing",
}  # fmt: skip
_FORMATS: Final = ("bf16", "fp16")


class Pure(Enum):
    """Are all weights trained in bf16, without fp32 masters? Mixed precision's autocast leaves them so, but FSDP and
    DeepSpeed under it make masters of their own."""

    NO = "no"
    UNDER_AUTOCAST = "under autocast"
    WITHOUT_AUTOCAST = "without autocast"


@dataclass(frozen=True)
class Trainer:
    """What the words say, None where they are silent: sequences of a micro-batch, micro-batches of a step, tokens of a
    sequence. `formats`: the number formats that they turn on or off. `pure_bf16`: how weights
    are held. `named`: the word that the model is known by, or
    that names none which planner ships."""

    micro_batch: int | None
    accumulate: int | None
    seq_len: int | None
    recompute: bool
    formats: Mapping[str, bool]
    model: ModelSpec | None
    named: str
    optimizer: Optimizer | None
    notes: tuple[str, ...]
    adapters: Adapters | None = None
    pure_bf16: Pure = Pure.NO

    def filled(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A DeepSpeed file with what it leaves to the program (HfTrainerDeepSpeedConfig.trainer_config_process)."""
        said = dict(document)
        for name, value in (
            ("train_micro_batch_size_per_gpu", self.micro_batch),
            ("gradient_accumulation_steps", self.accumulate),
        ):
            if value is not None and said.get(name, "auto") == "auto":
                said[name] = value
        for name, on in self.formats.items():
            section = said.get(name)
            if isinstance(section, dict) and section.get("enabled") == "auto":
                said[name] = {**section, "enabled": on}
        return said


def with_trainer_names(line: str, text: str) -> str:
    """A line of options of planner's own programs, by the Trainer's names where a script `text` runs one."""
    if "per_device_train_batch_size" not in text.replace("-", "_"):
        return line
    for own, name in _OWN_NAMES.items():
        line = re.sub(rf"(?<=\s|[-+]){own}(?=\s|$)", name, line)
    return line


def words_of(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Options of the commands in scripts, with _ for -, and their values; settings of a Trainer's YAML below them."""
    words: dict[str, list[str]] = {}
    for file, text in files.items():
        if is_trainer_yaml(file, text):
            words = words_in(file, text) | words
        if is_script(file):
            words |= {option[2:].replace("-", "_"): values for option, *values in options_of(text)[0]}
    return words


def devices_of(files: Mapping[str, str]) -> int | None:
    """Processes that the scripts start, by torchrun, DeepSpeed's launcher or Slurm; None where none says."""
    for file, text in files.items():
        if is_script(file):
            words = words_of({file: text})
            each = words.get("num_gpus") or words.get("nproc_per_node") or [""]
            nodes = words.get("num_nodes") or words.get("nnodes") or ["1"]
            devices = slurm_devices(text) or _included((words.get("include") or [""])[0])
            devices = devices or product((nodes or ["1"])[0], (each or [""])[0])
            if devices is not None:
                return devices
    return None


def _included(text: str) -> int | None:
    """Devices of DeepSpeed's --include, such as host-0:0,1@host-1:0,1; None where a host's are not numbered."""
    hosts = [host.partition(":")[2] for host in text.split("@")]
    return sum(len(numbers.split(",")) for numbers in hosts) if all(hosts) else None


def trainer_of(words: Mapping[str, list[str]]) -> Trainer:
    """What `words`, as `words_of` has them, say. Raises `InputError` for a number that no file sets."""
    adapters, notes = adapters_of(words)
    optim = first_word(words, ("optim",))
    if optim and "$" not in optim and optim not in _OPTIMIZERS:
        notes.append(f"--optim {optim[:40]}: modelled as AdamW with fp32 moments")
    named = first_word(words, _MODELS)
    known = catalog_name_at(named) if named else None
    trainer = "per_device_train_batch_size" in words
    return Trainer(
        micro_batch=number(words, "per_device_train_batch_size"),
        accumulate=number(words, "gradient_accumulation_steps"),
        seq_len=next((n for name in _LENGTHS if (n := number(words, name)) is not None), None),
        recompute=any(is_on(words, name) for name in _RECOMPUTES),
        formats={name: is_on(words, name) for name in _FORMATS if name in words or trainer},
        model=load_model(known) if known is not None else None,
        named="" if "$" in named else named,
        optimizer=_OPTIMIZERS.get(optim),
        notes=tuple(notes),
        adapters=adapters,
        pure_bf16=_pure_bf16(words, adapters),
    )


def _pure_bf16(words: Mapping[str, list[str]], adapters: Adapters | None) -> Pure:
    """Axolotl loads what it trains in bf16, and LLaMA-Factory leaves it so where it is told pure_bf16 (axolotl
    067b021c8 utils/config/__init__.py cfg.torch_dtype; LLaMA-Factory ff6d4d12e model/adapter.py init_adapter)."""
    if adapters is not None:
        return Pure.NO
    if is_on(words, "pure_bf16"):
        return Pure.WITHOUT_AUTOCAST
    axolotl = "base_model" in words and first_word(words, ("dtype",)) == "bfloat16"
    return Pure.UNDER_AUTOCAST if axolotl else Pure.NO


def kernels_of(words: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Options of a stack for the kernels that `words` ask for (transformers TrainingArguments; LLaMA-Factory)."""
    return (LIGER,) if any(is_on(words, name) for name in ("use_liger_kernel", "enable_liger_kernel")) else ()

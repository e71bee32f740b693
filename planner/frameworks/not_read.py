"""Whose files are these, if planner does not read them? Launchers known by their files, to be refused by name.

Their settings look like those of frameworks that planner does read, but mean other things. Left out: reading them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.frameworks.shell.script import is_script
from planner.frameworks.trainer_yaml import is_trainer_yaml

_DEGREES: Final = "name the model and its degrees to planner estimate"
_PARTS: Final = (
    "give the DeepSpeed JSON or Accelerate YAML that it names, with --model, --seq-len and --global-batch"
)


@dataclass(frozen=True)
class Launcher:
    """A launcher in whose files all of `marks` are found: YAML, or shell scripts. `instead`: what to do."""

    title: str
    marks: tuple[re.Pattern[str], ...]
    instead: str
    script: bool = False


def _marks(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)


# settings as their documentation and examples have them: mosaicml/llm-foundry scripts/train/yamls, mcli;
# axolotl-ai-cloud/axolotl examples; hiyouga/LLaMA-Factory examples; huggingface/alignment-handbook and open-r1 recipes
# (TRL); NVIDIA/NeMo 1 examples/nlp/language_modeling; pytorch/torchtune recipes; volcengine/verl examples;
# modelscope/ms-swift examples; EleutherAI/gpt-neox configs; Megatron-Bridge scripts/performance and documentation;
# NeMo 2 documentation; THUDM/slime scripts; AMD-AGI/Primus examples
LAUNCHERS: Final = (
    Launcher(
        "LLM Foundry (Composer)",
        _marks(r"^\s*(device_train_microbatch_size|global_train_batch_size|train_loader):"),
        f"{_DEGREES}, with --stack llm-foundry-2023; fsdp_config FULL_SHARD is --set zero=3",
    ),
    Launcher("Axolotl", _marks(r"^base_model:", r"^(sequence_len|micro_batch_size|datasets):"), _PARTS),
    Launcher(
        "LLaMA-Factory or TRL",
        _marks(r"^model_name_or_path:", r"^(per_device_train_batch_size|finetuning_type|stage):"),
        _PARTS,
    ),
    Launcher(
        "GPT-NeoX",
        _marks(r"pipe[-_]parallel[-_]size\"?\s*:"),
        f"{_DEGREES}, with --stack megatron-deepspeed-2022",
    ),
    Launcher(
        "Megatron-Bridge's performance scripts",
        _marks(r"performance/(setup_experiment|run_script|bootstrap)\.py"),
        f"{_DEGREES}, with --stack megatron-2026: their recipes are Python",
        script=True,
    ),
    Launcher(
        "Primus (of another framework than Megatron-LM)",
        _marks(r"^modules:", r"^\s+framework:\s*[\"']?(?!megatron\b)\w+", r"^\s+overrides:"),
        f"{_DEGREES}, with --stack torchtitan-2026 where its framework is that",
    ),
    Launcher(
        "Megatron-Bridge, a recipe in Python",
        _marks(r"^\s*(from|import) megatron\.bridge\b"),
        "Python is not run: write what it sets as overrides in a script, run_recipe.py --recipe NAME "
        f"model.tensor_model_parallel_size=2 train.global_batch_size=512 ..., or {_DEGREES}",
        script=True,
    ),
    Launcher(
        "NeMo 2, a recipe in Python",
        _marks(r"^\s*(from|import) nemo(_run\b|\.collections\b)"),
        f"Python is not run: {_DEGREES}, with --stack megatron-2026; or write what it sets as overrides of "
        "Megatron-Bridge's run_recipe.py",
        script=True,
    ),
    Launcher("Primus", _marks(r"\bprimus-cli\b|\bPRIMUS_PATH\b"), _DEGREES, script=True),
    Launcher("torchtune", _marks(r"^\s+_component_:\s*torchtune"), _DEGREES),
    Launcher(
        "NeMo 1 (Hydra)",
        _marks(r"^\s*trainer:", r"^\s*tensor_model_parallel_size:"),
        f"{_DEGREES}, with a Megatron stack",
    ),
    Launcher(
        "NeMo 1 (Hydra)",
        _marks(r"\bmegatron_gpt_\w+\.py\b|\bmodel\.optim\.name=|\btrainer\.num_nodes="),
        f"{_DEGREES}, with a Megatron stack",
        script=True,
    ),
    Launcher(
        "verl",
        _marks(r"\bactor_rollout_ref\."),
        f"{_DEGREES}; only the training step is modelled",
        script=True,
    ),
    Launcher(
        "slime",
        _marks(r"--rollout-batch-size\b", r"--actor-num-(nodes|gpus-per-node)\b"),
        f"{_DEGREES}; only the training step is modelled",
        script=True,
    ),
    Launcher("ms-swift", _marks(r"\b(swift|megatron)\s+(sft|pt|rlhf)\b"), _DEGREES, script=True),
)


def launcher_of(name: str, text: str) -> Launcher | None:
    """The launcher that a file is of, None where it is none of these."""
    script = is_script(name)
    if is_trainer_yaml(name, text) or (not script and not name.endswith((".yaml", ".yml"))):
        return None
    return next(
        (known for known in LAUNCHERS if known.script is script and all(m.search(text) for m in known.marks)),
        None,
    )


def not_read(files: Mapping[str, str]) -> dict[str, Launcher]:
    """Those of the files that are another launcher's."""
    found = {name: launcher_of(name, text) for name, text in files.items()}
    return {name: launcher for name, launcher in found.items() if launcher is not None}

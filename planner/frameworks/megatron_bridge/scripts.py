"""Which recipe does a script run, and which of its fields does it override?

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, scripts/training/run_recipe.py. Left out: what the fields mean
(`parse.py`), and what the recipe sets itself (`recipes.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from planner.frameworks.shell.script import Script, product, slurm_devices

# options of run_recipe.py that stand for overrides, which come after them (COMMON_OVERRIDE_FIELDS)
_SHORT: Final = {
    "-gb": "global_batch_size", "-mb": "micro_batch_size", "-sl": "seq_length", "-tp": "tensor_model_parallel_size",
    "-pp": "pipeline_model_parallel_size", "-cp": "context_parallel_size",
    "-vp": "virtual_pipeline_model_parallel_size", "-ep": "expert_model_parallel_size",
    "-etp": "expert_tensor_parallel_size",
}  # fmt: skip
_SECTIONS: Final = {"global_batch_size": "train", "micro_batch_size": "train", "seq_length": "dataset"}
# option of run_recipe.py -> the field that it overrides
_OPTIONS: Final = {
    option: f"{_SECTIONS.get(name, 'model')}.{name}"
    for short, name in _SHORT.items()
    for option in (short, f"--{name}")
}
_WHOLE: Final = ("mixed_precision", "comm_overlap")  # sections that an override may replace
_TASKS: Final = {
    "lora": "peft",
    "dora": "peft",
}  # what recipes of a mode are called (recipe_metadata.py recipe_task)


def overrides_in(files: Mapping[str, str]) -> tuple[dict[str, Any], str, list[str]]:
    """Fields that scripts override, in order, the recipe, and what of the scripts was not read."""
    given: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    recipe, notes = "", list[str]()
    for text in files.values():
        script = Script().follow(text)
        notes += [f"of a loop only its first round is read, {first}" for first in script.loops]
        words: dict[str, str] = {}
        for word, after in itertools.pairwise([*script.words, ""]):
            name, equals, value = word.lstrip("+").partition("=")
            if equals and ("." in name or name in _WHOLE) and not name.startswith("-"):
                _override(fields, name, value.strip("'\""))
            if name in ("--recipe", "--model", "--mode"):
                words[name] = value if equals else after
            if name in _OPTIONS:
                given[_OPTIONS[name]] = value if equals else after
        recipe = words.get("--recipe") or recipe
        if "--model" in words and not recipe:  # _selected_recipe_name
            mode = words.get("--mode", "pretrain")
            recipe = f"{words['--model']}_{_TASKS.get(mode, mode)}_config"
    return given | fields, recipe, notes


def _override(fields: dict[str, Any], name: str, value: str) -> None:
    """Put an override behind those before it; one of a section as a whole ends those of its fields."""
    for stated in [*fields]:
        if stated == name or (name in _WHOLE and stated.startswith(name + ".")):
            del fields[stated]
    fields[name] = value


def devices_of(files: Mapping[str, str]) -> int | None:
    """Accelerators that the scripts ask for; None where they don't say."""
    devices = None
    for text in files.values():
        variables = Script().follow(text).variables
        nodes, each = variables.get("NNODES", ""), variables.get("GPUS_PER_NODE", "")
        nodes, each = nodes.split("-")[-1].rstrip("}"), each.split("-")[-1].rstrip("}")
        devices = slurm_devices(text) or product(nodes, each) or devices
    return devices

"""Which recipe does a script run, and which of its fields does it override?

Left out: what the fields mean (`megatron_bridge.py`), and what the recipe sets itself (`bridge_recipes.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from planner.frameworks.shell.script import Script, product, slurm_devices


def overrides_in(files: Mapping[str, str]) -> tuple[dict[str, Any], str, list[str]]:
    """Fields that scripts override, the recipe, and what of the scripts was not read."""
    fields: dict[str, Any] = {}
    recipe, notes = "", []
    for text in files.values():
        script = Script().follow(text)
        notes += [f"of a loop only its first round is read, {first}" for first in script.loops]
        words: dict[str, str] = {}
        for word, after in itertools.pairwise([*script.words, ""]):
            name, equals, value = word.lstrip("+").partition("=")
            if equals and ("." in name or name == "mixed_precision") and not name.startswith("-"):
                fields[name] = value.strip("'\"")
            if name in ("--recipe", "--model", "--mode"):
                words[name] = value if equals else after
        recipe = words.get("--recipe") or recipe
        if "--model" in words and not recipe:  # scripts/training/run_recipe.py _selected_recipe_name
            recipe = f"{words['--model']}_{words.get('--mode', 'pretrain')}_config"
    return fields, recipe, notes


def devices_of(files: Mapping[str, str]) -> int | None:
    """Accelerators that the scripts ask for; None where they don't say."""
    devices = None
    for text in files.values():
        variables = Script().follow(text).variables
        nodes, each = variables.get("NNODES", ""), variables.get("GPUS_PER_NODE", "")
        nodes, each = nodes.split("-")[-1].rstrip("}"), each.split("-")[-1].rstrip("}")
        devices = slurm_devices(text) or product(nodes, each) or devices
    return devices

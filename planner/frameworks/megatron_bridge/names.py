"""By which names do overrides reach the fields of a recipe's model, and which releases take those that a script has?

A provider has the fields of TransformerConfig itself, model.hidden_size. A BridgeGPTModelConfig, which recipes of Llama
return since 0.7.0, has them in its section transformer, model.transformer.hidden_size; Hydra refuses the other name of
either. planner's own names are a provider's. Source: NVIDIA-NeMo/Megatron-Bridge 067f987, src/megatron/bridge/models/
gpt/model_config.py, training/utils/omegaconf_utils.py; NVIDIA/Megatron-LM 2a75ac1, megatron/training/models/gpt.py.
Left out: what the fields mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from planner.errors import nearest_names
from planner.frameworks.megatron_bridge.recipes import RELEASES, Recipe, recipe_of
from planner.frameworks.options import Option, option_table, table_classes

FRAMEWORK: Final = "megatron-bridge"
_OF_PROVIDER, _OF_BUILT = "model.", "model.transformer."
_SHOWN: Final = 3  # names in a sentence

Table = Mapping[str, Option]


def options_of(recipe: Recipe, version: str) -> Table:
    """Every override that a recipe takes in a release by name, of any class of model where no recipe is named."""
    table = option_table(FRAMEWORK, version, recipe.kind or "")
    if recipe.kind is not None:
        return table
    others = [option_table(FRAMEWORK, version, kind) for kind in table_classes(FRAMEWORK, version)]
    return {name: option for each in (*others, table) for name, option in each.items()}


def written_as(field: str, recipe: Recipe, version: str) -> str:
    """The name of one of planner's fields in a script of the recipe."""
    return _within(field, options_of(recipe, version))


def _within(field: str, table: Table) -> str:
    moved = field.replace(_OF_PROVIDER, _OF_BUILT, 1) if field.startswith(_OF_PROVIDER) else field
    return moved if moved in table and field not in table else field


def read_as(name: str) -> str:
    """planner's own name of the field that an override names."""
    return name.replace(_OF_BUILT, _OF_PROVIDER, 1) if name.startswith(_OF_BUILT) else name


def releases_of(names: Sequence[str], called: str) -> tuple[str, ...]:
    """Releases in which the recipe `called` takes all these overrides, oldest first."""
    return tuple(release for release in RELEASES if not _strange(names, called, release))


def unknown_names(names: Sequence[str], called: str, version: str) -> tuple[str, ...]:
    """Overrides that the recipe `called` does not take in a release, each with what is meant there, or nearest."""
    table, found = options_of(recipe_of(called, version), version), []
    for name, meant in _strange(names, called, version).items():
        near = [meant] if meant in table else nearest_names(name, table, 2)
        found.append(f"{name} (nearest: {', '.join(near)})")
    return tuple(found)


def newest_refuses(names: Sequence[str], called: str) -> list[str]:
    """A note on the overrides that a release before took from a script, and the newest does not."""
    found = [
        f"{name} (there {meant})" if meant != name else name
        for name, meant in _strange(names, called, RELEASES[-1]).items()
    ]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    refused = ", ".join(found[:_SHOWN]) + more
    return [f"{RELEASES[-1]} does not start with these files: it refuses {refused}"] if found else []


def _strange(names: Sequence[str], called: str, version: str) -> dict[str, str]:
    """Overrides that a recipe does not take in a release, and its own name of the same field, if it has the field."""
    table = options_of(recipe_of(called, version), version)
    return {name: _within(read_as(name), table) for name in names if name not in table}

"""Which pre-training recipes has Megatron-Bridge, and what do they set before a script overrides it?

Settings are transcribed by `benchmarks/bridge_recipes.py` from the recipes' source, of every release. Left out: recipes
of models that planner does not ship, fine-tuning, and fields that decide neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict

RECIPE_FILE: Final = Path(__file__).with_suffix(".yaml")
RELEASES: Final = ("0.6.0", "0.7.0")
# the class of a recipe's model that is no provider: it holds TransformerConfig's fields in one of its own
BUILT: Final = "BridgeGPTModelConfig"


class Names(BaseModel):
    """Recipes by name, and fields that are read.

    `recipes`: catalog name of a model -> the recipe that is written for it. `more`: recipes of the same models, which
    `--model NAME` may stand for. `benchmarks`: names of two recipes each, of which scripts/training/run_recipe.py takes
    the benchmark's (recipe_metadata.py BENCHMARK_RECIPE_PRECEDENCE_COLLISIONS); the other one has the shorter name that
    is written. `layouts_computed`: models whose functions compute how layers are dealt to stages
    (_pipeline_model_parallel_layout_builder). `muon`: whose functions set up Muon
    (distributed_muon_with_cosine_annealing). `read`: section of a ConfigContainer -> fields that are read, of a recipe
    and of what overrides it; "" for sections as a whole.

    Of overrides that are not read: `inert_sections` cost no step anything, but for what is read of them; `inert`:
    section -> patterns of fields that change neither time nor memory by more than a kernel's choice that planner does
    not know. `on`: switches that are on unless they are switched off, and costed so; the others are off.
    `architecture`: patterns of fields that make another model of the recipe's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipes: Mapping[str, str]
    more: Mapping[str, str]
    benchmarks: Mapping[str, str]
    layouts_computed: frozenset[str]
    muon: frozenset[str]
    read: Mapping[str, tuple[str, ...]]
    inert_sections: frozenset[str]
    inert: Mapping[str, tuple[str, ...]]
    on: Mapping[str, tuple[str, ...]]
    architecture: tuple[str, ...]


def fields_of(sections: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Dotted names of fields by section."""
    return frozenset(
        f"{section}.{field}".lstrip(".") for section, fields in sections.items() for field in fields
    )


NAMES: Final = Names.model_validate_json(Path(__file__).with_name("names.json").read_bytes())
RECIPES: Final = NAMES.recipes
MORE_RECIPES: Final = NAMES.more
BENCHMARKS: Final = NAMES.benchmarks
READ: Final = fields_of(NAMES.read)


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: Mapping[str, Any] = yaml.load(RECIPE_FILE.read_text(encoding="utf-8"), Loader=loader)
    return document


@dataclass(frozen=True)
class Recipe:
    """What is known of a recipe that a script runs, in a release. `model`: of the catalog, "" for none; `settings`:
    dotted field of a provider -> value that it sets, "computed" where its source does not say; `known`: are they its
    own, or what all have in common of sharding? `kind`: the class of its model, "" for a provider, None where no recipe
    is named."""

    model: str
    settings: Mapping[str, Any]
    known: bool = True
    kind: str | None = ""

    @property
    def overlaps(self) -> bool:
        """Has it a section comm_overlap, which overwrites fields of the model and of ddp at setup?"""
        return any(field.startswith("comm_overlap.") for field in self.settings)

    @property
    def spells_precision(self) -> bool:
        """Is its mixed precision a configuration of its own, whose fields can be overridden, not a name?"""
        return any(field.startswith("mixed_precision.") for field in self.settings)


def recipe_of(name: str, version: str = RELEASES[-1]) -> Recipe:
    """The recipe of this name, by any of its names, in a release."""
    document = _document()
    common, release = dict(document["common"]), document["releases"][version]
    kind = BUILT if name.startswith(tuple(release["built"])) else "" if name else None
    if name in BENCHMARKS:
        return Recipe(BENCHMARKS[name], _sharding_of(common), known=False, kind=kind)
    for model, recipe in (*RECIPES.items(), *((model, more) for more, model in MORE_RECIPES.items())):
        found, changed = document["recipes"][recipe], release["changes"].get(recipe)
        if name and name in (recipe, *found["names"]):
            settings = common | found["settings"]
            if changed:
                kept = {field: value for field, value in settings.items() if field not in changed["absent"]}
                settings = kept | changed["own"]
            return Recipe(model, settings, kind=kind)
    return Recipe("", _sharding_of(common), known=False, kind=kind)


def _sharding_of(common: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in common.items() if field.startswith("ddp.")}

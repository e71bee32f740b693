"""Megatron-Bridge 0.6.0 and 0.7.0 (and NeMo on top of it): a recipe with overrides.

Source: NVIDIA-NeMo/Megatron-Bridge at v0.6.0 and 067f987 (2026-08), scripts/training/run_recipe.py, recipes/, training/
config.py. A recipe brings the model; everything the plan decides is overridden by dotted fields of its ConfigContainer,
whose model fields are TransformerConfig's, by names that depend on the class of the model (`names.py`). Models are
those with a pre-training recipe. Left out: datasets.
"""

from __future__ import annotations

from typing import Any, Final

from planner.frameworks.framework import Files, Framework, Launch
from planner.frameworks.known import known_as
from planner.frameworks.megatron import MEGATRON
from planner.frameworks.megatron.architecture import normed_queries
from planner.frameworks.megatron.arguments import SCHEDULES, environment, unlike_stack
from planner.frameworks.megatron.connections import recommended
from planner.frameworks.megatron_bridge.names import FRAMEWORK, written_as
from planner.frameworks.megatron_bridge.notes import SHARED_OVERLAP
from planner.frameworks.megatron_bridge.overrides import TITLE, mixed_precision, overrides_of
from planner.frameworks.megatron_bridge.parse import parse, recognizes
from planner.frameworks.megatron_bridge.precision import written
from planner.frameworks.megatron_bridge.recipes import RECIPES, RELEASES, recipe_of
from planner.frameworks.options import check_options, table_source
from planner.frameworks.scripts import README, launch_files, readme, started_on_nodes
from planner.spec.stack.engines import EngineKind

IMAGE: Final = "nvcr.io/nvidia/nemo:25.11"


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(value) + "]"
    text = str(value)
    # quotes are Hydra's, which reads braces itself
    return f"'{text}'" if any(letter in text for letter in "|*(),") and text[0] != "{" else text


def render(launch: Launch, version: str) -> Files:
    """launch.sh with a recipe and its overrides, what starts it, and a README."""
    name = known_as(launch.model, RECIPES, TITLE)
    recipe = recipe_of(RECIPES[name], version)
    fields = overrides_of(launch, recipe)
    planned = [*written(mixed_precision(launch)), *fields.items()]
    words = [(written_as(field, recipe, version), _word(value)) for field, value in planned]
    check_options(FRAMEWORK, version, [(field, word.strip("'")) for field, word in words], recipe.kind or "")
    groups: dict[str, list[tuple[str, ...]]] = {
        "RECIPE": [("--recipe", RECIPES[name]), ("--mode", "pretrain"), ("--dataset", "mock")],
        "OVERRIDE": [(f"{field}={word}",) for field, word in words],
    }
    prelude = (
        "# A checkout of Megatron-Bridge; in its container it is where you put it.\n"
        "BRIDGE_PATH=${BRIDGE_PATH:-/opt/Megatron-Bridge}"
    )
    program = '"$BRIDGE_PATH/scripts/training/run_recipe.py"'
    files = launch_files(launch, environment(launch), groups, program, IMAGE, prelude=prelude)
    run = [f"{started_on_nodes(launch, 'BRIDGE_PATH')}."]
    missing = [
        f"everything the plan does not decide stays as in {RECIPES[name]}",
        "data: the dataset is made up (--dataset mock)",
        "vocabulary: as the plan counts it, whatever the tokenizer has (tokenizer.use_tokenizer_vocab_size=false)",
        *normed_queries(launch.model),
        *unlike_stack(launch),
    ]
    if others := [other for other in RELEASES if recipe_of(RECIPES[name], other).kind != recipe.kind]:
        missing.append(
            f"release: {', '.join(others)} has other names of the model's fields, and refuses these: planner export "
            f"--framework-version {others[-1]} writes them"
        )
    if recipe.settings.get(SHARED_OVERLAP) and fields.get(SHARED_OVERLAP) is not False:
        missing.append(
            "shared experts: the recipe runs them beside the dispatch of tokens, the plan before it"
        )
    return {
        **files,
        README: readme(launch, TITLE, version, table_source(FRAMEWORK, version), run, missing),
    }


MEGATRON_BRIDGE: Final = Framework(
    name=FRAMEWORK,
    title=TITLE,
    versions=RELEASES,
    default_version=RELEASES[-1],
    rules=MEGATRON.rules,
    schedules=SCHEDULES,
    zero_stages=MEGATRON.zero_stages,
    splits="model.pipeline_model_parallel_layout",
    dense_order=MEGATRON.dense_order,
    expert_order=MEGATRON.expert_order,
    render=render,
    parse=parse,
    recognizes=recognizes,
    shards_all_by=EngineKind.MEGATRON_FSDP,
    starts_on=recommended,
)

"""What do torchtitan's own models run? Lists of operations in symbols, for every form that models of the catalog have.

    python -m benchmarks.capture_torchtitan [--check] [--out FOLDER]

As `capture_operations` does of transformers: its models under its own parallelisation, one rank of two that share
weights, alone and under tensor parallelism, with every way of its activation checkpointing. What fully_shard gathers
and sums is left out: its engine counts that. Needs the extra `frameworks` and torchtitan.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.capture.checking import check, count_wrong
from benchmarks.capture.forms import (
    LENGTHS,
    MICRO_BATCHES,
    config_of_model,
    enough_layers,
    read_model,
    short,
    sized,
)
from benchmarks.capture.naming import NotListedError, Run, lists_of
from planner.catalog.load_operations import EVERY_FAMILY, FOLDER, RECOMPUTED, Tables
from planner.catalog.load_stacks import load_stack
from planner.cost.captured.operation import Operation
from planner.dryrun.torchtitan.recipe import EAGER, TitanRecipe, family_of, launched_recipe
from planner.errors import PlannerError
from planner.frameworks.framework import launch_in
from planner.spec.config import RECOMPUTE_MODULES, ParallelConfig, Recompute
from planner.spec.job import Job
from planner.spec.listed import RELATIONS, Lists, Variant, fixed_sizes, layer_form, model_form, sizes_of
from planner.spec.load_model import catalog_models, load_model
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.model import ModelSpec
from planner.spec.rule import Problem

CAPABILITY: Final = (9, 0)
SHARDS: Final = 2  # ranks that share weights
TENSOR: Final = (2, 4)  # ranks that divide layers, in the two runs
# Sizes of the two runs, beside those of transformers' forms: heads that all of those divide, and heads of a key that
# stay apart from all else where two more are counted.
KV_HEADS: Final = (4 * 3, 4 * 5)
HEADS: Final = (27 * KV_HEADS[0], 25 * KV_HEADS[1])
LATENT: Final[Mapping[str, tuple[int, int]]] = {
    "qk_nope_head_dim": (8 * 11, 8 * 13), "qk_rope_head_dim": (8 * 37, 8 * 43), "v_head_dim": (8 * 47, 8 * 53),
    "n_shared_experts": (2, 3), "topk_group": (2, 5),
}  # fmt: skip
VARIANTS: Final = tuple(
    Variant(recompute=recompute, tensor=tensor) for tensor, recompute in product((False, True), Recompute)
)


@dataclass(frozen=True)
class Form:
    """A model of the catalog that has a form, and its configuration."""

    name: str
    config: Mapping[str, Any]

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those that run: DTensor divides a mixture's tokens over ranks where those divide a micro-batch alone."""
        mixture = read_model(self.config).is_moe
        return tuple(one for one in VARIANTS if not (mixture and one.tensor))

    def sized(self, way: int) -> ModelSpec:
        """The model with few layers, in the sizes of one of the two runs, or (2) in its own."""
        layers = enough_layers(read_model(self.config))
        if way == 2:
            return read_model(short(self.config, layers, beyond=False))
        found = sized(self.config, way, layers, beyond=False)
        several = found["num_attention_heads"] == found["num_key_value_heads"]
        if found.get("head_dim") is None and "qk_nope_head_dim" not in found:
            found["hidden_size"] = found["hidden_size"] // found["num_attention_heads"] * HEADS[way]
        found["num_attention_heads"], found["num_key_value_heads"] = (
            HEADS[way],
            (HEADS if several else KV_HEADS)[way],
        )
        for name, sizes in LATENT.items():
            if found.get(name) and found[name] != 1:
                found[name] = sizes[way]
        return read_model(found)


def forms() -> dict[str, Form]:
    """By form of the catalog's models, with tied embeddings and without, the first that has it."""
    found: dict[str, Form] = {}
    for name in catalog_models():
        if family_of(load_model(name)) is None:
            continue
        for tied in (False, True):
            config = config_of_model(name) | {"tie_word_embeddings": tied}
            found.setdefault(model_form(read_model(config), LENGTHS[0], EVERY_FAMILY), Form(name, config))
    return found


def recipe_of(model: ModelSpec, way: int, variant: Variant) -> TitanRecipe:
    """What is run of a model. Raises `PlannerError` for what cannot be."""
    tensor = TENSOR[way % 2] if variant.tensor else 1
    config = ParallelConfig(
        tp=tensor, sp=int(tensor > 1), dp=SHARDS, zero=3, micro_batch=MICRO_BATCHES[way % 2],
        recompute=variant.recompute, recompute_layers=model.num_layers if variant.recompute is Recompute.FULL else 0,
        recompute_modules=1 << RECOMPUTE_MODULES.index("op") if variant.recompute is Recompute.SELECTIVE else 0,
    )  # fmt: skip
    job = Job(LENGTHS[way % 2], SHARDS * config.micro_batch)
    cluster = load_cluster(f"1x{SHARDS * tensor} h100")
    return launched_recipe(launch_in(Problem(model, cluster, job, load_stack(EAGER)), config))


def run_of(model: ModelSpec, way: int, variant: Variant) -> Run:
    """Run a step of a model in one variant."""
    from planner.dryrun.torchtitan.step import passes_of

    recipe = recipe_of(model, way, variant)
    tensor = int(recipe.parallelism["tensor_parallel_degree"])
    recording = passes_of(recipe, CAPABILITY)
    recording.operations = [_laid_together(one, tensor) for one in recording.operations]
    return Run(recording, model, recipe.seq_len, recipe.micro_batch, tensor=tensor)


def _laid_together(one: Operation, tensor: int) -> Operation:
    """What lays parts of all ranks together, as if it took one of them all: of rows, which stay as wide."""
    if tensor == 1 or one.name != "aten.cat.default" or len(one.taken) != tensor or len(set(one.taken)) > 1:
        return one
    (taken, _), (given, _) = one.taken[0], one.given[0]
    return replace(one, taken=one.given) if taken[-1] == given[-1] else one


def captured(one: Form, variant: Variant, table: Tables) -> Lists:
    """The lists of a form in one variant, held against a third run. Raises `NotListedError`."""
    try:
        lists = lists_of([run_of(one.sized(way), way, variant) for way in (0, 1)], table, parted=False)
        if {layer_form(layer, LENGTHS[0]) for layer in read_model(one.config).layer_kinds} - set(
            lists.layers
        ):
            raise NotListedError("few layers are not all kinds that it has")
        check(lists, run_of(one.sized(2), 2, variant))
        return lists
    except PlannerError as error:
        raise NotListedError(f"it does not run: {error}") from error


def bounds_of(one: Form) -> dict[str, Any]:
    """What holds of sizes in both runs of a form, so that its lists hold where that does alone."""
    sizes = [sizes_of(one.sized(way), None, MICRO_BATCHES[way], LENGTHS[way]) for way in (0, 1)]
    holds = [name for name, relation in RELATIONS.items() if all(map(relation, sizes))]
    return {"holds": holds, "fixed": fixed_sizes(sizes), "choices": {}}


def captured_forms(found: Mapping[str, Form]) -> dict[str, Any]:
    """All forms in all variants, as the shipped file has them; what cannot be listed is told."""
    listed, table = {}, Tables()
    known: dict[tuple[str, Variant], Lists] = {}  # by layers alone, which ties leave as they are
    for form, one in found.items():
        variants, layers, ends = [], form.split(") ", 1)[1], dict[bool, Lists]()
        for variant in one.variants:
            twin = known.get((layers, variant))
            try:
                if twin is None or variant.tensor not in ends:
                    lists = captured(one, variant, table)
                else:
                    own = ends[variant.tensor]
                    lists = replace(twin, before=own.before, behind=own.behind)
            except (NotListedError, KeyError) as error:
                print(f"  {one.name} {variant}: {error}", flush=True)
                continue
            known.setdefault((layers, variant), lists)
            ends.setdefault(variant.tensor, lists)
            variants.append(written(variant) | table.variant(lists))
        if variants:
            listed[form] = {"model": one.name, **bounds_of(one), "variants": variants}
        print(f"  {one.name}: {len(variants)} variants", flush=True)
    software = {name: version(name).partition("+")[0] for name in ("torch", "torchtitan")}
    return {"software": software, "idle": [], "unsharded": [], **table.written(), "forms": listed}


def written(variant: Variant) -> dict[str, Any]:
    """The variant as the file names it."""
    recomputed = next(said for said, way in RECOMPUTED.items() if way is variant.recompute)
    return {"options": [], "adapters": False, "recomputed": recomputed, "tensor": variant.tensor}


def checked_forms(document: dict[str, Any], found: Mapping[str, Form]) -> int:
    """How many lists of the shipped file do not hold for a run of today's software; those are told."""

    def run(form: str, of: Mapping[str, Any]) -> Run:
        variant = Variant(recompute=RECOMPUTED[of["recomputed"]], tensor=of["tensor"])
        return run_of(found[form].sized(2), 2, variant)

    return count_wrong(document, found, run, print)


def main() -> None:
    """Capture, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="hold shipped lists against runs, and write nothing"
    )
    parser.add_argument("--out", type=Path, default=FOLDER / EAGER)
    given = parser.parse_args()
    gc.freeze()  # what is imported is not looked through again behind every run
    found, file = forms(), given.out / f"{EVERY_FAMILY}.json"
    if given.check:
        sys.exit(checked_forms(json.loads(file.read_text(encoding="utf-8")), found) > 0)
    began = time.process_time()
    document = captured_forms(found)
    print(f"{len(document['forms'])} forms, {time.process_time() - began:.0f} s", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

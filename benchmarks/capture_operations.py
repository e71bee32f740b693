"""What do transformers' models run? Lists of operations in symbols, for every form of a model in the catalog.

    python -m benchmarks.capture_operations [--families qwen3,llama] [--check [--every]] [--out FOLDER]

Each form (`capture/forms.py`) is run twice on fake tensors, with few layers and sizes that are products of different
primes, and written in symbols (`capture/naming.py`). Needs the extra `dryrun`. Left out: forms whose two runs do not do
the same, and numbers that no symbols give, which are told.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.capture.checking import check, count_wrong
from benchmarks.capture.forms import (
    FEWEST,
    LENGTHS,
    MICRO_BATCHES,
    RANKS,
    Form,
    bounds_of,
    forms_of,
    read_model,
    short,
    sized,
)
from benchmarks.capture.naming import NotListedError, Run, lists_of
from planner.catalog.load_operations import FOLDER, Tables
from planner.catalog.stack_options import (
    AUTOCAST,
    EAGER_ATTENTION,
    FOREACH,
    LIGER,
    LIGER_FAMILIES,
    NO_SYNC,
)
from planner.dryrun.transformers.model import config_of
from planner.dryrun.transformers.recipe import Adapters, Checkpointing, Recipe, Weights
from planner.dryrun.transformers.step import passes_of
from planner.errors import PlannerError
from planner.spec.listed import Lists, choices, layer_form
from planner.spec.load_model import catalog_models, load_model

STACK: Final = "transformers-2026"
CAPABILITY: Final = (9, 0)
IDLE: Final = (FOREACH, NO_SYNC)  # options that change nothing of the passes
UNSHARDED: Final = (AUTOCAST,)  # that change nothing where weights are sharded (FSDP2's MixedPrecisionPolicy)
Variant = tuple[tuple[str, ...], bool, bool]
"""Options of the stack, whether adapters alone are trained, and whether layers are run again."""
VARIANTS: Final[tuple[Variant, ...]] = tuple(
    (options, adapters, again)
    for options, adapters in (
        ((), False), ((AUTOCAST,), False), ((), True), ((EAGER_ATTENTION,), False),
        ((AUTOCAST, EAGER_ATTENTION), False), ((LIGER,), False), ((LIGER,), True), ((AUTOCAST, LIGER), False),
    )
    for again in (False, True)
)  # fmt: skip


def software() -> dict[str, str]:
    """The releases that are run."""
    return {name: version(name).partition("+")[0] for name in ("torch", "transformers", "peft")}


def run_of(config: Mapping[str, Any], way: int, variant: Variant) -> Run:
    """Run a step of a form in one variant."""
    options, adapters, again = variant
    recipe = Recipe(
        config, "a form", MICRO_BATCHES[way], LENGTHS[way],
        weights=Weights.AMP_BF16 if AUTOCAST in options else Weights.BF16,
        attention="eager" if EAGER_ATTENTION in options else "sdpa", liger=LIGER in options,
        checkpointing=Checkpointing.NON_REENTRANT if again else Checkpointing.NONE,
        adapters=Adapters(RANKS[way]) if adapters else None,
    )  # fmt: skip
    recording = passes_of(recipe, config_of(recipe), CAPABILITY)
    rank = RANKS[way] if adapters else 0
    return Run(recording, read_model(config), LENGTHS[way], MICRO_BATCHES[way], rank)


def captured(one: Form, variant: Variant, table: Tables, twin: Lists | None = None) -> Lists:
    """The lists of a form in one variant, held against further runs. Of a form whose `twin` differs outside of layers
    alone, few layers are run, for what lies there. Raises `NotListedError`."""
    options, adapters, again = variant
    count = one.layers if twin is None else FEWEST
    try:
        runs = [run_of(sized(one.config, way, count, one.beyond), way, variant) for way in (0, 1)]
        lists = lists_of(runs, table, parted=LIGER in options)
        if twin is not None:
            return replace(lists, layers=twin.layers)
        whole = read_model(short(one.config, read_model(one.config).num_layers, one.beyond))
        if {layer_form(layer, LENGTHS[0]) for layer in whole.layer_kinds} - set(lists.layers):
            raise NotListedError(f"{one.layers} layers are not all kinds that it has")
        plain = not options and not adapters
        for config in (one.config, *one.others) if plain and not again else (one.config,):
            if plain or not again:  # what is run again has the sizes of what was run
                check(lists, run_of(short(config, count, one.beyond), 0, variant))
        return lists
    except (PlannerError, NotImplementedError) as error:
        raise NotListedError(f"it does not run: {error}") from error


def choices_of(one: Form) -> dict[str, tuple[str | bool, str | bool]]:
    """What a form was run with, and what its library does where a configuration does not say."""
    ran = config_of(Recipe(one.config, "a form", 1, LENGTHS[0]))
    unsaid = choices(type(ran)().to_dict())
    return {name: (chosen, unsaid[name]) for name, chosen in choices(ran.to_dict()).items() if name in unsaid}


def captured_family(family: str, told: Callable[[str], None]) -> dict[str, Any]:
    """All forms of a family in all variants, as the shipped file has them; what cannot be listed is told."""
    forms, table = {}, Tables()
    idle = [*IDLE, *(() if family in LIGER_FAMILIES else (LIGER,))]
    known: dict[tuple[str, Variant], Lists] = {}  # by layers alone, which ties leave as they are
    for found, one in forms_of(family).items():
        variants, layers = [], found.split(") ", 1)[1]
        ends = dict[tuple[tuple[str, ...], bool], Lists]()
        for variant in VARIANTS:
            options, adapters, again = variant
            if LIGER in options and family not in LIGER_FAMILIES:
                continue
            twin = known.get((layers, variant))
            try:
                if twin is None or not again:
                    lists = captured(one, variant, table, twin)
                else:
                    lists = replace(
                        twin, before=ends[options, adapters].before, behind=ends[options, adapters].behind
                    )
            except (NotListedError, KeyError) as error:
                told(f"{one.name} {options} adapters={adapters} recomputed={again}: {error}")
                continue
            known.setdefault((layers, variant), lists)
            ends.setdefault((options, adapters), lists)
            keys = {"options": list(options), "adapters": adapters, "recomputed": again}
            variants.append(keys | table.variant(lists))
        if variants:
            forms[found] = {
                "model": one.name, **bounds_of(one), "choices": choices_of(one), "variants": variants,
            }  # fmt: skip
        told(f"{one.name}: {len(variants)} variants")
    return {
        "software": software(),
        "idle": idle,
        "unsharded": list(UNSHARDED),
        **table.written(),
        "forms": forms,
    }


def checked_family(family: str, every: bool, told: Callable[[str], None]) -> int:
    """How many lists of a shipped file do not hold for a run of today's software; those are told. Of no options, or of
    `every` one."""

    document = json.loads((FOLDER / STACK / f"{family}.json").read_text(encoding="utf-8"))
    forms = forms_of(family)

    def run(form: str, of: Mapping[str, Any]) -> Run | None:
        if of["options"] and not every:
            return None
        one, variant = forms[form], (tuple(of["options"]), of["adapters"], of["recomputed"])
        return run_of(short(one.config, one.layers, one.beyond), 0, variant)

    return count_wrong(document, forms, run, lambda text: told(f"{family}: {text}"))


def main() -> None:
    """Capture families, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=lambda text: text.split(","), help="default: all of the catalog")
    parser.add_argument(
        "--check", action="store_true", help="hold shipped lists against runs, and write nothing"
    )
    parser.add_argument("--every", action="store_true", help="with --check, also variants by options")
    parser.add_argument("--out", type=Path, default=FOLDER / STACK)
    given = parser.parse_args()
    gc.freeze()  # what is imported is not looked through again behind every run
    if given.check:
        shipped = given.families or sorted(file.stem for file in (FOLDER / STACK).glob("*.json"))
        sys.exit(sum(checked_family(family, given.every, print) for family in shipped) > 0)
    given.out.mkdir(parents=True, exist_ok=True)
    for family in given.families or sorted({load_model(name).family for name in catalog_models()}):
        began = time.process_time()
        found = captured_family(family, lambda text: print(f"  {text}", flush=True))
        count = sum(len(one["variants"]) for one in found["forms"].values())
        seconds = time.process_time() - began
        print(f"{family}: {len(found['forms'])} forms, {count} variants, {seconds:.0f} s", flush=True)
        if count:
            text = json.dumps(found, separators=(",", ":"))
            (given.out / f"{family}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

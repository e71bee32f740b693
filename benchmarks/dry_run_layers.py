"""Is a dry run of few layers that of all of them, for tiny models of every causal type of transformers?

    python -m benchmarks.dry_run_layers [--write]

Left out: types whose tiny model does not run at all (`benchmarks/dry_run_classes.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.dry_run_classes import HOPPER, TOKENS, outcome
from benchmarks.results_file import write_section
from benchmarks.tiny_configs import tiny_fields
from planner.dryrun.short_record import same_record
from planner.dryrun.software import quiet
from planner.dryrun.transformers.recipe import Recipe

LAYERS = 16  # at least
SAME, OTHER, REFUSED, WHOLE = "same", "not the same", "folded in vain", "not folded"


def judged(kind: str) -> str:
    """How the record of few layers compares, of a type's tiny model."""
    from planner.dryrun.transformers.model import config_of
    from planner.dryrun.transformers.shortened import shortened
    from planner.dryrun.transformers.step import by_few, whole_step

    recipe = Recipe(tiny_fields(kind, LAYERS), kind, 1, TOKENS)
    config = config_of(recipe)
    few = shortened(recipe, config)
    if few is None:
        return WHOLE
    found = by_few(recipe, few, HOPPER)
    if found is None:
        return REFUSED
    return SAME if same_record(found, whole_step(recipe, config, HOPPER)) else OTHER


def main(arguments: Sequence[str] | None = None) -> None:
    import transformers

    kinds = sorted({one.model_type for one in transformers.MODEL_FOR_CAUSAL_LM_MAPPING})
    by_result: dict[str, list[str]] = {}
    began = time.process_time()
    for kind in kinds:
        with quiet():
            failed, found = outcome(lambda kind=kind: judged(kind))  # type: ignore[misc]
        print(kind, found or failed, flush=True)
        by_result.setdefault(found or "do not run", []).append(kind)
    lines = [
        f"transformers {transformers.__version__}, tiny models of {LAYERS} layers or more: "
        f"of {len(kinds)} causal types",
        "; ".join(
            f"{len(some)} {result}" + (f" ({', '.join(some)})" if result in (OTHER, REFUSED) else "")
            for result, some in by_result.items()
        )
        + f". {time.process_time() - began:.0f} CPU s.",
    ]
    print("\n".join(lines))
    if "--write" in (sys.argv[1:] if arguments is None else arguments):
        write_section("dry-run-layers", "\n".join(lines))


if __name__ == "__main__":
    main()

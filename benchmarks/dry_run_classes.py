"""Which causal language models of the installed transformers can be run dry?

    python -m benchmarks.dry_run_classes [TYPE ...] [--json OUT] [--write]

Each model type with the library's own default configuration, cut to six layers, one sequence of 128 tokens. A run that
takes longer than two minutes counts as not run. Left out: whether peaks are right, which `dry_runs.py` judges.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.results_file import write_section
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import memory_of
from planner.dryrun.recipe import Recipe
from planner.errors import PlannerError

LAYERS: Final = 6  # of which one has full attention in every kind
COUNTS: Final = (
    "num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers", "num_decoder_layers",
)  # fmt: skip
SECONDS: Final = 120
ENOUGH: Final = 2**50  # bytes: no device is asked about


class OverdueError(Exception):
    """A run took too long."""


def cut(fields: dict[str, Any]) -> None:
    """Leave the first layers of a configuration, and of those inside it."""
    for name in COUNTS:
        layers = fields.get(name)
        if isinstance(layers, int) and layers > LAYERS:
            fields[name] = LAYERS
            for other, value in fields.items():
                if isinstance(value, list) and len(value) == layers:
                    fields[other] = value[:LAYERS]
    for name, inner in fields.items():
        if isinstance(inner, dict):
            cut(inner)
            fields[name] = {
                key: one for key, one in inner.items() if not str(key).isdigit() or int(key) < LAYERS
            }


def reason(kind: str) -> str:
    """Why a model type cannot be run; empty where it can."""
    from transformers import AutoConfig

    from planner.dryrun.transformers_step import record_step

    try:
        fields = AutoConfig.for_model(kind).to_dict()
        for name in ("architectures", "transformers_version"):
            fields.pop(name, None)
        cut(fields)
        signal.alarm(SECONDS)
        recorded = record_step(Recipe(fields | {"model_type": kind}, kind, 1, 128), (9, 0))
        memory_of(recorded, AllocatorSettings(), ENOUGH)
    except PlannerError as error:
        return " ".join((error.given or error.must).split())[:160]
    except OverdueError:
        return f"longer than {SECONDS} s"
    except Exception as error:  # the library's own, on its own default configuration
        return f"{type(error).__name__}: {error}".partition("\n")[0][:160]
    finally:
        signal.alarm(0)
    return ""


def section(found: dict[str, str], version: str) -> str:
    """How many run, and why others do not."""
    ran = sum(not why for why in found.values())
    lines = [
        f"{ran} of {len(found)} causal model types of transformers {version} run ({ran / len(found):.0%}).",
        "",
    ]
    lines += [
        "| not run | why |",
        "|---|---|",
        *(f"| {kind} | {why} |" for kind, why in found.items() if why),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run them all."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.dry_run_classes", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="these model types alone")
    parser.add_argument("--json", type=Path, help="why each is not run; empty where it is")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args(arguments)

    def overdue(*_: object) -> None:
        raise OverdueError

    signal.signal(signal.SIGALRM, overdue)
    transformers.logging.set_verbosity_error()
    found = {}
    for kind in given.kinds or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        found[kind] = reason(kind)
        print(f"{kind}: {found[kind] or 'runs'}", file=sys.stderr, flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    inside = section(found, transformers.__version__)
    print(inside)
    if given.write:
        write_section("dry-run-classes", inside)


if __name__ == "__main__":
    main()

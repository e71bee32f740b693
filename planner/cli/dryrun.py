"""What does `planner dryrun` answer? Its options, and its answer for the terminal or as JSON.

Left out: how a step is run (`planner/dryrun/`).
"""

from __future__ import annotations

from typing import Annotated

import typer

from planner.ask.question import DryrunQuestion
from planner.cli.campaign import Answer
from planner.cli.options import JsonOption
from planner.cli.output import progress, tell

EPILOG = (
    '\b\nExample:\n  planner dryrun llama-3.2-1b "1x1 h100" --stack transformers-2026+amp --seq-len 4096 \\\n'
    "    --global-batch 2 --set micro_batch=2 --set recompute=full"
)


def dryrun(
    asked: DryrunQuestion,
    alloc_conf: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="PYTORCH_CUDA_ALLOC_CONF of the run, such as expandable_segments:True.",
        ),
    ] = "",
    largest: Annotated[
        bool, typer.Option("--largest", help="Also find the largest micro-batch that runs.")
    ] = False,
    longest: Annotated[
        bool, typer.Option("--longest", help="Also find the longest sequence that runs.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Run the real training step without a device. What PyTorch allocates and reserves, when, and for what."""
    from planner.dryrun.allocator.settings import read_alloc_conf
    from planner.dryrun.question import make_dryrun
    from planner.report.dryrun import dryrun_document, dryrun_facts

    settings = read_alloc_conf(alloc_conf)
    with progress("running the step"):
        found = make_dryrun(asked, settings, largest, longest)
    return tell(Answer(found.fits, dryrun_facts(found), dryrun_document(found)), as_json)

"""What does `planner dryrun` answer? Its options, and its answer for the terminal or as JSON.

Left out: how a step is run (`planner/dryrun/`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from planner.ask.question import DryrunQuestion
from planner.cli.campaign import Answer
from planner.cli.options import AnswerOption, JsonOption
from planner.cli.output import check_output, progress, tell
from planner.errors import FileInputError

if TYPE_CHECKING:
    from planner.dryrun.snapshot import OwnRun

_LARGEST: Final = 2_000_000_000  # bytes of a snapshot, which takes several times as much memory

EPILOG = (
    '\b\nExample:\n  planner dryrun llama-3.2-1b "1x1 h100" --stack transformers-2026+amp --seq-len 4096 \\\n'
    "    --global-batch 2 --set micro_batch=2 --set recompute=full"
)


def dryrun(
    asked: DryrunQuestion,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.pickle",
            help="Lay a run of yours beside it: what torch.cuda.memory._dump_snapshot wrote.",
        ),
    ] = None,
    as_json: JsonOption = False,
    output: AnswerOption = None,
) -> int:
    """Run the real training step without a device. What PyTorch allocates and reserves, when, and for what."""
    from planner.dryrun.allocator.settings import read_alloc_conf
    from planner.dryrun.beside_snapshot import laid_beside
    from planner.dryrun.extra import require_extra
    from planner.dryrun.question import make_dryrun
    from planner.report.dryrun import dryrun_document, dryrun_facts

    check_output(output, asked, snapshot)
    settings = read_alloc_conf(asked.alloc_conf)
    require_extra()
    with progress("reading the snapshot"):
        own = None if snapshot is None else _run_of(snapshot)
    with progress("running the step"):
        found = make_dryrun(asked, settings, asked.largest, asked.longest)
    beside = None if own is None else laid_beside(own, found.worst)
    answer = Answer(found.fits, dryrun_facts(found, beside), dryrun_document(found, beside))
    return tell(answer, as_json, output)


def _run_of(path: Path) -> OwnRun:
    """What the snapshot in a file says. Raises `FileInputError`."""
    from planner.dryrun.snapshot import read_snapshot
    from planner.spec.load_file import check_file

    name = str(path)
    try:
        check_file(path, _LARGEST, large="record fewer events (max_entries=...), or no frames (context=None)")
        with path.open("rb") as file:
            return read_snapshot(file, name)
    except OSError as error:
        raise FileInputError(name, "must be a readable file", error.strerror or str(error)) from None

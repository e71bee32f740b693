"""What does `planner validate` do? Holds planner against measured runs and prints the errors by source.

Left out: how runs are read and predicted (`calibrate/`), and fitting.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import CalibrationOption
from planner.cli.output import check_output
from planner.errors import FileInputError

EPILOG = (
    "\b\nExample (the columns are those options of planner estimate: docs/own_runs.md):\n"
    "  planner validate runs.csv --json out.json"
)


def validate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Measured runs, one a line.")],
    output: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write every prediction and the summary."),
    ] = None,
    calibration: CalibrationOption = None,
) -> int:
    """Compare predictions with measured runs. Shows the errors and the worst rows."""
    from planner.calibrate.coverage import coverage_lines
    from planner.calibrate.tables import text_table, total_lines
    from planner.calibrate.validate import validate_table
    from planner.spec.save import save_text

    check_output(output, runs, calibration)
    validation = validate_table(runs, None if calibration is None else str(calibration))
    if not validation.rows:
        raise FileInputError(
            str(runs), "must hold a run or more", "none below the header", "see docs/own_runs.md"
        )
    if output is not None:
        save_text(json.dumps(validation.document(), allow_nan=False, indent=1), output)
    typer.echo(text_table(validation.summary, total_lines(validation.summary)))
    parts = validation.summary["coverage"]
    if parts:
        typer.echo("\nby stack and devices (percent; a band promises to hold 80 % of the rows):")
        typer.echo("\n".join(coverage_lines(parts)))
    return 0

"""What does `planner report` do? Makes one HTML file of a plan, a comparison, a sizing or a dry run.

Left out: what stands on the page (`report/page`, `report/page_results`) and how it looks (`report/html`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import CalibrationOption, ClusterOption
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.report.page import Page
    from planner.spec.planfile import Plan

EPILOG = "\b\nExample:\n  planner report plan.json -o report.html"
MOST_RANKS, MOST_CELLS = 16, 6_000  # of the pipeline's drawing

ResultArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RESULT.json",
        help="A plan (planner plan -o), or what compare, size or dryrun wrote (-o) or printed (--json).",
    ),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Page to write.")]


def report(
    result: ResultArgument, output: OutputOption, cluster: ClusterOption = None, calibration: CalibrationOption = None
) -> int:  # fmt: skip
    """Write a self-contained HTML report. Of a plan, a comparison, a sizing or a dry run, with charts."""
    from planner.cli.output import check_output, progress
    from planner.report.html import page_html
    from planner.spec.save import save_text

    check_output(output, result, cluster, calibration)
    with progress("drawing"):
        page = result_file_page(result, cluster, calibration, output)
        text = page_html(page)
    save_text(text, output)
    sys.stderr.write(f"page written to {output}, {len(text.encode()) / 1e6:.1f} MB\n")
    return 0


def result_file_page(
    path: Path, cluster: str | None, calibration: Path | None, output: Path | None = None
) -> Page:
    """The page of a file, whichever it is; `output`: where it is to be written. Raises `PlannerError`."""
    from planner.cli.output import check_output
    from planner.report.charts import require_altair
    from planner.report.page_results import result_page
    from planner.report.result_file import parse_result
    from planner.spec.load_plan import parse_json, parse_plan, read_document

    require_altair()
    name = str(path)
    text = read_document(path)  # once: it may be a pipe
    document = parse_json(text, name)
    if "kind" in document:
        return result_page(parse_result(document, name))
    plan = parse_plan(text, name)
    check_output(output, plan)
    return drawn_plan_page(plan, cluster, calibration)


def drawn_plan_page(plan: Plan, cluster: str | None = None, calibration: Path | None = None) -> Page:
    """The page of a plan with its pipeline drawn, or the reason why it is not. Raises `PlannerError`."""
    from planner.cli.trace import traced_step
    from planner.report.page import plan_page
    from planner.report.timeline import timeline_svg

    if not plan.choices or plan.choices[0].config.pp == 1:
        return plan_page(plan)
    try:
        timeline = traced_step(plan, 0, None, cluster, calibration).timeline
    except PlannerError as error:
        reason = "; ".join(part for part in (error.must, error.given, error.hint) if part)
        return plan_page(plan, not_drawn=f"The passes are not drawn: {reason}.")
    title = "one step of the pipeline, in seconds"
    return plan_page(plan, timeline_svg(timeline, title, MOST_RANKS, MOST_CELLS))

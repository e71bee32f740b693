"""How far are dry runs of torchtitan's step from the peaks that it published, beside planner's estimate?

    python -m benchmarks.dry_runs_torchtitan RUNS.csv MODELS.json [--write]

Published are runs of torchtitan 0.1, whose loss took all logits at once; run dry is 0.3.0, eager, with that loss. A
published peak is what its memory line shows: reserved memory. Every run with one is told, also those that cannot be run
dry. Needs what `planner dryrun` of torchtitan needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.published.runs import Run, RunReader, read_models, read_rows
from benchmarks.results_file import judging, tell
from planner.calibrate.predict import predicted_cost
from planner.catalog.load_stacks import load_stack
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import memory_of
from planner.dryrun.torchtitan.recipe import EAGER, TitanRecipe, launched_recipe
from planner.errors import UnsupportedError
from planner.frameworks.framework import launch_in
from planner.units import GIB


@dataclass(frozen=True)
class Judged:
    """A run as published, estimated and run dry [GiB]; nothing told where it cannot be run, for which there is a
    `reason`. `seconds` of a processor."""

    settings: str
    measured: float
    estimated: float
    allocated: float | None
    reserved: float | None
    seconds: float
    reason: str = ""


def recipe_of_run(run: Run, extras: str) -> TitanRecipe:
    """What is run of a published run. Raises `UnsupportedError` for what cannot be."""
    if "compile" in extras:
        raise UnsupportedError("a dry run of torchtitan is eager", "torch.compile")
    problem = replace(run.problem, stack=load_stack(EAGER))
    return replace(launched_recipe(launch_in(problem, run.config)), chunks_loss=False)


def judged(row: Mapping[str, str], run: Run) -> Judged:
    """A run as told and as measured."""
    from planner.dryrun.torchtitan.step import record_step

    began, found, reason = time.process_time(), None, ""
    try:
        recipe = recipe_of_run(run, row["extras"])
        each = [
            memory_of(record_step(one, (9, 0)), AllocatorSettings(), 2**50, rank)
            for rank, one in recipe.roles()
        ]
        found = max(each, key=lambda one: one.reserved_peak)
    except UnsupportedError as error:
        reason = error.given
    cells = ("model", "precision", "recompute", "extras")
    return Judged(
        settings=", ".join(
            [f"{row['gpus']} x {float(row['seq_len']):.0f} tokens", *(row[one] for one in cells)]
        ),
        measured=float(row["peak_mem_gib"]),
        estimated=predicted_cost(run.problem, run.config).memory / GIB,
        allocated=found.allocated_peak / GIB if found else None,
        reserved=found.reserved_peak / GIB if found else None,
        seconds=time.process_time() - began,
        reason=reason,
    )


def section(found: Sequence[Judged]) -> str:
    """Every run, and what it takes."""
    lines = [
        "| run | published [GiB] | dry run: reserved | allocated | estimate |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in found:
        cells = [f"{one.measured:.1f}"]
        if one.reserved is None or one.allocated is None:
            cells += [f"not run: {one.reason}", ""]
        else:
            cells += [f"{one.reserved:.1f} ({one.reserved / one.measured - 1:+.1%})", f"{one.allocated:.1f}"]
        cells.append(f"{one.estimated:.1f} ({one.estimated / one.measured - 1:+.1%})")
        lines.append(f"| {one.settings} | {' | '.join(cells)} |")
    ran = [one.seconds for one in found if not one.reason]
    return "\n".join([*lines, "", f"{max(ran, default=0):.0f} CPU s a run at most."])


def main() -> None:
    """Judge the published runs of a table."""
    parser = judging("dry_runs_torchtitan", __doc__, "runs", "models")
    given = parser.parse_args()
    reader: Any = RunReader(read_models(given.models))
    found = []
    for row in read_rows(given.runs):
        if row["framework"].startswith("torchtitan") and row.get("peak_mem_gib"):
            found.append(judged(row, reader.read(row)))
    tell(given, "dry-runs-torchtitan", section(found), found)


if __name__ == "__main__":
    main()

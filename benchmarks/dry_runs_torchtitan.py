"""How far are dry runs of torchtitan's step from the peaks and times that it published, beside planner's estimate?

    python -m benchmarks.dry_runs_torchtitan RUNS.csv MODELS.json [--write]

Published are runs of torchtitan 0.1, whose loss took all logits at once; run dry is 0.3.0, eager, with that loss. A
published peak is what its memory line shows: reserved memory. Runs that cannot be run dry are counted. The estimate was
fitted to these times, the dry run to none. Needs what `planner dryrun` of torchtitan needs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.published.runs import Run, RunReader, read_models, read_rows
from benchmarks.results_file import judging, tell
from planner.calibrate.predict import predicted_cost
from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_host import load_host_rates
from planner.catalog.load_stacks import load_stack
from planner.cost.captured.kernels import Device
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import memory_of
from planner.dryrun.question import capability_of
from planner.dryrun.timing.messages import Wires
from planner.dryrun.timing.step import time_of
from planner.dryrun.torchtitan.recipe import EAGER, TitanRecipe, launched_recipe
from planner.errors import UnsupportedError
from planner.frameworks.framework import launch_in
from planner.units import GIB


@dataclass(frozen=True)
class Judged:
    """A run as published, estimated and run dry: peaks [GiB], of which `measured` is None where none is published, and
    times of a step [s]; None where it cannot be run, for which there is a `reason`. `seconds` of a processor."""

    settings: str
    measured: float | None
    estimated: float
    measured_time: float
    estimated_time: float
    allocated: float | None = None
    reserved: float | None = None
    time: float | None = None
    seconds: float = 0.0
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

    cluster = run.problem.cluster
    kernels, links = rates_of(cluster)
    told = predicted_cost(run.problem, run.config)
    cells = ("model", "gpu", "precision", "recompute", "extras")
    published = Judged(
        settings=", ".join(
            [f"{row['gpus']} x {float(row['seq_len']):.0f} tokens", *(row[one] for one in cells)]
        ),
        measured=float(row["peak_mem_gib"]) if row.get("peak_mem_gib") else None,
        estimated=told.memory / GIB,
        measured_time=run.problem.job.tokens_per_step
        / cluster.num_devices
        / float(row["tokens_per_s_per_gpu"]),
        estimated_time=told.seconds,
    )
    began = time.process_time()
    try:
        recipe = recipe_of_run(run, row["extras"])
        each = [(rank, record_step(one, capability_of(run.problem))) for rank, one in recipe.roles()]
    except UnsupportedError as error:
        return replace(published, reason=f"{error.must}: {error.given}")
    found = max(
        (memory_of(one, AllocatorSettings(), 2**50, rank) for rank, one in each),
        key=lambda one: one.reserved_peak,
    )
    device, wires = Device(cluster.accelerator, kernels), Wires(cluster, links)
    times = (time_of(one, device, load_host_rates(), recipe.num_microbatches, wires) for _, one in each)
    return replace(
        published,
        allocated=found.allocated_peak / GIB,
        reserved=found.reserved_peak / GIB,
        time=max(one.step for one in times),
        seconds=time.process_time() - began,
    )


def section(found: Sequence[Judged]) -> str:
    """Every run, what it takes, and how many were not run."""
    lines = [
        "| run | peak [GiB] | dry run: reserved | allocated | estimate | step [s] | dry run | estimate |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    ran = [one for one in found if not one.reason]
    for one in ran:
        cells = (
            one.settings,
            _beside(one.measured, None, 1),
            _beside(one.reserved, one.measured, 1),
            _beside(one.allocated, None, 1),
            _beside(one.estimated, one.measured, 1),
            _beside(one.measured_time, None),
            _beside(one.time, one.measured_time),
            _beside(one.estimated_time, one.measured_time),
        )
        lines.append(f"| {' | '.join(cells)} |")
    reasons = Counter(one.reason for one in found if one.reason)
    unrun = "; ".join(f"{number} ({reason})" for reason, number in reasons.items())
    seconds = max((one.seconds for one in ran), default=0.0)
    return "\n".join([*lines, "", f"Not run: {unrun or 'none'}. {seconds:.0f} CPU s a run at most."])


def _beside(told: float | None, measured: float | None, digits: int = 2) -> str:
    if told is None:
        return ""
    return f"{told:.{digits}f}" + (f" ({told / measured - 1:+.1%})" if measured else "")


def main() -> None:
    """Judge the published runs of a table."""
    parser = judging("dry_runs_torchtitan", __doc__, "runs", "models")
    given = parser.parse_args()
    reader: Any = RunReader(read_models(given.models))
    found = []
    for row in read_rows(given.runs):
        if row["framework"].startswith("torchtitan"):
            found.append(judged(row, reader.read(row)))
    tell(given, "dry-runs-torchtitan", section(found), found)


if __name__ == "__main__":
    main()

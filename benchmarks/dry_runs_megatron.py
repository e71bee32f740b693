"""How far are dry runs of Megatron-Core's layers from peaks that were published of Megatron?

    python -m benchmarks.dry_runs_megatron RUNS.csv MODELS.json [--only SOURCE ...] [--json OUT] [--write]

Input as that of `benchmarks/accuracy.py`. Every configuration of Megatron with a peak is told once, also those that
cannot be run dry. Published runs had Transformer Engine. Needs what `planner dryrun` needs. Left out: times.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from benchmarks.published.runs import Run, RunReader, read_models, read_rows
from benchmarks.results_file import judging, tell
from planner.calibrate.predict import predict_runs
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.megatron.recipe import MegatronRecipe, launched_recipe
from planner.dryrun.outcome import memory_of
from planner.dryrun.question import capability_of
from planner.errors import PlannerError, UnsupportedError
from planner.frameworks.framework import launch_in
from planner.units import GIB

_RESERVED: Final = re.compile(r"reserved_gib=([\d.]+)")
_ROOM: Final = 2**50  # no device has as much [bytes]
Row = dict[str, str]


@dataclass(frozen=True)
class Judged:
    """A configuration, of the rank that needs most [GiB]; none where it was not run, for a `reason`, or not published.
    `seconds` of a processor."""

    source: str
    settings: str
    measured_allocated: float
    measured_reserved: float | None
    estimated: float | None
    allocated: float | None = None
    reserved: float | None = None
    seconds: float = 0.0
    reason: str = ""


def rows_with_peaks(rows: Sequence[Row]) -> list[Row]:
    """Rows of Megatron and NeMo that ran and say how much memory they took, one of each configuration."""
    found: dict[tuple[str, ...], Row] = {}
    columns = (
        "source",
        "model",
        "gpu",
        "gpus",
        "seq_len",
        "micro_batch",
        "tp",
        "cp",
        "pp",
        "vpp",
        "ep",
        "recompute",
    )
    for row in rows:
        of_megatron = any(word in row["framework"].lower() for word in ("megatron", "nemo"))
        if of_megatron and row.get("peak_mem_gib") and not row["notes"].startswith(("OOM", "FAILED")):
            key = *(row[name] for name in columns), row["precision"], row["peak_mem_gib"]
            found.setdefault(key, row)
    return list(found.values())


def judged(row: Row, run: Run) -> Judged:
    """A configuration as told and as published."""
    reserved = _RESERVED.search(row["extras"])
    told = predict_runs([run])[0]
    stands = Judged(
        source=row["source"],
        settings=f"{row['model']}, {row['seq_len'].removesuffix('.0')} tokens, {run.config.describe()}",
        measured_allocated=float(row["peak_mem_gib"]),
        measured_reserved=float(reserved[1]) if reserved else None,
        estimated=told.peak_memory / GIB if told is not None and told.peak_memory else None,
    )
    began = time.process_time()
    try:
        allocated, reserved_peak = max(_peaks(recipe_of(run), capability_of(run.problem)))
    except PlannerError as error:
        reason = error.given if isinstance(error, UnsupportedError) else str(error)
        return Judged(**asdict(stands) | {"reason": reason})
    seconds = time.process_time() - began
    return Judged(**asdict(stands) | {"allocated": allocated, "reserved": reserved_peak, "seconds": seconds})


def recipe_of(run: Run) -> MegatronRecipe:
    """What is run of a published run. Raises `UnsupportedError`."""
    return launched_recipe(launch_in(run.problem, run.config, run.chunks))


def _peaks(recipe: MegatronRecipe, capability: tuple[int, int]) -> Iterator[tuple[float, float]]:
    """Allocated and reserved peak of each rank [GiB]."""
    from planner.dryrun.megatron.step import record_step

    for rank, one in recipe.roles():
        memory = memory_of(record_step(one, capability), AllocatorSettings(), _ROOM, rank)
        yield memory.allocated_peak / GIB, memory.reserved_peak / GIB


def errors(found: Sequence[Judged], told: str, measured: str) -> np.ndarray:
    """Told over measured, less one, of what was both (n,) [1]."""
    pairs = [(getattr(one, told), getattr(one, measured)) for one in found if not one.reason]
    return np.array([mine / theirs - 1 for mine, theirs in pairs if mine is not None and theirs is not None])


def section(found: Sequence[Judged]) -> str:
    """Errors, and every configuration."""
    told = [one for one in found if not one.reason]
    lines = [
        f"{len(told)} of {len(found)} configurations can be run dry.",
        "", "| | runs | error, median | worst |", "|---|---:|---:|---:|",
    ]  # fmt: skip
    kinds = (
        ("allocated peak", "allocated", "measured_allocated"),
        ("reserved peak", "reserved", "measured_reserved"),
        ("`planner estimate` of the same, allocated", "estimated", "measured_allocated"),
    )
    for name, mine, theirs in kinds:
        size = np.abs(errors(told, mine, theirs))
        lines.append(f"| {name} | {len(size)} | {np.median(size):.2%} | {size.max():.2%} |")
    lines += ["", "| source | configuration | allocated, told and measured [GiB] | reserved | estimate |"]
    lines += ["|---|---|---:|---:|---:|", *map(_line, found)]
    seconds = [one.seconds for one in told]
    return "\n".join(
        [*lines, "", f"{np.median(seconds):.1f} CPU s in the median, {max(seconds):.1f} at most."]
    )


def _line(one: Judged) -> str:
    allocated, reserved = one.measured_allocated, one.measured_reserved
    if one.allocated is None or one.reserved is None:
        cells = [f"not run: {one.reason} / {allocated:.2f}", ""]
    else:
        cells = [f"{one.allocated:.2f} / {allocated:.2f} ({one.allocated / allocated - 1:+.2%})", ""]
        if reserved is not None:
            cells[1] = f"{one.reserved:.2f} / {reserved:.2f} ({one.reserved / reserved - 1:+.2%})"
    cells.append(
        "" if one.estimated is None else f"{one.estimated:.2f} ({one.estimated / allocated - 1:+.2%})"
    )
    return f"| {one.source} | {one.settings} | {' | '.join(cells)} |"


def main() -> None:
    """Judge the configurations of a table."""
    parser = judging("dry_runs_megatron", __doc__, "runs", "models")
    parser.add_argument("--only", nargs="*", help="these sources alone")
    given = parser.parse_args()
    reader, found = RunReader(read_models(given.models)), []
    for row in rows_with_peaks(read_rows(given.runs)):
        if given.only and row["source"] not in given.only:
            continue
        try:
            run = reader.read(row)
        except PlannerError as error:
            print(f"{row['source']}, {row['model']}: {error}", file=sys.stderr)
            continue
        found.append(judged(row, run))
        print(_line(found[-1]), file=sys.stderr, flush=True)
    tell(given, "dry-runs-megatron", section(found), found)


if __name__ == "__main__":
    main()

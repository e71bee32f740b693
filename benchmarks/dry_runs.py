"""How far are dry runs from training steps that were measured on one device, and do they fit as told?

    python -m benchmarks.dry_runs RUNS.csv CONFIGS [--only ID ...] [--json OUT] [--write]

Input as that of `benchmarks/device_runs.py`. Every run is told, also those that cannot be run dry. Needs what
`planner dryrun` needs. Times: a few bandwidths and times of the host were fitted to the runs of half of the models.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.device_runs import Row, question_of, settings_of
from benchmarks.results_file import judging, tell
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.question import make_dryrun
from planner.errors import UnsupportedError
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB

MEASURED: Final = {"allocated": "peak_allocated_gib", "reserved": "peak_reserved_gib"}
TIMES: Final = {
    "step": "step_s", "forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s",
}  # fmt: skip
# every other one by name; see catalog/host.yaml and catalog/kernels/moving.json
FITTED: Final = ("gpt2-xl", "llama-3.2-1b", "olmoe-1b-7b", "qwen3-0.6b")


@dataclass(frozen=True)
class Judged:
    """A run dry and on a device [GiB]; measured amounts are none where it ran out of memory, others where it cannot be
    run dry, for which there is a `reason`. `seconds` of a processor. `times`, `measured_times`: by part of the step,
    empty alike [s]."""

    id: str
    settings: str
    failed: bool
    verdict: str
    allocated: float | None
    reserved: float | None
    measured_allocated: float | None
    measured_reserved: float | None
    seconds: float
    reason: str = ""
    times: Mapping[str, float] = field(default_factory=dict)
    measured_times: Mapping[str, float] = field(default_factory=dict)


def judged(row: Row, configs: Path, folder: Path) -> Judged:
    """A run as told and as measured."""
    failed = row["oom"] == "True"
    known = {name: None if failed else float(row[column]) for name, column in MEASURED.items()}
    began = time.process_time()
    told, reason, times = None, "", {}
    try:
        found = make_dryrun(question_of(row, configs, folder), AllocatorSettings())
        told, slowest = found.worst, found.slowest
        times = {name: getattr(slowest, name) for name in TIMES} if slowest else {}
    except UnsupportedError as error:
        reason = error.given
    return Judged(
        id=row["id"],
        settings=settings_of(row),
        failed=failed,
        verdict=str(told.verdict) if told else "",
        allocated=told.allocated_peak / GIB if told else None,
        reserved=told.reserved_peak / GIB if told else None,
        measured_allocated=known["allocated"],
        measured_reserved=known["reserved"],
        seconds=time.process_time() - began,
        reason=reason,
        times=times,
        measured_times={name: float(row[column]) for name, column in TIMES.items() if row[column]},
    )


def time_errors(found: Sequence[Judged], name: str) -> np.ndarray:
    """Told over measured times, less one, of the runs that ran both ways (n,) [1]."""
    ran = [one for one in found if name in one.times and name in one.measured_times]
    return np.array([one.times[name] / one.measured_times[name] - 1 for one in ran])


def errors(found: Sequence[Judged], name: str) -> np.ndarray:
    """Told over measured, less one, of the runs that ran both ways (n,) [1]."""
    pairs = [(getattr(one, name), getattr(one, f"measured_{name}")) for one in found]
    return np.array(
        [told / measured - 1 for told, measured in pairs if told is not None and measured is not None]
    )


def section(found: Sequence[Judged]) -> str:
    """Errors and verdicts, and every run."""
    told = [one for one in found if not one.reason]
    failed, ran = [one for one in told if one.failed], [one for one in told if not one.failed]
    missed = sum(one.verdict == MemoryVerdict.FITS for one in failed)
    refused = sum(one.verdict == MemoryVerdict.DOES_NOT_FIT for one in ran)
    unsure = sum(one.verdict == MemoryVerdict.BORDERLINE for one in ran)
    lines = [
        f"{len(told)} of {len(found)} runs can be run dry: {missed} of {len(failed)} recorded failures are called a "
        f"fit, {refused} of {len(ran)} that ran no fit and {unsure} borderline.",
        "", "| | runs | error, median | 90th percentile | worst |", "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name in MEASURED:
        lines.append(_shares(f"{name} peak", errors(told, name), 2))
    lines += _times(told)
    lines += ["", "| run | verdict | allocated, told and measured [GiB] | reserved |", "|---|---|---:|---:|"]
    lines += [_line(one) for one in found]
    seconds = [one.seconds for one in told]
    return "\n".join(
        [*lines, "", f"{np.median(seconds):.1f} CPU s a run in the median, {max(seconds):.1f} at most."]
    )


def _shares(words: str, off: np.ndarray, digits: int) -> str:
    size = np.abs(off)
    shares = (np.median(size), np.quantile(size, 0.9), size.max())
    return f"| {words} | {len(size)} | " + " | ".join(f"{share:.{digits}%}" for share in shares) + " |"


def _times(told: Sequence[Judged]) -> list[str]:
    """Errors of times, of all runs and apart of those of models that nothing was fitted to; and every run's."""
    ran = [one for one in told if one.times and one.measured_times]
    if not ran:
        return []
    lines = [_shares(f"{name} time", time_errors(ran, name), 1) for name in TIMES]
    unseen = [one for one in ran if not one.settings.startswith(FITTED)]
    if unseen:
        lines.append(_shares("step time, models not fitted to", time_errors(unseen, "step"), 1))
    lines += ["", f"| time, told / measured [ms] | {' | '.join(TIMES)} |", "|---|---:|---:|---:|---:|"]
    for one in ran:
        cells = [_time_cell(one, name) for name in TIMES]
        lines.append(f"| {one.settings} | {' | '.join(cells)} |")
    return lines


def _time_cell(one: Judged, name: str) -> str:
    told, measured = one.times[name], one.measured_times.get(name)
    if measured is None:
        return f"{1e3 * told:.0f}"
    return f"{1e3 * told:.0f} / {1e3 * measured:.0f} ({told / measured - 1:+.0%})"


def _line(one: Judged) -> str:
    if one.reason:
        return f"| {one.settings} | not run: {one.reason} | | |"
    cells = []
    for name in MEASURED:
        told, measured = getattr(one, name), getattr(one, f"measured_{name}")
        against = "out of memory" if measured is None else f"{measured:.2f} ({told / measured - 1:+.2%})"
        cells.append(f"{told:.2f} / {against}")
    return f"| {one.settings} | {one.verdict.replace('_', ' ')} | {' | '.join(cells)} |"


def main() -> None:
    """Judge the runs of a table."""
    parser = judging("dry_runs", __doc__, "runs", "configs")
    parser.add_argument("--only", nargs="*", help="these runs alone")
    given = parser.parse_args()
    found = []
    with given.runs.open(newline="", encoding="utf-8") as lines, tempfile.TemporaryDirectory() as folder:
        for row in csv.DictReader(lines):
            if not given.only or row["id"] in given.only:
                found.append(judged(row, given.configs, Path(folder)))
                print(_line(found[-1]), file=sys.stderr, flush=True)
    tell(given, "dry-runs", section(found), found)


if __name__ == "__main__":
    main()

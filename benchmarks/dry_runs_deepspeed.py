"""How far are dry runs of DeepSpeed's ZeRO from steps that were measured on one device and its host?

    python -m benchmarks.dry_runs_deepspeed RUNS.csv CONFIGS [--json OUT] [--write]

Input: a table with columns model, zero, offload, mbs, seq, ckpt, peak_alloc_gib, peak_reserved_gib and host_rss_gib, of
one H100, and a folder with a config.json for every model. Needs what `planner dryrun` needs, and DeepSpeed. Left out:
the process itself, which a resident set holds beside tensors, and memory that its earlier steps pinned.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_file import judging, tell
from planner.ask.question import Request
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.question import make_dryrun
from planner.spec.config import OFFLOAD_LABELS, Recompute
from planner.units import GIB


@dataclass(frozen=True)
class Judged:
    """A step as told and as measured [GiB]; `host`: tensors as told, the whole process as measured."""

    settings: str
    verdict: str
    allocated: tuple[float, float]
    reserved: tuple[float, float]
    host: tuple[float, float]


def judged(row: Mapping[str, str], configs: Path) -> Judged:
    """One row of the table."""
    axes = {
        "zero": (int(row["zero"]),),
        "micro_batch": (int(row["mbs"]),),
        "offload": (OFFLOAD_LABELS[row["offload"]],),
        "recompute": (int(Recompute.FULL if row["ckpt"] == "True" else Recompute.NONE),),
    }
    question = Request(
        str(configs / row["model"] / "config.json"), "1x1 h100", 1, seq_len=int(row["seq"]), global_batch=row["mbs"],
        stack="deepspeed-2025", set=axes,
    )  # fmt: skip
    told = make_dryrun(question, AllocatorSettings()).worst
    return Judged(
        f"{row['model']}, ZeRO {row['zero']}, offload {row['offload']}, {row['mbs']} x {row['seq']}",
        str(told.verdict),
        (told.allocated_peak / GIB, float(row["peak_alloc_gib"])),
        (told.reserved_peak / GIB, float(row["peak_reserved_gib"])),
        (told.host_peak / GIB, float(row["host_rss_gib"])),
    )


def section(found: Sequence[Judged]) -> str:
    """Every step, told and measured."""
    lines = [
        "| step | allocated, told / measured [GiB] | reserved | host's memory: tensors / process |",
        "|---|---:|---:|---:|",
    ]
    for one in found:
        cells = [
            f"{told:.2f} / {measured:.2f} ({told / measured - 1:+.2%})"
            for told, measured in (one.allocated, one.reserved, one.host)
        ]
        lines.append(f"| {one.settings} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Judge the steps of a table."""
    parser = judging("dry_runs_deepspeed", __doc__, "runs", "configs")
    given = parser.parse_args()
    with given.runs.open(newline="", encoding="utf-8") as lines:
        found = [judged(row, given.configs) for row in csv.DictReader(lines)]
    tell(given, "dry-runs-deepspeed", section(found), found)


if __name__ == "__main__":
    main()

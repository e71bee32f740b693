"""What of the cross-validation is for RESULTS.md? Tables by stack and source, and the worst rows with their causes.

Read by benchmarks/cross_validate.py. Left out: every number, which comes from there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

CAUSES: Final = Path(__file__).with_name("worst_rows.yaml")


def cause_of(row: Mapping[str, Any]) -> str:
    """The cause on record of one of the worst rows."""
    text = f"{row['source']} {row['model']} {row['gpus']} {row['config']}"
    known = yaml.safe_load(CAUSES.read_text(encoding="utf-8"))
    return next((one["cause"] for one in known if re.search(one["rows"], text)), "not explained")


def worst_table(worst: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows furthest off, at most two of a source."""
    lines = ["| row | predicted s | measured s | cause |", "| --- | --- | --- | --- |"]
    for row in worst:
        what = f"{row['row']} {row['source']} {row['model']}, {row['gpus']} GPUs, {row['config']}"
        lines.append(f"| {what} | {row['predicted_s']:.3g} | {row['measured_s']:.3g} | {cause_of(row)} |")
    return lines


def stack_table(stacks: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Errors of every stack on groups no constant has seen."""
    head = ("stack", "rows", "median", "80 %", "90 %", "shipped median", "inside the others' band")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name, part in stacks.items():
        shown = [f"{100 * part[key]:.1f}" for key in ("p50", "p80", "p90", "shipped")]
        inside = f"{part['inside']:.0%}" if part["inside"] == part["inside"] else ""
        lines.append(f"| {name} | {part['rows']:.0f} | {' | '.join(shown)} | {inside} |")
    return lines


def sweep_lines(means: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Choice quality with cross-validated times."""
    lines = []
    for name, part in means.items():
        shown = ", ".join(
            f"{100 * part[f'mean_{key}']:.1f} %" for key in ("regret", "regret_of_three", "regret_of_five")
        )
        cautious = f"{100 * part['mean_regret_of_fitting']:.1f} %"
        lines.append(
            f"- {part['sweeps']} sweeps ({name}): Spearman median {part['median_spearman']:.3f}; regret, mean over "
            f"sources, of the pick, the best of three, of five: {shown}; median {100 * part['median_regret']:.1f} %, "
            f"worst {100 * part['worst_regret']:.1f} %; {part['missed']} picks recorded as out of memory; "
            f"of the pick without the borderline, as `plan` takes it by default: mean {cautious}"
        )
    return lines


def profile_line(sweeps: Sequence[Mapping[str, Any]]) -> str:
    """What the picks in sums of profiles hang on; figures of benchmarks/vtrain_profiles.py as of 24 November 2026."""
    count = sum(sweep["source"] == "vtrain_single" for sweep in sweeps)
    return (
        f"- vtrain_single ({count} of the sweeps) publishes sums of 32 profiles of a layer, exact to 3e-4 "
        "(`python -m benchmarks.vtrain_profiles`), which scatter around planner's layer by 9 % (standard "
        "deviation), three of them by -27, +18 and -18 %. A layer takes less time on 2 sequences than on 1 there "
        "(h 2048, tp 4), less on 4 than on 2 (h 1024, tp 2): jitter of launch-bound profiles, which every sweep "
        "repeats. With the 32 as published the picks lose 0.0 %, 1.1 % at worst, the best of three nothing; with "
        "those three, 0.8 and 8.8 %; as predicted, 7.2 and 39.1 %"
    )

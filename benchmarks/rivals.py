"""How does planner stand beside the accuracy that other planners publish?

    python -m benchmarks.rivals [--data ../shared/data/measured]

SimuMax on its one B200 node, Calculon on the eight A100 steps of Korthikanti 2022. Left out: rivals run on planner's
other rows; what they reach there is in no publication.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.published.measured import measurement_of
from benchmarks.published.runs import read_models, read_rows
from benchmarks.published.validate import predict_rows
from benchmarks.published_data import DATA
from planner.units import GIB

# figures recomputed from the rivals' own rows: MooreThreads/SimuMax@4dcaae5 docs/b200/b200_release_v1.2_summary.json;
# calculon-ai/calculon@caa4b11 calculon/llm/validation.py
SIMUMAX = ("SimuMax", "its own 43 rows, 8 B200", "5.6 / 13.5", "0.46 / -")
CALCULON = ("Calculon", "8 steps, 22B to 1T, A100", "3.7 / 8.9", "2.1 / 6.7 (activations)")
CALCULON_CASES = 8


def errors(rows: list[dict[str, str]], data: Path) -> tuple[list[float], list[float]]:
    """Relative errors of step time and of peak memory where both are known."""
    times, peaks = [], []
    for row, answer in zip(rows, predict_rows(rows, read_models(data / "models.json")), strict=True):
        measured = measurement_of(row)
        if measured.step_time and answer.get("step_time_s"):
            times.append(answer["step_time_s"] / measured.step_time - 1)
        if measured.peak_memory and answer.get("peak_mem_gib"):
            peaks.append(answer["peak_mem_gib"] * GIB / measured.peak_memory - 1)
    return times, peaks


def mean_and_worst(values: list[float]) -> str:
    """In percent, of absolute values."""
    found = 100 * np.abs(values)
    return f"{found.mean():.1f} / {found.max():.1f}" if len(found) else "-"


def section(data: Path) -> str:
    """The section of RESULTS.md."""
    rows = read_rows(data / "runs.csv")
    simumax = errors([row for row in rows if row["source"] == "simumax_b200"], data)
    cases = [row for row in rows if row["source"] == "korthikanti2022" and row["step_time_s"]][
        :CALCULON_CASES
    ]
    calculon = errors(cases, data)
    lines = [
        SIMUMAX,
        ("planner", f"{len(simumax[0])} of these rows", *map(mean_and_worst, simumax)),
        CALCULON,
        ("planner", "the same 8 steps", *map(mean_and_worst, calculon)),
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return (
        "### Beside the rivals' published accuracy\n\n"
        "Absolute errors in percent, mean / worst. SimuMax's rows are among those that planner's Megatron stack was "
        "fitted on, and SimuMax measured its kernels on the machine that it predicts; Calculon's eight were not used "
        "in any fit here.\n\n"
        f"| planner | rows | step time | memory |\n| --- | --- | --- | --- |\n{text}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA / "measured")
    print(section(parser.parse_args().data))


if __name__ == "__main__":
    main()

"""Is the accuracy on published runs still within the committed bounds? Exit status 0 or 1.

    python -m benchmarks.accuracy_bounds OUT.json

OUT.json is what benchmarks.accuracy wrote. Left out: memory and ranking, which have no bound yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

BOUNDS: Final = Path(__file__).with_name("accuracy_bounds.yaml")


def broken_bounds(summary: dict[str, Any], bounds: dict[str, float]) -> list[str]:
    """One line per bound that the summary breaks."""
    answered = summary["answered"] / summary["rows"]
    medians = {kind: summary[f"headline_{kind}"]["median"] for kind in ("dense", "moe_no_hybrids")}
    hybrid, most_hybrid = summary["step_time_hybrid"]["median"], bounds["hybrid_step_time_at_most"]
    broken = []
    if answered < bounds["answered_at_least"]:
        broken.append(
            f"answered rows must be {bounds['answered_at_least']:.1%} or more; they are {answered:.1%}"
        )
    for name, value in medians.items():
        most = bounds[f"{name}_step_time_at_most"]
        if not value <= most:
            broken.append(
                f"{name}: the mean of the sources' medians must be {most:.1%} or less; it is {value:.1%}"
            )
    if not hybrid <= most_hybrid:
        broken.append(f"hybrids: the median error must be {most_hybrid:.1%} or less; it is {hybrid:.1%}")
    return broken


def main() -> int:
    """Print each bound that is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy_bounds", description=__doc__)
    parser.add_argument("accuracy", type=Path, help="what benchmarks.accuracy --json wrote")
    given = parser.parse_args()
    summary = json.loads(given.accuracy.read_text(encoding="utf-8"))["summary"]
    broken = broken_bounds(summary, yaml.safe_load(BOUNDS.read_text(encoding="utf-8")))
    print("\n".join(broken) or "accuracy is within benchmarks/accuracy_bounds.yaml")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""From which difference on is the configuration that planner predicts to be faster the faster one?

    python -m benchmarks.told_apart RUNS.csv MODELS.json [--results]

Two predictions of one model on one cluster share most of their error, so that their ratio is known better than either.
Counted are pairs of runs of one sweep, by how far apart they are predicted by numbers that have not seen the sweep's
group (as in benchmarks/cross_validate.py): how often the one predicted faster was faster. Left out: sweeps that
repeat a configuration, and what a publisher with fewer than `FEWEST` pairs of a kind shows.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.cross_validate import StackErrors, replaced
from benchmarks.fit_stacks import remember_costly_parts, timed_samples
from benchmarks.published.measured import group_of, is_judged, sweep_of
from benchmarks.published.runs import read_models, read_rows
from benchmarks.published.validate import validation_answers
from benchmarks.results_file import write_section
from planner.answer.recommend import TOLD_APART
from planner.calibrate.statistics import Answer

EDGES: Final = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.5)
FEWEST: Final = 5


@dataclass(frozen=True)
class Ran:
    """A configuration of a sweep: predicted and measured step [s], and the answer it is of."""

    predicted: float
    measured: float
    answer: Answer


def sweeps(answers: Sequence[Answer]) -> dict[tuple[str, ...], list[Ran]]:
    """Configurations that ran, by sweep; of one that a sweep repeats the first."""
    found: dict[tuple[str, ...], dict[str, Ran]] = defaultdict(dict)
    for answer in answers:
        predicted, measured = answer.output["step_time_s"], answer.measured.step_time
        if predicted and measured and answer.measured.ran and is_judged(group_of(answer.row)):
            ran = Ran(float(predicted), measured, answer)
            found[sweep_of(answer.row)].setdefault(answer.output["config"], ran)
    return {key: list(members.values()) for key, members in found.items() if len(members) > 1}


def pairs(members: Sequence[Ran]) -> Iterator[tuple[float, bool]]:
    """How far apart two of a sweep are predicted [1], and whether the one predicted faster was."""
    for one, other in combinations(members, 2):
        fast, slow = sorted((one, other), key=lambda ran: ran.predicted)
        yield slow.predicted / fast.predicted - 1, slow.measured > fast.measured


def rights(answers: Sequence[Answer]) -> list[tuple[float, float, int, dict[str, float]]]:
    """By range of the predicted difference: its ends, the number of pairs, and by publisher the share ranked right."""
    told: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for (source, *_), members in sweeps(answers).items():
        told[source] += pairs(members)
    found = []
    for low, high in pairwise(EDGES):
        part = {s: [right for apart, right in each if low <= apart < high] for s, each in told.items()}
        kept = {source: rank for source, rank in part.items() if len(rank) >= FEWEST}
        shares = {source: float(np.mean(rank)) for source, rank in sorted(kept.items())}
        found.append((low, high, sum(map(len, kept.values())), shares))
    return found


def report(answers: Sequence[Answer]) -> list[str]:
    """The section of RESULTS.md."""
    lines = [
        "| predicted apart | pairs | publishers | ranked right, mean over publishers |",
        "|---|---|---|---|",
    ]
    for low, high, count, shares in rights(answers):
        mean = f"{np.mean(list(shares.values())):.0%}" if shares else ""
        lines.append(f"| {low:.0%} to {high:.0%} | {count:,} | {len(shares)} | {mean} |")
    near = [right for each in sweeps(answers).values() for apart, right in pairs(each) if apart < TOLD_APART]
    said = (
        f"Of all {len(near):,} pairs less than {TOLD_APART:.0%} apart {np.mean(near):.0%} are ranked right: that far a "
        f"prediction does not tell two configurations apart (`TOLD_APART`, planner/answer/recommend.py)."
    )
    return [*lines, "", said]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.told_apart", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--results", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args()
    remember_costly_parts()
    rows, described = read_rows(given.runs), read_models(given.models)
    samples = timed_samples(rows, described)
    models = [StackErrors(name, mine) for name, mine in sorted(samples.items())]
    unseen = {model.name: model.unseen() for model in models}
    answers = replaced(validation_answers(rows, described), models, unseen)
    lines = report(answers)
    print("\n".join(lines))
    if given.results:
        write_section("told-apart", "\n".join(lines))


if __name__ == "__main__":
    main()

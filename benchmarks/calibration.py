"""What does calibrating on one, two or three runs do to the prediction of the other runs?

    python -m benchmarks.calibration RUNS.csv MODELS.json [--draws 12] [--markdown]

Rows are grouped by source, model, device and number of devices (what one team measures), and by source and device (one
release on one machine). Of every group with enough rows, up to DRAWS choices of calibrating rows are made; the others
are predicted with the shipped stack and with the calibrated one. A second table starts from the stack of a
neighbouring release, as for software that planner has not seen. Left out: rows of unjudged sources.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from planner.calibrate.estimate import (
    Observation,
    corrected,
    factors_of,
    multiply_of,
    predict_steps,
)
from planner.calibrate.measured import group_of, is_judged, measurement_of
from planner.calibrate.predict import broken_rule
from planner.calibrate.runs import RunReader, read_models, read_rows
from planner.catalog.load_stacks import load_stack
from planner.errors import PlannerError
from planner.spec.overlay import Overlay
from planner.spec.rule import Problem

MOST_TESTED: Final = 40  # rows predicted per choice of calibrating rows
NEIGHBOURS: Final = {
    "megatron-2026": "megatron-2025", "megatron-2025": "megatron-2024", "megatron-2024": "megatron-2025",
    "megatron-deepspeed-2022": "megatron-2024", "nanotron-2024": "megatron-2024",
    "aa-scaling-2023": "megatron-2024", "llm-foundry-2023": "fsdp1-2023", "torchtitan-2024": "fsdp1-2023",
    "torchtitan-2026": "torchtitan-2024", "maxtext-2024": "fsdp1-2023", "fsdp1-2023": "torchtitan-2024",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A published run: where it comes from, and what it measured."""

    source: str
    fine: tuple[str, ...]
    coarse: tuple[str, ...]
    seen: Observation


@dataclass(frozen=True)
class Errors:
    """Relative errors of held-out rows, before and after, by source."""

    before: Mapping[str, list[float]]
    after: Mapping[str, list[float]]

    def medians(self) -> dict[str, tuple[float, float]]:
        """Median error in percent, before and after, by source."""
        return {
            name: (100 * float(np.median(self.before[name])), 100 * float(np.median(self.after[name])))
            for name in self.before
        }


def rows_of(runs: Path, models: Path) -> list[Row]:
    """Every judged row with a step time that planner can predict."""
    reader, found = RunReader(read_models(models)), []
    for index, cells in enumerate(read_rows(runs)):
        measured, group = measurement_of(cells), group_of(cells)
        if not is_judged(group) or not measured.ran or measured.step_time is None:
            continue
        try:
            run = reader.read(cells)
            if broken_rule(run.config, run.problem):
                continue
        except PlannerError:
            continue
        source = group + (" (MoE)" if run.problem.model.is_moe else "")
        key = (source, cells["model"], cells["gpu"], cells["gpus"])
        seen = Observation(f"row {index}", run.problem, run.config, measured.step_time)
        found.append(Row(source, key, (source, cells["gpu"]), seen))
    return found


def with_neighbour(rows: Sequence[Row]) -> list[Row]:
    """The same rows predicted with the stack of a neighbouring release."""
    problems: dict[int, Problem] = {}
    found = []
    for row in rows:
        of = row.seen.problem
        name = NEIGHBOURS.get(of.stack.name)
        if name is None:
            continue
        stack = load_stack(name).model_copy(update={"split": of.stack.split, "kernels": of.stack.kernels})
        problem = problems.setdefault(id(of), replace(of, stack=stack))
        found.append(replace(row, seen=replace(row.seen, problem=problem)))
    return found


def choices_of(count: int, size: int, draws: int) -> Iterable[tuple[int, ...]]:
    """Up to `draws` choices of `size` of `count` rows: all of them where there are few."""
    if count <= 12:
        every = list(itertools.combinations(range(count), size))
        step = max(len(every) // draws, 1)
        return every[::step][:draws]
    random = np.random.default_rng(count)
    return [tuple(int(i) for i in random.permutation(count)[:size]) for _ in range(draws)]


def held_out(rows: Sequence[Row], size: int, draws: int, coarse: bool) -> Errors:
    """Errors of rows held out when `size` of their group calibrate."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.coarse if coarse else row.fine].append(row)
    before: dict[str, list[float]] = defaultdict(list)
    after: dict[str, list[float]] = defaultdict(list)
    for members in groups.values():
        if len(members) <= size:
            continue
        seen = [row.seen for row in members]
        shipped = predict_steps(seen)
        for chosen in choices_of(len(members), size, draws):
            shrunk = factors_of([seen[i] for i in chosen], [shipped[i] for i in chosen])
            factors = multiply_of(shrunk)
            rest = [i for i in range(len(members)) if i not in chosen][:: max(len(members) // MOST_TESTED, 1)]
            name = members[0].source
            before[name] += [abs(shipped[i].seconds / seen[i].seconds - 1) for i in rest]
            if factors:
                overlay = Overlay(name="x", date="2026", level="L3", made_from=("rows",), multiply=factors)
                told = predict_steps(corrected([seen[i] for i in rest], overlay))
            else:
                told = [shipped[i] for i in rest]
            after[name] += [abs(t.seconds / seen[i].seconds - 1) for t, i in zip(told, rest, strict=True)]
    return Errors(before, after)


def report(title: str, results: Mapping[int, Errors]) -> list[str]:
    """Lines of a section: means, medians over all rows, the source that loses most."""
    lines = [f"### {title}", "", "| runs | sources | mean of medians | all rows | worst change | of |"]
    lines.append("| ---: | ---: | ---: | ---: | ---: | --- |")
    for size, errors in results.items():
        medians = errors.medians()
        means = [float(np.mean([pair[i] for pair in medians.values()])) for i in (0, 1)]
        rows = [
            100 * float(np.median(np.concatenate([np.array(v) for v in side.values()])))
            for side in (errors.before, errors.after)
        ]
        worst = max(medians, key=lambda name: medians[name][1] - medians[name][0])
        change = medians[worst][1] - medians[worst][0]
        lines.append(
            f"| {size} | {len(medians)} | {means[0]:.2f} -> {means[1]:.2f} | {rows[0]:.2f} -> {rows[1]:.2f} "
            f"| {change:+.2f} | {worst} |"
        )
    return [*lines, ""]


def main() -> None:
    """The command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--draws", type=int, default=12)
    options = parser.parse_args()
    rows = rows_of(options.runs, options.models)
    neighbour = with_neighbour(rows)
    print(f"{len(rows)} rows; median errors in percent, before -> after\n")
    for title, of, coarse in (
        ("By source, model, device and devices", rows, False),
        ("By source and device", rows, True),
        ("By source, model, device and devices, from a neighbouring release", neighbour, False),
        ("By source and device, from a neighbouring release", neighbour, True),
    ):
        results = {size: held_out(of, size, options.draws, coarse) for size in (1, 2, 3)}
        print("\n".join(report(title, results)), flush=True)


if __name__ == "__main__":
    main()

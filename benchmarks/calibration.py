"""What does calibrating on one, two or three runs do to the prediction of the other runs?

    python -m benchmarks.calibration RUNS.csv MODELS.json [--draws 12] [--results]

Rows are grouped by source, model, device and number of devices (what one team measures); with all releases of a
publisher together, as far as one stack is said to run them; by source and device (one release on one machine); and by
configuration, whatever its replicas. Of every group with enough rows, up to DRAWS random choices of calibrating rows
are made (all choices of small groups, evenly thinned); the others are predicted with the shipped stack and with the
calibrated one, and held against its band. Two more tables say what is possible: one factor for each group, chosen with
all of its rows known, and the estimator given all rows that it is judged on. The last ones start from the stack of a
neighbouring release, as for software that planner has not seen. Left out: rows of unjudged sources.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit_stacks import publisher_of
from benchmarks.published.measured import group_of, is_judged, measurement_of
from benchmarks.published.runs import RunReader, read_models, read_rows
from benchmarks.results_file import write_section
from planner.calibrate.binding_rules import broken_rule
from planner.calibrate.correction.estimate import (
    Observation,
    alike,
    corrected,
    errors_of,
    factors_of,
    own_run,
    own_runs,
    predict_steps,
    sensitivities,
)
from planner.calibrate.correction.parts import multiply_of, narrow_formats
from planner.calibrate.coverage import band_of
from planner.catalog.load_stacks import load_stack
from planner.errors import PlannerError
from planner.spec.overlay import Overlay
from planner.spec.rule import Problem

MOST_TESTED: Final = 40  # rows predicted per choice of calibrating rows
# of a row's text, what is no choice of software
_OUTCOMES: Final = re.compile(r"(reserved_gib|microbatches|grad_accum|HFU|NumParams)=[^;]*")
NEIGHBOURS: Final = {
    "megatron-2026": "megatron-2025", "megatron-2025": "megatron-2024", "megatron-2024": "megatron-2025",
    "megatron-deepspeed-2022": "megatron-2024", "nanotron-2024": "megatron-2024",
    "aa-scaling-2023": "megatron-2024", "llm-foundry-2023": "fsdp1-2023", "torchtitan-2024": "fsdp1-2023",
    "torchtitan-2026": "torchtitan-2024", "maxtext-2024": "fsdp1-2023", "fsdp1-2023": "torchtitan-2024",
}  # fmt: skip


class Grouping(StrEnum):
    """Rows of which one calibrates the others."""

    TEAM = "By source, model, device and devices"
    PUBLISHER = "By publisher, model, device, devices and network, its releases of one stack together"
    MACHINE = "By source and device"
    REPLICAS = "By configuration, whatever its replicas"


@dataclass(frozen=True)
class Row:
    """A published run: where it comes from, and what it measured."""

    source: str
    groups: Mapping[Grouping, tuple[str, ...]]
    seen: Observation


@dataclass(frozen=True)
class Errors:
    """Log errors of held-out rows and whether they lie within the band, before and after, by source."""

    before: Mapping[str, list[float]]
    after: Mapping[str, list[float]]
    within: Mapping[str, list[tuple[bool, bool]]]

    def medians(self) -> dict[str, tuple[float, float]]:
        """Median error in percent, before and after, by source."""
        return {name: (middle(self.before[name]), middle(self.after[name])) for name in self.before}


def middle(errors: Iterable[float]) -> float:
    """Median of relative errors, of log(measured / predicted), in percent."""
    return 100 * float(np.median(np.abs(np.expm1(-np.array(list(errors))))))


def rows_of(runs: Path, models: Path) -> list[Row]:
    """Every judged row with a step time that planner can predict."""
    reader, found = RunReader(read_models(models)), []
    problems: dict[tuple[int, str], Problem] = {}
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
        software = _OUTCOMES.sub("", cells["extras"])
        problem = problems.setdefault((id(run.problem), software), of_software(run.problem, software))
        seen = Observation(f"row {index}", problem, run.config, measured.step_time)
        team = (source, cells["model"], cells["gpu"], cells["gpus"])
        publisher = (publisher_of(cells["source"]), *team[1:], cells["internode"], problem.stack.name)
        replicas = (source, cells["gpu"], replicas_of(seen))
        groups = {
            Grouping.TEAM: team, Grouping.PUBLISHER: publisher, Grouping.MACHINE: (source, cells["gpu"]),
            Grouping.REPLICAS: replicas,
        }  # fmt: skip
        found.append(Row(source, groups, seen))
    return found


def replicas_of(seen: Observation) -> str:
    """What a run speaks for: its configuration, whatever its replicas."""
    return own_run(seen).model_dump_json()


def of_software(problem: Problem, software: str) -> Problem:
    """The problem under a name of its own for each software, kernels and flags in words: runs of one configuration
    speak for each other only where these are the same, as a user calibrates each software on its own."""
    return replace(problem, model=replace(problem.model, name=f"{problem.model.name} [{software}]"))


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


def grouped(rows: Sequence[Row], how: Grouping) -> list[list[int]]:
    """Rows of each group, by number."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.groups[how]].append(index)
    return list(groups.values())


@dataclass(frozen=True)
class Told:
    """Of all rows: log errors of the shipped stack (n,), sensitivities (n, p), bands (n,) [log]."""

    errors: NDArray[np.float64]
    parts: NDArray[np.float64]
    bands: NDArray[np.float64]


def told_of(rows: Sequence[Row]) -> Told:
    """Predictions of every row."""
    seen = [row.seen for row in rows]
    bands = np.log1p([band_of(one.problem) for one in seen])
    return Told(errors_of(seen, predict_steps(seen)), sensitivities(seen), bands)


def held_out(rows: Sequence[Row], told: Told, size: int, draws: int, how: Grouping) -> Errors:
    """Errors of rows held out when `size` of their group calibrate."""
    found = Errors(defaultdict(list), defaultdict(list), defaultdict(list))
    for group in grouped(rows, how):
        if len(group) <= size:
            continue
        for choice in choices_of(len(group), size, draws):
            chosen = [group[i] for i in choice]
            rest = [i for i in group if i not in chosen][:: max(len(group) // MOST_TESTED, 1)]
            after, band = calibrated(rows, told, chosen, rest)
            for i, error in zip(rest, after.tolist(), strict=True):
                name, before = rows[i].source, float(told.errors[i])
                found.before[name].append(before)
                found.after[name].append(error)
                found.within[name].append((abs(before) <= told.bands[i], abs(error) <= band))
    return found


def calibrated(
    rows: Sequence[Row], told: Told, chosen: Sequence[int], rest: Sequence[int]
) -> tuple[NDArray[np.float64], float]:
    """Log errors of `rest` after calibrating on `chosen`, and the calibrated band [log]."""
    seen = [rows[i].seen for i in chosen]
    shipped = np.array([one.seconds for one in seen]) * np.exp(-told.errors[chosen])
    shrunk = factors_of(seen, shipped, told.parts[chosen])
    factors = multiply_of(shrunk.mean, narrow_formats(one.problem for one in seen))
    own, errors = own_runs(seen, shrunk), told.errors[rest].copy()
    near = np.any(alike([*seen, *(rows[i].seen for i in rest)])[: len(seen), len(seen) :], axis=0).tolist()
    moved = [at for at in range(len(rest)) if factors or near[at]]
    if moved and (factors or own):
        overlay = Overlay(name="x", date="2026", level="L3", made_from=("rows",), multiply=factors, runs=own)
        others = [rows[rest[at]].seen for at in moved]
        errors[moved] = errors_of(others, predict_steps(corrected(others, overlay)))
    return errors, shrunk.band


def possible(rows: Sequence[Row], told: Told, how: Grouping) -> list[str]:
    """What the estimator could reach at most, groups of more than three rows: lines of a table."""
    one: dict[str, list[float]] = defaultdict(list)
    shipped: dict[str, list[float]] = defaultdict(list)
    every: dict[str, list[float]] = defaultdict(list)
    for group in grouped(rows, how):
        if len(group) <= 3:
            continue
        name, errors = rows[group[0]].source, told.errors[group]
        shipped[name] += errors.tolist()
        one[name] += (errors - np.median(errors)).tolist()
        every[name] += calibrated(rows, told, group, group)[0].tolist()
    lines = ["| with all rows of a group known | mean of medians | all rows |", "| --- | ---: | ---: |"]
    for what, found in (("shipped", shipped), ("one best factor a group", one), ("the estimator", every)):
        if not found:
            continue
        mean = np.mean([middle(errors) for errors in found.values()])
        lines.append(f"| {what} | {mean:.2f} | {middle(itertools.chain(*found.values())):.2f} |")
    return [*lines, ""]


def report(title: str, results: Mapping[int, Errors]) -> list[str]:
    """Lines of a section: means, medians over all rows, coverage, the source that loses most."""
    head = "| runs | sources | mean of medians | all rows | within the band | worst change | of |"
    lines = [f"### {title}", "", head, "| ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for size, errors in results.items():
        medians = errors.medians()
        if not medians:
            lines.append(f"| {size} | 0 | no group has more rows | | | | |")
            continue
        means = [float(np.mean([pair[i] for pair in medians.values()])) for i in (0, 1)]
        whole = [middle(itertools.chain(*side.values())) for side in (errors.before, errors.after)]
        shares = np.array([np.mean(pairs, axis=0) for pairs in errors.within.values()])
        covered = 100 * shares.mean(axis=0)
        worst = max(medians, key=lambda name: medians[name][1] - medians[name][0])
        change = medians[worst][1] - medians[worst][0]
        lines.append(
            f"| {size} | {len(medians)} | {means[0]:.2f} -> {means[1]:.2f} | {whole[0]:.2f} -> {whole[1]:.2f} "
            f"| {covered[0]:.0f} -> {covered[1]:.0f} % | {change:+.2f} | {worst} |"
        )
    return [*lines, ""]


def main() -> None:
    """The command line of this benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--results", action="store_true", help="write the tables into benchmarks/RESULTS.md")
    options = parser.parse_args()
    rows = rows_of(options.runs, options.models)
    said = (
        f"{len(rows)} rows, up to {options.draws} draws of a group; median errors in percent, before -> after"
    )
    lines = [f"Measured {date.today()} with `python -m benchmarks.calibration`: {said}.", ""]
    print("\n".join(lines))
    for what, of in (("", rows), (", from a neighbouring release", with_neighbour(rows))):
        told = told_of(of)
        for how in Grouping if not what else (Grouping.TEAM, Grouping.MACHINE):
            results = {size: held_out(of, told, size, options.draws, how) for size in (1, 2, 3)}
            found = [*report(how + what, results), *possible(of, told, how)]
            lines += found
            print("\n".join(found), flush=True)
    if options.results:
        write_section("calibration", "\n".join(lines).rstrip())


if __name__ == "__main__":
    main()

"""Fits the memory constants of a stack to published peaks and recorded out-of-memories of the development rows.

    python -m benchmarks.fit_memory RUNS.csv MODELS.json [STACK ...] [--write]

Minimises the absolute log(predicted / measured) of peaks, and for runs that failed or ran the logistic loss of
log(predicted / capacity), every group of rows (model x GPU x devices) weighing the same, by coordinate search within
bounds. Models are left out in turn to measure errors on rows never seen; the 80th percentile of those is the stack's
`overhead.error`. Nothing is fitted per model or per row. Left out: time (`fit_stacks`).
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.measured import Measurement, group_of, is_judged, measurement_of
from planner.calibrate.predict import predict_runs
from planner.calibrate.runs import Run, RunReader, read_models, read_rows
from planner.catalog.load_stacks import STACKS_FOLDER, load_stack
from planner.errors import PlannerError
from planner.spec.rule import Problem
from planner.spec.stack import Stack

Array = NDArray[np.float64]

PEAK_WIDTH: Final = 0.05  # a miss of a peak that weighs as much as one verdict on the edge [log of a ratio]
EDGE_WIDTH: Final = 0.04  # of the logistic loss [log of a ratio]
ROUNDS: Final = 3
THINNED: Final = 3  # rows of one group used while searching
GIB: Final = 2.0**30


@dataclass(frozen=True)
class Constant:
    """One number of a stack, its bounds and the first step of the search."""

    section: str
    name: str
    low: float
    high: float
    step: float


# Each is a physical quantity that no public source states for the stack.
CONSTANTS: Final[dict[str, tuple[Constant, ...]]] = {
    "nanotron-2024": (
        Constant("kernels", "loss_peak", 2.0, 3.0, 0.25),
        Constant("overhead", "workspace", 0.0, 2 * GIB, 0.25 * GIB),
        Constant("overhead", "fragmentation", 0.0, 0.3, 0.05),
    ),
    "aa-scaling-2023": (
        Constant("states", "gradient", 2.0, 4.0, 1.0),
        Constant("kernels", "stream_extra", 0.0, 12.0, 2.0),
        Constant("kernels", "eager_norm_bytes", 2.0, 12.0, 1.0),
        Constant("kernels", "checkpoint_extra", 0.0, 6.0, 1.0),
        Constant("kernels", "score_bytes", 2.0, 10.0, 2.0),
        Constant("kernels", "whole_logit_bytes", 0.0, 12.0, 2.0),
        Constant("overhead", "workspace", 0.0, 4 * GIB, 0.5 * GIB),
        Constant("overhead", "fragmentation", 0.0, 0.3, 0.05),
    ),
}


@dataclass(frozen=True)
class Sample:
    """A row: the question, what was measured, and its group."""

    run: Run
    measured: Measurement
    model: str
    group: tuple[str, ...]


def memory_samples(rows: Sequence[dict[str, str]], models: dict[str, Any]) -> dict[str, list[Sample]]:
    """Judged rows with a peak or a recorded outcome, by stack."""
    reader, found = RunReader(models), defaultdict(list)
    for row in rows:
        measured = measurement_of(row)
        if not is_judged(group_of(row)) or not (measured.peak_memory or measured.oom or measured.ran):
            continue
        try:
            run = reader.read(row)
        except PlannerError:
            continue
        group = (row["model"], row["gpu"], row["gpus"])
        found[run.stack].append(Sample(run, measured, row["model"], group))
    return dict(found)


def thinned(samples: Sequence[Sample], every: int) -> list[Sample]:
    """Out of each group every n-th row, in order."""
    seen: dict[tuple[str, ...], int] = defaultdict(int)
    chosen = []
    for sample in samples:
        if seen[sample.group] % every == 0:
            chosen.append(sample)
        seen[sample.group] += 1
    return chosen


def with_constants(stack: Stack, values: dict[Constant, float]) -> Stack:
    """The stack with these numbers."""
    sections: dict[str, dict[str, float]] = defaultdict(dict)
    for constant, value in values.items():
        sections[constant.section][constant.name] = value
    return stack.model_copy(
        update={name: getattr(stack, name).model_copy(update=fields) for name, fields in sections.items()}
    )


def predicted(samples: Sequence[Sample], values: dict[Constant, float]) -> tuple[Array, Array]:
    """Predicted over measured peaks, and device memory over capacity; NaN where there is none."""
    stacks: dict[int, Stack] = {}
    problems: dict[int, Problem] = {}
    runs = []
    for sample in samples:
        problem = sample.run.problem
        stack = stacks.setdefault(id(problem.stack), with_constants(problem.stack, values))
        asked = problems.setdefault(id(problem), Problem(problem.model, problem.cluster, problem.job, stack))
        runs.append(replace(sample.run, problem=asked))
    peaks, used = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    for i, (sample, found) in enumerate(zip(samples, predict_runs(runs), strict=True)):
        if found is None or not found.peak_memory or not found.device_memory:
            continue
        used[i] = found.device_memory / sample.run.problem.cluster.accelerator.memory
        if sample.measured.peak_memory:
            peaks[i] = found.peak_memory / sample.measured.peak_memory
    return peaks, used


def weights_of(samples: Sequence[Sample]) -> Array:
    """One over the root of the size of a row's group: a large sweep counts for more than a single run, but not
    for as many times more as it has rows."""
    size: dict[tuple[str, ...], int] = defaultdict(int)
    for sample in samples:
        size[sample.group] += 1
    return np.array([size[sample.group] ** -0.5 for sample in samples])


def loss_of(samples: Sequence[Sample], values: dict[Constant, float]) -> float:
    """What is minimised."""
    peaks, used = predicted(samples, values)
    weight = weights_of(samples)
    known = np.isfinite(peaks)
    miss = np.log(np.where(known, peaks, 1.0)) / PEAK_WIDTH
    total = float((weight * np.abs(miss))[known].sum())
    if not any(s.measured.oom for s in samples):
        return total  # without recorded failures, runs that ran say little
    side = np.array([1.0 if s.measured.oom else -1.0 for s in samples])
    judged = np.isfinite(used) & np.array([s.measured.oom or s.measured.ran for s in samples])
    edge = -side * np.log(np.where(judged, used, 1.0)) / EDGE_WIDTH
    return total + float((weight * np.logaddexp(0.0, edge))[judged].sum())


def fit(stack: Stack, constants: Sequence[Constant], samples: Sequence[Sample]) -> dict[Constant, float]:
    """Coordinate search from the shipped values, steps halved in every round."""
    values = {c: float(getattr(getattr(stack, c.section), c.name)) for c in constants}
    best = loss_of(samples, values)
    for halving in range(ROUNDS):
        for constant in constants:
            for sign in (1.0, -1.0):
                while True:
                    moved = values[constant] + sign * constant.step / 2**halving
                    trial = {**values, constant: float(np.clip(moved, constant.low, constant.high))}
                    if trial[constant] == values[constant] or (found := loss_of(samples, trial)) >= best:
                        break
                    values, best = trial, found
    return values


def verdicts(used: Array, samples: Sequence[Sample], error: float) -> dict[str, float]:
    """Precision, recall and false fits of "does not fit", a borderline counting half."""
    hit = missed = false = fits = failures = 0.0
    for ratio, sample in zip(used, samples, strict=True):
        if not np.isfinite(ratio):
            continue
        weight = 0.0 if ratio * (1 + error) <= 1 else 1.0 if ratio * (1 - error) > 1 else 0.5
        if sample.measured.oom:
            failures, hit, missed, fits = (
                failures + 1,
                hit + weight,
                missed + 1 - weight,
                fits + (weight == 0),
            )
        elif sample.measured.ran:
            false += weight
    if not failures:
        return {}
    return {
        "precision": hit / max(hit + false, 1e-9),
        "recall": hit / failures,
        "false fits": fits / failures,
    }


def report(name: str, peaks: Array, used: Array, samples: Sequence[Sample], error: float) -> float:
    """Print errors; the 80th percentile of peaks is returned, or the given error without any."""
    known = np.abs(peaks[np.isfinite(peaks)] - 1)
    width = float(np.percentile(known, 80)) if len(known) else error
    line = f"{name}: "
    if len(known):
        line += f"{len(known)} peaks, median {np.median(known):.1%}, 90th percentile {np.percentile(known, 90):.1%}; "
    line += ", ".join(f"{k} {v:.3f}" for k, v in verdicts(used, samples, error).items())
    print(line, flush=True)
    return width


def left_out(stack: Stack, constants: Sequence[Constant], samples: Sequence[Sample]) -> tuple[Array, Array]:
    """Predictions for every model by constants fitted on the others."""
    peaks, used = np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    models = sorted({s.model for s in samples})
    for model in models:
        rest = thinned([s for s in samples if s.model != model], THINNED)
        mine = [i for i, s in enumerate(samples) if s.model == model]
        values = fit(stack, constants, rest) if len(models) > 1 else {}
        peaks[mine], used[mine] = predicted([samples[i] for i in mine], values)
    return peaks, used


def write(name: str, values: dict[Constant, float]) -> None:
    """Replace the numbers in the stack's file, which must already name them."""
    path = STACKS_FOLDER / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    for constant, value in values.items():
        shown = f"{value / GIB:.4g} GiB" if constant.name == "workspace" else f"{value:.4g}"
        start = text.index(f"\n{constant.section}:")
        head, tail = text[:start], text[start:]
        tail, count = re.subn(
            rf"(\n  {constant.name}: )[^#\n]*?(\s*(?:#[^\n]*)?\n)", rf"\g<1>{shown}\g<2>", tail, count=1
        )
        if not count:
            raise SystemExit(f"{path} must name {constant.section}.{constant.name}")
        text = head + tail
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Fit, print, and with --write change the stack files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("stacks", nargs="*", default=sorted(CONSTANTS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--no-cross-validation", action="store_true")
    asked = parser.parse_args()
    every = memory_samples(read_rows(asked.runs), read_models(asked.models))
    for name in asked.stacks:
        stack, samples, constants = load_stack(name), every[name], CONSTANTS[name]
        error = stack.overhead.error
        report(f"{name} as shipped", *predicted(samples, {}), samples, error)
        values = fit(stack, constants, thinned(samples, THINNED))
        print("  " + ", ".join(f"{c.section}.{c.name} {v:.4g}" for c, v in values.items()))
        report(f"{name} fitted", *predicted(samples, values), samples, error)
        if not asked.no_cross_validation:
            width = report(f"{name} on models left out", *left_out(stack, constants, samples), samples, error)
            print(f"  80 % of left-out peaks within {width:.3f}")
        if asked.write:
            write(name, values)


if __name__ == "__main__":
    main()

"""Fits the few bounded numbers of every stack to published step times of the development rows.

    python -m benchmarks.fit_stacks RUNS.csv MODELS.json [STACK ...] [--write]

Minimises the Cauchy loss of log(predicted / measured), every group of n rows (model x GPU x device count) weighing
sqrt(n), with a Gaussian prior around the start values: in every round the residuals are linearised by numerical
derivatives and the loss of the linear form is minimised. Nothing is fitted per model or per row.
Left out: errors on rows never seen and bands (benchmarks/cross_validate.py); memory (benchmarks/fit_memory.py); stacks
with too few timed rows.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.measured import group_of, is_judged, measurement_of
from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import Run, RunReader, read_models, read_rows, switch_text
from benchmarks.published.switches import apply_switches
from benchmarks.stack_parameters import MAPS, PARAMETERS, STARTS, Parameter, prior_axes
from planner.catalog.load_stacks import STACKS_FOLDER, read_stack, stack_names
from planner.cost import chunks
from planner.cost.device import kernels
from planner.errors import PlannerError
from planner.schedule.generate import action_table
from planner.schedule.graph import dependency_graph
from planner.spec.rule import Problem
from planner.spec.stack import Stack

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

FEWEST_ROWS: Final = 5
SCALES: Final = (0.3, 0.2, 0.12, 0.08, 0.06, 0.06)  # width of the Cauchy loss per round [log of a ratio]
REFRESHED: Final = (0, 2)  # rounds after which the derivatives are taken anew
STEP: Final = 0.02
# vtrain_single has 900 rows of five toy models; every third tells as much
THINNED: Final = {"vtrain_single": 3}
# Publishers with more than one source; of the others the first word of the source's name is the publisher.
PUBLISHERS: Final = ((r"dgxc|megatron_bridge|megatron_lm|nemo|nvidia|jax_toolbox", "nvidia"),)


def remembered(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function` with its results kept: GEMM efficiencies depend on no stack, and are asked for at every step."""
    kept: dict[tuple[Any, ...], Array] = {}
    alive: list[Any] = []  # objects named by id in a key must stay

    def ask(*arguments: Any) -> Array:
        key = tuple(
            (np.shape(a), np.asarray(a, dtype=np.float64).tobytes())
            if isinstance(a, np.ndarray | float)
            else id(a)
            for a in arguments
        )
        if key not in kept:
            alive.extend(arguments)
            kept[key] = function(*arguments)
        return kept[key]

    return ask


def remember_costly_parts() -> None:
    """Keep what depends on no stack's numbers: GEMM efficiencies, and the graphs of pipeline schedules."""
    kernels.gemm_efficiency = remembered(kernels.gemm_efficiency)
    setattr(chunks, "action_table", lru_cache(maxsize=None)(action_table))  # noqa: B010
    setattr(chunks, "dependency_graph", lru_cache(maxsize=None)(dependency_graph))  # noqa: B010


@dataclass(frozen=True)
class Sample:
    """A timed row. `group` weighs it; `fits`: it counts in a fit. `fold`: what is left out together: the rows of a
    publisher on one model, GPU and cluster, whatever the release. `row`: its place in the file."""

    run: Run
    text: str
    seconds: float
    group: tuple[str, ...]
    fold: tuple[str, ...]
    source: str
    row: int = 0
    fits: bool = True

    @property
    def publisher(self) -> str:
        return publisher_of(self.source)

    @property
    def devices(self) -> int:
        return self.run.problem.cluster.num_devices

    @property
    def family(self) -> str:
        """The name of its model without version and size: llama3 of llama3.1_405b."""
        return re.split(r"[._][hl]?\d", self.group[0])[0]


def publisher_of(source: str) -> str:
    """Who measured the rows of a source."""
    found = next((name for pattern, name in PUBLISHERS if re.search(pattern, source)), None)
    return found or re.split("[_ ]", source)[0]


def timed_samples(rows: Sequence[dict[str, str]], models: dict[str, Any]) -> dict[str, list[Sample]]:
    """Timed rows by stack; those fit that are judged, of that stack itself, not of its kin, and of measured kernels: a
    state space's scan, of which none is measured, must not move what other layers take."""
    reader, found = RunReader(models), dict[str, list[Sample]]()
    for index, row in enumerate(rows):
        seconds = measurement_of(row).step_time
        if seconds is None:
            continue
        try:
            run = reader.read(row)
        except PlannerError:
            continue
        thin = index % THINNED.get(row["source"], 1) > 0
        measured = not run.problem.model.state_spaces
        fits = not run.kin and is_judged(group_of(row)) and not thin and measured
        group = (row["model"], row["gpu"], row["gpus"])
        fold = (publisher_of(row["source"]), *group, row.get("internode", ""))
        sample = Sample(run, switch_text(row), seconds, group, fold, row["source"], index, fits)
        found.setdefault(run.stack, []).append(sample)
    return found


class Objective:
    """Log ratios of predicted and measured step times as a function of a stack's parameters."""

    def __init__(self, stack: Stack, parameters: tuple[Parameter, ...], samples: list[Sample]) -> None:
        self.stack, self.parameters, self.samples = stack, parameters, samples
        self.fits = np.array([sample.fits for sample in samples])
        counts: dict[tuple[str, ...], int] = {}
        for sample in samples:
            counts[sample.group] = counts.get(sample.group, 0) + sample.fits
        # the rows of a group err together, but not as one
        self.weights = np.array([max(counts[sample.group], 1) ** -0.5 for sample in samples])
        centres = STARTS.get(stack.name, {})
        self.start = np.array([p.inner(p.centre(centres)) for p in parameters])
        prior = prior_axes(parameters) / np.array([p.sigma for p in parameters])[:, None]
        self.precision = prior.T @ prior  # of the Gaussian around the start values
        low = [p.inner(p.low) for p in parameters]
        self.low, self.high = np.array(low), np.array([p.inner(p.high) for p in parameters])

    def stack_at(self, x: Array) -> Stack:
        """The stack with the parameters at `x`."""
        changed: dict[str, dict[str, Any]] = {}
        maps: dict[str, dict[Any, float]] = {name: dict(getattr(self.stack.compute, name)) for name in MAPS}
        for parameter, value in zip(self.parameters, x, strict=True):
            if parameter.section in MAPS:
                maps[parameter.section][parameter.key] = parameter.outer(value)
            else:
                changed.setdefault(parameter.section, {})[parameter.name] = parameter.outer(value)
        changed.setdefault("compute", {}).update(maps)
        sections = {
            name: getattr(self.stack, name).model_copy(update=fields) for name, fields in changed.items()
        }
        return self.stack.model_copy(update=sections)

    def at(self, stack: Stack) -> Array:
        """The coordinates of a stack's numbers."""
        values = [p.inner(p.of(stack)) for p in self.parameters]
        return np.clip(np.array(values), self.low, self.high)

    def residuals(self, x: Array, only: Mask | None = None) -> Array:
        """log(predicted / measured) of every sample, or of those asked for; NaN where nothing is predicted."""
        stack, stacks = self.stack_at(x), dict[tuple[str, int], Stack]()
        problems: dict[tuple[int, str], Problem] = {}
        chosen = [i for i in range(len(self.samples)) if only is None or only[i]]
        runs = []
        for sample in (self.samples[i] for i in chosen):
            own = sample.run.problem.stack
            if (sample.text, id(own)) not in stacks:
                stacks[sample.text, id(own)] = retimed(
                    own, apply_switches(stack, sample.text)[0], self.parameters
                )
            key = (id(sample.run.problem), sample.text)
            if key not in problems:
                problems[key] = replace(sample.run.problem, stack=stacks[sample.text, id(own)])
            runs.append(replace(sample.run, problem=problems[key], fallback=None))
        times = [p.step_time if p and p.step_time else np.nan for p in predict_runs(runs)]
        result = np.full(len(self.samples), np.nan)
        result[chosen] = np.log(np.array(times) / np.array([self.samples[i].seconds for i in chosen]))
        return result

    def loss(self, x: Array, residuals: Array, scale: float, use: Mask) -> float:
        """Cauchy loss of the samples in use, plus the prior."""
        data = self.weights * np.log1p((residuals / scale) ** 2)
        away = x - self.start
        return float(np.nansum(data[use]) + away @ self.precision @ away)

    def minimise(self, use: Mask | None = None) -> tuple[Array, Array, Array]:
        """The best parameters for the samples in use, their residuals there and their derivatives."""
        use = self.fits if use is None else use & self.fits
        x = self.start
        r = self.residuals(x, use)
        jacobian = self.jacobian(x, r, use)
        for turn, scale in enumerate(SCALES):
            move = self.linear_step(x, r, jacobian, scale, use)
            before, shrink = self.loss(x, r, scale, use), 1.0
            while shrink > 0.1:
                trial = np.clip(x + shrink * move, self.low, self.high)
                r_trial = self.residuals(trial, use)
                if self.loss(trial, r_trial, scale, use) < before:
                    x, r = trial, r_trial
                    if turn in REFRESHED:
                        jacobian = self.jacobian(x, r, use)
                    break
                shrink /= 3
        return x, r, jacobian

    def linear_step(
        self, x: Array, r: Array, jacobian: Array, scale: float, use: Mask, reach: float = 0.5
    ) -> Array:
        """The move that minimises the loss of the linearised residuals, each coordinate within `reach`.

        Reweighted least squares, with coordinates held at a bound while the rest is solved for.
        """
        ok = use & np.isfinite(r)
        j, r0, weights = jacobian[ok], r[ok], self.weights[ok]
        low = np.maximum(self.low - x, -reach)
        high = np.minimum(self.high - x, reach)
        move = np.zeros(len(x))
        for _ in range(60):
            now = r0 + j @ move
            weight = weights / (scale**2 + now**2)
            normal = j.T @ (weight[:, None] * j) + self.precision
            slope = j.T @ (weight * now) + self.precision @ (x + move - self.start)
            free = ~(((move <= low) & (slope > 0)) | ((move >= high) & (slope < 0)))
            if not free.any():
                break
            change = np.zeros(len(x))
            change[free] = -np.linalg.solve(normal[np.ix_(free, free)], slope[free])
            new = np.clip(move + change, low, high)
            if np.abs(new - move).max() < 1e-4:
                return new
            move = new
        return move

    def jacobian(self, x: Array, residuals: Array, use: Mask) -> Array:
        """Numerical derivatives of the residuals of the samples in use; 0 for the others."""
        columns = []
        for i in range(len(x)):
            step = STEP * self.parameters[i].sigma / 0.3
            step = -step if x[i] + step > self.high[i] else step
            moved = x.copy()
            moved[i] += step
            columns.append((self.residuals(moved, use) - residuals) / step)
        return np.nan_to_num(np.array(columns).T)


def retimed(own: Stack, numbers: Stack, parameters: Iterable[Parameter]) -> Stack:
    """`own` with the times of `numbers`: what a row fixed of the software itself stays."""
    update: dict[str, Any] = {"compute": numbers.compute, "host": numbers.host}
    for section in ("communication", "engine"):
        before, fitted = getattr(own, section), getattr(numbers, section)
        names = [p.name for p in parameters if p.section == section]
        update[section] = before.model_copy(update={name: getattr(fitted, name) for name in names})
    return own.model_copy(update=update)


@dataclass(frozen=True)
class Fit:
    """A fitted stack. Errors |predicted / measured - 1|, `before` and `after`."""

    stack: Stack
    values: dict[str, float]
    rows: int
    groups: int
    before: Array
    after: Array


def fit_stack(stack: Stack, parameters: tuple[Parameter, ...], samples: list[Sample]) -> Fit:
    """Fit one stack on its samples."""
    objective = Objective(stack, parameters, samples)
    x, r, _ = objective.minimise()
    values = {f"{p.section}.{p.name}": p.outer(v) for p, v in zip(parameters, x, strict=True)}
    first = objective.residuals(objective.start, objective.fits)
    used = [s for s in samples if s.fits]
    return Fit(
        objective.stack_at(x), values, len(used), len({s.group for s in used}),
        np.abs(np.expm1(first)), np.abs(np.expm1(r)),
    )  # fmt: skip


def _percentile(errors: Array, q: float) -> float:
    return float(np.nanpercentile(errors, q)) if np.isfinite(errors).any() else float("nan")


def write_fit(path: Path, fit: Fit, parameters: Sequence[Parameter]) -> None:
    """Put fitted values and a note into a stack file; every other character stays."""
    text = path.read_text(encoding="utf-8")
    for parameter in parameters:
        value = fit.values[f"{parameter.section}.{parameter.name}"]
        if parameter.section in MAPS:
            text = _replace_entry(text, parameter.section, parameter.name, value)
        else:
            text = _replace_field(text, parameter.section, parameter.name, value)
    note = (
        f"{fit.rows} published step times in {fit.groups} groups (model x GPU x devices) "
        "by benchmarks/fit_stacks.py; errors on groups left out: benchmarks/RESULTS.md"
    )
    text = re.sub(r"(?m)^fitted(_on)?: .*\n", "", text)
    told = f'fitted: [{", ".join(fit.values)}]\nfitted_on: "{note}"\n'
    text = re.sub(r"(?m)^band: ", f"{told}band: ", text, count=1)
    path.write_text(text, encoding="utf-8")


_UNITS: Final = {"layer_floor": "ms", "layer_floor_tp": "ms",
                 "step_overhead": "ms", "moe_layer_floor": "ms", "bucket_latency": "us",
                 "tensor_update": "us"}  # fmt: skip


def _replace_field(text: str, section: str, name: str, value: float) -> str:
    """`name: value` inside `section`, with its unit, added at the section's head where it is missing."""
    unit = _UNITS.get(name, "")
    shown = f"{value * {'ms': 1e3, 'us': 1e6, '': 1.0}[unit]:.4g}" + (f" {unit}" if unit else "")
    block = re.search(rf"(?m)^{section}:\n(?:  .*\n?)*", text)
    if block is None:
        return f"{text.rstrip()}\n{section}:\n  {name}: {shown}\n"
    found, line = block[0], re.compile(rf"(?m)^  {name}: [^#\n]*?( *#.*)?$")
    if line.search(found):
        changed = line.sub(f"  {name}: {shown}", found)
    else:
        changed = found.replace(f"{section}:\n", f"{section}:\n  {name}: {shown}\n", 1)
    return text.replace(found, changed, 1)


def _replace_entry(text: str, section: str, name: str, value: float) -> str:
    """One entry of an inline map of `compute`, such as `gemm: {bf16: 1.0, ...}`; map and entry are added if missing."""
    entry = re.compile(rf"({section}: {{[^}}]*(?<![\w-]){name}: )[\d.]+")
    if entry.search(text):
        return entry.sub(rf"\g<1>{value:.4g}", text)
    if f"  {section}: {{" in text:
        return re.sub(rf"(?m)^(  {section}: {{[^}}]*)}}", rf"\g<1>, {name}: {value:.4g}}}", text, count=1)
    return text.replace("\ncompute:\n", f"\ncompute:\n  {section}: {{{name}: {value:.4g}}}\n", 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_stacks", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("stacks", nargs="*", help="default: every stack with enough rows")
    parser.add_argument("--write", action="store_true", help="write the values into the stack files")
    given = parser.parse_args()
    remember_costly_parts()
    samples = timed_samples(read_rows(given.runs), read_models(given.models))
    for name in given.stacks or stack_names():
        parameters = PARAMETERS.get(name)
        mine = [sample for sample in samples.get(name, []) if sample.fits]
        if parameters is None or len(mine) < FEWEST_ROWS:
            print(f"{name}: {len(mine)} timed rows, not fitted")
            continue
        path = STACKS_FOLDER / f"{name}.yaml"
        fit = fit_stack(read_stack(path), parameters, mine)
        print(f"{name}: {fit.rows} rows, {fit.groups} groups")
        for what, errors in (("before", fit.before), ("after", fit.after)):
            print(
                f"  {what}: median {100 * _percentile(errors, 50):.1f} %, p90 {100 * _percentile(errors, 90):.1f} %"
            )
        print("  " + ", ".join(f"{key} {value:.4g}" for key, value in fit.values.items()), flush=True)
        if given.write:
            write_fit(path, fit, parameters)


if __name__ == "__main__":
    main()

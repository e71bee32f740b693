"""Fits the few bounded numbers of every stack to published step times of the development rows.

    python -m benchmarks.fit_stacks RUNS.csv MODELS.json [STACK ...] [--write]

Minimises the Cauchy loss of log(predicted / measured), every group of rows (model x GPU x device count) weighing the
same, with a Gaussian prior around the start values: in every round the residuals are linearised by numerical
derivatives and the loss of the linear form is minimised. Whole
models are left out in turn to measure the error on rows never seen. Nothing is fitted per model or per row.
Left out: memory, whose numbers are set by hand from published peaks; stacks with too few timed rows.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.measured import group_of, is_judged, measurement_of
from planner.calibrate.predict import predict_runs
from planner.calibrate.runs import Run, RunReader, read_models, read_rows, switch_text
from planner.calibrate.stack_of import apply_switches
from planner.catalog.load_stacks import STACKS_FOLDER, read_stack, stack_names
from planner.cost import kernels
from planner.errors import PlannerError
from planner.spec.precision import Dtype
from planner.spec.rule import Problem
from planner.spec.stack import Stack

Array = NDArray[np.float64]

FEWEST_ROWS: Final = 5
SCALES: Final = (0.3, 0.2, 0.12, 0.08, 0.06, 0.06)  # width of the Cauchy loss per round [log of a ratio]
FOLDS: Final = 8
STEP: Final = 0.02
# vtrain_single has 900 rows of five toy models; every third tells as much
THINNED: Final = {"vtrain_single": 3}


@dataclass(frozen=True)
class Parameter:
    """One number of a stack. `log`: multiplicative. `sigma`: width of the prior around the start value, in log or
    in the number's own unit."""

    section: str
    name: str
    low: float
    high: float
    sigma: float = 0.3
    log: bool = True

    def inner(self, value: float) -> float:
        """The coordinate in which the search moves."""
        return float(np.log(max(value, self.low))) if self.log else value

    def outer(self, x: float) -> float:
        """The bounded value of a coordinate."""
        return float(np.clip(np.exp(x) if self.log else x, self.low, self.high))


def _gemm(*names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter("gemm", name, 0.6, 1.8, 0.25) for name in names)


_KERNELS: Final = (
    Parameter("compute", "attention", 0.5, 5.0, 0.4),
    Parameter("compute", "memory_bound", 0.6, 6.0, 0.4),
)
_FLOORS: Final = (
    Parameter("host", "layer_floor", 1e-4, 1e-2, 0.5),
    Parameter("host", "layer_floor_tp", 1e-4, 1e-2, 0.5),
    Parameter("host", "step_overhead", 5e-3, 2.0, 0.7),
)
_TENSOR: Final = Parameter("communication", "tp_exposed", 0.2, 2.5, 0.3)
_DATA: Final = (
    Parameter("communication", "dp_time", 0.5, 6.0, 0.4),
    Parameter("communication", "dp_overlap", 0.0, 1.0, 0.2, log=False),
)
_WIDE: Final = (
    Parameter("host", "moe_layer_floor", 2e-4, 1.5e-2, 0.3),
    Parameter("communication", "ep_exposed", 0.2, 3.0, 0.4),
    Parameter("communication", "slowdown_per_doubling", 0.0, 0.03, 0.003, log=False),
)
_SHARDED: Final = (
    Parameter("communication", "fsdp_overlap", 0.0, 1.0, 0.15, log=False),
    Parameter("communication", "slowdown_per_doubling", 0.0, 0.03, 0.003, log=False),
)
PARAMETERS: Final[dict[str, tuple[Parameter, ...]]] = {
    "megatron-2024": (*_gemm("bf16", "fp8"), *_KERNELS, *_FLOORS, _TENSOR, *_DATA, *_WIDE),
    "megatron-2025": (*_gemm("bf16", "fp8"), *_KERNELS, *_FLOORS, _TENSOR, *_DATA, *_WIDE),
    "megatron-2026": (*_gemm("bf16", "fp8", "fp4"), *_KERNELS, *_FLOORS, _TENSOR, *_DATA, *_WIDE),
    "megatron-deepspeed-2022": (*_gemm("fp16"), *_KERNELS, *_FLOORS, _TENSOR, _DATA[0]),
    "nanotron-2024": (
        *_gemm("bf16"), *_KERNELS, *_FLOORS, _TENSOR, _DATA[0],
        Parameter("communication", "tp_exposed_nodes", 0.5, 5.0, 0.4),
        Parameter("communication", "p2p_exposed", 0.1, 3.0, 0.4),
        Parameter("communication", "bucket_latency", 2e-7, 1e-5, 0.4),
        Parameter("host", "layer_floor_tp_nodes", 1e-4, 2e-2, 0.4),
        Parameter("host", "pipeline_tp_floor", 1e-4, 2e-2, 0.4),
    ),
    "llm-foundry-2023": (*_gemm("bf16", "fp8"), *_KERNELS, _FLOORS[0], _FLOORS[2], *_SHARDED),
    "torchtitan-2024": (*_gemm("bf16", "fp8"), *_KERNELS, _FLOORS[0], _FLOORS[2], _TENSOR, *_SHARDED),
    "fsdp1-2023": (*_gemm("bf16"), *_KERNELS, *_SHARDED),
    "maxtext-2024": (*_gemm("bf16", "fp8"), *_KERNELS, *_SHARDED),
    "aa-scaling-2023": (*_gemm("bf16"), *_KERNELS, *_FLOORS, _TENSOR, _DATA[0]),
}  # fmt: skip

# Centres of the priors: start values from data sheets, published studies and defaults; see the stack files.
STARTS: Final[dict[str, dict[str, float]]] = {
    "megatron-2024": {
        "gemm.bf16": 0.9, "gemm.fp8": 0.8, "compute.attention": 1, "compute.memory_bound": 1,
        "host.layer_floor": 0.0005, "host.layer_floor_tp": 0.0005, "host.step_overhead": 0.05,
        "communication.tp_exposed": 0.92, "communication.dp_time": 1, "communication.dp_overlap": 0.8,
        "communication.ep_exposed": 1, "communication.slowdown_per_doubling": 0.009,
        "host.moe_layer_floor": 0.003,
    },
    "megatron-2025": {
        "gemm.bf16": 0.9, "gemm.fp8": 0.8, "compute.attention": 1, "compute.memory_bound": 1,
        "host.layer_floor": 0.0005, "host.layer_floor_tp": 0.0005, "host.step_overhead": 0.05,
        "communication.tp_exposed": 0.92, "communication.dp_time": 1, "communication.dp_overlap": 0.8,
        "communication.ep_exposed": 1, "communication.slowdown_per_doubling": 0.009,
        "host.moe_layer_floor": 0.009,
    },
    "megatron-2026": {
        "gemm.bf16": 0.9, "gemm.fp8": 0.8, "gemm.fp4": 0.8, "compute.attention": 1,
        "compute.memory_bound": 1, "host.layer_floor": 0.0005, "host.layer_floor_tp": 0.0005,
        "host.step_overhead": 0.03, "communication.tp_exposed": 0.92, "communication.dp_time": 1,
        "communication.dp_overlap": 0.8, "communication.ep_exposed": 1,
        "communication.slowdown_per_doubling": 0.009,
        "host.moe_layer_floor": 0.009,
    },
    "megatron-deepspeed-2022": {
        "gemm.fp16": 1, "compute.attention": 1.25, "compute.memory_bound": 1.2, "host.layer_floor": 0.0023,
        "host.layer_floor_tp": 0.0025, "host.step_overhead": 0.1, "communication.tp_exposed": 1,
        "communication.dp_time": 1.5,
    },
    "nanotron-2024": {
        "gemm.bf16": 1.28, "compute.attention": 1, "compute.memory_bound": 1.7, "host.layer_floor": 0.0043,
        "host.layer_floor_tp": 0.0043, "host.step_overhead": 0.05, "communication.tp_exposed": 0.83,
        "communication.dp_time": 2, "communication.tp_exposed_nodes": 1.6, "communication.p2p_exposed": 1,
        "communication.bucket_latency": 2.1e-06, "host.layer_floor_tp_nodes": 0.0042,
        "host.pipeline_tp_floor": 0.003,
    },
    "llm-foundry-2023": {
        "gemm.bf16": 1.1, "gemm.fp8": 1.1, "compute.attention": 1.5, "compute.memory_bound": 1,
        "host.layer_floor": 0.001, "host.step_overhead": 0.05, "communication.fsdp_overlap": 0.95,
        "communication.slowdown_per_doubling": 0.009,
    },
    "torchtitan-2024": {
        "gemm.bf16": 1, "gemm.fp8": 1.1, "compute.attention": 1.1, "compute.memory_bound": 1,
        "host.layer_floor": 0.001, "host.step_overhead": 0.05, "communication.tp_exposed": 1,
        "communication.fsdp_overlap": 0.9, "communication.slowdown_per_doubling": 0.009,
    },
    "fsdp1-2023": {
        "gemm.bf16": 1.05, "compute.attention": 1.1, "compute.memory_bound": 1,
        "communication.fsdp_overlap": 0.9, "communication.slowdown_per_doubling": 0.009,
    },
    "maxtext-2024": {
        "gemm.bf16": 1, "gemm.fp8": 1, "compute.attention": 1, "compute.memory_bound": 1,
        "communication.fsdp_overlap": 0.9, "communication.slowdown_per_doubling": 0.009,
    },
    "aa-scaling-2023": {
        "gemm.bf16": 1, "compute.attention": 1, "compute.memory_bound": 2, "host.layer_floor": 0.002,
        "host.layer_floor_tp": 0.002, "host.step_overhead": 0.5, "communication.tp_exposed": 1.5,
        "communication.dp_time": 2,
    },
}  # fmt: skip


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


@dataclass(frozen=True)
class Sample:
    """A timed row. `group` weighs it, `fold` is what is left out together. `source`: for the summary of dense rows."""

    run: Run
    text: str
    seconds: float
    group: tuple[str, ...]
    fold: tuple[str, ...]
    source: str


def timed_samples(rows: Sequence[dict[str, str]], models: dict[str, Any]) -> dict[str, list[Sample]]:
    """Rows that can be fitted on, by stack: judged, timed, and of that stack itself."""
    reader, found = RunReader(models), dict[str, list[Sample]]()
    for index, row in enumerate(rows):
        seconds = measurement_of(row).step_time
        thin = THINNED.get(row["source"], 1)
        if seconds is None or not is_judged(group_of(row)) or index % thin:
            continue
        try:
            run = reader.read(row)
        except PlannerError:
            continue
        if not run.kin:
            group = (row["model"], row["gpu"], row["gpus"])
            sample = Sample(run, switch_text(row), seconds, group, group[:2], row["source"])
            found.setdefault(run.stack, []).append(sample)
    return found


class Objective:
    """Log ratios of predicted and measured step times as a function of a stack's parameters."""

    def __init__(self, stack: Stack, parameters: tuple[Parameter, ...], samples: list[Sample]) -> None:
        self.stack, self.parameters, self.samples = stack, parameters, samples
        counts: dict[tuple[str, ...], int] = {}
        for sample in samples:
            counts[sample.group] = counts.get(sample.group, 0) + 1
        self.weights = np.array([1.0 / counts[sample.group] for sample in samples])
        centres = STARTS[stack.name]
        self.start = np.array([p.inner(centres[f"{p.section}.{p.name}"]) for p in parameters])
        self.sigma = np.array([p.sigma for p in parameters])
        low = [p.inner(p.low) for p in parameters]
        self.low, self.high = np.array(low), np.array([p.inner(p.high) for p in parameters])

    def stack_at(self, x: Array) -> Stack:
        """The stack with the parameters at `x`."""
        changed: dict[str, dict[str, Any]] = {}
        gemm = dict(self.stack.compute.gemm)
        for parameter, value in zip(self.parameters, x, strict=True):
            if parameter.section == "gemm":
                gemm[Dtype(parameter.name)] = parameter.outer(value)
            else:
                changed.setdefault(parameter.section, {})[parameter.name] = parameter.outer(value)
        changed.setdefault("compute", {})["gemm"] = gemm
        sections = {
            name: getattr(self.stack, name).model_copy(update=fields) for name, fields in changed.items()
        }
        return self.stack.model_copy(update=sections)

    def residuals(self, x: Array) -> Array:
        """log(predicted / measured) of every sample; NaN where nothing is predicted."""
        stack, stacks = self.stack_at(x), dict[str, Stack]()
        problems: dict[tuple[int, str], Problem] = {}
        runs = []
        for sample in self.samples:
            if sample.text not in stacks:
                stacks[sample.text] = apply_switches(stack, sample.text)[0]
            key = (id(sample.run.problem), sample.text)
            if key not in problems:
                problems[key] = replace(sample.run.problem, stack=stacks[sample.text])
            runs.append(replace(sample.run, problem=problems[key]))
        times = [p.step_time if p and p.step_time else np.nan for p in predict_runs(runs)]
        return np.log(np.array(times) / np.array([sample.seconds for sample in self.samples]))

    def loss(self, x: Array, residuals: Array, scale: float, use: NDArray[np.bool_]) -> float:
        """Cauchy loss of the samples in use, plus the prior."""
        data = self.weights * np.log1p((residuals / scale) ** 2)
        prior = ((x - self.start) / self.sigma) ** 2
        return float(np.nansum(data[use]) + prior.sum())

    def minimise(self) -> tuple[Array, Array, Array]:
        """The best parameters, the residuals there and their derivatives, all samples in use."""
        x, use = self.start, np.ones(len(self.samples), dtype=np.bool_)
        r = self.residuals(x)
        jacobian = self._jacobian(x, r)
        for scale in SCALES:
            move = self.linear_step(x, r, jacobian, scale, use)
            before, shrink = self.loss(x, r, scale, use), 1.0
            while shrink > 0.1:
                trial = np.clip(x + shrink * move, self.low, self.high)
                r_trial = self.residuals(trial)
                if self.loss(trial, r_trial, scale, use) < before:
                    x, r = trial, r_trial
                    jacobian = self._jacobian(x, r)
                    break
                shrink /= 3
        return x, r, jacobian

    def linear_step(
        self, x: Array, r: Array, jacobian: Array, scale: float, use: NDArray[np.bool_], reach: float = 0.5
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
            normal = j.T @ (weight[:, None] * j) + np.diag(1 / self.sigma**2)
            slope = j.T @ (weight * now) + (x + move - self.start) / self.sigma**2
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

    def _jacobian(self, x: Array, residuals: Array) -> Array:
        columns = []
        for i in range(len(x)):
            step = STEP * self.sigma[i] / 0.3
            step = -step if x[i] + step > self.high[i] else step
            moved = x.copy()
            moved[i] += step
            columns.append((self.residuals(moved) - residuals) / step)
        return np.nan_to_num(np.array(columns).T)


@dataclass(frozen=True)
class Fit:
    """A fitted stack. Errors |predicted / measured - 1|: `before`, `after` on all rows, `unseen` cross-validated."""

    stack: Stack
    values: dict[str, float]
    rows: int
    groups: int
    before: Array
    after: Array
    unseen: Array


def fit_stack(stack: Stack, parameters: tuple[Parameter, ...], samples: list[Sample]) -> Fit:
    """Fit one stack on its samples and cross-validate by leaving out whole models on one kind of device."""
    objective = Objective(stack, parameters, samples)
    x, r, jacobian = objective.minimise()
    folds = sorted({sample.fold for sample in samples})
    unseen = np.full(len(samples), np.nan)
    for part in range(min(FOLDS, len(folds))):
        out = np.array([folds.index(sample.fold) % FOLDS == part for sample in samples])
        if not out.all():
            move = objective.linear_step(x, r, jacobian, SCALES[-1], ~out, reach=1.0)
            unseen[out] = objective.residuals(x + move)[out]
    error: Callable[[Array], Array] = lambda r: np.abs(np.expm1(r))  # noqa: E731
    values = {f"{p.section}.{p.name}": p.outer(v) for p, v in zip(parameters, x, strict=True)}
    return Fit(
        objective.stack_at(x), values, len(samples), len({s.group for s in samples}),
        error(objective.residuals(objective.start)), error(r), error(unseen),
    )  # fmt: skip


def _percentile(errors: Array, q: float) -> float:
    return float(np.nanpercentile(errors, q)) if np.isfinite(errors).any() else float("nan")


def write_fit(path: Path, fit: Fit, parameters: Sequence[Parameter]) -> None:
    """Put fitted values, band and note into a stack file; every other character stays."""
    text = path.read_text(encoding="utf-8")
    for parameter in parameters:
        value = fit.values[f"{parameter.section}.{parameter.name}"]
        if parameter.section == "gemm":
            text = _replace_gemm(text, parameter.name, value)
        else:
            text = _replace_field(text, parameter.section, parameter.name, value)
    band = _percentile(fit.unseen, 80)
    if np.isfinite(band):
        text = re.sub(r"(?m)^band: .*$", f"band: {max(0.02, band):.3f}", text)
    names = ", ".join(fit.values)
    note = (
        f"{names}: on {fit.rows} published step times in {fit.groups} groups (model x GPU x devices) by "
        f"benchmarks/fit_stacks.py; error on models left out: median {100 * _percentile(fit.unseen, 50):.1f} %, "
        f"90th percentile {100 * _percentile(fit.unseen, 90):.1f} %"
    )
    text = re.sub(r"(?m)^fitted: .*\n", "", text)
    text = re.sub(r"(?m)^band: ", f'fitted: "{note}"\nband: ', text, count=1)
    path.write_text(text, encoding="utf-8")


_UNITS: Final = {"layer_floor": "ms", "layer_floor_tp": "ms", "layer_floor_tp_nodes": "ms", "pipeline_tp_floor": "ms",
                 "step_overhead": "ms", "moe_layer_floor": "ms", "bucket_latency": "us"}  # fmt: skip


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


def _replace_gemm(text: str, name: str, value: float) -> str:
    """One entry of the inline map `gemm: {bf16: 1.0, ...}`."""
    entry = re.compile(rf"(gemm: {{[^}}]*\b{name}: )[\d.]+")
    if entry.search(text):
        return entry.sub(rf"\g<1>{value:.4g}", text)
    return text.replace("gemm: {", f"gemm: {{{name}: {value:.4g}, ", 1)


def print_unseen(unseen: dict[str, list[float]]) -> None:
    """The median error of every source on models left out, and their mean over sources of five rows or more."""
    medians = {
        name: float(np.nanmedian(errors)) for name, errors in unseen.items() if len(errors) >= FEWEST_ROWS
    }
    for name, median in sorted(medians.items()):
        print(f"  {name}: {100 * median:.1f} %")
    if medians:
        mean = 100 * float(np.mean(list(medians.values())))
        print(
            f"dense rows of models left out: mean over {len(medians)} sources of the median error {mean:.1f} %"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_stacks", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("stacks", nargs="*", help="default: every stack with enough rows")
    parser.add_argument("--write", action="store_true", help="write the values into the stack files")
    given = parser.parse_args()
    kernels.gemm_efficiency = remembered(kernels.gemm_efficiency)
    samples = timed_samples(read_rows(given.runs), read_models(given.models))
    unseen: dict[str, list[float]] = {}
    for name in given.stacks or stack_names():
        parameters, mine = PARAMETERS.get(name), samples.get(name, [])
        if parameters is None or len(mine) < FEWEST_ROWS:
            print(f"{name}: {len(mine)} timed rows, not fitted")
            continue
        path = STACKS_FOLDER / f"{name}.yaml"
        fit = fit_stack(read_stack(path), parameters, mine)
        print(f"{name}: {fit.rows} rows, {fit.groups} groups")
        for what, errors in (("before", fit.before), ("after", fit.after), ("unseen", fit.unseen)):
            print(
                f"  {what}: median {100 * _percentile(errors, 50):.1f} %, p90 {100 * _percentile(errors, 90):.1f} %"
            )
        print("  " + ", ".join(f"{key} {value:.4g}" for key, value in fit.values.items()), flush=True)
        for sample, error in zip(mine, fit.unseen, strict=True):
            if np.isfinite(error) and not sample.run.problem.model.is_moe:
                unseen.setdefault(sample.source, []).append(float(error))
        if given.write:
            write_fit(path, fit, parameters)
    print_unseen(unseen)


if __name__ == "__main__":
    main()

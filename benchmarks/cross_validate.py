"""How far off are step times of groups that no constant has seen? Cross-validation, hidden publishers, bands.

    python -m benchmarks.cross_validate RUNS.csv MODELS.json [--hide] [--write] [--results] [--json OUT.json]

A group is a publisher's rows on one model, GPU and cluster, whatever the release. For every group each stack is fitted
anew without it: from the shipped numbers the residuals are linearised and the loss of the linear form without the
group is minimised, with the priors and bounds of benchmarks/stack_parameters.py. `--hide` leaves out whole publishers:
a stack that only they ran takes the numbers of its nearest kin. `--write` puts the bands into the stack files,
`--results` the tables into benchmarks/RESULTS.md. Left out: memory, whose constants are the shipped ones throughout.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.cross_validation_table import profile_line, stack_table, sweep_lines, worst_table
from benchmarks.fit_stacks import (
    FEWEST_ROWS,
    SCALES,
    Mask,
    Objective,
    Sample,
    publisher_of,
    remember_costly_parts,
    timed_samples,
)
from benchmarks.published.measured import group_of, is_judged
from benchmarks.published.runs import read_models, read_rows
from benchmarks.published.summary import NANOTRON_SOURCE, summarise_published, tail_text
from benchmarks.published.validate import validation_answers
from benchmarks.results_file import write_section
from benchmarks.stack_parameters import MAPS, PARAMETERS, Parameter
from planner.calibrate.statistics import Answer
from planner.catalog.load_stacks import STACKS_FOLDER, read_stack
from planner.spec.precision import Dtype
from planner.spec.stack import BAND_DEVICES, PUBLISHER_BAND, Stack, elsewhere

Array = NDArray[np.float64]
Hidden = Callable[[Sample], bool]
"""Which rows are left out together."""
COVERED: Final = 0.8
NARROWEST: Final = 0.05
FEWEST_WIDENED: Final = 50  # rows that can show how a band grows with the number of devices
WIDENED_SPAN: Final = 16  # most over fewest devices of theirs: 8 and 64 say nothing of 16,384
LEAST: Final = 1e-3  # an error below it is as good as none
# 90 % quantiles of Student's t by degrees of freedom: 80 % lie within them.
STUDENT_90: Final = {
    1: 3.078,
    2: 1.886,
    3: 1.638,
    4: 1.533,
    5: 1.476,
    6: 1.440,
    7: 1.415,
    8: 1.397,
    9: 1.383,
    10: 1.372,
}
WIDENS: Final = 0.03  # share of the loss that growth must take away (nanotron 0.045, others 0.02 at most)


class StackErrors:
    """One stack linearised at its shipped numbers; log ratios of its rows under other numbers."""

    def __init__(self, name: str, samples: list[Sample]) -> None:
        self.name, self.samples = name, samples
        self.stack = read_stack(STACKS_FOLDER / f"{name}.yaml")
        self.parameters: tuple[Parameter, ...] = PARAMETERS.get(name, ())
        self.objective = Objective(self.stack, self.parameters, samples)
        self.x = self.objective.at(self.stack)
        everything = np.ones(len(samples), dtype=np.bool_)
        self.shipped = self.objective.residuals(self.x, everything)
        self.fitted = bool(self.parameters) and int(self.objective.fits.sum()) >= FEWEST_ROWS
        self.jacobian = (
            self.objective.jacobian(self.x, self.shipped, self.objective.fits)
            if self.fitted
            else np.zeros((0, 0))
        )

    def without(self, out: Mask) -> Array:
        """The numbers that the fitted rows outside `out` give."""
        use = self.objective.fits & ~out
        move = self.objective.linear_step(self.x, self.shipped, self.jacobian, SCALES[-1], use, reach=1.0)
        return self.x + move

    def unseen(self) -> Array:
        """log(predicted / measured) of every row, by numbers that have not seen its group."""
        result = self.shipped.copy()
        if not self.fitted:
            return result
        folds = [sample.fold for sample in self.samples]
        for fold in dict.fromkeys(folds):
            out = np.array([other == fold for other in folds])
            if (out & self.objective.fits).any():
                result[out] = self.objective.residuals(self.without(out), out)[out]
        return result

    def hiding(self, out: Hidden, others: dict[str, StackErrors], seen: tuple[str, ...] = ()) -> Stack:
        """The stack as it would be without the rows that `out` names: fitted on the rest, else like its nearest kin."""
        hidden = np.array([out(sample) for sample in self.samples], dtype=np.bool_)
        fits = self.objective.fits
        if not (hidden & fits).any():
            return self.stack
        left = int((fits & ~hidden).sum())
        if left > fits.sum() / 2:
            return self.objective.stack_at(self.without(hidden))
        if left >= FEWEST_ROWS:
            return self.objective.stack_at(self.objective.minimise(~hidden)[0])
        kin = others.get(self.stack.kin)
        if kin is None or kin.name in seen:
            return self.objective.stack_at(self.objective.start)
        return like(self.stack, kin.hiding(out, others, (*seen, self.name)), self.parameters)

    def hidden(self, out: Hidden, others: dict[str, StackErrors]) -> Array:
        """log(predicted / measured) of the rows that `out` names by numbers that saw none of them; NaN elsewhere."""
        mask = np.array([out(sample) for sample in self.samples], dtype=np.bool_)
        numbers = self.hiding(out, others)
        return Objective(numbers, (), self.samples).residuals(np.zeros(0), mask)


def like(stack: Stack, kin: Stack, parameters: Sequence[Parameter]) -> Stack:
    """`stack` with the numbers that a fit would have found taken from `kin`; what is known of the software stays.

    A step's fixed overhead is no property of a kin: half a second of logging in steps of a minute says nothing of steps
    of a tenth of a second. It gets the default of a stack without numbers. Nor are factors by accelerator: they tell
    how well the kin's kernels were tuned for it.
    """
    gemm, changed = dict(stack.compute.gemm), defaultdict[str, dict[str, Any]](dict)
    for p in parameters:
        if p.section == "gemm":
            gemm[Dtype(p.name)] = kin.compute.gemm_factor(Dtype(p.name))
        elif p.section not in MAPS:
            source = (
                Stack.model_fields["host"].default if p.name == "step_overhead" else getattr(kin, p.section)
            )
            changed[p.section][p.name] = getattr(source, p.name)
    changed["compute"]["gemm"] = gemm
    changed["compute"]["accelerator"] = {}
    return stack.model_copy(
        update={name: getattr(stack, name).model_copy(update=fields) for name, fields in changed.items()}
    )


@dataclass(frozen=True)
class Error:
    """A row's log ratio and where it belongs."""

    stack: str
    source: str
    moe: bool
    fold: tuple[str, ...]
    judged: bool
    log_ratio: float
    devices: float = BAND_DEVICES

    @property
    def size(self) -> float:
        return abs(float(np.expm1(self.log_ratio)))


def errors_of(model: StackErrors, log_ratios: Array, rows: Sequence[dict[str, str]]) -> list[Error]:
    """The errors of a stack's rows."""
    found = []
    for sample, value in zip(model.samples, log_ratios, strict=True):
        if np.isfinite(value):
            group = group_of(rows[sample.row])
            moe = sample.run.problem.model.is_moe
            devices = float(sample.run.problem.cluster.num_devices)
            judged = is_judged(group)
            found.append(Error(model.name, group, moe, sample.fold, judged, float(value), devices))
    return found


def replaced(
    answers: Sequence[Answer], models: Sequence[StackErrors], ratios: dict[str, Array]
) -> list[Answer]:
    """Answers whose step times are those of the given log ratios."""
    times = {
        sample.row: sample.seconds * float(np.exp(value))
        for model in models
        for sample, value in zip(model.samples, ratios[model.name], strict=True)
        if np.isfinite(value)
    }
    return [
        replace(a, output={**a.output, "step_time_s": times[a.output["row"]]})
        if a.output["row"] in times
        else a
        for a in answers
    ]


def percentile(sizes: Sequence[float], share: float = COVERED) -> float:
    """The size below which a share of errors lies; NaN without any."""
    return float(np.quantile(np.array(sizes), share)) if len(sizes) else float("nan")


@dataclass(frozen=True)
class Bands:
    """80 % bands of a stack from its cross-validated errors, and the devices behind them; `widening`: the power of
    devices / 64 by which those of dense models grow."""

    dense: float
    moe: float
    devices: tuple[str, ...]
    widening: float = 0.0

    def of(self, error: Error) -> float:
        if error.moe and np.isfinite(self.moe):
            return self.moe
        return float(self.dense * (error.devices / BAND_DEVICES) ** self.widening)


def widening_of(errors: Sequence[Error]) -> float:
    """The power of the number of devices by which a band should grow [1]: quantile regression of the errors' logs at
    80 %, where it takes `WIDENS` off the loss of one band for all sizes."""
    sizes = np.log(np.maximum([e.size for e in errors], LEAST))
    scale = np.log(np.array([e.devices for e in errors]) / BAND_DEVICES)
    if len(sizes) < FEWEST_WIDENED or np.ptp(scale) < np.log(WIDENED_SPAN):
        return 0.0

    def loss(power: float) -> float:
        apart = sizes - power * scale
        over = apart - np.quantile(apart, COVERED)
        return float(np.maximum(COVERED * over, (COVERED - 1.0) * over).mean())

    losses = {power: loss(power) for power in np.linspace(0.0, 1.0, 21)}
    best = min(losses, key=lambda power: losses[power])
    return float(best) if losses[best] < (1.0 - WIDENS) * losses[0.0] else 0.0


def bands_of(model: StackErrors, errors: Sequence[Error]) -> Bands:
    """Bands that hold 80 % of the judged errors of one stack, families of models left out.

    Of n errors the ceil(0.8 (n + 1))-th, at least `NARROWEST`: a few rows of one model prove no narrower one.
    """
    bands = []
    widening = widening_of([e for e in errors if e.judged and not e.moe])
    for moe in (False, True):
        power = 0.0 if moe else widening
        sizes = [e.size / (e.devices / BAND_DEVICES) ** power for e in errors if e.judged and e.moe is moe]
        share = min(np.ceil(COVERED * (len(sizes) + 1)) / max(len(sizes), 1), 1.0)
        bands.append(max(percentile(sizes, share), NARROWEST) if sizes else float("nan"))
    used = {s.run.problem.cluster.accelerator.name for s in model.samples if s.fits}
    return Bands(bands[0], bands[1], tuple(sorted(used)), widening)


def covered(errors: Sequence[Error], model: StackErrors) -> float:
    """Share of judged rows inside the bands that the other groups' errors give [1]."""
    judged = [e for e in errors if e.judged]
    inside = 0
    for fold in {e.fold for e in judged}:
        bands = bands_of(model, [e for e in judged if e.fold != fold])
        inside += sum(e.size <= bands.of(e) for e in judged if e.fold == fold)
    return inside / len(judged) if judged else float("nan")


def write_bands(name: str, bands: Bands) -> None:
    """Put bands and devices into a stack file; every other line stays."""
    path = STACKS_FOLDER / f"{name}.yaml"
    text = re.sub(r"(?m)^(band_moe|band_widening|devices): .*\n", "", path.read_text(encoding="utf-8"))
    lines = [f"band: {bands.dense:.3f}"] if np.isfinite(bands.dense) else []
    lines += [f"band_moe: {bands.moe:.3f}"] if np.isfinite(bands.moe) else []
    lines += [f"band_widening: {bands.widening:.2f}"] if bands.widening else []
    lines.append(f"devices: [{', '.join(bands.devices)}]")
    text = re.sub(r"(?m)^band: .*$", "\n".join(lines), text, count=1)
    path.write_text(text, encoding="utf-8")


def publishers(samples: Iterable[Sample]) -> list[Hidden]:
    """Each publisher's rows."""
    return [partial(_of_publisher, name) for name in sorted({sample.publisher for sample in samples})]


def families(samples: Iterable[Sample]) -> list[Hidden]:
    """The rows of each family of models, of all its sizes, publishers, devices and releases."""
    return [partial(_of_family, name) for name in sorted({sample.family for sample in samples})]


def scales(samples: Iterable[Sample]) -> list[Hidden]:
    """Each publisher's rows on its largest number of devices, where it used several."""
    used = defaultdict[str, set[int]](set)
    for sample in samples:
        used[sample.publisher].add(sample.devices)
    return [partial(_at_scale, name, max(sizes)) for name, sizes in sorted(used.items()) if len(sizes) > 1]


def _of_publisher(name: str, sample: Sample) -> bool:
    return sample.publisher == name


def _of_family(name: str, sample: Sample) -> bool:
    return sample.family == name


def _at_scale(name: str, devices: int, sample: Sample) -> bool:
    return sample.publisher == name and sample.devices == devices


def hidden_errors(
    models: dict[str, StackErrors], rows: Sequence[dict[str, str]], parts: Iterable[Hidden]
) -> list[Error]:
    """Errors on the rows of each part, a fold, by numbers that have seen none of them."""
    found = []
    for place, out in enumerate(parts):
        for model in models.values():
            if any(out(sample) for sample in model.samples):
                errors = errors_of(model, model.hidden(out, models), rows)
                found += [replace(error, fold=(str(place),)) for error in errors]
    return found


def by_source(errors: Sequence[Error]) -> dict[tuple[str, bool], list[float]]:
    """Sizes of judged errors by source and kind of model."""
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for error in errors:
        if error.judged:
            found[error.source, error.moe].append(error.size)
    return dict(sorted(found.items()))


def mean_of_medians(errors: Sequence[Error], moe: bool) -> float:
    """Mean over sources of five rows or more of their median error."""
    sizes = [s for (_, kind), s in by_source(errors).items() if kind is moe and len(s) >= FEWEST_ROWS]
    return float(np.mean([percentile(s, 0.5) for s in sizes])) if sizes else float("nan")


def told_by_source(errors: Sequence[Error]) -> dict[str, dict[str, float]]:
    """Rows, median and 90th percentile of the error of every source and kind of model [1]."""
    return {
        f"{name}{' (MoE)' if moe else ''}": {
            "rows": len(sizes), "median": round(percentile(sizes, 0.5), 4), "p90": round(percentile(sizes, 0.9), 4),
        }
        for (name, moe), sizes in sorted(by_source(errors).items())
    }  # fmt: skip


def hidden_lines(errors: Sequence[Error]) -> list[str]:
    """Median error of every source, its publisher hidden."""
    lines = [
        f"{name}{' (MoE)' if moe else ''}: {len(sizes)} rows, median {100 * percentile(sizes, 0.5):.1f} %"
        for (name, moe), sizes in by_source(errors).items()
        if len(sizes) >= FEWEST_ROWS
    ]
    kept = [e for e in errors if e.source != NANOTRON_SOURCE]  # it has no kin
    dense, moe = (100 * mean_of_medians(kept, kind) for kind in (False, True))
    return [*lines, f"mean over sources of the median, nanotron apart: dense {dense:.1f} %, MoE {moe:.1f} %"]


def apart_lines(what: str, errors: Sequence[Error]) -> list[str]:
    """Error of every kind of model, mean over sources of five rows or more of their median and 90th percentile."""
    said = []
    for moe, kind in ((False, "dense"), (True, "mixtures of experts")):
        kept = [e for e in errors if e.source != NANOTRON_SOURCE]
        sizes = [s for (_, of), s in by_source(kept).items() if of is moe and len(s) >= FEWEST_ROWS]
        if sizes:
            median, p90 = (
                100 * float(np.mean([percentile(s, share) for s in sizes])) for share in (0.5, 0.9)
            )
            said.append(f"{kind} {median:.1f} %, p90 {p90:.1f} % ({len(sizes)} sources)")
    return [f"- {what}, nanotron apart: " + "; ".join(said)] if said else []


def by_publisher(errors: Sequence[Error]) -> dict[str, dict[tuple[str, bool], list[Error]]]:
    """Judged errors by publisher, then by stack and kind of model."""
    found: dict[str, dict[tuple[str, bool], list[Error]]] = {}
    for error in errors:
        if error.judged:
            mine = found.setdefault(publisher_of(error.source), {})
            mine.setdefault((error.stack, error.moe), []).append(error)
    return found


def publisher_spread(hidden: Sequence[Error]) -> float:
    """How far 80 % of publishers' mean errors are from none, where no constant has seen them [1] (`PUBLISHER_BAND`).

    Each publisher weighs the same, and of one its stacks and kinds of models do; of each of those the median counts.
    """
    means = [
        float(np.mean([np.median([e.log_ratio for e in part]) ** 2 for part in parts.values()]))
        for parts in by_publisher(hidden).values()
    ]
    quantile = STUDENT_90[min(len(means), max(STUDENT_90))]
    return float(np.expm1(quantile * np.sqrt(np.mean(means))))


def elsewhere_lines(hidden: Sequence[Error], bands: Mapping[str, Bands]) -> list[str]:
    """The spread between publishers, and how many of a publisher's rows its band holds, were its rows not seen."""
    inside = []
    for name, parts in by_publisher(hidden).items():
        rest = publisher_spread([e for e in hidden if publisher_of(e.source) != name])
        held = [
            np.mean([abs(e.log_ratio) <= np.log1p(np.hypot(bands[e.stack].of(e), rest)) for e in part])
            for part in parts.values()
        ]
        inside.append(float(np.mean(held)))
    spread = publisher_spread(hidden)
    shown = ", ".join(f"{100 * band:.0f} % becomes {100 * elsewhere(band):.0f} %" for band in (0.05, 0.1))
    return [
        f"mean errors of publishers, of fitted stacks: 80 % within {100 * spread:.0f} % ({len(inside)} publishers); "
        f"plan and estimate add {100 * PUBLISHER_BAND:.0f} % to a band, in squares ({shown})",
        f"a band with the other publishers' spread holds {100 * np.mean(inside):.0f} % of a publisher's rows, each "
        f"publisher weighing the same ({100 * min(inside):.0f} to {100 * max(inside):.0f} %)",
    ]


def by_stack(
    models: dict[str, StackErrors], unseen: dict[str, list[Error]], rows: Sequence[dict[str, str]]
) -> dict[str, dict[str, float]]:
    """Percentiles of judged errors by stack and kind of model, and the share inside the other groups' bands."""
    found = {}
    for name, model in models.items():
        seen = errors_of(model, model.shipped, rows)
        for moe in (False, True):
            part, whole = (
                [e for e in errors if e.judged and e.moe is moe] for errors in (unseen[name], seen)
            )
            if part:
                sizes = [e.size for e in part]
                found[name + " (MoE)" * moe] = {
                    "rows": float(len(part)), "p50": percentile(sizes, 0.5), "p80": percentile(sizes),
                    "p90": percentile(sizes, 0.9), "shipped": percentile([e.size for e in whole], 0.5),
                    "inside": covered(part, model),
                }  # fmt: skip
    return found


def report(
    stacks: dict[str, dict[str, float]],
    summary: dict[str, Any],
    inside: float,
    hidden: Sequence[Error],
    bands: Mapping[str, Bands],
) -> list[str]:
    """The section of RESULTS.md."""
    dense, moe = summary["headline_dense"], summary["headline_moe"]
    lines = [
        f"Measured {datetime.date.today().isoformat()} with `python -m benchmarks.cross_validate`; errors in percent. "
        "A group is a publisher's rows on one model, GPU and cluster, all its releases together; no constant has seen "
        "the group it is judged on. Memory and verdicts are the shipped ones.",
        "",
        *(
            f"- {what}: mean over {part['sources']} sources of five rows or more: median {100 * part['median']:.1f} %, "
            f"p90 {tail_text(part)}, bias {100 * part['bias']:+.1f} %"
            for what, part in (("dense", dense), ("mixture of experts", moe))
        ),
        *sweep_lines(summary["sweep_means"]),
        f"- 80 % bands from the other families' errors hold {inside:.1%} of the judged rows of stacks that ran several",
        profile_line(summary["sweeps"]),
        "",
        *stack_table(stacks),
    ]
    if hidden:
        lines += [
            "",
            "One publisher hidden at a time; a stack that only it ran takes the numbers of its nearest kin:",
            "",
        ]
        of_fitted = [e for e in hidden if e.stack in bands]
        lines += [f"- {line}" for line in (*hidden_lines(hidden), *elsewhere_lines(of_fitted, bands))]
    return [*lines, "", "Furthest off, at most two rows of a source:", "", *worst_table(summary["worst"])]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cross_validate", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--stack", action="append", help="only these stacks")
    parser.add_argument("--hide", action="store_true", help="hide one publisher at a time")
    parser.add_argument("--write", action="store_true", help="write the bands into the stack files")
    parser.add_argument("--results", action="store_true", help="update benchmarks/RESULTS.md")
    parser.add_argument(
        "--json", type=Path, help="where to write every row's log ratios, and errors by source"
    )
    given = parser.parse_args()
    remember_costly_parts()
    rows, described = read_rows(given.runs), read_models(given.models)
    samples = timed_samples(rows, described)
    models = {n: StackErrors(n, mine) for n, mine in sorted(samples.items()) if n in (given.stack or samples)}
    unseen = {name: model.unseen() for name, model in models.items()}
    errors = {name: errors_of(model, unseen[name], rows) for name, model in models.items()}
    stacks = by_stack(models, errors, rows)
    print("\n".join(stack_table(stacks)), flush=True)
    every = [sample for model in models.values() for sample in model.samples]
    hidden = hidden_errors(models, rows, publishers(every)) if given.hide else []
    apart = hidden_errors(models, rows, families(every))
    of_family = {name: [error for error in apart if error.stack == name] for name in models}
    bands = {name: bands_of(m, of_family[name]) for name, m in models.items() if m.fitted}
    several = {name: part for name, part in of_family.items() if len({e.fold for e in part if e.judged}) > 1}
    judged = {name: sum(e.judged for e in part) for name, part in several.items()}
    inside = sum(covered(several[n], models[n]) * k for n, k in judged.items()) / max(sum(judged.values()), 1)
    if not given.stack:
        answers = replaced(validation_answers(rows, described), list(models.values()), unseen)
        largest = hidden_errors(models, rows, scales(every))
        lines = report(stacks, summarise_published(answers), inside, hidden, bands)
        lines += ["", *apart_lines("Families of models left out, of all publishers and releases", apart)]
        lines += apart_lines("Each publisher's largest number of devices left out", largest)
        print("\n".join(lines))
        if given.results:
            write_section("cross-validation", "\n".join(lines))
    if given.write:
        for name, band in bands.items():
            write_bands(name, band)
    if given.json:
        table = [
            {"row": s.row, "unseen": float(u), "shipped": float(b)}
            for name, m in models.items()
            for s, u, b in zip(m.samples, unseen[name], m.shipped, strict=True)
        ]
        of_groups = [error for part in errors.values() for error in part]
        document = {"rows": table, "groups": told_by_source(of_groups), "publishers": told_by_source(hidden)}
        given.json.write_text(json.dumps(document))


if __name__ == "__main__":
    main()

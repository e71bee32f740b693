"""How often does a measurement lie within the band of its prediction? By stack and number of devices.

A band promises that 80 % of step times lie within it. Left out: what sets a band (`spec/stack/`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from planner.answer.reasons import confidence_of, unmeasured
from planner.calibrate.statistics import Answer, error_summary
from planner.catalog.cluster_rates import rates_of
from planner.cost.model import CostModel
from planner.spec.rule import Problem

_SIZES: Final = ((8, "to 8"), (64, "9 to 64"), (512, "65 to 512"), (math.inf, "above 512"))
_DIGITS: Final = 4


def band_of(problem: Problem) -> float:
    """The error band of a step time [1]: the stack's for that many devices and kind of model."""
    return problem.stack.band_at(problem.cluster.num_devices, problem.model.is_moe)


def band_shown(problem: Problem, time: Mapping[str, float]) -> float:
    """The error band of a step as `planner estimate` shows it [1]: wider than the stack's, unless that is calibrated.
    `time`: term -> seconds."""
    if problem.stack.calibrated:
        return band_of(problem)
    return confidence_of(problem, CostModel(problem, *rates_of(problem.cluster)), time).band


def unmeasured_band(problem: Problem) -> float | None:
    """The same as `planner estimate` shows it where nobody measured the device (`reasons.unmeasured`); None where
    somebody did."""
    kernels, links = rates_of(problem.cluster)
    if not unmeasured(problem, kernels):
        return None
    return confidence_of(problem, CostModel(problem, kernels, links)).band


def size_of(devices: float) -> str:
    """Which size a run has, in words."""
    return next(words for most, words in _SIZES if devices <= most)


def coverage(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """For every stack and size: judged rows with a step time, errors, the mean band and the share within it."""
    groups: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.time_ratio is not None and answer.output.get("band") and answer.judged:
            groups[answer.output["stack"], size_of(answer.devices)].append(answer)
    order = [words for _, words in _SIZES]
    found = []
    for (stack, size), members in sorted(
        groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))
    ):
        ratios = [answer.time_ratio or 1.0 for answer in members]
        bands = [float(answer.output["band"]) for answer in members]
        # measured within predicted / (1 + band) to predicted x (1 + band), as an answer shows it
        inside = [abs(math.log(r)) <= math.log1p(b) for r, b in zip(ratios, bands, strict=True)]
        found.append(
            {
                "stack": stack,
                "devices": size,
                "errors": error_summary(ratios),
                "band": round(sum(bands) / len(bands), _DIGITS),
                "covered": round(sum(inside) / len(inside), _DIGITS),
            }
        )
    return found


def coverage_lines(parts: Sequence[dict[str, Any]]) -> list[str]:
    """The same as aligned lines, errors and bands in percent."""
    head = ("stack", "devices", "rows", "median", "p90", "bias", "band", "within")
    rows = [head]
    for part in parts:
        errors = part["errors"]
        rows.append(
            (
                part["stack"], part["devices"], str(errors["rows"]), f"{100 * errors['median']:.1f}",
                f"{100 * errors['p90']:.1f}", f"{100 * errors['bias']:+.1f}", f"{100 * part['band']:.0f}",
                f"{100 * part['covered']:.0f} %",
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(_aligned(row, widths)) for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Two cells of text, then numbers."""
    cells = list(zip(row, widths, strict=True))
    return [cell.ljust(width) for cell, width in cells[:2]] + [cell.rjust(width) for cell, width in cells[2:]]

"""How does a calibration look in a terminal? What was measured, before and after, what moved and how far."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType

from planner.calibrate.correction.estimate import Calibration, own_run
from planner.calibrate.correction.parts import NARROW, PARTS, Part
from planner.calibrate.logs.nccl_tests import LinkFit
from planner.report.facts import precise_time
from planner.report.text import bullets, labelled, listing, prose, section
from planner.report.words import texts
from planner.spec.overlay import Overlay
from planner.units import format_bandwidth

_TOO_FAR: Final = 1.5  # times as long or as short as calibrated: no run of this model, batch and stack
_SIDE: Final = 1.28  # widths of a normal to each side that hold 80 %


def calibration_facts(overlay: Overlay, runs: Calibration | None, links: LinkFit | None) -> dict[str, Any]:
    """The calibration as plain data, in planner's inner units."""
    facts: dict[str, Any] = {"calibration": overlay.model_dump(mode="json")}
    if runs is not None:
        facts["runs"] = [
            {"name": seen.name, "measured_s": seen.seconds, "before_s": before, "after_s": after}
            for seen, before, after in zip(runs.observations, runs.before, runs.after, strict=True)
        ]
        facts["parts"] = {
            part.name: {"factor": math.exp(mean), "low": math.exp(mean - side), "high": math.exp(mean + side)}
            for part, mean, side in _sides(runs)
        }
        facts["probability_moved"] = runs.shrunk.moved
        facts["odd"], facts["slow"] = list(runs.odd), list(runs.slow)
    if links is not None:
        facts["links"] = [
            {"test": test.name, "bus_bandwidth": test.bus_bandwidth, "error_before": a, "error_after": b}
            for test, a, b in zip(links.tests, links.before, links.after, strict=True)
        ]
        facts["notes"] = texts(links.findings)
    return facts


def calibration_document(
    overlay: Overlay, runs: Calibration | None, links: LinkFit | None, notes: Sequence[str]
) -> RenderableType:
    """The verdict first, then runs, links and what moved."""
    blocks: list[RenderableType] = [prose(_headline(overlay, runs), "bold green")]
    if runs is not None:
        rows = [
            (
                seen.name,
                precise_time(seen.seconds),
                *_beside(before, seen.seconds),
                *_beside(after, seen.seconds),
            )
            for seen, before, after in zip(runs.observations, runs.before, runs.after, strict=True)
        ]
        blocks.append(
            section("Runs", listing(("run", "measured", "shipped", "off", "calibrated", "off"), rows))
        )
        blocks.append(section("What moved", labelled(_moves(runs))))
    if links is not None:
        tables = [
            (test.name, format_bandwidth(test.bus_bandwidth), f"{before:.1%}", f"{after:.1%}")
            for test, before, after in zip(links.tests, links.before, links.after, strict=True)
        ]
        blocks.append(
            section("Links", listing(("test", "bus bandwidth", "shipped off by", "calibrated"), tables))
        )
        blocks.append(labelled(_link_moves(links)))
    said = [*notes, *(texts(links.findings) if links else ()), *(_odd(runs) if runs else ())]
    if said:
        blocks.append(section("Notes", bullets(said)))
    return Group(*blocks)


def _headline(overlay: Overlay, runs: Calibration | None) -> str:
    if runs is not None and not overlay.multiply and not overlay.runs:
        if _far(runs):
            return "nothing moved: this is no run of this model, batch and stack"
        these = "these runs" if len(runs.observations) > 1 else "this run"
        return f"the shipped stack {overlay.stack} explains {these} as it is: nothing moved"
    count = len(overlay.multiply) + sum(value != 1 for value in overlay.links.model_dump().values())
    own = len(overlay.runs)
    text = f"calibration {overlay.name} ({overlay.level}): {count} number{'s' * (count != 1)} moved"
    return text + (f", {own} configuration{'s' * (own != 1)} corrected by what was measured" if own else "")


def _beside(predicted: float, measured: float) -> tuple[str, str]:
    return precise_time(predicted), f"{predicted / measured - 1:+.1%}"


def _sides(runs: Calibration) -> list[tuple[Part, float, float]]:
    """Each part, its log factor, and how far 80 % of the belief reaches to each side [log]."""
    found = zip(PARTS, runs.shrunk.mean, runs.shrunk.width, strict=True)
    narrow = any(path.startswith("compute.gemm.") for path in runs.overlay.multiply)
    return [
        (part, float(mean), _SIDE * float(width))
        for part, mean, width in found
        if narrow or part.name != NARROW
    ]


def _moves(runs: Calibration) -> list[tuple[str, str, str]]:
    told = []
    for part, mean, side in _sides(runs):
        within = f"{part.meaning}; between x{math.exp(mean - side):.2f} and x{math.exp(mean + side):.2f}"
        told.append((part.name.replace("_", " "), f"x{math.exp(mean):.3f}", within))
    sure = f"probability that this machine or software differs from the shipped stack {runs.overlay.stack}"
    return [*told, *_own_moves(runs), ("differs", f"{runs.shrunk.moved:.0%}", sure)]


def _own_moves(runs: Calibration) -> list[tuple[str, str, str]]:
    """Each configuration measured, by the name of its first run, and its own factor."""
    named: dict[str, str] = {}
    for seen in runs.observations:
        named.setdefault(json.dumps(own_run(seen).all_axes()), seen.config.describe())
    meaning = "{} with any number of replicas, beyond all that"
    return [
        ("own run", f"x{run.factor:.3f}", meaning.format(named[json.dumps(run.all_axes())]))
        for run in runs.overlay.runs
    ]


def _link_moves(links: LinkFit) -> list[tuple[str, str, str]]:
    f = links.factors
    return [
        ("bandwidth in a node", f"x{f.scale_up_bandwidth:.2f}", "of what such links reach"),
        ("latency in a node", f"x{f.scale_up_latency:.2f}", "of an empty message"),
        ("bandwidth between nodes", f"x{f.fabric_bandwidth:.2f}", "of what such a fabric reaches"),
        ("latency between nodes", f"x{f.fabric_latency:.2f}", "of an empty message"),
    ]


def _odd(runs: Calibration) -> list[str]:
    slow = [
        f"{name} was likely in its stack's slow mode (full device memory, or a sick network) and does not count"
        for name in runs.slow
    ]
    return [*slow, *_far(runs), *_disagreeing(runs)]


def _far(runs: Calibration) -> list[str]:
    """Runs that are something else than what was asked about."""
    advice = "check sequence length, batch, precision and axes of the run; planner diagnose ranks causes"
    return [
        f"{seen.name} is still predicted {after / seen.seconds - 1:+.0%} off: {advice}"
        for seen, after in zip(runs.observations, runs.after, strict=True)
        if seen.name not in runs.slow and abs(math.log(after / seen.seconds)) > math.log(_TOO_FAR)
    ]


def _disagreeing(runs: Calibration) -> list[str]:
    return [
        f"{name} disagrees with the other runs and hardly counts"
        for name in runs.odd
        if name not in runs.slow
    ]

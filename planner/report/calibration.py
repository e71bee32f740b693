"""How does a calibration look in a terminal? What was measured, before and after, what moved and how far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from planner.calibrate.estimate import Calibration
from planner.calibrate.nccl_tests import LinkFit
from planner.calibrate.shrinkage import PARTS
from planner.report.facts import precise_time
from planner.report.text import bullets, labelled, listing, prose, section
from planner.spec.overlay import Overlay
from planner.units import format_bandwidth

_MEANING = {
    "compute": "time of matrix products, attention and memory-bound kernels",
    "communication": "exposed time of collectives",
    "host": "time the host needs to launch a layer",
    "overhead": "time of a step outside its layers",
}


def calibration_facts(overlay: Overlay, runs: Calibration | None, links: LinkFit | None) -> dict[str, Any]:
    """The calibration as plain data, in planner's inner units."""
    facts: dict[str, Any] = {"calibration": overlay.model_dump(mode="json")}
    if runs is not None:
        facts["runs"] = [
            {"name": seen.name, "measured_s": seen.seconds, "before_s": before, "after_s": after}
            for seen, before, after in zip(runs.observations, runs.before, runs.after, strict=True)
        ]
        facts["parts"] = {
            part: {"factor": math.exp(float(mean)), "probability_moved": float(moved)}
            for part, mean, moved in zip(PARTS, runs.shrunk.mean, runs.shrunk.moved, strict=True)
        }
        facts["odd"] = list(runs.odd)
    if links is not None:
        facts["links"] = [
            {"test": test.name, "bus_bandwidth": test.bus_bandwidth, "error_before": a, "error_after": b}
            for test, a, b in zip(links.tests, links.before, links.after, strict=True)
        ]
        facts["notes"] = list(links.notes)
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
    said = [*notes, *(links.notes if links else ()), *(_odd(runs) if runs else ())]
    if said:
        blocks.append(section("Notes", bullets(said)))
    return Group(*blocks)


def _headline(overlay: Overlay, runs: Calibration | None) -> str:
    if runs is not None and not overlay.multiply:
        count = len(runs.observations)
        return (
            f"the shipped stack {overlay.stack} explains {'these runs' if count > 1 else 'this run'} as it is: "
            "nothing moved"
        )
    count = len(overlay.multiply) + sum(value != 1 for value in overlay.links.model_dump().values())
    return f"calibration {overlay.name} ({overlay.level}): {count} number{'s' * (count != 1)} moved"


def _beside(predicted: float, measured: float) -> tuple[str, str]:
    return precise_time(predicted), f"{predicted / measured - 1:+.1%}"


def _moves(runs: Calibration) -> list[tuple[str, str, str]]:
    found = []
    for part, mean, moved in zip(PARTS, runs.shrunk.mean, runs.shrunk.moved, strict=True):
        sure = f"{_MEANING[part]}; {moved:.0%} sure that it differs"
        found.append((part, f"x{math.exp(float(mean)):.3f}", sure))
    return found


def _link_moves(links: LinkFit) -> list[tuple[str, str, str]]:
    f = links.factors
    return [
        ("bandwidth in a node", f"x{f.scale_up_bandwidth:.2f}", "of what such links reach"),
        ("latency in a node", f"x{f.scale_up_latency:.2f}", "of an empty message"),
        ("bandwidth between nodes", f"x{f.fabric_bandwidth:.2f}", "of what such a fabric reaches"),
        ("latency between nodes", f"x{f.fabric_latency:.2f}", "of an empty message"),
    ]


def _odd(runs: Calibration) -> list[str]:
    return [f"{name} disagrees with the other runs and hardly counts" for name in runs.odd]

"""What was searched, what is proven, and how far is it to be trusted? The sentences of plans and pages.

Left out: the figures of a configuration (`facts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.dialect import option
from planner.report.facts import ends_in_percent
from planner.report.options_text import held_sentence
from planner.report.words import texts
from planner.report.words.headline import ended_by
from planner.spec.planfile import (
    CLOSED_GAP,
    CalibrationLevel,
    Certificate,
    Ending,
    Objective,
    Plan,
    Search,
)
from planner.spec.verdict import MemoryVerdict, worth_the_risk
from planner.units import GIB, format_time

_LEVELS: Final[Mapping[CalibrationLevel, str]] = {
    CalibrationLevel.L0: "stack not fitted, or device not measured",
    CalibrationLevel.L1: "stack fitted on public runs, not on your cluster",
    CalibrationLevel.L2: "corrected by a benchmark of your cluster",
    CalibrationLevel.L3: "corrected by a step measured on your cluster",
}


@dataclass(frozen=True)
class Remainder:
    """A line of the account of the space: what was taken away, or what was left."""

    label: str
    candidates: int
    taken_away: bool


def space_account(search: Search) -> tuple[Remainder, ...]:
    """From the whole space to what fits: who took how many away, largest first."""
    removed = sorted(search.removed, key=lambda entry: (-entry.candidates, entry.rule))
    lines = [Remainder("candidates", search.candidates, False)]
    lines += [Remainder(entry.rule, entry.candidates, True) for entry in removed]
    for label, candidates in (
        ("not dealt: states exceed memory", search.undealt_by_memory),
        ("not dealt: pruned by lower bound", search.undealt),
    ):
        if candidates:
            lines.append(Remainder(label, candidates, True))
    lines.append(Remainder("legal", search.legal, False))
    certificate = search.certificate
    by_memory = search.too_large + search.undealt_by_memory
    unlooked = certificate.by_memory - by_memory if certificate else 0
    behind = search.legal - search.costed - unlooked
    if unlooked:
        lines.append(Remainder("model states exceed memory", unlooked, True))
    if behind:
        lines.append(Remainder("pruned by lower bound", behind, True))
    if behind or unlooked:
        lines.append(Remainder("fully evaluated", search.costed, False))
    if search.too_large:
        lines.append(Remainder("out of memory", search.too_large, True))
        lines.append(Remainder("fit", search.costed - search.too_large, False))
    return tuple(lines)


def proof_sentence(certificate: Certificate) -> str:
    """What is proven of the best configuration, what is not, and of which set: what is held fixed."""
    said = _proven(certificate)
    parts = said, outside_sentence(certificate), held_sentence(certificate.held) if said else ""
    return "; ".join(filter(None, parts))


def outside_sentence(certificate: Certificate) -> str:
    """Whose layouts nobody looked at, for want of effort; empty where every layout was tried or is behind a bound."""
    if not certificate.outside:
        return ""
    many = f"of {certificate.outside:,} configuration{'s' * (certificate.outside > 1)}"
    said = f"not looked at: layouts {many} other than the stack's own (more with {option('effort')})"
    if certificate.best is None:
        return f"{said}, whose memory may fit"
    if certificate.outside_bound is None:
        return said
    return f"{said}, up to {max(1 - certificate.outside_bound / certificate.best, 0.0):.1%} faster"


def _proven(certificate: Certificate) -> str:
    if certificate.best is None:
        return ""
    compared = "; at that size, ".join(texts(certificate.compared))
    counted = f"{certificate.costed:,} evaluated, {certificate.solved:,} simulated"
    faster = "" if certificate.gap is None else f": up to {certificate.gap:.2%} faster may exist"
    if certificate.ending is not Ending.COMPLETE:
        return f"not proven{faster} (ended by {ended_by(certificate.ending)}; {counted})"
    if certificate.gap is None:
        return f"best of those evaluated ({counted}): {compared}"
    if certificate.gap > CLOSED_GAP:
        return f"not proven{faster} ({counted}); compared: {compared}"
    proven = "most headroom" if certificate.objective == Objective.HEADROOM else "optimal"
    return f"proven {proven} under the cost model (gap {certificate.gap:.2%}; {counted}): {compared}"


def search_sentence(search: Search) -> str:
    """How long it took, and within which restriction."""
    text = f"answered in {format_time(search.seconds)}"
    if search.restricted:
        fixed = ", ".join(f"{axis}={','.join(map(str, v))}" for axis, v in search.restricted.items())
        text += f"; restricted to {fixed}"
    if search.without:
        text += f"; without {', '.join(search.without)}"
    return text


def once_sentence(search: Search) -> str:
    """Which of those that are alike the list holds; empty where all may be listed."""
    fastest = [axis for axis in search.once if axis != "cuda_graph_impl"]
    alike = [f"{' or '.join(fastest)} (the fastest)"] if fastest else []
    if "cuda_graph_impl" in search.once:
        alike.append("CUDA graphs without a gain (the framework's default)")
    if not alike:
        return ""
    return f"configurations that differ only in {' or in '.join(alike)} are listed once, if there are enough others"


def confidence_sentence(plan: Plan) -> str:
    """The band that the prediction has earned, its calibration level, and why."""
    trust = plan.confidence
    text = f"80% interval: {ends_in_percent(trust.band)} ({trust.level}: {_LEVELS[trust.level]})"
    return "; ".join([text, *texts(trust.explanation)])


def assumed(plan: Plan) -> tuple[str, ...]:
    """What is assumed, in words."""
    return texts(plan.assumptions)


def cautions(plan: Plan) -> tuple[str, ...]:
    """What the reader must not overlook of memory before acting on the plan."""
    if plan.found and plan.choices[0].memory.verdict is MemoryVerdict.BORDERLINE:
        return ("the best configuration's memory is borderline: try one step before a long run",)
    by_room = plan.search.certificate is not None and plan.search.certificate.objective == Objective.HEADROOM
    if plan.found and plan.choices and plan.pareto and not by_room:
        best, fastest = plan.choices[0], plan.pareto[0]
        gain = best.step_time / fastest.step_time_s - 1
        larger = fastest.peak_mem_gib * GIB > best.memory.peak
        if larger and worth_the_risk(fastest.step_time_s, best.step_time):
            return (
                f"{fastest.config.text} would be about {100 * gain:.1f} % faster, but its memory is borderline "
                f"({fastest.peak_mem_gib:.1f} GiB): {option('borderline')} takes such configurations",
            )
    return ()

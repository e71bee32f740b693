"""What was decided by what, and what the head of an answer says of the question, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.dialect import option
from planner.report.words.memory import host_of, parts_said, tightest
from planner.report.words.template import Words, amount, marked
from planner.spec.findings import Finding
from planner.spec.terms import term_name
from planner.units import format_capacity, format_time


def _step_shares(found: Finding) -> str:
    parts = zip(amount(found, "terms", list), amount(found, "shares", list), strict=True)
    said = ", ".join(f"{term_name(name)} {share:.0%}" for name, share in parts)
    return f"the step is {said}; exposed communication {found.values['exposed']:.0%}"


def _tightest(found: Finding) -> str:
    values = found.values
    where = tightest(amount(found, "rank", int), amount(found, "ranks", int), str(values["phase"]))
    size = format_capacity(amount(found, "size", float))
    return f"memory is tightest {where}; mostly {term_name(str(values['term']))} ({size})"


def _offload_time(found: Finding) -> str:
    least, most = (format_time(amount(found, name, float)) for name in ("least", "most"))
    return f"CPU-offload time is uncertain: {least} to {most} (see planner assumptions)"


def _host_memory(found: Finding) -> str:
    needs = f"a node's host must hold {parts_said(host_of(found))}"
    if "limit" not in found.values:
        return (
            f"{needs}; the cluster does not say what it has (node.host_memory), so that this is not checked"
        )
    text = f"{needs}, of {format_capacity(amount(found, 'limit', float))}"
    if "over" in found.values:
        text += f": {format_capacity(amount(found, 'over', float))} over the limit"
    copied = f"; no copy is made where training waits: {marked(found)}" if found.change else ""
    return text + copied


def _slow_mode(found: Finding) -> str:
    values = found.values
    return (
        f"measured above {format_time(amount(found, 'above', float))}, it is this stack's slow mode (full device "
        f"memory, or a sick network; {values['share']:.0%} of published runs of this size): about "
        f"{format_time(amount(found, 'step_time', float))} a step"
    )


def _shapes(found: Finding) -> str:
    values = found.values
    text = (
        f"GEMM shapes are {values['mean']:.2f}x from the nearest measured shape on average, "
        f"{values['most']:.2f}x at most"
    )
    if "outside" in values:
        text += f"; {values['outside']:.0%} of GEMM work lies outside the measured range"
    if "attention" in values:
        text += f"; attention is {values['attention']:.1f}x beyond the measured range"
    return f"{text}; measured on another device, as this one was not" if values["on_another_device"] else text


def _dealt(found: Finding) -> str:
    values = found.values
    layers = ", ".join(map(str, amount(found, "layers", list)))
    return (
        f"{values['framework']} assigns layers to pipeline ranks itself; {layers} layers would be "
        f"{values['gain']:.1%} faster"
    )


def _recomputed(found: Finding) -> str:
    values = found.values
    counts, layers = (", ".join(map(str, amount(found, name, list))) for name in ("recomputed", "layers"))
    return (
        f"{values['framework']} recomputes as many layers on every pipeline rank; {counts} layers, of {layers} held, "
        f"would be {values['gain']:.1%} faster"
    )


def _mfu(found: Finding) -> str:
    values = found.values
    chosen = "with attention to chosen keys, indexers and their loss"
    attended = chosen if values["indexers"] else "with causal attention counted at half"
    frozen = ", nor weight gradients of the frozen model" if values["frozen"] else ""
    return f"model FLOPs {attended}, recomputation not counted{frozen}"


WORDS: Final[Mapping[str, Words]] = {
    "batch_assumed": (
        "batch assumed, not asked for: {batch:,} sequences train {speedup:.1f} times as many tokens/s"
    ),
    "too_little_for_the_risk": lambda found: (
        f"{found.values['configuration']} would be {100 * amount(found, 'gain', float):.1f} % faster, "
        "but its memory is "
        "borderline: too little for the risk"
    ),
    "step_shares": _step_shares,
    "tightest_memory": _tightest,
    "offload_time": _offload_time,
    "host_memory_needed": _host_memory,
    "slow_mode": _slow_mode,
    "measured_shapes": _shapes,
    "balanced_lead": (
        "its {lead:.1%} lead over #{place} ({configuration}) assumes balanced experts: it disappears if the busiest "
        f"rank gets {{undone_by:.0%}} more tokens than average ({option('expert_loads')})"
    ),
    "layers_dealt_by_framework": _dealt,
    "layers_recomputed_alike": _recomputed,
    "even_split_too_large": "the even split's memory might not fit",
    "mfu_convention": _mfu,
}  # fmt: skip

"""What was decided by what, and what a run reports of itself, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.report.words.memory import host_of, parts_said, tightest
from planner.report.words.template import Words, amount, marked
from planner.spec.findings import Finding
from planner.spec.terms import term_name
from planner.units import format_capacity


def _step_shares(found: Finding) -> str:
    parts = zip(amount(found, "terms", list), amount(found, "shares", list), strict=True)
    said = ", ".join(f"{term_name(name)} {share:.0%}" for name, share in parts)
    return f"the step is {said}; exposed communication {found.values['exposed']:.0%}"


def _uncertain(found: Finding) -> str:
    parts = zip(amount(found, "terms", list), amount(found, "shares", list), strict=True)
    said = ", ".join(f"{term_name(name)} ({share:.0%} of the step)" for name, share in parts)
    return f"wider by what differs from machine to machine: {said}"


def _tightest(found: Finding) -> str:
    values = found.values
    where = tightest(amount(found, "rank", int), amount(found, "ranks", int), str(values["phase"]))
    size = format_capacity(amount(found, "size", float))
    return f"memory is tightest {where}; mostly {term_name(str(values['term']))} ({size})"


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


def _flops(found: Finding) -> str:
    values = found.values
    reported, half, full = (amount(found, name, float) / 1e12 for name in ("reported", "half", "full"))
    said = f"{reported:.0f} TFLOP/s per device are reported, "
    if "alike" in values:
        how = {"full": "in full", "half": "at half"}[str(values["alike"])]
        return f"{said}which the step time is with causal attention counted {how}"
    return (
        f"{said}and the step time means {half:.0f} with causal attention counted at half, {full:.0f} in full: FLOPs "
        "are counted otherwise there, or batch, sequence length, model or devices are not as described"
    )


WORDS: Final[Mapping[str, Words]] = {
    "step_shares": _step_shares,
    "wider_for_parts": _uncertain,
    "tightest_memory": _tightest,
    "host_memory_needed": _host_memory,
    "flops_counted": _flops,
}

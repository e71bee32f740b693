"""Why a run ran out of memory, or reports another rate than its step time means, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.report.words.template import Words, amount
from planner.spec.findings import Finding
from planner.units import format_capacity


def _sized(text: str) -> Words:
    """A template whose values in bytes are shown as capacities."""

    def words(found: Finding) -> str:
        sizes = {name: format_capacity(v) for name, v in found.values.items() if isinstance(v, float)}
        return text.format(**{**found.values, **sizes})

    return words


def _fragmentation(found: Finding) -> str:
    more = ", more than was asked for" if found.values["more_than_asked"] else ""
    size = format_capacity(amount(found, "size", float))
    return f"fragmentation: {size} are reserved but unallocated{more}"


def _against_log(found: Finding) -> str:
    kind = "agrees with" if found.values["agrees"] else "differs from"
    predicted = format_capacity(amount(found, "predicted", float))
    return f"the prediction inside PyTorch, {predicted}, {kind} the largest logged value by {found.values['off']:+.1%}"


_TENSORS: Final[Mapping[str, str]] = {
    "logits": "logits", "logits_not_split": "logits not split over tp", "scores": "scores of unfused attention",
}  # fmt: skip


def _flops(found: Finding) -> str:
    values = found.values
    reported, half, full = (amount(found, name, float) / 1e12 for name in ("reported", "half", "full"))
    said = f"{reported:.0f} TFLOP/s per device are reported, "
    if "alike" in values:
        how = {"full": "in full", "half": "at half"}[str(values["alike"])]
        return f"{said}which the step time is with causal attention counted {how}"
    return (
        f"{said}and the step time means {half:.0f} with causal attention counted at half, {full:.0f} in "
        "full: FLOPs are "
        "counted otherwise there, or batch, sequence length, model or devices are not as described"
    )


WORDS: Final[Mapping[str, Words]] = {
    "other_process": _sized("another process holds {size} of the device"),
    "end_other_process": "end the other process ({monitor} lists it)",
    "fragmentation": _fragmentation,
    "set_growing_segments": "{setting}",
    "outside_pytorch": _sized(
        "{size} lie outside PyTorch, {expected} were expected: communicators, contexts of other libraries, CUDA graphs"
    ),
    "program_needs_more": _sized(
        "the program needs {needed}, {predicted} predicted: a term is missing, or it keeps more than the stack does "
        "(attention without its kernel, another remat_policy, weights not sharded)"
    ),
    "needs_more_inside": _sized(
        "at least {needed} were needed inside PyTorch, {predicted} predicted: a term is missing, or the run keeps more "
        "than the stack does (unfused loss or norms, no recomputation)"
    ),
    "too_large_as_predicted": _sized(
        "the configuration needs {needed} of {room}, as predicted: fewer bytes must be kept, see below"
    ),
    "expected_to_fit": _sized(
        "planner expects {needed} of {room}: check that the run has the configuration given (batch, recomputation, "
        "sharding), and which step failed; the first allocates states"
    ),
    "log_without_memory": "the log says nothing about memory",
    "predicted_against_log": _against_log,
    "failed_request": lambda found: (
        f"the failed request is as large as {found.values['bits']}-bit {_TENSORS[str(found.values['tensor'])]}"
    ),
    "flops_counted": _flops,
}

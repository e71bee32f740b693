"""What was compared, what is proven of it, and how far a prediction is to be trusted, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.report.words.template import Words, amount
from planner.spec.findings import Finding
from planner.units import format_capacity


def _compared(found: Finding) -> str:
    values = found.values
    quantity = {"peak_memory": "peak memory", "step_time": "step times"}[str(values["quantity"])]
    text = f"{quantity} of all candidates with the stack's default layer split"
    if "near_most_room" in values:
        near = format_capacity(amount(found, "near_most_room", float))
        text += f"; the fastest within {near} of the most free memory"
    if "all_splits_of" in values:
        text += f"; {values['all_splits_of']} also over all splits and numbers of recomputed layers"
    if values["host_memory"]:
        text += "; within the host memory of a node"
    if "peaks_up_to" in values:
        peaks = format_capacity(amount(found, "peaks_up_to", float))
        text += f"; peaks up to {peaks}, to leave room for the memory model's error"
    return text


_TIMED: Final = {"backward": "backward rule", "scan": "scan", "time": "time"}


def _mixers(found: Finding) -> str:
    what = " or ".join(amount(found, "mixers", list))
    timed = _TIMED[str(found.values["untimed"])]
    return f"wider because no run with {what} was fitted: their {timed} is bound by traffic, not measured"


_SPARSE: Final[Mapping[str, str]] = {
    "cudnn": "the indexer's scores in 16 bits and its loss are not",
    "tilelang": "though not TileLang's forward kernel; the indexer's scores and its loss are not",
    "none": "what PyTorch does in its place is counted pass by pass",
    "": "",
}


def _stack_fitted(found: Finding) -> str:
    """What a stack was fitted on; the names of its numbers, which `planner stacks` lists, are only counted."""
    values = found.values
    if "runs" not in values:
        return str(values["fitted"])
    return f"{values['numbers']} numbers of the stack fitted on {values['runs']}"


def _not_fitted(found: Finding) -> str:
    kin = f" or those of the closest measured stack, {found.values['kin']}" if "kin" in found.values else ""
    return f"the stack's numbers are start values{kin}, not fitted"


WORDS: Final[Mapping[str, Words]] = {
    "compared": _compared,
    "stack_fitted": _stack_fitted,
    "stack_not_fitted": _not_fitted,
    "wider_on_more_devices": "wider on more devices, as its errors are",
    "wider_elsewhere": ("wider because your cluster is not among those runs; planner calibrate narrows it"),
    "wider_for_experts": "wider for MoE models: fewer published runs",
    "wider_for_mixers": _mixers,
    "residuals_by_bytes": (
        "attention residuals are timed by the bytes that PyTorch's operations move, as software has them"
    ),
    "compressed_as_chosen": "attention to compressed keys is timed as that to chosen ones of DeepSeek-V3.2",
    "streams_by_bytes": (
        "residual streams are timed by bytes moved in fused kernels, which Megatron-LM's dev branch has "
        "on Blackwell alone"
    ),
    "wider_for_chosen_blocks": (
        "wider because no run with attention to chosen blocks was fitted: its forward kernel is timed, those of the "
        "backward pass, the indexer's scores and its loss are not"
    ),
    "wider_for_chosen_keys": lambda found: (
        "wider because no run with sparse attention was fitted: attention to chosen keys is timed, "
        + _SPARSE[str(found.values["kernel"])]
    ),
    "wider_on_other_devices": lambda found: (
        f"wider because the stack's runs were on {', '.join(amount(found, 'devices', list))}"
    ),
    "wider_unmeasured_device": "wider because kernels of such a device were not measured",
    "kernels_of_kin": "kernel rates of {accelerator} come from {kin}",
    "links_of_kin": "link rates come from {kin}",
    "torus_not_measured": (
        "collectives on the torus and between slices are bound by bandwidths and hops, not measured"
    ),
    "collectives_as_nccl": (
        "collectives between nodes choose as NCCL does, with its latencies: those of the device's own library are not "
        "known"
    ),
    "unverified_cluster": lambda found: (
        f"unverified cluster figures: {', '.join(amount(found, 'fields', list))}"
    ),
}

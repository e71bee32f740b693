"""Why is a configuration as fast as it is, and how far is that to be trusted?

Left out: the figures themselves (`choices.py`), and their words on a page (`report/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from planner.cost.model import CostModel
from planner.cost.offload import host_range
from planner.cost.pipeline.step import slow_mode_share, slow_mode_time
from planner.cost.shapes import shape_distance_of
from planner.spec.config import ParallelConfig
from planner.spec.machine.rates import KernelRates
from planner.spec.planfile import (
    CalibrationLevel,
    Confidence,
    Memory,
)
from planner.spec.rule import Problem
from planner.spec.stack import UNLIKE_BAND, Stack, elsewhere
from planner.spec.stack.kinds import SparseKernel
from planner.spec.terms import term_name
from planner.units import format_capacity, format_time

UNMEASURED_BAND = 0.5  # the least where the device was not measured
# What the busiest figure of a step is called when it decides, in the order of the cost model's terms.
_COMMUNICATION = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")


def reasons(
    problem: Problem, model: CostModel, config: ParallelConfig, time: Mapping[str, float], memory: Memory
) -> tuple[str, ...]:
    """What a step goes to, where memory binds, how far its kernels lie from measured ones. `time`: term -> seconds."""
    total = sum(time.values())
    largest = sorted(time, key=lambda name: -time[name])[:3]
    shares = ", ".join(f"{term_name(name)} {time[name] / total:.0%}" for name in largest)
    exposed = sum(time[name] for name in _COMMUNICATION) / total
    top = max(memory.terms, key=lambda name: memory.terms[name])
    return (
        f"the step is {shares}; exposed communication {exposed:.0%}",
        f"memory is tightest {memory.where}; mostly {term_name(top)} ({format_capacity(memory.terms[top])})",
        *_on_host(config, time["host_transfer"]),
        *_host_memory(config, memory),
        *_health(problem, config, total),
        _shapes(model, config),
    )


def _on_host(config: ParallelConfig, seconds: float) -> tuple[str, ...]:
    """How far the time of copies to the host and of updates there is assumed."""
    if not seconds:
        return ()
    least, most = (format_time(end) for end in host_range(config.offload, seconds))
    return (f"CPU-offload time is uncertain: {least} to {most} (see planner assumptions)",)


def _host_memory(config: ParallelConfig, memory: Memory) -> tuple[str, ...]:
    """What offloading takes of the hosts, and whether they have it."""
    if not config.offload and not memory.host_short:
        return ()
    if memory.host_limit is None:
        return (
            f"a node's host must hold {memory.host_parts}; the cluster does not say what it has (node.host_memory), so "
            "that this is not checked",
        )
    verdict = f": {format_capacity(memory.host_short)} over the limit" if memory.host_short else ""
    if 0 < memory.host_short <= memory.host.get("checkpoint copy", 0.0):
        verdict += "; no copy is made where training waits: --assume checkpoint_writing=blocking"
    return (f"a node's host must hold {memory.host_parts}, of {format_capacity(memory.host_limit)}{verdict}",)


def _health(problem: Problem, config: ParallelConfig, healthy: float) -> tuple[str, ...]:
    """What a measurement far above the prediction would mean, where published runs show two states."""
    comm = problem.stack.communication
    m, p = np.array([float(config.num_microbatches)]), np.array([float(config.pp)])
    lost = float(slow_mode_time(m, p, comm)[0])
    if not lost:
        return ()
    share = slow_mode_share(problem.cluster.num_devices)
    return (
        f"measured above {format_time(1.5 * healthy)}, it is this stack's slow mode (full device memory, or a sick "
        f"network; {share:.0%} of published runs of this size): about {format_time(healthy + lost)} a step",
    )


def _shapes(model: CostModel, config: ParallelConfig) -> str:
    """How far the configuration's kernels lie from measured ones."""
    far = shape_distance_of(config, model.layers)
    text = (
        f"GEMM shapes are {2**far.mean:.2f}x from the nearest measured shape on average, "
        f"{2**far.most:.2f}x at most"
    )
    if far.outside >= 0.005:  # 0% of the work is not worth saying
        text += f"; {far.outside:.0%} of GEMM work lies outside the measured range"
    if far.attention > 0:
        text += f"; attention is {2**far.attention:.1f}x beyond the measured range"
    rates = model.kernels
    return text if rates.measured or rates.kin else f"{text}; measured on another device, as this one was not"


_SPARSE_UNTIMED: Final[Mapping[SparseKernel | None, str]] = {
    SparseKernel.CUDNN: "the indexer's scores in 16 bits and its loss are not",
    SparseKernel.TILELANG: "though not TileLang's forward kernel; the indexer's scores and its loss are not",
    SparseKernel.NONE: "what PyTorch does in its place is counted pass by pass",
    None: "",
}


def unmeasured(problem: Problem, kernels: KernelRates) -> bool:
    """Did nobody measure the device: neither its kernels nor runs of the stack on it, not even a calibration?"""
    stack = problem.stack
    runs = problem.cluster.accelerator.name in stack.devices
    return not (kernels.measured or runs or stack.calibration)


def confidence_of(problem: Problem, model: CostModel) -> Confidence:
    """The calibration level of a prediction, the band it has earned, and what both rest on."""
    stack, kernels, links = problem.stack, model.kernels, model.links
    level = CalibrationLevel.L1 if stack.fitted else CalibrationLevel.L0
    moe = problem.model.is_moe
    notes, band = [_fit_in_short(stack)], stack.band_at(problem.cluster.num_devices, moe)
    if stack.band_widening:
        notes.append("wider on more devices, as its errors are")
    if stack.fitted and not stack.calibration:
        band = elsewhere(band)
        notes.append("wider because your cluster is not among those runs; planner calibrate narrows it")
    if stack.calibration:
        level = CalibrationLevel(stack.calibration_level)
        notes.insert(0, f"calibrated with {stack.calibration}")
    if moe and level != CalibrationLevel.L3:
        notes.append("wider for MoE models: fewer published runs")
    if problem.model.state_spaces and level != CalibrationLevel.L3:
        band *= UNLIKE_BAND
        what = " or ".join(problem.model.mixer_titles)
        timed = "backward rule" if problem.model.delta_nets else "scan" if problem.model.mambas else "time"
        notes.append(
            f"wider because no run with {what} was fitted: their {timed} is bound by traffic, not measured"
        )
    if problem.model.attends_to_residuals and level != CalibrationLevel.L3:
        notes.append(
            "attention residuals are timed by the bytes that PyTorch's operations move, as software has them"
        )
    if problem.model.compresses_keys and level != CalibrationLevel.L3:
        notes.append("attention to compressed keys is timed as that to chosen ones of DeepSeek-V3.2")
    if problem.model.streams > 1 and level != CalibrationLevel.L3:
        notes.append(
            "residual streams are timed by bytes moved in fused kernels, which Megatron-LM's dev branch has on "
            "Blackwell alone"
        )
    if problem.model.chooses_blocks and level != CalibrationLevel.L3:
        band *= UNLIKE_BAND
        notes.append(
            "wider because no run with attention to chosen blocks was fitted: its forward kernel is timed, those of "
            "the backward pass, the indexer's scores and its loss are not"
        )
    elif problem.model.gathers_keys and level != CalibrationLevel.L3:
        band *= UNLIKE_BAND
        notes.append(
            "wider because no run with sparse attention was fitted: attention to chosen keys is timed, "
            + _SPARSE_UNTIMED[stack.kernels.sparse_attention]
        )
    device = problem.cluster.accelerator.name
    if stack.devices and device not in stack.devices and kernels.measured and not stack.calibration:
        band *= UNLIKE_BAND
        notes.append(f"wider because the stack's runs were on {', '.join(stack.devices)}")
    if unmeasured(problem, kernels):
        level, band = CalibrationLevel.L0, max(band * UNLIKE_BAND, UNMEASURED_BAND)
        notes.append("wider because kernels of such a device were not measured")
    if kernels.kin:
        notes.append(f"kernel rates of {problem.cluster.accelerator.name} come from {kernels.kin}")
    if links.kin:
        notes.append(f"link rates come from {links.kin}")
    if problem.cluster.tiers[0].torus is not None:
        notes.append(
            "collectives on the torus and between slices are bound by bandwidths and hops, not measured"
        )
    elif problem.cluster.num_nodes > 1 and not problem.cluster.accelerator.architecture.is_nvidia:
        notes.append(
            "collectives between nodes choose as NCCL does, with its latencies: those of the device's own "
            "library are not known"
        )
    if problem.cluster.unverified:
        fields = ", ".join(problem.cluster.unverified)
        notes.append(f"unverified cluster figures: {fields}")
    return Confidence(level=level, band=band, explanation="; ".join(notes))


def _fit_in_short(stack: Stack) -> str:
    """What a stack was fitted on; the names of its numbers, which `planner stacks` lists, are only counted."""
    names, colon, runs = stack.fitted.partition(": on ")
    if not stack.fitted:
        kin = f" or those of the closest measured stack, {stack.kin}" if stack.kin else ""
        return f"the stack's numbers are start values{kin}, not fitted"
    return f"{len(names.split(','))} numbers of the stack fitted on {runs}" if colon else stack.fitted

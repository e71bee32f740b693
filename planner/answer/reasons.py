"""Why is a configuration as fast as it is, and how far is that to be trusted?

Left out: the figures themselves (`choices.py`), and their words on a page (`report/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from planner.answer.interval import COMMUNICATION, step_band, uncertain_shares
from planner.cost.model import CostModel
from planner.cost.offload import host_range
from planner.cost.pipeline.step import slow_mode_share, slow_mode_time
from planner.cost.shapes import shape_distance_of
from planner.solve.relax import BLOCKING
from planner.spec.config import ParallelConfig
from planner.spec.findings import Finding, finding
from planner.spec.machine.rates import KernelRates
from planner.spec.planfile import (
    CalibrationLevel,
    Confidence,
    Memory,
)
from planner.spec.residual import HyperConnections
from planner.spec.rule import Problem
from planner.spec.stack import UNLIKE_BAND, Stack, elsewhere

UNMEASURED_BAND = 0.42  # the least where the device was not measured: 0.35 in logs (`interval.py`)


def reasons(
    problem: Problem, model: CostModel, config: ParallelConfig, time: Mapping[str, float], memory: Memory
) -> tuple[Finding, ...]:
    """What a step goes to, where memory binds, how far its kernels lie from measured ones. `time`: term -> seconds."""
    total = sum(time.values())
    largest = sorted(time, key=lambda name: -time[name])[:3]
    top = max(memory.terms, key=lambda name: memory.terms[name])
    return (
        finding(
            "step_shares", terms=largest, shares=[time[name] / total for name in largest],
            exposed=sum(time[name] for name in COMMUNICATION) / total,
        ),
        finding(
            "tightest_memory", rank=memory.stage, ranks=memory.stages, phase=memory.phase, term=top,
            size=memory.terms[top],
        ),
        *_on_host(config, time["host_transfer"]),
        *_host_memory(config, memory),
        *_health(problem, config, total),
        _shapes(model, config),
    )  # fmt: skip


def _on_host(config: ParallelConfig, seconds: float) -> tuple[Finding, ...]:
    """How far the time of copies to the host and of updates there is assumed."""
    if not seconds:
        return ()
    least, most = host_range(config.offload, seconds)
    return (finding("offload_time", least=least, most=most),)


def _host_memory(config: ParallelConfig, memory: Memory) -> tuple[Finding, ...]:
    """What offloading takes of the hosts, and whether they have it."""
    if not config.offload and not memory.host_short:
        return ()
    short = memory.host_short
    waits = 0 < short <= memory.host.get("checkpoint copy", 0.0)  # it would be enough to make no copy
    values = {**memory.host_values, "limit": memory.host_limit, "over": short or None}
    return (finding("host_memory_needed", BLOCKING if waits else None, **values),)


def _health(problem: Problem, config: ParallelConfig, healthy: float) -> tuple[Finding, ...]:
    """What a measurement far above the prediction would mean, where published runs show two states."""
    m, p = np.array([float(config.num_microbatches)]), np.array([float(config.pp)])
    lost = float(slow_mode_time(m, p, problem.stack.engine.message_when_full)[0])
    if not lost:
        return ()
    share = slow_mode_share(problem.cluster.num_devices)
    return (finding("slow_mode", above=1.5 * healthy, share=share, step_time=healthy + lost),)


def _shapes(model: CostModel, config: ParallelConfig) -> Finding:
    """How far the configuration's kernels lie from measured ones."""
    far = shape_distance_of(config, model.layers)
    return finding(
        "measured_shapes", mean=2**far.mean, most=2**far.most,
        outside=far.outside if far.outside >= 0.005 else None,  # 0 % of the work is not worth saying
        attention=2**far.attention if far.attention > 0 else None,
        on_another_device=not (model.kernels.measured or model.kernels.kin),
    )  # fmt: skip


def unmeasured(problem: Problem, kernels: KernelRates) -> bool:
    """Did nobody measure the device: neither its kernels nor runs of the stack on it, not even a calibration?"""
    stack = problem.stack
    runs = problem.cluster.accelerator.name in stack.devices
    return not (kernels.measured or runs or stack.calibrated)


TOLD_FROM: Final = 1.1  # times the band of kernels, a step's own is said to be wider
# Within this lie nine of ten steps of one device whose operations are listed (benchmarks/RESULTS.md, "Steps on one
# device"): no number of theirs was fitted on them but the host's, on four of their eight models. All ran transformers.
LISTED_BAND: Final = 0.1
_JUDGED: Final = "transformers"


def confidence_of(problem: Problem, model: CostModel, time: Mapping[str, float] | None = None) -> Confidence:
    """The calibration level of a prediction, the band it has earned, and what both rest on.

    `time`: term -> seconds of a step; without it, the band is that of a step of kernels alone.
    """
    stack, kernels, links = problem.stack, model.kernels, model.links
    level = CalibrationLevel.L1 if stack.fitted else CalibrationLevel.L0
    moe = problem.model.is_moe
    notes, band = [_fit_in_short(stack)], stack.band_at(problem.cluster.num_devices, moe)
    judged = problem.listed and problem.lists() and _JUDGED in problem.listed.software
    if problem.listed and judged and problem.cluster.num_devices == 1:
        notes, band = [finding("operations_read_off", software=problem.listed.releases)], LISTED_BAND
    if stack.band_widening:
        notes.append(finding("wider_on_more_devices"))
    if not stack.calibrated:
        band = elsewhere(band)
        notes.append(finding("wider_elsewhere"))
    if stack.calibration:
        level = CalibrationLevel(stack.calibration.level)
        notes.insert(0, finding("calibrated", **{"with": stack.calibration.said}))
    if moe and level != CalibrationLevel.L3:
        notes.append(finding("wider_for_experts"))
    if problem.model.state_spaces and level != CalibrationLevel.L3:
        band *= UNLIKE_BAND
        untimed = "backward" if problem.model.delta_nets else "scan" if problem.model.mambas else "time"
        notes.append(finding("wider_for_mixers", mixers=problem.model.mixer_titles, untimed=untimed))
    if problem.model.attends_to_residuals and level != CalibrationLevel.L3:
        notes.append(finding("residuals_by_bytes"))
    if problem.model.compresses_keys and level != CalibrationLevel.L3:
        notes.append(finding("compressed_as_chosen"))
    if isinstance(problem.model.residual, HyperConnections) and level != CalibrationLevel.L3:
        notes.append(finding("streams_by_bytes"))
    if problem.model.chooses_blocks and level != CalibrationLevel.L3:
        band *= UNLIKE_BAND
        notes.append(finding("wider_for_chosen_blocks"))
    elif problem.model.gathers_keys and level != CalibrationLevel.L3:
        band *= UNLIKE_BAND
        kernel = stack.kernels.sparse_attention
        notes.append(finding("wider_for_chosen_keys", kernel=str(kernel) if kernel else ""))
    device = problem.cluster.accelerator.name
    if stack.devices and device not in stack.devices and kernels.measured and not stack.calibrated:
        notes.append(finding("runs_on_other_devices", devices=stack.devices))
    if unmeasured(problem, kernels):
        level, band = CalibrationLevel.L0, max(band, UNMEASURED_BAND)
        notes.append(finding("wider_unmeasured_device"))
        if not kernels.timed:
            band *= UNLIKE_BAND
            notes.append(finding("wider_untimed_device"))
    if kernels.kin:
        notes.append(finding("kernels_of_kin", accelerator=device, kin=kernels.kin))
    if links.kin:
        notes.append(finding("links_of_kin", kin=links.kin))
    if problem.cluster.tiers[0].torus is not None:
        notes.append(finding("torus_not_measured"))
    elif problem.cluster.num_nodes > 1 and not problem.cluster.accelerator.architecture.is_nvidia:
        notes.append(finding("collectives_as_nccl"))
    if problem.cluster.unverified:
        notes.append(finding("unverified_cluster", fields=problem.cluster.unverified))
    if time and not stack.calibrated:
        whole, shares = step_band(band, time), uncertain_shares(time)
        if shares and whole > TOLD_FROM * band:
            notes.append(finding("wider_for_parts", terms=list(shares), shares=list(shares.values())))
        band = whole
    return Confidence(level=level, band=band, explanation=tuple(notes))


def _fit_in_short(stack: Stack) -> Finding:
    """What a stack was fitted on, and how many of its numbers."""
    if not stack.fitted:
        return finding("stack_not_fitted", kin=stack.kin or None)
    return finding("stack_fitted", numbers=len(stack.fitted), runs=stack.fitted_on)

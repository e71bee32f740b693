"""Which measured kernel efficiencies does an accelerator have, or whose does it borrow?

Reads planner/catalog/kernels: one .npz and .json per accelerator with tables; whose an accelerator without borrows
stands in its own file. Left out: peaks and bandwidths, which are there, too.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from planner.spec.machine.accelerator import Accelerator
from planner.spec.machine.architecture import GPU
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.machine.rates import (
    UNLIMITED_PLATEAU,
    AttentionTable,
    FloatArray,
    GemmKey,
    GemmTable,
    KernelRates,
    MovingRates,
    under_load,
)
from planner.spec.precision import Dtype, Precision

MOVING_MEASURED = "h100-sxm-80g"


@lru_cache(maxsize=64)
def load_kernel_rates(accelerator_name: str) -> KernelRates:
    """The kernel rates of an accelerator, from its own tables or those that its file borrows.

    `kin` and `note` of the result say what was borrowed. Raises `InputError` for an unknown name.
    """
    chip = load_accelerator(accelerator_name)
    borrowed = chip.kernels
    table = borrowed.like if borrowed else chip.name
    about: dict[str, Any] = json.loads((_folder() / f"{table}.json").read_text())
    with (_folder() / f"{table}.npz").open("rb") as file, np.load(file) as archive:
        arrays = {key: archive[key].astype(np.float64) for key in archive.files}
    fraction, own_sustained = about["sustained_fraction"], {}
    if borrowed and borrowed.sustained is not None:
        fraction, own_sustained = borrowed.sustained, {"sustained_fraction": borrowed.source}
    units = about["compute_units"]
    if borrowed and chip.noun == GPU:
        arrays |= _for_units(arrays, chip.compute_units / units)
        units = chip.compute_units
    return KernelRates(
        accelerator=chip.name,
        gemm=_gemm_tables(arrays, about, fraction),
        attention=_attention_table(arrays, about, fraction / about["sustained_fraction"]),
        dgrad_ratio=about["dgrad_ratio"],
        wgrad_ratio=about["wgrad_ratio"],
        grouped_gemm_ratio=about["grouped_gemm_ratio"],
        grouped_wgrad_ratio=about["grouped_wgrad_ratio"],
        memory_efficiency=about["memory_efficiency"],
        launch_latency=about["launch_latency"],
        compute_units=units,
        sustained_fraction=fraction,
        moving=_moving_rates(table, chip, about["memory_efficiency"]),
        kin=borrowed.like if borrowed else "",
        note=borrowed.source if borrowed else "",
        timed=borrowed.timed if borrowed else about["timed"],
        unverified=tuple(about["unverified"]),
        sources=about["sources"] | own_sustained,
    )


def _folder() -> Traversable:
    return files("planner.catalog") / "kernels"


def _for_units(arrays: dict[str, FloatArray], units: float) -> dict[str, FloatArray]:
    """The axes of another device's tables for one of so many times its units [1].

    A product or an attention of as many times the rows gives each unit as many tiles, and so reaches as much.
    """
    return {axis: arrays[axis] + np.log2(units) for axis in ("axis_m", "axis_rows")}


def _moving_rates(table: str, chip: Accelerator, most: float) -> MovingRates:
    """An accelerator's own, or those of the one on which they were measured, at least.

    What limits such kernels below `most`, the share that any reach, is what a unit keeps in flight (Little's law), not
    the memory: of an accelerator with less bandwidth a unit its units ask for a larger share of it. NVIDIA's alone,
    whose units are alike.
    """
    measured: dict[str, Any] = json.loads((_folder() / "moving.json").read_text())
    found, share = measured.get(table), 1.0
    if found is None:
        found, other = measured[MOVING_MEASURED], load_accelerator(MOVING_MEASURED)
        if chip.architecture.is_nvidia:
            a_unit = other.memory_bandwidth / other.compute_units
            share = max(1.0, a_unit / (chip.memory_bandwidth / chip.compute_units))
    apart, lists, fused = (
        {int(width): max(value, min(share * value, most)) for width, value in found[name].items()}
        for name in ("apart", "lists", "fused")
    )
    return MovingRates(apart, lists, fused, found["cache_gain"])


def _gemm_tables(
    arrays: dict[str, FloatArray], about: dict[str, Any], sustained: float
) -> dict[GemmKey, GemmTable]:
    """Tables at sustained clocks; a format without measurements takes bf16's fraction of its own peak."""
    tables: dict[GemmKey, GemmTable] = {}
    for key, facts in about["gemm"].items():
        tables[Dtype(key) if key in set(Dtype) else Precision(key)] = GemmTable(
            log2_m=arrays["axis_m"],
            log2_n=arrays["axis_n"],
            log2_k=arrays["axis_k"],
            efficiency=_loaded(arrays[f"gemm_{key}"], facts, sustained),
            source=facts["source"],
            measured=facts.get("measured", True),
            quantising_outputs=facts.get("quantising_outputs", 0.0),
        )
    bf16 = tables[Dtype.BF16]
    for dtype, ratio, note in STAND_INS:
        if dtype not in tables:
            tables[dtype] = bf16.scaled(ratio, note)
    return tables


def _loaded(burst: FloatArray, facts: dict[str, Any], sustained: float) -> FloatArray:
    """The table at sustained clocks, at the peak at most; a roofline has no burst plateau, its own is sustained."""
    plateau = facts.get("plateau_burst")
    return np.minimum(burst * sustained, 1.0) if plateau is None else under_load(burst, plateau, sustained)


# Formats without a table of their own: the fraction of their own peak, relative to bf16's.
STAND_INS: tuple[tuple[Dtype, float, str], ...] = (
    (Dtype.FP16, 1.0, "bf16 table: same tensor-core rate"),
    (Dtype.TF32, 1.0, "bf16 table: no measurement of tf32"),
    (Dtype.FP32, 1.0, "bf16 table: no measurement of fp32"),
    # plateau of fp8 (tensor-wise, quantisation included) over bf16: H100 0.82, H200 0.89, B200 0.76, GB300
    # 0.73
    (
        Dtype.FP8,
        0.78,
        "bf16 table times 0.78, the median plateau ratio of H100 to GB300, quantisation included",
    ),
    # plateau nvfp4 over bf16: B200 0.69, GB200 0.68, B300 0.41, GB300 0.40
    (
        Dtype.FP4,
        0.54,
        "bf16 table times 0.54, the mean plateau ratio of B200 to GB300, quantisation included",
    ),
)


def _attention_table(arrays: dict[str, FloatArray], about: dict[str, Any], clock: float) -> AttentionTable:
    """The table under load; a limit on power leaves `clock` of it, as of products, and no clock more than any reach.

    SimuMax's attention on A100 PCIe (300 W) runs at 0.96 of the table of A100 SXM (median of 24); its products, 0.965.
    """
    facts = about["attention"]
    return AttentionTable(
        log2_span=arrays["axis_span"],
        log2_rows=arrays["axis_rows"],
        log2_head_dim=arrays["axis_width"],
        efficiency=np.minimum(arrays["attention"] * facts["sustained_fraction"] * clock, UNLIMITED_PLATEAU),
        log2_backward_head_dim=arrays["axis_backward_width"],
        backward_ratio=arrays["attention_backward"],
        backward_rows=facts["backward_rows"],
        source=f"forward: {facts['source']}; backward: {facts['backward_source']}",
        measured=facts.get("measured", True),
        note=facts["sustained_source"],
    )

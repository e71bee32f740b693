"""Which measured kernel efficiencies does an accelerator have, or whose does it borrow?

Reads planner/catalog/kernels: one .npz and .json per accelerator with tables, index.json for the others. Left
out: peaks and bandwidths, which are in the accelerator's own file.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from planner.errors import UnknownNameError
from planner.spec.machine.accelerator import Architecture
from planner.spec.machine.rates import (
    AttentionTable,
    FloatArray,
    GemmKey,
    GemmTable,
    KernelRates,
    MovingRates,
    under_load,
)
from planner.spec.precision import Dtype, Precision

FALLBACK = "generic"
MOVING_MEASURED = "h100-sxm-80g"


def load_kernel_rates(accelerator_name: str, architecture: Architecture | None = None) -> KernelRates:
    """The kernel rates of an accelerator, from its own tables or those of its nearest kin.

    `architecture` is for an accelerator that the catalog does not know: it then borrows from the
    best-measured device of that generation, or from a generic roofline. Without it an unknown name raises
    UnknownNameError. `kin` and `note` of the result say what was borrowed.
    """
    name = accelerator_name.lower().replace("_", "-")
    index = _index()
    if name in index["tables"]:
        return _load(name, name, None, "")
    if name in index["kin"]:
        entry = index["kin"][name]
        return _load(name, entry["kin"], entry["sustained_fraction"], entry["note"])
    if architecture is None:
        known = [*index["tables"], *index["kin"]]
        raise UnknownNameError("accelerator with kernel rates", accelerator_name, known)
    kin = index["by_architecture"].get(architecture.value, FALLBACK)
    return _load(
        name, kin, None, f"no kernel measurements of its own; nearest of architecture {architecture.value}"
    )


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    index: dict[str, Any] = json.loads((_folder() / "index.json").read_text())
    return index


def _folder() -> Traversable:
    return files("planner.catalog") / "kernels"


@lru_cache(maxsize=64)
def _load(name: str, table: str, sustained: float | None, note: str) -> KernelRates:
    about: dict[str, Any] = json.loads((_folder() / f"{table}.json").read_text())
    with (_folder() / f"{table}.npz").open("rb") as file, np.load(file) as archive:
        arrays = {key: archive[key].astype(np.float64) for key in archive.files}
    fraction = about["sustained_fraction"] if sustained is None else sustained
    own_sustained = {} if sustained is None else {"sustained_fraction": note}
    kin = "" if name == table else table
    return KernelRates(
        accelerator=name,
        gemm=_gemm_tables(arrays, about, fraction),
        attention=_attention_table(arrays, about, fraction / about["sustained_fraction"]),
        dgrad_ratio=about["dgrad_ratio"],
        wgrad_ratio=about["wgrad_ratio"],
        grouped_gemm_ratio=about["grouped_gemm_ratio"],
        grouped_wgrad_ratio=about["grouped_wgrad_ratio"],
        memory_efficiency=about["memory_efficiency"],
        launch_latency=about["launch_latency"],
        compute_units=about["compute_units"],
        sustained_fraction=fraction,
        moving=_moving_rates(table),
        kin=kin,
        note=note,
        unverified=tuple(about["unverified"]),
        sources=about["sources"] | own_sustained,
    )


def _moving_rates(table: str) -> MovingRates:
    """An accelerator's own, or those of the one on which they were measured."""
    measured: dict[str, Any] = json.loads((_folder() / "moving.json").read_text())
    found = measured.get(table, measured[MOVING_MEASURED])
    apart, lists, fused = (
        {int(width): value for width, value in found[name].items()} for name in ("apart", "lists", "fused")
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
    """The table at sustained clocks; a roofline has no burst plateau, its own is sustained."""
    plateau = facts.get("plateau_burst")
    return burst * sustained if plateau is None else under_load(burst, plateau, sustained)


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
    """The table under load; a limit on power leaves `clock` of it, as of products.

    SimuMax's attention on A100 PCIe (300 W) runs at 0.96 of the table of A100 SXM (median of 24); its products, 0.965.
    """
    facts = about["attention"]
    return AttentionTable(
        log2_span=arrays["axis_span"],
        log2_rows=arrays["axis_rows"],
        log2_head_dim=arrays["axis_width"],
        efficiency=arrays["attention"] * facts["sustained_fraction"] * clock,
        log2_backward_head_dim=arrays["axis_backward_width"],
        backward_ratio=arrays["attention_backward"],
        backward_rows=facts["backward_rows"],
        source=f"forward: {facts['source']}; backward: {facts['backward_source']}",
        measured=facts.get("measured", True),
        note=facts["sustained_source"],
    )

"""What stands in for the kernels of an accelerator that nobody has measured?

A roofline with tile and wave quantisation times what the measured devices lack of it, or the tables of a kin. Left out:
the measured tables, which benchmarks/build_kernel_tables.py derives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.kernel_measurements import DEVICES, GemmGrid, roofline
from planner.spec.machine.rates import UNLIMITED_PLATEAU, FloatArray

MAMF = "stas00/ml-engineering@744d01e compute/accelerator/README.md, MAMF table (CC-BY-SA-4.0)"
SQUARES = "best of PyTorch's squares (zzc0721/torch-performance-test-data@9d82827)"
# A plateau is lower than the best shape: median of plateau over best on A100, H100, H200, B200, B300, GB200.
PLATEAU_OVER_BEST = 0.83
# name: (compute units, sustained plateau, kin for attention, source)
ROOFLINES: dict[str, tuple[int, float, str, str]] = {
    "v100-sxm2-32g": (
        80,
        94.84 / 125 * PLATEAU_OVER_BEST,
        "a100-sxm-80g",
        f"fp16, the card with 16 GB, {SQUARES}",
    ),
    "t4-pcie-16g": (
        40,
        41.93 / 65 * PLATEAU_OVER_BEST,
        "a100-sxm-80g",
        f"fp16, median of three, {SQUARES}",
    ),
    "h20-sxm-96g": (
        78,
        0.83,
        "h100-sxm-80g",
        "plateau of H100 at burst clocks: a sixth of the FLOPs at its power limit",
    ),
    "mi250x": (110, 0.44, "mi300x", "plateau of MI300X: no measurement"),
    "mi300x": (304, 0.5142 * PLATEAU_OVER_BEST, "h100-sxm-80g", MAMF),
    "mi325x": (304, 0.6038 * PLATEAU_OVER_BEST, "h100-sxm-80g", MAMF),
    "mi355x": (256, 0.6804 * PLATEAU_OVER_BEST, "b200", MAMF),
    "gaudi2": (108, 0.9692 * PLATEAU_OVER_BEST, "a100-sxm-80g", MAMF),
    "gaudi3": (108, 0.7412 * PLATEAU_OVER_BEST, "h100-sxm-80g", MAMF),
    "rtx4090": (
        128,
        0.98 * UNLIMITED_PLATEAU,
        "l40s",
        f"median of 12 cards 163 of 165 TFLOP/s, {SQUARES}: half of L40S's rate a clock, 450 W",
    ),
    "generic": (128, 0.66, "h100-sxm-80g", "median of the sustained plateaus of A100 to GB300"),
}
# nobody timed products on these, so that their plateaus are those of others
UNTIMED = ("h20-sxm-96g", "mi250x", "generic", "tpu-v5p", "trainium2")
# AMD's libraries cover the output with tiles of 256 x 256, one for each compute unit: 0.2 of a wave of them is lost,
# and k of 300. 468 bf16 products tuned on MI355X by hipBLASLt, ASM and Triton, 2e10 FLOP on, lie 9.5 % off this law in
# the mean (ROCm/aiter@e404860 aiter/configs, bf16_tuned_gemm, MIT), where that of NVIDIA's tiles is 21 % too fast in
# the median and 18 % off around that; the four on MI308X 4.7 % and 15.5 %.
AMD_TILE, AMD_WAVE_LOST, AMD_K_OVERHEAD = 256.0, 0.2, 300.0
AMD_LAW = ("mi300x", "mi325x", "mi355x")
# Products on systolic arrays, which pad an extent to their side (jax-ml/scaling-book@0819a7d tpus.md; for Trainium,
# awsdocs-neuron nki.isa.nc_matmul). 0.90: median of eight bf16 products of 4,096 to 8,192 on a v6e less what the call
# of a small one takes, 135 us (yangwhale/gpu-tpu-pedia@66f72bd tpu/v7_perf, results_v6e.csv: 0.79 to 0.98); twelve on
# the next generation, timed on the device, reach 0.94 to 0.97 (results_v7_trace.csv).
_V6E = "yangwhale/gpu-tpu-pedia@66f72bd results_v6e.csv"
# name: (side of the array, arrays, plateau, source)
SYSTOLIC: dict[str, tuple[float, int, float, str]] = {
    "tpu-v5p": (128.0, 8, 0.90, f"that of v6e ({_V6E}): no measurement"),
    "tpu-v6e": (256.0, 2, 0.90, _V6E),
    "trainium2": (128.0, 8, 0.66, "median of the sustained plateaus of A100 to GB300: no measurement"),
}
# Splash attention multiplies whole blocks of 512 along the diagonal, and backward seven products for the five counted,
# as scores and their gradients are made once for queries and once for keys (AI-Hypercomputer/maxtext@e591f30
# configs/base.yml: sa_block_q 512, sa_use_fused_bwd_kernel false; jax-ml/jax@047c691 splash_attention_kernel.py).
SPLASH_BLOCK, SPLASH_BACKWARD = 512.0, 5.0 / 7.0


def pooled_residual(grids: dict[str, dict[str, GemmGrid]], without: str = "") -> FloatArray:
    """Measured efficiency over `roofline`, geometric mean of the measured devices: what the law lacks."""
    logs = []
    for gpu in DEVICES:
        if gpu != without:
            grid = grids[gpu]["bf16"]
            logs.append(np.log(grid.values / roofline(grid.plateau(), DEVICES[gpu][1], *grid.mesh())))
    return np.asarray(np.exp(np.mean(logs, axis=0)))


def filled_waves(plateau: float, units: int, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    """Efficiency of AMD's products, whose median over the large shapes is `plateau`: w / (w + 0.2) k / (k + 300)."""
    waves = m * n / (AMD_TILE**2 * units)
    shape = waves / (waves + AMD_WAVE_LOST) * k / (k + AMD_K_OVERHEAD)
    return np.asarray(shape * plateau / np.median(shape[(m >= 4096) & (n >= 4096) & (k >= 4096)]))


def filled_array(extent: FloatArray, side: float) -> FloatArray:
    """Share of an array's rows or columns that an extent fills [1]."""
    return np.asarray(extent / (np.ceil(extent / side) * side))


def build_systolic(
    name: str, built: dict[str, tuple[dict[str, FloatArray], dict[str, Any]]]
) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """An estimate for a device of systolic arrays: what of an array is filled, times a plateau.

    Products from 32 to 65,536 along each extent; attention alike on `generic`'s grid, its head width beside the array,
    softmax taken as hidden behind the products.
    """
    side, arrays, plateau, source = SYSTOLIC[name]
    like, about = built["generic"]
    axes = {key: values for key, values in like.items() if key.startswith("axis_")}
    axes |= dict.fromkeys(("axis_m", "axis_n", "axis_k"), np.arange(5.0, 17.0))
    m, n, k = np.meshgrid(
        *(filled_array(2.0 ** axes[f"axis_{letter}"], side) for letter in "mnk"), indexing="ij"
    )
    span, width = 2.0 ** axes["axis_span"], filled_array(2.0 ** axes["axis_width"], side)
    whole = span / (span + SPLASH_BLOCK)
    rows = np.ones(len(axes["axis_rows"]))
    back = np.full((len(span), len(axes["axis_backward_width"])), SPLASH_BACKWARD)
    tables = {
        "gemm_bf16": plateau * m * n * k,
        "attention": plateau * whole[:, None, None] * rows[:, None] * width,
        "attention_backward": back,
    }
    law = f"systolic arrays of {side:g} x {side:g}"
    said = "softmax hidden behind the products, blocks of 512 on the diagonal: no measurement"
    ratios = ("dgrad_ratio", "wgrad_ratio", "grouped_gemm_ratio", "grouped_wgrad_ratio")
    own = {
        "accelerator": name,
        "gemm": {"bf16": {"source": f"{law}, plateau {plateau:.3f}: {source}", "measured": False}},
        "attention": {
            "source": f"{law}, {said}",
            "backward_rows": 1.0,
            "sustained_fraction": 1.0,
            "sustained_source": "inside the plateau",
            "backward_source": "seven products of Splash attention for five: no measurement",
            "measured": False,
        },
        **dict.fromkeys(ratios, 1.0),
        "timed": name not in UNTIMED,
        "launch_latency": 0.0,
        "compute_units": arrays,
        "unverified": ["gemm", "attention", *ratios, "memory_efficiency"],
        "sources": dict.fromkeys(ratios, "one array, whatever the layout: no measurement")
        | {
            "memory_efficiency": about["sources"]["memory_efficiency"],
            "sustained_fraction": "inside the plateau",
            "launch_latency": "a step is one program",
        },
    }
    print(f"{name:19} systolic plateau {plateau:.3f}, side {side:g}")
    return axes | tables, dict(about) | own


def build_roofline(
    name: str,
    built: dict[str, tuple[dict[str, FloatArray], dict[str, Any]]],
    grids: dict[str, dict[str, GemmGrid]],
) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """An estimate for an accelerator without measured tables: GEMMs by roofline and `pooled_residual`, attention
    scaled from a kin."""
    units, plateau, kin, source = ROOFLINES[name]
    kin_arrays, kin_about = built[kin]
    grid = [2.0 ** kin_arrays[f"axis_{letter}"] for letter in "mnk"]
    m, n, k = np.meshgrid(*grid, indexing="ij")
    amd = name in AMD_LAW
    found = (
        filled_waves(plateau, units, m, n, k)
        if amd
        else roofline(plateau, units, m, n, k) * pooled_residual(grids)
    )
    gemm = np.minimum(found, 1.0)
    kin_sustained = float(kin_about["sustained_fraction"])
    large = (m >= 4096) & (n >= 4096) & (k >= 4096)
    scale = plateau / (kin_sustained * float(np.median(kin_arrays["gemm_bf16"][large])))
    arrays = {key: a for key, a in kin_arrays.items() if not key.startswith("gemm_")} | {"gemm_bf16": gemm}
    # a card of half the rate hides more of the softmax than its kin does, and no more than all
    arrays["attention"] = np.minimum(kin_arrays["attention"] * scale, UNLIMITED_PLATEAU)
    law = "roofline times the mean residual of the measured devices"
    if amd:
        law = "waves of tiles of 256 x 256, from ROCm/aiter@e404860 aiter/configs (MIT)"
    about = dict(kin_about) | {
        "accelerator": name,
        "gemm": {
            "bf16": {
                "source": f"{law}, plateau {plateau:.3f} sustained: {source}",
                "measured": False,
            }
        },
        "attention": {
            "source": f"{kin} times the ratio of the sustained GEMM plateaus",
            "backward_rows": kin_about["attention"]["backward_rows"],
            "sustained_fraction": kin_about["attention"]["sustained_fraction"],
            "sustained_source": kin_about["attention"]["sustained_source"],
            "backward_source": kin_about["attention"]["backward_source"],
            "measured": False,
        },
        "timed": name not in UNTIMED,
        "sustained_fraction": 1.0,
        "compute_units": units,
        "unverified": [
            "gemm",
            "attention",
            "dgrad_ratio",
            "wgrad_ratio",
            "grouped_gemm_ratio",
            "memory_efficiency",
        ],
        "sources": dict.fromkeys(kin_about["sources"], f"{kin}, no measurement of its own")
        | {"sustained_fraction": "inside the plateau"},
    }
    print(f"{name:19} roofline plateau {plateau:.3f}, attention of {kin} times {scale:.2f}")
    return arrays, about

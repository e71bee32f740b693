"""Which kernel efficiencies does planner ship?

Derives planner/catalog/kernels/*.npz and *.json from the public measurements in ../shared/data/hardware. Run in the
repository's root:

    python -m benchmarks.build_kernel_tables [--data ../shared/data/hardware] [--check]

`--check` writes nothing and fails where a shipped file differs. Measurements are read in kernel_measurements.py,
accelerators without any estimated in kernel_estimates.py. Left out: the errors, which benchmarks/kernel_checks.py
measures.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernel_estimates import (
    MAMF,
    ROOFLINES,
    SYSTOLIC,
    build_roofline,
    build_systolic,
)
from benchmarks.kernel_measurements import (
    BANDWIDTHS,
    DEVICES,
    MAMF_BEST,
    MAMF_KIN,
    PEAKS,
    SPANS,
    AttentionCells,
    GemmGrid,
    attention_grid,
    holds_medians,
    read_attention,
    read_gemm,
    read_rows,
    sustained_unknown,
)
from benchmarks.published_data import DATA
from planner.cost.device.kernels import interpolate
from planner.spec.machine.rates import FloatArray

OUT = Path(__file__).parent.parent / "planner" / "catalog" / "kernels"
AICONFIGURATOR = "ai-dynamo/aiconfigurator@095f58a systems/data (Apache-2.0), {} of its software versions"
DATE = "2026-08-22"  # of the newest source revision
Built = tuple[dict[str, FloatArray], dict[str, Any]]  # arrays and description of one accelerator


def quantising_bytes(gpu: str, narrow: GemmGrid, wide: GemmGrid) -> float:
    """Bytes that a table of 8 or 4 bits moves to quantise one input value [bytes].

    Its times hold it (ai-dynamo/aiconfigurator@0009590, collector/trtllm/collect_gemm.py: TensorRT-LLM's Linear on a
    16-bit input, no scale given). Least squares of the relative error of  time = a time in bf16 + b m k / bandwidth +
    c  over shapes of 2,048 tokens, 1,024 inputs and 512 outputs and more. What to expect of b: with one scale a tensor
    read, read again, write: 5, less what the second read finds in the cache; by block 3; in 4 bits 2.6.
    """
    m, n, k = narrow.mesh()
    large = (m >= 2048) & (k >= 1024) & (n >= 512)
    m, n, k = m[large], n[large], k[large]
    work = 2.0 * m * n * k
    time, plain = (work / (grid.values[large] * grid.peak) for grid in (narrow, wide))
    columns = np.stack([plain, m * k / (BANDWIDTHS[gpu] * MEMORY_EFFICIENCY), np.ones(len(m))], axis=1)
    return float(np.linalg.lstsq(columns / time[:, None], np.ones(len(m)), rcond=None)[0][1])


def quantising_facts(gpu: str, key: str, grids: dict[str, GemmGrid]) -> dict[str, float]:
    """Of a table of 8 or 4 bits: the bytes, and as how many outputs of the product at its peak their time counts."""
    if key == "bf16":
        return {}
    moved = quantising_bytes(gpu, grids[key], grids["bf16"])
    outputs = moved / (BANDWIDTHS[gpu] * MEMORY_EFFICIENCY) * grids[key].peak / 2.0
    return {"quantising_bytes": round(moved, 2), "quantising_outputs": round(outputs, 1)}


# Clock of a B200 at its 1,000 W over its highest, 1,580 over 1,965 MHz, under back-to-back bf16 attention
# (flashinfer-ai/flashinfer pull request 2899).
B200_CLOCK = 1580.0 / 1965.0


def sustained_fraction(gpu: str, grids: dict[str, dict[str, GemmGrid]], data: Path) -> float:
    """Sustained over burst: the best sustained shape over the best burst shape of the same device.

    1 where none is published: those tables hold no bursts (kernel_measurements.py).
    B200: the median of that (0.81), of a third machine's clock (`B200_CLOCK`, 0.80) and of SimuMax's forward GEMMs
    over the burst table (0.67, a slow machine).
    """
    if sustained_unknown(gpu):
        return 1.0
    source = MAMF_KIN.get(gpu, gpu)
    best = MAMF_BEST[source] / float(grids[source]["bf16"].values.max())
    if gpu != "b200":
        return best
    return float(np.median([best, B200_CLOCK, simumax_over_burst(gpu, grids[gpu]["bf16"], data)]))


def simumax_over_burst(gpu: str, grid: GemmGrid, data: Path) -> float:
    """Median of SimuMax's forward GEMMs from 1e12 FLOP on over the burst table."""
    ratios = []
    for row in read_rows(data / "matmul_efficiency.csv.gz", "SimuMax"):
        shape = [float(row[letter]) for letter in "mnk"]
        if row["gpu"] == gpu and row["stage"] == "fwd" and row["batch"] == "1" and 2 * np.prod(shape) > 1e12:
            ratios.append(
                float(row["efficiency"]) / float(interpolate(grid.axes, grid.values, list(np.log2(shape))))
            )
    return float(np.median(ratios))


# The backward pass, which works on blocks of keys side by side, fills a device with this factor fewer heads: the
# factors with which one ratio per width follows SimuMax's rows of 4 to 128 heads best (left over: A100 0.8 % median,
# B200 2.4 %; with 1, 7 and 15 %). Hopper: between the two, unverified.
BACKWARD_ROWS = {"ampere": 2.0, "hopper": 3.0, "blackwell": 4.0}
# Backward over forward rate on H100 by span, at head width 128 and 262,144 / span rows
HOPPER_BACKWARD = {1024: 0.68, 2048: 0.75, 4096: 0.80, 8192: 0.85, 16384: 0.865}
# ... and at widths 64 and 160 (MLA: 192 and 128) relative to that at 128
HOPPER_WIDTH = {64: 1.15, 128: 1.0, 160: 0.85}
BACKWARD_WIDTHS = (64, 128, 160)
SIMUMAX = "MooreThreads/SimuMax@4dcaae5 {} (Apache-2.0)"
B200_OTHERS = f"{SIMUMAX.format('B200 forward GEMMs')} and the clock in flashinfer-ai/flashinfer#2899"
BACKWARD_SOURCE = {
    "ampere": SIMUMAX.format("A100 PCIe, sequence 4096, 16 to 64 heads of widths 128 and 192/128"),
    "hopper": "FlashAttention-3 on H100, full square of half the span: backward bars over forward bars. Forward: "
    "Dao-AILab/flash-attention@0251105 assets. Backward: a third party's transcription of the paper's figure "
    "(arXiv:2407.08608, not opened): unverified. Width 160: between A100 and B200, unverified",
    "blackwell": SIMUMAX.format("B200, 16 to 128 heads of widths 128 and 192/128"),
}
# What continuous load leaves of the burst rate: attention draws less power than a GEMM.
ATTENTION_SUSTAINED = {
    "ampere": (
        1.0,
        SIMUMAX.format("A100 PCIe forward over the burst table: 1.04; FlashAttention-2 plots: 1.04"),
    ),
    "hopper": (0.95, "FlashAttention-3 plots (Dao-AILab/flash-attention@0251105) over the burst table: 0.96"),
    "blackwell": (0.92, SIMUMAX.format("B200 forward over the burst table, sequence 4096: 0.92")),
}
# Whose kernels a device runs, Blackwell's unless said: RTX PRO 6000 (compute capability 12.0) has no tensor memory and
# is fastest with FlashAttention-2, as L40S is.
ARCHITECTURE = {"a100_sxm_80g": "ampere", "l40s": "ampere", "rtx_pro_6000_server": "ampere", "h100_sxm_80g": "hopper",
                "h200_sxm": "hopper"}  # fmt: skip


def backward_grid(
    gpu: str, axes: list[FloatArray], table: FloatArray, sustained: float, data: Path
) -> FloatArray:
    """Backward rate over the forward rate at `BACKWARD_ROWS` times the rows, on SPANS x BACKWARD_WIDTHS."""
    family = ARCHITECTURE.get(gpu, "blackwell")

    def forward(span: FloatArray, rows: FloatArray, width: FloatArray) -> FloatArray:
        return interpolate(axes, table * sustained, (np.log2(span), np.log2(rows), np.log2(width)))

    if family == "hopper":
        spans = np.array(sorted(HOPPER_BACKWARD), dtype=float)
        rows, width = 262144 / spans, np.full(len(spans), 128.0)
        curve = np.array([HOPPER_BACKWARD[int(span)] for span in spans]) * forward(spans, rows, width)
        curve = curve / forward(spans, BACKWARD_ROWS[family] * rows, width)
        ratios = np.interp(np.log2(np.array(SPANS, dtype=float)), np.log2(spans), curve)
        return np.outer(ratios, np.array([HOPPER_WIDTH[w] for w in BACKWARD_WIDTHS]))
    span, heads, width, rate = simumax_backward(SIMUMAX_CARD[family], data)
    ratio = rate / forward(span, BACKWARD_ROWS[family] * heads, width)
    at = {w: float(np.median(ratio[width == w])) for w in (128, 160)}
    # no row of width 64: as 128
    return np.tile([at[128], at[128], at[160]], (len(SPANS), 1))


SIMUMAX_CARD = {"ampere": "a100_pcie_80g", "blackwell": "b200"}


def simumax_backward(gpu: str, data: Path) -> tuple[FloatArray, ...]:
    """Span, heads, mean width and fraction of the peak of SimuMax's backward rows (it counts the full square)."""
    rows = [
        (
            float(row["seq_len"]),
            float(row["heads"]) * float(row["batch"]),
            (float(row["head_dim_qk"]) + float(row["head_dim_v"])) / 2,
            float(row["efficiency"]) / 2,
        )
        for row in read_rows(data / "attention_efficiency.csv.gz", "SimuMax")
        if row["gpu"] == gpu and row["phase"] == "bwd" and row["kernel"] == "TE/FA"
    ]
    return tuple(np.array(rows).T)


@dataclass(frozen=True)
class Gradients:
    """Measured ratios of the GEMMs that the tables do not hold; weight gradients beside their accumulation."""

    dgrad: float
    wgrad: float
    grouped: float
    grouped_wgrad: float
    source: str


GRADIENTS = {
    "ampere": Gradients(
        1.0, 1.03, 1.0, 1.1, SIMUMAX.format("A100 PCIe: rows by layout over the forward table")
    ),
    "hopper": Gradients(1.0, 1.0, 0.93, 1.0, "unverified: between A100 and B200"),
    "blackwell": Gradients(
        1.0, 0.98, 0.90, 0.9, SIMUMAX.format("B200: rows by layout over the forward table")
    ),
}
# Lower bounds seen in the GEMM tables with more than 1 GB moved: H100 0.91, GB200 0.82, B200 0.77, L40S 0.73.
MEMORY_EFFICIENCY = 0.85


GRADIENT_FIELDS = ("dgrad_ratio", "wgrad_ratio", "grouped_gemm_ratio", "grouped_wgrad_ratio")


def gemm_tables(
    gpu: str, grids: dict[str, GemmGrid], sustained: float
) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """Arrays and description of one accelerator's products; prints their plateaus."""
    arrays: dict[str, FloatArray] = {}
    tables: dict[str, Any] = {}
    for key, grid in sorted(grids.items()):
        for letter, axis in zip("mnk", grid.axes, strict=True):
            arrays[f"axis_{letter}"] = axis
        arrays[f"gemm_{key}"] = grid.values
        tables[key] = {
            "source": AICONFIGURATOR.format("median" if holds_medians(gpu, key) else "best"),
            "shapes": int(grid.values.size - grid.filled),
            "filled": grid.filled,
            **quantising_facts(gpu, key, grids),
            "plateau_burst": round(grid.plateau(), 4),
        }
        print(
            f"{DEVICES[gpu][0]:14} gemm {key:14} plateau burst {grid.plateau():.3f} sustained "
            f"{grid.plateau() * sustained:.3f}  larger not faster {grid.monotonic_fraction():.4f}"
        )
    return arrays, tables


def build_device(gpu: str, grids: dict[str, dict[str, GemmGrid]], cells: AttentionCells, data: Path) -> Built:
    """Arrays and description of one accelerator."""
    name, units = DEVICES[gpu]
    family = ARCHITECTURE.get(gpu, "blackwell")
    sustained = sustained_fraction(gpu, grids, data)
    arrays, tables = gemm_tables(gpu, grids[gpu], sustained)
    axes, attention = attention_grid(gpu, cells)
    load, load_source = ATTENTION_SUSTAINED[family]
    arrays |= {
        "attention": attention,
        "attention_backward": backward_grid(gpu, axes, attention, load, data),
        "axis_backward_width": np.log2(np.array(BACKWARD_WIDTHS, dtype=float)),
    }
    arrays |= {f"axis_{label}": axis for label, axis in zip(("span", "rows", "width"), axes, strict=True)}
    gradients = GRADIENTS[family]
    m, n, k = grids[gpu]["bf16"].mesh()
    shortest = float(np.min(2 * m * n * k / grids[gpu]["bf16"].values)) / PEAKS[gpu]
    return arrays, {
        "accelerator": name,
        "date": DATE,
        "gemm": tables,
        "attention": {
            "source": AICONFIGURATOR.format("best"),
            "backward_source": BACKWARD_SOURCE[family],
            "backward_rows": BACKWARD_ROWS[family],
            "sustained_fraction": load,
            "sustained_source": load_source,
        },
        "timed": True,
        "sustained_fraction": round(sustained, 4),
        "dgrad_ratio": gradients.dgrad,
        "wgrad_ratio": gradients.wgrad,
        "grouped_gemm_ratio": gradients.grouped,
        "grouped_wgrad_ratio": gradients.grouped_wgrad,
        "memory_efficiency": MEMORY_EFFICIENCY,
        "launch_latency": round(shortest, 9),
        "compute_units": units,
        "unverified": ["memory_efficiency"]
        + ([] if gpu in MAMF_BEST else ["sustained_fraction"])
        + ([*GRADIENT_FIELDS, "attention.backward_ratio"] if family == "hopper" else []),
        "sources": _sources(gpu, gradients),
    }


def _sources(gpu: str, gradients: Gradients) -> dict[str, str]:
    """Where the figures of one accelerator come from."""
    sustained = (
        f"best sustained over best burst bf16 shape; sustained: {MAMF}"
        + (f"; no row of its own, {MAMF_KIN[gpu]} stands in" if gpu in MAMF_KIN else "")
        + ("; row of H100, whose note says that H200 is the same" if gpu == "h200_sxm" else "")
        + (f"; median with {B200_OTHERS}" if gpu == "b200" else "")
    )
    medians = f"bf16 holds median repeats, of which six other devices sustain 0.95 to 1.05; {MAMF}"
    return {
        "sustained_fraction": medians if sustained_unknown(gpu) else sustained,
        **dict.fromkeys(GRADIENT_FIELDS, gradients.source),
        "memory_efficiency": "GEMMs moving over 1 GB reach at least 0.73 to 0.91 of the bandwidth in the same data",
        "launch_latency": "shortest GEMM of the table",
    }


def build_all(data: Path) -> dict[str, Built]:
    """Every table, measured and estimated, by accelerator."""
    grids, cells = read_gemm(data), read_attention(data)
    built = {name: build_device(gpu, grids, cells[gpu], data) for gpu, (name, _) in DEVICES.items()}
    for name in sorted(ROOFLINES, key=lambda each: ROOFLINES[each][2] in ROOFLINES):
        built[name] = build_roofline(name, built, grids)
    for name in SYSTOLIC:
        built[name] = build_systolic(name, built)
    return built


def packed(arrays: dict[str, FloatArray]) -> dict[str, Any]:
    """Arrays as they are shipped."""
    return {key: a.astype(np.float32 if key.startswith("axis") else np.float16) for key, a in arrays.items()}


def texts(built: dict[str, Built]) -> dict[str, str]:
    """The text of every JSON file by its name."""
    return {f"{name}.json": json.dumps(about, indent=1) + "\n" for name, (_, about) in built.items()}


def differing(built: dict[str, Built], shipped: Path = OUT) -> list[str]:
    """Names of the shipped files that are not what was built."""
    found = []
    for name, text in texts(built).items():
        path = shipped / name
        if not path.exists() or path.read_text() != text:
            found.append(name)
    for name, (arrays, _) in built.items():
        path = shipped / f"{name}.npz"
        have = dict(np.load(path)) if path.exists() else {}
        want = packed(arrays)
        if have.keys() != want.keys() or any(not np.array_equal(have[key], want[key]) for key in want):
            found.append(path.name)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA / "hardware")
    parser.add_argument("--check", action="store_true", help="write nothing, compare with the shipped files")
    given = parser.parse_args()
    built = build_all(given.data)
    if given.check:
        if found := differing(built):
            sys.exit(f"differ from what is derived: {', '.join(found)}")
        return
    OUT.mkdir(parents=True, exist_ok=True)
    for name, text in texts(built).items():
        (OUT / name).write_text(text)
    for name, (arrays, _) in built.items():
        np.savez(OUT / f"{name}.npz", **packed(arrays))
    print(f"total {sum(f.stat().st_size for f in OUT.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

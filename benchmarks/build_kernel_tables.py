"""Which kernel efficiencies does planner ship?

Derives planner/catalog/kernels/*.npz and *.json from the public measurements in ../shared/data/hardware. Run in the
repository's root:

    python -m benchmarks.build_kernel_tables [--data ../shared/data/hardware] [--check]

`--check` prints without writing. Left out of the tables: kernels of one framework only, generation-phase
(decode) shapes, and head widths above 256; the errors, which benchmarks/kernel_checks.py measures.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.kernels import interpolate, tile_efficiency
from planner.spec.rates import FloatArray

OUT = Path(__file__).parent.parent / "planner" / "catalog" / "kernels"
AICONFIGURATOR = "ai-dynamo/aiconfigurator@095f58a systems/data (Apache-2.0), best of its software versions"
DATE = "2026-08-22"  # of the newest source revision
MAMF = "stas00/ml-engineering@744d01e compute/accelerator/README.md, MAMF table (CC-BY-SA-4.0)"

# measured name -> (shipped name, SMs)
DEVICES = {
    "a100_sxm_80g": ("a100-sxm-80g", 108),
    "h100_sxm_80g": ("h100-sxm-80g", 132),
    "h200_sxm": ("h200-sxm", 132),
    "b200": ("b200", 148),
    "gb200": ("gb200", 148),
    "b300": ("b300", 148),
    "gb300": ("gb300", 148),
    "l40s": ("l40s", 142),
}
# dtype of the measurements -> key of the shipped table
FORMATS = {"bf16": "bf16", "fp8_tensorwise_dynamic": "fp8", "fp8_block128": "fp8_blockwise", "nvfp4": "fp4"}
HEAD_DIMS = (64, 128, 256)
SPANS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384)
ROWS = tuple(2**i for i in range(2, 13))


def read_rows(path: Path, source: str) -> Iterator[dict[str, str]]:
    """The rows of a compressed table whose source contains `source`."""
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if source in row["source"]:
                yield row


def roofline(plateau: float, units: int, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    """Efficiency by tile and wave quantisation whose median over the large shapes is `plateau`."""
    shape = tile_efficiency(m, n, k, units)
    return np.asarray(shape * plateau / np.median(shape[(m >= 4096) & (n >= 4096) & (k >= 4096)]))


class GemmGrid:
    """Best burst efficiency of one (device, format) on the full m, n, k grid of the measurements, of `peak` FLOP/s."""

    def __init__(self, cells: dict[tuple[int, int, int], float], peak: float) -> None:
        self.peak = peak
        self.extents = [sorted({key[i] for key in cells}) for i in range(3)]
        self.axes = [np.log2(np.array(extent, dtype=float)) for extent in self.extents]
        self.values = np.full([len(extent) for extent in self.extents], np.nan)
        for (m, n, k), value in cells.items():
            at = tuple(extent.index(x) for extent, x in zip(self.extents, (m, n, k), strict=True))
            self.values[at] = value
        self.filled = int(np.isnan(self.values).sum())
        self._fill()

    def _fill(self) -> None:
        """Missing corners (n = k = 65536 was too large to run) take the mean of their lower neighbours."""
        for i, j, last in np.argwhere(np.isnan(self.values)):
            near = [
                self.values[i, max(j - 1, 0), last],
                self.values[i, j, max(last - 1, 0)],
                self.values[max(i - 1, 0), j, last],
            ]
            self.values[i, j, last] = np.nanmean(near)

    def mesh(self) -> list[FloatArray]:
        return [
            np.array(x) for x in np.meshgrid(*[np.array(e, dtype=float) for e in self.extents], indexing="ij")
        ]

    def plateau(self) -> float:
        m, n, k = self.mesh()
        return float(np.median(self.values[(m >= 4096) & (n >= 4096) & (k >= 4096)]))

    def monotonic_fraction(self) -> float:
        """Share of neighbouring cells along each axis where the larger GEMM does not take less time."""
        m, n, k = self.mesh()
        time = m * n * k / self.values
        steps = [np.diff(time, axis=a) >= 0 for a in range(3)]
        return float(np.mean(np.concatenate([s.ravel() for s in steps])))


def read_gemm(data: Path) -> dict[str, dict[str, GemmGrid]]:
    cells: dict[tuple[str, str], dict[tuple[int, int, int], float]] = defaultdict(dict)
    peaks: dict[tuple[str, str], float] = {}
    for row in read_rows(data / "matmul_efficiency.csv.gz", "aiconfigurator"):
        if row["gpu"] in DEVICES and row["dtype"] in FORMATS and row["efficiency_best"]:
            shape = (int(float(row["m"])), int(float(row["n"])), int(float(row["k"])))
            latency_of_median = float(row["latency_us"]) * 1e-6
            median = (
                2.0 * shape[0] * shape[1] * shape[2] / latency_of_median / (float(row["peak_tflops"]) * 1e12)
            )
            best_over_median = (
                float(row["tflops_best"]) / float(row["tflops"]) if float(row["tflops"]) else 1.0
            )
            cells[row["gpu"], FORMATS[row["dtype"]]][shape] = median * best_over_median
            peaks[row["gpu"], FORMATS[row["dtype"]]] = float(row["peak_tflops"]) * 1e12
    grids: dict[str, dict[str, GemmGrid]] = defaultdict(dict)
    for (gpu, key), found in cells.items():
        grids[gpu][key] = GemmGrid(found, peaks[gpu, key])
    return grids


# Of the memory [bytes/s].
BANDWIDTHS = {"h100_sxm_80g": 3.35e12, "h200_sxm": 4.8e12, "b200": 8e12, "gb200": 8e12, "b300": 8e12, "gb300": 8e12,
              "l40s": 864e9}  # fmt: skip


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


# --- sustained clocks

# Highest sustained bf16 efficiency over shapes (MAMF: mean of 100 iterations after 50 warm-ups), fraction of
# peak.
MAMF_BEST = {"a100_sxm_80g": 0.8692, "h100_sxm_80g": 0.8033, "h200_sxm": 0.8378, "b200": 0.7756, "b300": 0.7862,
             "gb200": 0.7288}  # fmt: skip
NO_MAMF = {"gb300": "gb200", "l40s": "a100_sxm_80g"}


def sustained_fraction(gpu: str, grids: dict[str, dict[str, GemmGrid]], data: Path) -> float:
    """Sustained over burst: the best sustained shape over the best burst shape of the same device.

    B200: the geometric mean of that (0.81) and of SimuMax's forward GEMMs over the burst table (0.67): two
    machines under continuous load, no reason to prefer one.
    """
    source = NO_MAMF.get(gpu, gpu)
    best = MAMF_BEST[source] / float(grids[source]["bf16"].values.max())
    return best if gpu != "b200" else float(np.sqrt(best * simumax_over_burst(gpu, grids[gpu]["bf16"], data)))


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


# --- attention

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
ARCHITECTURE = {"a100_sxm_80g": "ampere", "l40s": "ampere", "h100_sxm_80g": "hopper", "h200_sxm": "hopper"}
# FlashAttention-2 on A100, forward and backward, causal: width 64 over width 128 at 512 ... 16384 (median)
A100_WIDTH_64 = 0.896


def read_attention(data: Path) -> dict[str, dict[tuple[int, int, int], list[float]]]:
    """Per device: burst efficiencies (best version) by (span, rows, head width), one per kv-head count."""
    cells: dict[str, dict[tuple[int, int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_rows(data / "attention_efficiency.csv.gz", "aiconfigurator"):
        width = int(row["head_dim_qk"])
        if row["gpu"] in DEVICES and width in HEAD_DIMS and row["efficiency"] and row["tflops_best"]:
            key = (int(row["seq_len"]), int(row["batch"]) * int(row["heads"]), width)
            best = float(row["tflops_best"]) / float(row["tflops"])
            cells[row["gpu"]][key].append(float(row["efficiency"]) * best)
    return cells


def attention_grid(
    gpu: str, cells: dict[tuple[int, int, int], list[float]]
) -> tuple[list[FloatArray], FloatArray]:
    """Axes and burst efficiency; a cell too large to have run takes the nearest smaller batch."""
    widths = [w for w in HEAD_DIMS if any(key[2] == w for key in cells)]
    table = np.full((len(SPANS), len(ROWS), len(widths)), np.nan)
    for i, span in enumerate(SPANS):
        for last, width in enumerate(widths):
            for j, rows in enumerate(ROWS):
                if found := cells.get((span, rows, width)):
                    table[i, j, last] = float(np.median(found))
                elif j:
                    table[i, j, last] = table[i, j - 1, last]
    if widths == [128]:
        widths, table = [64, 128], np.concatenate([table * A100_WIDTH_64, table], axis=2)
    axes = [np.log2(np.array(x, dtype=float)) for x in (SPANS, ROWS, widths)]
    assert not np.isnan(table).any(), gpu
    return axes, table


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


# --- the files


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


def build_device(
    gpu: str,
    grids: dict[str, dict[str, GemmGrid]],
    cells: dict[tuple[int, int, int], list[float]],
    data: Path,
) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """Arrays and description of one accelerator; prints its plateaus."""
    name, units = DEVICES[gpu]
    family = ARCHITECTURE.get(gpu, "blackwell")
    sustained = sustained_fraction(gpu, grids, data)
    arrays: dict[str, FloatArray] = {}
    tables: dict[str, Any] = {}
    for key, grid in sorted(grids[gpu].items()):
        for letter, axis in zip("mnk", grid.axes, strict=True):
            arrays[f"axis_{letter}"] = axis
        arrays[f"gemm_{key}"] = grid.values
        tables[key] = {
            "source": AICONFIGURATOR,
            "shapes": int(grid.values.size - grid.filled),
            "filled": grid.filled,
            "quantising_bytes": round(quantising_bytes(gpu, grid, grids[gpu]["bf16"]), 2)
            if key != "bf16"
            else 0.0,
            "plateau_burst": round(grid.plateau(), 4),
        }
        print(
            f"{name:14} gemm {key:14} plateau burst {grid.plateau():.3f} sustained "
            f"{grid.plateau() * sustained:.3f}  larger not faster {grid.monotonic_fraction():.4f}"
        )
    axes, attention = attention_grid(gpu, cells)
    load = ATTENTION_SUSTAINED[family][0]
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
            "source": AICONFIGURATOR,
            "backward_source": BACKWARD_SOURCE[family],
            "backward_rows": BACKWARD_ROWS[family],
            "sustained_fraction": load,
            "sustained_source": ATTENTION_SUSTAINED[family][1],
        },
        "sustained_fraction": round(sustained, 4),
        "dgrad_ratio": gradients.dgrad,
        "wgrad_ratio": gradients.wgrad,
        "grouped_gemm_ratio": gradients.grouped,
        "grouped_wgrad_ratio": gradients.grouped_wgrad,
        "memory_efficiency": MEMORY_EFFICIENCY,
        "launch_latency": round(shortest, 9),
        "compute_units": units,
        "unverified": ["memory_efficiency"]
        + (["sustained_fraction"] if gpu in NO_MAMF else [])
        + ([*GRADIENT_FIELDS, "attention.backward_ratio"] if family == "hopper" else []),
        "sources": {
            "sustained_fraction": f"best sustained over best burst bf16 shape; sustained: {MAMF}"
            + (f"; no row of its own, {NO_MAMF[gpu]} stands in" if gpu in NO_MAMF else "")
            + ("; row of GH200, the same chip and memory" if gpu == "h200_sxm" else "")
            + (f"; geometric mean with {SIMUMAX.format('B200 forward GEMMs')}" if gpu == "b200" else ""),
            **dict.fromkeys(GRADIENT_FIELDS, gradients.source),
            "memory_efficiency": "GEMMs moving over 1 GB reach at least 0.73 to 0.91 of the bandwidth in the same data",
            "launch_latency": "shortest GEMM of the table",
        },
    }


PEAKS = {"a100_sxm_80g": 312e12, "h100_sxm_80g": 989.4e12, "h200_sxm": 989.4e12, "b200": 2250e12, "b300": 2250e12,
         "gb200": 2500e12, "gb300": 2500e12, "l40s": 362e12}  # fmt: skip


# --- accelerators without measurements

# A plateau is lower than the best shape: median of plateau over best on A100, H100, H200, B200, B300, GB200.
PLATEAU_OVER_BEST = 0.83
# name: (compute units, sustained plateau, kin for attention, source)
ROOFLINES: dict[str, tuple[int, float, str, str]] = {
    "v100-sxm2-32g": (80, 0.74, "a100-sxm-80g", "plateau of A100, sustained: no measurement"),
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
    "generic": (128, 0.66, "h100-sxm-80g", "median of the sustained plateaus of A100 to GB300"),
}
# name: (whose tables, sustained fraction of its own or None, note)
SAME_CHIP = "same chip"
CUBE_ROOT = ", clock as the cube root of the power per SM"
KIN: dict[str, tuple[str, float | None, str]] = {
    "a100-sxm-40g": ("a100-sxm-80g", None, SAME_CHIP),
    "a800-sxm-80g": ("a100-sxm-80g", None, SAME_CHIP),
    "a100-pcie-80g": (
        "a100-sxm-80g",
        0.875,
        "same chip, 300 W: SimuMax A100 PCIe GEMMs over the burst table",
    ),
    "a100-pcie-40g": ("a100-sxm-80g", 0.875, "same chip, 250 W: sustained fraction of the 80 GB card"),
    "h800-sxm-80g": ("h100-sxm-80g", None, SAME_CHIP),
    "h100-sxm-96g-hbm2e-500w": ("h100-sxm-80g", 0.75, "same chip, unverified: 500 of 700 W" + CUBE_ROOT),
    "h100-nvl-94g": (
        "h100-sxm-80g",
        0.825,
        "same chip, unverified: 400 of 700 W, peak 835 of 989" + CUBE_ROOT,
    ),
    "h100-pcie-80g": (
        "h100-sxm-80g",
        0.79,
        "same chip, unverified: 350 W for 114 SMs, peak 756 of 989" + CUBE_ROOT,
    ),
    "gh200": ("h200-sxm", None, "same chip and memory"),
    "rtx4090": ("l40s", None, "same architecture"),
    "rtx-pro-6000-server": ("l40s", None, "nearest workstation part; its architecture is Blackwell"),
    "v100-sxm2-16g": ("v100-sxm2-32g", None, SAME_CHIP),
    "v100-pcie-16g": ("v100-sxm2-32g", None, "same chip, 250 W limit not modelled"),
    "v100-pcie-32g": ("v100-sxm2-32g", None, "same chip, 250 W limit not modelled"),
    "tpu-v5p": ("generic", None, "no measurement"),
    "tpu-v6e": ("generic", None, "no measurement"),
    "trainium2": ("generic", None, "no measurement"),
    "cpu-2x-xeon8480": ("generic", None, "no measurement"),
}
BY_ARCHITECTURE = {
    "volta": "v100-sxm2-32g",
    "ampere": "a100-sxm-80g",
    "ada": "l40s",
    "hopper": "h100-sxm-80g",
    "blackwell": "b200",
    "cdna2": "mi250x",
    "cdna3": "mi300x",
    "cdna4": "mi355x",
    "gaudi": "gaudi3",
}


def pooled_residual(grids: dict[str, dict[str, GemmGrid]], without: str = "") -> FloatArray:
    """Measured efficiency over `roofline`, geometric mean of the measured devices: what the law lacks."""
    logs = []
    for gpu in DEVICES:
        if gpu != without:
            grid = grids[gpu]["bf16"]
            logs.append(np.log(grid.values / roofline(grid.plateau(), DEVICES[gpu][1], *grid.mesh())))
    return np.asarray(np.exp(np.mean(logs, axis=0)))


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
    gemm = roofline(plateau, units, m, n, k) * pooled_residual(grids)
    kin_sustained = float(kin_about["sustained_fraction"])
    large = (m >= 4096) & (n >= 4096) & (k >= 4096)
    scale = plateau / (kin_sustained * float(np.median(kin_arrays["gemm_bf16"][large])))
    arrays = {key: a for key, a in kin_arrays.items() if not key.startswith("gemm_")} | {"gemm_bf16": gemm}
    arrays["attention"] = kin_arrays["attention"] * scale
    law = "roofline times the mean residual of the measured devices"
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


def write(name: str, arrays: dict[str, FloatArray], about: dict[str, Any]) -> None:
    packed: dict[str, Any] = {
        key: a.astype(np.float32 if key.startswith("axis") else np.float16) for key, a in arrays.items()
    }
    np.savez(OUT / f"{name}.npz", **packed)
    (OUT / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data/hardware"))
    parser.add_argument("--check", action="store_true", help="print the checks, write nothing")
    given = parser.parse_args()
    grids, cells = read_gemm(given.data), read_attention(given.data)
    built = {name: build_device(gpu, grids, cells[gpu], given.data) for gpu, (name, _) in DEVICES.items()}
    for name in sorted(ROOFLINES, key=lambda each: ROOFLINES[each][2] in ROOFLINES):
        built[name] = build_roofline(name, built, grids)
    if not given.check:
        OUT.mkdir(parents=True, exist_ok=True)
        for name, (arrays, about) in built.items():
            write(name, arrays, about)
        kin = {
            name: {"kin": of, "sustained_fraction": own, "note": note}
            for name, (of, own, note) in KIN.items()
        }
        index = {"tables": sorted(built), "kin": kin, "by_architecture": BY_ARCHITECTURE}
        (OUT / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    print(f"total {sum(f.stat().st_size for f in OUT.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

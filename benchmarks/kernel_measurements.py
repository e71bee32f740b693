"""What do the public measurements of kernels say, device by device?

Reads matmul_efficiency.csv.gz and attention_efficiency.csv.gz of ../shared/data/hardware onto grids. Left out: kernels
of one framework only, generation-phase (decode) shapes, and head widths above 256.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from planner.cost.kernels import tile_efficiency
from planner.spec.rates import FloatArray

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
# burst efficiencies (best version) by (span, rows, head width), one per kv-head count
AttentionCells = dict[tuple[int, int, int], list[float]]


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


def read_gemm(data: Path, of_median: bool = False) -> dict[str, dict[str, GemmGrid]]:
    """Grids by device and format: of the fastest repeat over the software's versions, or of the median one."""
    cells: dict[tuple[str, str], dict[tuple[int, int, int], float]] = defaultdict(dict)
    peaks: dict[tuple[str, str], float] = {}
    for row in read_rows(data / "matmul_efficiency.csv.gz", "aiconfigurator"):
        if row["gpu"] not in DEVICES or row["dtype"] not in FORMATS or not row["efficiency_best"]:
            continue
        m, n, k = (int(float(row[letter])) for letter in "mnk")
        peak = float(row["peak_tflops"]) * 1e12
        median = 2.0 * m * n * k / (float(row["latency_us"]) * 1e-6) / peak
        best_over_median = float(row["tflops_best"]) / float(row["tflops"]) if float(row["tflops"]) else 1.0
        cells[row["gpu"], FORMATS[row["dtype"]]][m, n, k] = median * (1.0 if of_median else best_over_median)
        peaks[row["gpu"], FORMATS[row["dtype"]]] = peak
    grids: dict[str, dict[str, GemmGrid]] = defaultdict(dict)
    for (gpu, key), found in cells.items():
        grids[gpu][key] = GemmGrid(found, peaks[gpu, key])
    return grids


PEAKS = {"a100_sxm_80g": 312e12, "h100_sxm_80g": 989.4e12, "h200_sxm": 989.4e12, "b200": 2250e12, "b300": 2250e12,
         "gb200": 2500e12, "gb300": 2500e12, "l40s": 362e12}  # fmt: skip


# Of the memory [bytes/s].
BANDWIDTHS = {"h100_sxm_80g": 3.35e12, "h200_sxm": 4.8e12, "b200": 8e12, "gb200": 8e12, "b300": 8e12, "gb300": 8e12,
              "l40s": 864e9}  # fmt: skip


# FlashAttention-2 on A100, forward and backward, causal: width 64 over width 128 at 512 ... 16384 (median)
A100_WIDTH_64 = 0.896


def read_attention(data: Path) -> dict[str, AttentionCells]:
    """The cells of each device."""
    cells: dict[str, AttentionCells] = defaultdict(lambda: defaultdict(list))
    for row in read_rows(data / "attention_efficiency.csv.gz", "aiconfigurator"):
        width = int(row["head_dim_qk"])
        if row["gpu"] in DEVICES and width in HEAD_DIMS and row["efficiency"] and row["tflops_best"]:
            key = (int(row["seq_len"]), int(row["batch"]) * int(row["heads"]), width)
            best = float(row["tflops_best"]) / float(row["tflops"])
            cells[row["gpu"]][key].append(float(row["efficiency"]) * best)
    return cells


def attention_grid(gpu: str, cells: AttentionCells) -> tuple[list[FloatArray], FloatArray]:
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

"""How does the time of 8-bit products under load compare with that of 16-bit ones, each over its own table?

    python -m benchmarks.best_shapes

The best shape of either format under continuous load (MAMF of stas00/ml-engineering, in matmul_efficiency.csv.gz) over
planner's time of that shape, without quantising. The start values of Megatron's 8-bit products in stack_parameters.py
are those of the 16-bit ones times the median ratio of an architecture. Left out: other shapes, of which nothing is
published.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from benchmarks.kernel_measurements import BANDWIDTHS, PEAKS, read_rows
from benchmarks.published_data import published
from planner.catalog.loader import load_kernel_rates
from planner.cost.device.kernels import Roofline, gemm_time
from planner.spec.precision import Dtype

# measured name -> (whose table and peak, whose 16-bit row): GH200 and H200 are one chip, of which one row is missing
DEVICES: Final = {
    "h100_sxm_80g": ("h100_sxm_80g", "h100_sxm_80g"),
    "gh200": ("h200_sxm", "gh200"),
    "h200_sxm": ("h200_sxm", "gh200"),
    "b200": ("b200", "b200"),
    "b300": ("b300", "b300"),
    "gb200": ("gb200", "gb200"),
}
HOPPER: Final = ("h100_sxm_80g", "gh200", "h200_sxm")


def over_planner() -> dict[tuple[str, str], float]:
    """Measured over predicted time of the best shape by device and format."""
    found = {}
    for row in read_rows(published("hardware/matmul_efficiency.csv.gz"), "MAMF"):
        if row["gpu"] in DEVICES and row["dtype"] in ("bf16", "fp8"):
            table, dtype = DEVICES[row["gpu"]][0], Dtype(row["dtype"])
            peak = PEAKS[table] * (2 if dtype is Dtype.FP8 else 1)
            m, n, k = (float(row[letter]) for letter in "mnk")
            predicted = gemm_time(m, n, k, dtype, Roofline(peak, BANDWIDTHS[table], load_kernel_rates(table)))
            measured = 2 * m * n * k / (float(row["tflops"]) * 1e12)
            found[row["gpu"], row["dtype"]] = measured / float(predicted)
    return found


def narrow_over_wide() -> tuple[float, float]:
    """Median over Hopper's and over Blackwell's devices of the 8-bit figure over the 16-bit one."""
    found = over_planner()
    ratios = {gpu: found[gpu, "fp8"] / found[wide, "bf16"] for gpu, (_, wide) in DEVICES.items()}
    hopper = float(np.median([ratio for gpu, ratio in ratios.items() if gpu in HOPPER]))
    return hopper, float(np.median([ratio for gpu, ratio in ratios.items() if gpu not in HOPPER]))


def main() -> None:
    for (gpu, dtype), ratio in sorted(over_planner().items()):
        print(f"{gpu:14} {dtype:5} measured over predicted {ratio:.3f}")
    hopper, blackwell = narrow_over_wide()
    print(
        f"8 over 16 bits: Hopper {hopper:.2f}, Blackwell {blackwell:.2f}, both {math.sqrt(hopper * blackwell):.2f}"
    )


if __name__ == "__main__":
    main()

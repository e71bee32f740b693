"""How well do the shipped kernel rates predict the timings of other sources, on those sources' own shapes?

Run in the repository's root:

    python -m benchmarks.kernel_checks [--data ../shared/data/hardware]

None of these rows is in the tables, but they are no blind test: SimuMax set the gradient, grouped and attention
ratios of A100 and B200 and the A100 PCIe clock, the FlashAttention plots the attention load of A100 and H100, one
figure per architecture each, and vidur was looked at when the best software version was preferred to the median.
Left out: fp8, which no other source times alike.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from planner.catalog.loader import load_kernel_rates
from planner.cost.kernels import (
    attention_time,
    gemm_time,
    grouped_gemm_time,
)
from planner.spec.precision import Dtype

# name: (dense bf16 peak [FLOP/s], memory bandwidth [bytes/s])
DEVICES = {
    "a100_sxm_80g": (312e12, 2039e9),
    "a100_pcie_80g": (312e12, 1935e9),
    "h100_sxm_80g": (989.4e12, 3350e9),
    "b200": (2250e12, 8000e9),
}
SOURCES = ("vidur", "SimuMax", "flash-attention")
Found = dict[tuple[str, str], list[float]]


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Source and row of the timings that are not aiconfigurator's."""
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            for source in SOURCES:
                if source in row["source"] and row["gpu"] in DEVICES:
                    yield source, row


def compare_gemms(path: Path) -> Found:
    """Predicted over measured time by device and stage; vidur's below 5e10 FLOP hold launch overhead."""
    found: Found = defaultdict(list)
    for source, row in read_rows(path):
        m, n, k = (float(row[letter]) for letter in "mnk")
        batch = float(row["batch"])
        flops = 2 * m * n * k * batch
        stage = row["stage"]
        if flops < 5e10 or stage == "grouped_bwd_grad_w":
            continue
        peak, bandwidth = DEVICES[row["gpu"]]
        rates = load_kernel_rates(row["gpu"])
        if stage.startswith("grouped"):
            time = grouped_gemm_time(m * batch, n, k, batch, Dtype.BF16, peak, bandwidth, rates)
        else:
            ratio = {"dgrad": rates.dgrad_ratio, "wgrad": rates.wgrad_ratio}.get(stage, 1.0)
            time = gemm_time(m, n, k, Dtype.BF16, peak, bandwidth, rates) / ratio
        found[row["gpu"], f"{source} {stage}"].append(float(time) / (flops / (float(row["tflops"]) * 1e12)))
    return found


def compare_attention(path: Path) -> Found:
    """Predicted over measured time of attention from sequences of 2048 on."""
    found: Found = defaultdict(list)
    for source, row in read_rows(path):
        wanted = {"SimuMax": "TE/FA", "flash-attention": "FA2" if row["gpu"] == "a100_sxm_80g" else "FA3"}
        sequence = float(row["seq_len"])
        if row["kernel"] != wanted.get(source) or sequence < 2048 or row["causal"] == "False":
            continue
        peak, bandwidth = DEVICES[row["gpu"]]
        heads, kv_heads, batch = float(row["heads"]), float(row["kv_heads"]), float(row["batch"])
        widths = float(row["head_dim_qk"]), float(row["head_dim_v"])
        forward, backward = attention_time(
            batch,
            sequence,
            sequence,
            heads,
            kv_heads,
            *widths,
            True,
            peak,
            bandwidth,
            load_kernel_rates(row["gpu"]),
        )
        phase = row["phase"]
        time, work = {
            "fwd": (forward, 1.0),
            "bwd": (backward, 2.5),
            "fwd+bwd": (forward + backward, 3.5),
        }[phase]
        # SimuMax counts the full square
        rate = float(row["tflops"]) * 1e12 * (0.5 if source == "SimuMax" else 1.0)
        measured = work * batch * heads * sequence**2 * sum(widths) / rate
        found[row["gpu"], f"{source} attention {phase}"].append(float(time) / measured)
    return found


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data/hardware"))
    data = parser.parse_args().data
    print(f"{'predicted / measured time':50} rows   median   10 %   90 %   median error")
    for found in (
        compare_gemms(data / "matmul_efficiency.csv.gz"),
        compare_attention(data / "attention_efficiency.csv.gz"),
    ):
        for (gpu, what), ratios in sorted(found.items()):
            error = quantile([abs(ratio - 1) for ratio in ratios], 0.5)
            low, middle, high = (quantile(ratios, share) for share in (0.1, 0.5, 0.9))
            print(f"{gpu:14} {what:35} {len(ratios):4} {middle:8.3f} {low:6.3f} {high:6.3f} {error:10.3f}")


if __name__ == "__main__":
    main()

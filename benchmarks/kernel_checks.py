"""How well do the shipped kernel and link rates predict timings that they do not hold?

Run in the repository's root:

    python -m benchmarks.kernel_checks [--data ../shared/data/hardware] [--results]

Rows, shapes and devices left out of the tables in turn (benchmarks/kernel_holdout.py), timings of other sources on
those sources' own shapes, collectives with each (accelerator, rank count) left out (benchmarks/fit_links.py), and the
published accuracy of other planners (benchmarks/rivals.py). `--results` writes the tables between the kernel markers of
benchmarks/RESULTS.md. The other sources are no blind test: SimuMax set the gradient, grouped and backward ratios of
A100 and B200, the A100 PCIe clock and half of B200's, the FlashAttention plots the attention load of A100 and H100,
one figure per architecture each, and vidur was looked at when the best software version was preferred to the median.
Left out: fp8 of other sources, of which none times alike.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gzip
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import fit_links, kernel_holdout, link_tables, rivals
from benchmarks.build_kernel_tables import ARCHITECTURE, ATTENTION_SUSTAINED
from benchmarks.kernel_measurements import DEVICES as TABLES
from benchmarks.kernel_measurements import (
    MAMF_BEST,
    PEAKS,
    best_repeats,
    median_repeats,
    read_attention,
    read_gemm,
    sustained_unknown,
)
from benchmarks.kernel_measurements import read_rows as table_rows
from benchmarks.published_data import DATA
from benchmarks.results_file import write_section
from planner.catalog.loader import load_kernel_rates
from planner.cost.device.kernels import (
    Roofline,
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
        roofline = Roofline(peak, bandwidth, rates)
        if stage.startswith("grouped"):
            time = grouped_gemm_time(m * batch, n, k, batch, Dtype.BF16, roofline)
        else:
            ratio = {"dgrad": rates.dgrad_ratio, "wgrad": rates.wgrad_ratio}.get(stage, 1.0)
            traffic = (
                (8.0 if "fp32" in row["notes"] else 4.0) if stage == "wgrad" else None
            )  # adds to a buffer
            time = gemm_time(m, n, k, Dtype.BF16, roofline, traffic) / ratio
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
        roofline = Roofline(peak, bandwidth, load_kernel_rates(row["gpu"]))
        forward, backward = attention_time(
            batch, sequence, sequence, heads, kv_heads, *widths, True, roofline
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


def errors_text(errors: Sequence[float] | np.ndarray) -> str:
    """Median, 90th percentile and worst error in percent, and the number of rows."""
    values = 100 * np.asarray(errors, dtype=float)
    if not len(values):
        return "-"
    return f"{np.median(values):.1f} / {np.quantile(values, 0.9):.0f} / {values.max():.0f} ({len(values):,})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def gemm_tables(data: Path) -> str:
    """GEMMs by device and format, by size class, and by device left out."""
    grids, burst = read_gemm(data), read_gemm(data, best_repeats)
    rows: list[list[str]] = []
    sizes: dict[str, list[float]] = defaultdict(list)
    for gpu, (name, _) in TABLES.items():
        for key, grid in sorted(grids[gpu].items()):
            kinds = (kernel_holdout.random_rows, kernel_holdout.weight_shapes, kernel_holdout.extents)
            cells = []
            for kind in kinds:
                errors, flops = kernel_holdout.gemm_errors(grid, kind(grid))
                cells.append(errors_text(errors))
                for (low, high), label in SIZES.items():
                    sizes[f"{label}, {kind.__name__.replace('_', ' ')}"] += list(
                        errors[(flops >= low) & (flops < high)]
                    )
            alone = [
                errors_text(kernel_holdout.device_errors(gpu, burst, best)) if key == "bf16" else ""
                for best in (True, False)
            ]
            rows.append([name, key, *cells, *alone])
    head = ("device", "format", "a tenth of the rows", "a tenth of the weights", "an extent")
    classes = [[label, errors_text(found)] for label, found in sorted(sizes.items())]
    of_medians = [name for gpu, (name, _) in TABLES.items() if sustained_unknown(gpu)]
    return "\n\n".join(
        (
            table((*head, "device, best shape known", "device, nothing known"), rows),
            table(("GEMM size, left out", "all devices and formats"), classes),
            "The best of a shape's repeats over their median, bf16, median over shapes: "
            f"{repeat_spreads(data)}. The best are mostly products with weights that nobody filled, which draw less "
            "power. The tables hold the best, and what the device sustains of it; where no sustained rate of its "
            f"architecture is published, the median ({', '.join(of_medians)}). What sustained rates are of the best "
            f"median, at its best shape: {sustained_over_median(data)} (benchmarks/kernel_measurements.py).",
        )
    )


def sustained_over_median(data: Path) -> str:
    """Published sustained bf16 rates over the best median of repeats, by device, in words."""
    grids = read_gemm(data, median_repeats)
    return ", ".join(
        f"{TABLES[gpu][0]} {best / float(grids[gpu]['bf16'].values.max()):.2f}"
        for gpu, best in MAMF_BEST.items()
    )


def repeat_spreads(data: Path) -> str:
    """How far apart repeats of one bf16 GEMM of 1e10 FLOP and more are, by device, in words."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in table_rows(data / "matmul_efficiency.csv.gz", "aiconfigurator"):
        flops = 2 * math.prod(float(row[letter]) for letter in "mnk")
        if (
            row["gpu"] in TABLES
            and row["dtype"] == "bf16"
            and row["tflops_best"]
            and flops >= kernel_holdout.FEWEST_FLOPS
        ):
            found[row["gpu"]].append(float(row["tflops_best"]) / float(row["tflops"]) - 1)
    return ", ".join(f"{TABLES[gpu][0]} {100 * np.median(found[gpu]):.1f} %" for gpu in TABLES if found[gpu])


SIZES = {
    (1e10, 1e11): "1e10 to 1e11 FLOP",
    (1e11, 1e12): "1e11 to 1e12 FLOP",
    (1e12, np.inf): "1e12 FLOP and more",
}


def attention_table(data: Path) -> str:
    """Forward attention by device and what was left out."""
    cells, grids, rows = read_attention(data), read_gemm(data, best_repeats), list[list[str]]()
    for gpu, (name, _) in TABLES.items():
        found = kernel_holdout.attention_errors(gpu, cells[gpu])
        load = ATTENTION_SUSTAINED[ARCHITECTURE.get(gpu, "blackwell")][0]

        def latent(batch: float, length: float, heads: float, gpu: str = gpu, load: float = load) -> float:
            shape = (batch, length, length, heads, heads, 192.0, 128.0, True)
            roofline = Roofline(PEAKS[gpu], 1e15, load_kernel_rates(TABLES[gpu][0]))
            return load * float(attention_time(*shape, roofline)[0])

        others = (
            kernel_holdout.attention_device_errors(gpu, cells, grids),
            kernel_holdout.width_errors(gpu, data, cells[gpu]),
            kernel_holdout.latent_errors(gpu, data, latent),
        )
        rows.append(
            [name, *(errors_text(found[key]) for key in ("rows", "span", "heads")), *map(errors_text, others)]
        )
    known = ("device", "rows off the grid", "a span", "a number of heads")
    head = (*known, "device", "head width 192", "MLA, inference kernels")
    return table(head, rows)


def other_sources(data: Path) -> str:
    """Predicted over measured time of other sources."""
    rows = []
    for found in (
        compare_gemms(data / "matmul_efficiency.csv.gz"),
        compare_attention(data / "attention_efficiency.csv.gz"),
    ):
        for (gpu, what), ratios in sorted(found.items()):
            middle = float(np.median(ratios))
            around = f"{100 * float(np.median(np.abs(np.array(ratios) / middle - 1))):.1f}"
            rows.append([gpu, what, f"{middle:.3f}", errors_text(np.abs(np.array(ratios) - 1)), around])
    head = ("device", "source and pass", "predicted over measured", "error", "median after one factor")
    return table(head, rows)


PCIE_HOSTS = (
    "The two PCIe cards are hosts more than cards: of a link of 31 GB/s, 2, 4 and 8 L40S reach 20, 5 and 1.5 GB/s of "
    "bus bandwidth in an all-reduce, and 8 of them jump between 1.5 and 2.1 from one size to the next, as copies "
    "through host memory and between sockets might. No data sheet says so; RTX PRO 6000 reach 0.61, 0.42 and 0.41 of "
    "theirs."
)


def collective_tables() -> str:
    """Collectives on one node and on several by operation, size and accelerator; expert dispatch."""
    found = fit_links.held_out_errors(link_tables.read_rows())
    classes = [name for name, _ in fit_links.SIZE_CLASSES]
    operations = [*fit_links.TIMES, "all"]
    one = [[what, *(errors_text(found[False, what, size]) for size in classes)] for what in operations]
    devices = [
        [gpu, *(errors_text(found[False, f"{what} {gpu}", "all"]) for what in fit_links.TIMES)]
        for gpu in link_tables.DEVICES
    ]
    devices += [
        [f"{gpu}, taken as a usual host", *(errors_text(found) for found in fit_links.stand_in_errors(gpu))]
        for gpu, device in link_tables.DEVICES.items()
        if device.outlier
    ]
    several = [
        [what, size, errors_text(errors)] for (many, what, size), errors in sorted(found.items()) if many
    ]
    single = [
        [what, size, errors_text(errors)]
        for (many, what, size), errors in sorted(fit_links.single_call_errors().items())
        if many and what == "all"
    ]
    dispatch = [
        [gpu, str(nodes), errors_text(errors)] for (gpu, nodes), errors in fit_links.dispatch_errors().items()
    ]
    own = [
        [what, str(nodes), f"{ratio:.2f}"]
        for (nodes, what), ratio in sorted(fit_links.deepep_ratios().items())
    ]
    return "\n\n".join(
        (
            table(("one node, left out", *classes), one),
            table(("accelerator", *fit_links.TIMES), devices),
            PCIE_HOSTS,
            table(("several nodes, left out", "size", "error"), several),
            "4 x p6-b200 below 1 GiB, used for nothing: one torch call behind a barrier, which holds the host's work "
            "and the skew between ranks (benchmarks/link_tables.py).",
            table(("single calls", "size", "error"), single),
            table(("expert dispatch and combine", "nodes", "error"), dispatch),
            "Dispatch on one node is fitted, on several predicted; H200's rows of several nodes are H100's copied, and "
            "left out. On two nodes the multiprocessors' copies bind (the time falls with their number, 4 to 24), on "
            "four the cards. The rows of 8 nodes do not change with the multiprocessors, move 22 of a card's 50 GB/s "
            "and take longer than sending every token to every node would: that cluster's network, for on DeepEP's own "
            "8 nodes such cards move 45.",
            table(("DeepEP's own figures, H800", "nodes", "predicted over published time"), own),
        )
    )


def report(data: Path) -> str:
    """The section of RESULTS.md."""
    today = datetime.date.today().isoformat()
    return "\n\n".join(
        (
            "## Kernels and collectives",
            f"Measured {today} with `python -m benchmarks.kernel_checks`. Errors of time in percent: median / 90th "
            "percentile / worst (rows), each on rows that what predicts them did not hold.",
            "### GEMMs, forward, from 1e10 FLOP on",
            gemm_tables(data),
            "### Attention, forward, from a span of 512 and 1e10 FLOP on",
            attention_table(data),
            "### Timings of other sources, gradients and grouped GEMMs included",
            "Not blind: see the head of benchmarks/kernel_checks.py.",
            other_sources(data),
            "### Collectives, each (accelerator, ranks, nodes) left out in turn",
            "Several nodes are four machines. Their fabric is NCCL's constants and the plug-in's latency "
            "(cost/network/protocols.py), none of them fitted, so that each machine is left out; the mechanisms "
            "(chunks on the way) were chosen with these rows in sight. Six rows of a second pair of p5, of which the "
            "source says little, took up to 2.3 times as long as the first.",
            collective_tables(),
            rivals.section(data.parent / "measured"),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA / "hardware")
    parser.add_argument("--results", action="store_true", help="write the tables into benchmarks/RESULTS.md")
    given = parser.parse_args()
    text = report(given.data)
    print(text)
    if given.results:
        write_section("kernels", text)


if __name__ == "__main__":
    main()

"""What do the published collective timings say, row by row?

Reads ../shared/data/hardware/collectives.csv.gz and deepep_aiconfigurator.csv.gz; says which rows are used and
why others are not. Left out: fits, which are in fit_links.py.
"""

from __future__ import annotations

import csv
import functools
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.published_data import published
from planner.cost.network.collectives import ANY_GROUP, remote_copies

KIB, MIB = 2.0**10, 2.0**20
OPERATIONS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


@dataclass(frozen=True)
class Device:
    """An accelerator of the table; `nominal`: scale-up bytes/s per direction. Kin fill the sizes it lacks. `outlier`:
    its one host is unlike others of the kind (`ScaleUpEntry.outlier`)."""

    name: str
    architecture: str
    kind: str
    nominal: float
    kin: tuple[str, ...] = ()
    outlier: bool = False


# the first of a kind stands in for links without rows: the switch of the A100 does not reduce
DEVICES: Final = {
    "a100_sxm_80g": Device("a100-sxm", "ampere", "nvlink", 300e9, ("h100_sxm_80g",)),
    "h100_sxm_80g": Device("h100-sxm", "hopper", "nvlink", 450e9, ("h200_sxm", "b200")),
    "h200_sxm": Device("h200-sxm", "hopper", "nvlink", 450e9, ("h100_sxm_80g", "b200")),
    "b200": Device("b200", "blackwell", "nvlink", 900e9, ("b300", "h100_sxm_80g")),
    "b300": Device("b300", "blackwell", "nvlink", 900e9, ("b200", "h100_sxm_80g")),
    "gb200": Device("gb200", "blackwell", "nvlink", 900e9, ("gb300", "b200")),
    "gb300": Device("gb300", "blackwell", "nvlink", 900e9, ("gb200", "b200")),
    "rtx_pro_6000_server": Device("rtx-pro-6000-server", "blackwell", "pcie", 63e9, ()),
    "l40s": Device("l40s", "ada", "pcie", 31e9, ("rtx_pro_6000_server",), outlier=True),
}
# line rate per device of the fabrics in the table [bytes/s]: 8 devices on 4 x 100, 32 x 100, 8 x 400 Gbit/s
FABRICS: Final = {"a100_sxm_80g": 6.25e9, "h100_sxm_80g": 50e9, "h200_sxm": 50e9, "b200": 50e9}

Column = NDArray[np.float64]
Row = tuple[str, str, int, int, float, float]  # gpu, operation, ranks, nodes, size [bytes], time [s]


def timed_by_single_calls(row: dict[str, str], size: float) -> bool:
    """Did one torch call behind a barrier give this time, with the host and the skew between ranks in it?

    microsoft/vidur and, below 1 GiB, all_reduce_bench.py of stas00/ml-engineering; its later version says so at its
    head and queues ten calls up to there. On one node such rows take 20 us more than nccl-tests, on four B200 nodes
    from 350 us on; below 256 KiB they fall from 6 ms with size.
    """
    return "vidur" in row["source"] or ("stas00" in row["source"] and size < 2**30)


def read_table(name: str) -> Iterator[dict[str, str]]:
    with gzip.open(published(f"hardware/{name}.csv.gz"), "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def read_rows(single_calls: bool = False) -> list[Row]:
    """Usable rows of the table; with `single_calls` those of all_reduce_bench.py that are not, from 256 KiB on.

    Left out too: vidur's, whose fabric is not named, and forced rings.
    """
    rows: list[Row] = []
    for row in read_table("collectives"):
        operation = OPERATIONS.get(row["op"])
        if operation is None or row["gpu"] not in DEVICES or not row["latency_us"]:
            continue
        size, nodes = float(row["size_bytes"]), int(float(row["n_nodes"]))
        if "Ring" in row["lib"] or timed_by_single_calls(row, size) != single_calls:
            continue
        if single_calls and ("vidur" in row["source"] or size < 256 * KIB):
            continue
        ranks = int(float(row["n_gpus"]))
        if ranks == 0:
            # p5en row without a rank count: bus / algorithm bandwidth = 2 (N-1)/N = 1.984, so N = 128
            ranks, nodes = 128, 16
        rows.append((row["gpu"], operation, ranks, nodes, size, float(row["latency_us"]) / 1e6))
    return rows


@functools.cache
def read_dispatch() -> list[dict[str, str]]:
    """Rows of DeepEP's normal kernels on 20 multiprocessors, its default."""
    return [
        row
        for row in read_table("deepep_aiconfigurator")
        if row["op_name"] == "normal" and row["dispatch_sms"] == "20.0" and row["num_topk"] != "1"
    ]


@functools.cache
def dispatch_columns(gpu: str, nodes: int) -> tuple[Column, ...]:
    """Token bytes, experts per token, experts, time [s] of one accelerator; dispatch in fp8, combine in bf16.

    H200's of several nodes are H100's, digit for digit: none.
    """
    if gpu == "h200_sxm" and nodes > 1:
        return ()
    columns: list[tuple[float, float, float, float]] = []
    for row in read_dispatch():
        name = row["device"].removeprefix("NVIDIA ").split()[0].lower()
        if name != gpu.split("_")[0] or int(row["node_num"]) != nodes or float(row["num_token"]) < 64:
            continue
        values = float(row["num_token"]) * float(row["hidden_size"])
        for kind, width in (("dispatch", 1 + 4 / 128), ("combine", 2.0)):
            time = float(row[f"{kind}_transmit_us"]) + float(row[f"{kind}_notify_us"] or 0)
            columns.append((values * width, float(row["num_topk"]), float(row["num_experts"]), time / 1e6))
    return tuple(np.array(columns).T) if columns else ()


# deepseek-ai/DeepEP@dd758ca docs/legacy.md: 4,096 tokens of 7,168, 8 of 256 experts in the best 4 groups, 8 H800 with
# a card of 400 Gbit/s each a node, 24 multiprocessors
DEEPEP_TOKENS, DEEPEP_TOP_K, DEEPEP_EXPERTS, DEEPEP_GROUPS = 4096 * 7168, 8.0, 256.0, 4.0
DEEPEP_SHARE: Final = 24 / 20  # of the multiprocessors that planner assumes
H800_NOMINAL = 200e9


def deepep_figures() -> list[tuple[int, float, float]]:
    """Nodes, bytes a value and time [s] of the dispatches and combines that DeepEP's authors publish.

    They give bytes over time, counting the copies of the token's own node (across nodes) or rank (tests/legacy).
    """
    found = []
    for row in read_table("collectives"):
        if row["lib"] == "DeepEP V1 normal 24 SMs":
            nodes, width = int(row["n_nodes"]), 1 + 4 / 128 if "dispatch" in row["op"] else 2.0
            parts = float(nodes if nodes > 1 else 8)
            chosen = (min(parts, DEEPEP_GROUPS), parts) if nodes > 1 else ANY_GROUP
            others = float(remote_copies(DEEPEP_TOP_K, parts, DEEPEP_EXPERTS, chosen))
            moved = DEEPEP_TOKENS * width * others * parts / (parts - 1)
            found.append((nodes, width, moved / (float(row["busbw_gbps"]) * 1e9)))
    return found

"""Which few numbers per link reproduce the published collective timings, and how well?

    python -m benchmarks.fit_links            fit, print the held-out errors
    python -m benchmarks.fit_links --write    and write planner/catalog/links.yaml

Input: ../shared/data/hardware/collectives.csv.gz (columns gpu, node_type, op, n_gpus, n_nodes, size_bytes,
latency_us, source) and deepep_aiconfigurator.csv.gz beside it. Per accelerator and operation: base and hop
from messages up to 16 KiB, then for each group size the bandwidth fraction and the ramp with the least mean
|log error|. Fabrics are not fitted: cost/network/protocols.py has the constants of NCCL and of the plug-ins, and the
rows of several nodes check them. Which rows are left out: benchmarks/link_tables.py.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import yaml

from benchmarks import link_tables
from benchmarks.link_tables import DEVICES, FABRICS, KIB, MIB, Column, Row, dispatch_columns, read_rows
from planner.catalog.load_links import (
    LINKS_FILE,
    PUBLISHED_FILE,
    FabricEntry,
    LinksFile,
    ScaleUpEntry,
    combine,
    fabric_of,
    load_link_rates,
    read_links_file,
)
from planner.cost.network import collectives
from planner.cost.network.traffic import GroupLinks
from planner.spec.machine.links import LinkRates

TIMES: Final = {
    "all_reduce": collectives.all_reduce_time,
    "all_gather": collectives.all_gather_time,
    "reduce_scatter": collectives.reduce_scatter_time,
    "all_to_all": collectives.all_to_all_time,
}
SIZE_CLASSES: Final = (
    ("<=64 KiB", 64 * KIB),
    ("<=1 MiB", MIB),
    ("<=16 MiB", 16 * MIB),
    ("<=128 MiB", 128 * MIB),
    ("larger", math.inf),
)


Curves = dict[float, tuple[float, float]]  # ranks -> (fraction, ramp)


def fit_floor(rows: Iterable[Row], kin_hop: float) -> tuple[float, float]:
    """Base and hop [s] of messages up to 16 KiB: least squares over the medians of the group sizes.

    `kin_hop` [s] stands in where there is one group size alone.
    """
    by_ranks: dict[int, list[float]] = defaultdict(list)
    for _, _, ranks, _, size, time in rows:
        if 512 <= size <= 16 * KIB:
            by_ranks[ranks].append(time)
    medians = {ranks: float(np.median(times)) for ranks, times in by_ranks.items()}
    if len(medians) == 1:
        ((ranks, median),) = medians.items()
        return max(median - kin_hop * (ranks - 1), 0.0), kin_hop
    hop, base = np.polyfit([ranks - 1 for ranks in medians], list(medians.values()), 1)
    return float(base), max(float(hop), 0.0)


def fit_curve(wire: Column, floor: float, time: Column, fractions: Column) -> tuple[float, float]:
    """Fraction and ramp [s] with the least mean |log error| of `floor` + transfer over `time`.

    `wire`: seconds at nominal bandwidth, one per row like `time`; `fractions`: those to try.
    """
    fraction = fractions[:, None, None]
    ramp = np.concatenate([[0.0], np.geomspace(1e-8, 2e-3, 120)])[None, :, None]
    reached = wire[None, None, :] / fraction
    error = np.abs(np.log((floor + reached + 2 * np.sqrt(ramp * reached)) / time)).mean(axis=2)
    best = np.unravel_index(int(np.argmin(error)), error.shape)
    return float(fractions[best[0]]), float(ramp[0, best[1], 0])


def fit_operation(rows: list[Row], gpu: str, operation: str) -> tuple[float, float, Curves]:
    """Base, hop and the curves of one accelerator's operation inside a domain."""
    own = [row for row in rows if row[0] == gpu and row[1] == operation and row[3] == 1]
    alone = len({row[2] for row in own}) == 1 and DEVICES[gpu].kin
    kin_hop = fit_operation(rows, DEVICES[gpu].kin[-1], operation)[1] if alone else 0.0
    base, hop = fit_floor(own, kin_hop)
    curves: Curves = {}
    for ranks in sorted({row[2] for row in own}):
        part = [row for row in own if row[2] == ranks and row[4] > 64 * KIB]
        if len(part) < 8:
            continue
        sizes, times = np.array([row[4] for row in part]), np.array([row[5] for row in part])
        moved = collectives.moved_bytes(collectives.CollectiveKind(operation), sizes, float(ranks))
        wire = np.asarray(moved) / DEVICES[gpu].nominal
        # a switch that reduces lifts the bus bandwidth above the link's; a shared host bridge sinks it
        fractions = np.geomspace(0.01, 1.2, 400)
        curves[float(ranks)] = fit_curve(wire, base + hop * (ranks - 1), times, fractions)
    return base, hop, curves


def fill_from_kin(curves: Curves, kin: Curves) -> Curves:
    """`curves` with the sizes it lacks taken from kin, scaled to agree at the nearest shared size."""
    filled = dict(curves)
    for ranks in sorted(set(kin) - set(curves)):
        shared = [known for known in curves if known in kin]
        if not shared:
            continue
        near = min(shared, key=lambda known: abs(math.log(known / ranks)))
        filled[ranks] = (
            curves[near][0] * kin[ranks][0] / kin[near][0],
            curves[near][1] * (kin[ranks][1] / kin[near][1] if kin[near][1] else 1.0),
        )
    return dict(sorted(filled.items()))


def fill_along_bridge(curves: Curves) -> Curves:
    """`curves` of a PCIe host with 2, 4 and 8 ranks, what is missing from its own two others.

    Power law in the ranks: how fast the bus bandwidth falls as more devices share the bridges is a trait of the host
    (left out in turn, L40S: fractions of 0.55, 0.18, 0.04 against 0.67, 0.17, 0.05; by the other host's curve 0.25,
    0.46, 0.16).
    """
    if len(curves) != 2:
        return curves
    (low, first), (high, second) = sorted(curves.items())
    (missing,) = {2.0, 4.0, 8.0} - set(curves)
    share = math.log(missing / low) / math.log(high / low)
    fraction = first[0] * (second[0] / first[0]) ** share
    ramp = first[1] if share < 0.5 else second[1]
    return dict(sorted({**curves, missing: (fraction, ramp)}.items()))


def _operation_fields(base: float, hop: float, curves: Curves) -> dict[str, Any]:
    """The fields of an `OperationEntry`."""
    return {
        "base": base,
        "hop": hop,
        "ranks": tuple(curves),
        "fraction": tuple(fraction for fraction, _ in curves.values()),
        "ramp": tuple(ramp for _, ramp in curves.values()),
    }


@functools.cache
def fit_dispatch(gpu: str) -> dict[str, Any] | None:
    """Floor, fraction and ramp of the dispatch inside one node, or nothing without rows."""
    columns = dispatch_columns(gpu, 1)
    if not columns:
        return None
    token_bytes, top_k, experts, time = columns
    ranks = 4.0 if gpu in ("gb200", "gb300") else 8.0
    wire = token_bytes * collectives.remote_copies(top_k, ranks, experts) / DEVICES[gpu].nominal
    best = (math.inf, 0.0, 0.0, 0.0)
    for floor in np.linspace(5e-6, 40e-6, 8):
        fraction, ramp = fit_curve(wire, float(floor), time, np.geomspace(0.1, 1.0, 80))
        reached = wire / fraction
        predicted = floor + reached + 2 * np.sqrt(ramp * reached)
        error = float(np.abs(np.log(predicted / time)).mean())
        best = min(best, (error, float(floor), fraction, ramp))
    _, floor, fraction, ramp = best
    curves = {ranks: (fraction, ramp)}
    if ranks < 8:
        # four devices of a GB200 tray were timed, eight only of a B200 board
        board = fit_dispatch("b200") or {}
        curves[8.0] = (board["fraction"][0], board["ramp"][0])
    return _operation_fields(floor, 0.0, curves)


def dispatch_errors() -> dict[tuple[str, int], Column]:
    """Relative errors of dispatch and combine by accelerator and nodes; one node is fitted, more are predicted."""
    found: dict[tuple[str, int], Column] = {}
    file, fabric = read_links_file(LINKS_FILE), read_links_file(PUBLISHED_FILE).fabric[0]
    for (gpu, device), nodes in itertools.product(DEVICES.items(), (1, 2, 4, 8)):
        columns = dispatch_columns(gpu, nodes)
        if not columns:
            continue
        token_bytes, top_k, experts, time = columns
        entry = next(entry for entry in file.scale_up if entry.accelerator == device.name)
        local = 4.0 if gpu in ("gb200", "gb300") else 8.0
        links = combine(entry, fabric, "")
        group = GroupLinks(local * nodes, local, device.nominal, 50e9, 50e9)
        predicted = collectives.dispatch_time(token_bytes, top_k, experts, group, links)
        found[gpu, nodes] = np.abs(np.asarray(predicted) / time - 1)
    return found


def deepep_ratios() -> dict[tuple[int, str], float]:
    """Predicted over published time of DeepEP's own figures on H800 by nodes and pass; no constant saw them."""
    links = load_link_rates("h800-sxm-80g", "hopper", "nvlink", "infiniband")
    found = {}
    for nodes, width, time in link_tables.deepep_figures():
        group = GroupLinks(8.0 * nodes, 8.0, link_tables.H800_NOMINAL, 50e9, 50e9)
        chosen = (min(float(nodes), link_tables.DEEPEP_GROUPS), float(nodes))
        predicted = collectives.dispatch_time(
            link_tables.DEEPEP_TOKENS * width, link_tables.DEEPEP_TOP_K, link_tables.DEEPEP_EXPERTS, group, links,
            chosen, link_tables.DEEPEP_SHARE * collectives.DISPATCH_COPIES,
        )  # fmt: skip
        found[nodes, "dispatch" if width < 2 else "combine"] = float(predicted) / time
    return found


def along_the_ring(gather: dict[str, Any]) -> dict[str, Any]:
    """A send to the neighbour while all of a ring send to theirs: no faster than a ring of as many devices, whose
    slowest link (a host bridge) sets its rate, nor than two devices alone."""
    alone = P2P["pcie"]
    fraction = tuple(min(reached, *alone["fraction"]) for reached in gather["fraction"])
    return {**alone, "ranks": gather["ranks"], "fraction": fraction, "ramp": alone["ramp"] * len(fraction)}


def scale_up_entry(rows: list[Row], gpu: str) -> ScaleUpEntry:
    """The fitted entry of one accelerator."""
    device = DEVICES[gpu]
    operations: dict[str, Any] = {}
    for operation in TIMES:
        base, hop, curves = fit_operation(rows, gpu, operation)
        if device.kind == "pcie":
            curves = fill_along_bridge(curves)
        for kin in device.kin:
            curves = fill_from_kin(curves, fit_operation(rows, kin, operation)[2])
        operations[operation] = _operation_fields(base, hop, curves)
    # without rows, a dispatch is an all-to-all
    operations["dispatch"] = fit_dispatch(gpu) or operations["all_to_all"]
    operations["p2p"] = P2P[device.kind]
    if device.kind == "pcie":
        operations["p2p"] = along_the_ring(operations["all_gather"])
    if device.outlier:
        operations["outlier"] = True
    return ScaleUpEntry(
        accelerator=device.name,
        architecture=device.architecture,
        kind=device.kind,
        switch_floor=SWITCH_FLOOR if device.architecture in ("hopper", "blackwell") else math.inf,
        source=SOURCE,
        measured=True,
        **operations,
    )


SOURCE: Final = (
    "nccl-tests figures: ai-dynamo/aiconfigurator@095f58a (Apache-2.0), stas00/ml-engineering@744d01e, "
    "NVIDIA/dgxc-benchmarking@841f546"
)
# NVLS: 25 us on top of a launch of 8.4 us (NVIDIA/nccl@5067397 src/graph/tuning.cc)
SWITCH_FLOOR: Final = 33.4e-6
P2P: Final[dict[str, dict[str, Any]]] = {
    # microsoft/vidur@7d47513, send_recv on h100_dgx: 5 us at 2 KiB, 10 us at 1 MiB, 348 GB/s at 64 MiB
    "nvlink": {"base": 5e-6, "hop": 0.0, "ranks": (2.0,), "fraction": (0.8,), "ramp": (0.2e-6,)},
    # unverified: bandwidth of two devices in the same table
    "pcie": {"base": 6e-6, "hop": 0.0, "ranks": (2.0,), "fraction": (0.65,), "ramp": (2e-6,)},
}


def predict(rates: LinkRates, operation: str, sizes: Any, ranks: float, nodes: float, gpu: str) -> Any:
    """Predicted times [s] of one combination."""
    fabric = FABRICS.get(gpu, 50e9)
    group = GroupLinks(ranks, ranks / nodes, DEVICES[gpu].nominal, fabric, fabric)
    return TIMES[operation](sizes, group, rates)


def fit_file(rows: list[Row]) -> LinksFile:
    """All entries; the first of a kind is the stand-in for links that have none of their own."""
    return LinksFile(scale_up=tuple(scale_up_entry(rows, gpu) for gpu in DEVICES))


@functools.cache
def efa_of(gpu: str) -> FabricEntry:
    """EFA as it serves one accelerator: the fabric of all rows of several nodes."""
    entries = [entry for entry in read_links_file(PUBLISHED_FILE).fabric if entry.kind == "efa"]
    return fabric_of(entries, DEVICES[gpu].name, DEVICES[gpu].architecture)


def held_out_errors(rows: list[Row]) -> dict[tuple[bool, str, str], list[float]]:
    """|predicted / measured - 1| of each (gpu, ranks, nodes) left out; by nodes, operation, size class.

    No constant of the fabric sees a row, so that of several nodes every machine is left out.
    """
    errors: dict[tuple[bool, str, str], list[float]] = defaultdict(list)
    for gpu, ranks, nodes in sorted({(row[0], row[2], row[3]) for row in rows}):
        rest = [row for row in rows if (row[0], row[2], row[3]) != (gpu, ranks, nodes)]
        rates = combine(scale_up_entry(rest, gpu), efa_of(gpu), "")
        collect(errors, [row for row in rows if (row[0], row[2], row[3]) == (gpu, ranks, nodes)], rates)
    return errors


def stand_in_errors(gpu: str) -> list[list[float]]:
    """The same by what a question gets that names a device whose own host is an outlier, by operation."""
    device, errors = DEVICES[gpu], defaultdict[tuple[bool, str, str], list[float]](list)
    rates = load_link_rates(device.name, device.architecture, device.kind, "infiniband")
    collect(errors, [row for row in read_rows() if row[0] == gpu], rates)
    return [errors[False, f"{operation} {gpu}", "all"] for operation in TIMES]


def single_call_errors() -> dict[tuple[bool, str, str], list[float]]:
    """The same of calls timed one at a time, by the shipped file."""
    return fitted_errors(read_rows(single_calls=True), read_links_file(LINKS_FILE))


def fitted_errors(rows: list[Row], file: LinksFile) -> dict[tuple[bool, str, str], list[float]]:
    """The same for the shipped file, on the rows it was fitted to."""
    errors: dict[tuple[bool, str, str], list[float]] = defaultdict(list)
    for gpu, device in DEVICES.items():
        entry = next(entry for entry in file.scale_up if entry.accelerator == device.name)
        collect(errors, [row for row in rows if row[0] == gpu], combine(entry, efa_of(gpu), ""))
    return errors


def collect(errors: dict[tuple[bool, str, str], list[float]], rows: list[Row], rates: LinkRates) -> None:
    """Add each row's relative error to its class."""
    for gpu, operation, ranks, nodes, size, time in rows:
        predicted = predict(rates, operation, size, float(ranks), float(nodes), gpu)
        size_class = next(name for name, limit in SIZE_CLASSES if size <= limit)
        errors[nodes > 1, operation, size_class].append(abs(predicted / time - 1))
        errors[nodes > 1, operation + " " + gpu, "all"].append(abs(predicted / time - 1))
        errors[nodes > 1, "all", size_class].append(abs(predicted / time - 1))


def print_errors(title: str, errors: dict[tuple[bool, str, str], list[float]]) -> None:
    """Median and 90th percentile per operation and size class."""
    print(f"\n{title}\n{'nodes':9} {'operation':32} {'size':10} {'rows':>5} {'median':>7} {'p90':>7}")
    order = [name for name, _ in SIZE_CLASSES] + ["all"]
    for many, operation, size_class in sorted(errors, key=lambda key: (key[0], key[1], order.index(key[2]))):
        values = np.array(errors[many, operation, size_class])
        print(
            f"{'several' if many else 'one':9} {operation:32} {size_class:10} {len(values):5d} "
            f"{np.median(values):7.1%} {np.quantile(values, 0.9):7.1%}"
        )


def rounded(value: Any) -> Any:
    """Four significant digits, lists for tuples: the figures are no better."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, tuple | list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


def main() -> None:
    """Fit, report, and write on demand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write planner/catalog/links.yaml")
    arguments = parser.parse_args()
    rows = read_rows()
    file = fit_file(rows)
    print_errors("fitted", fitted_errors(rows, file))
    print("\nexpert dispatch and combine of the shipped file: accelerator, nodes, rows, median, p90")
    for (gpu, nodes), error in dispatch_errors().items():
        print(f"{gpu:14} {nodes:5d} {len(error):5d} {np.median(error):7.1%} {np.quantile(error, 0.9):7.1%}")
    print_errors("each (accelerator, ranks, nodes) left out in turn", held_out_errors(rows))
    if arguments.write:
        header = "# Derived by `python -m benchmarks.fit_links --write`; seconds, fractions of bandwidth.\n"
        data = rounded(file.model_dump(exclude_unset=True))
        LINKS_FILE.write_text(header + yaml.safe_dump(data, sort_keys=False, width=110), encoding="utf-8")


if __name__ == "__main__":
    main()

"""NCCL's algorithms and protocols between nodes: latencies by hand, choices, and timings that fitted nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import link_tables
from planner.catalog.load_links import LINKS_FILE, PUBLISHED_FILE, combine, load_link_rates, read_links_file
from planner.cost.network import collectives
from planner.cost.network.protocols import Crossing, pat_time, ring_time, switch_tree_time, tree_time
from planner.cost.network.traffic import GroupLinks, group_links
from planner.spec.machine.links import FabricRates
from planner.spec.machine.load_cluster import load_cluster

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
INFINIBAND = load_link_rates("h100-sxm-80g", "hopper", "nvlink", "infiniband").fabric
P5 = load_link_rates("h100-sxm-80g", "hopper", "nvlink", "efa").fabric
P4DE = load_link_rates("a100-sxm-80g", "ampere", "nvlink", "efa").fabric


def two_nodes(fabric: FabricRates, local: float = 8.0) -> Crossing:
    """8 cards of 48 GB/s a node and 360 GB/s inside it."""
    return Crossing(2.0, local, 384e9, 360e9 if local > 1 else np.inf, fabric)


def test_an_empty_message_takes_nccl_s_latencies() -> None:
    at = two_nodes(INFINIBAND)
    # ring LL of 16 ranks: 2 crossings of 2.7 us; a tree's one level up and down: 2 x 5.0 us
    assert ring_time(0.0, 10e-6, 2.0, at) == pytest.approx(15.4e-6)
    assert ring_time(0.0, 10e-6, 1.0, at) == pytest.approx(12.7e-6)
    assert tree_time(0.0, 10e-6, at) == pytest.approx(20e-6)
    # one rank a node: a ring's crossing costs a tree's
    assert ring_time(0.0, 10e-6, 1.0, two_nodes(INFINIBAND, 1.0)) == pytest.approx(15e-6)
    # p5: 20 us more each
    assert tree_time(0.0, 10e-6, two_nodes(P5)) == pytest.approx(60e-6)
    # p4de: Simple alone, whose crossing takes 14 + 2 x 20 us, its launch 1.8 and each of 14 steps 3.4 us more
    assert tree_time(0.0, 10e-6, two_nodes(P4DE)) == pytest.approx(10e-6 + 108e-6 + 1.8e-6 + 47.6e-6)
    # NVLSTree: 2 x (20.9 + 20 us, 41 of rendezvous); PAT: 8 + 14 / 3.5 + 2.8 x 2 us
    assert switch_tree_time(0.0, 33.4e-6, 0.0, two_nodes(P5)) == pytest.approx(197.2e-6)
    assert pat_time(0.0, two_nodes(INFINIBAND, 1.0)) == pytest.approx(17.6e-6)


def test_a_slower_fabric_stretches_every_crossing() -> None:
    slow = replace(P5, latency_factor=3.0)
    assert tree_time(0.0, 10e-6, two_nodes(slow)) == pytest.approx(160e-6)
    rates = load_link_rates("h100-sxm-80g", "hopper", "nvlink", "efa")
    eight_nodes = GroupLinks(64, 8, 450e9, 50e9, 50e9)
    empty = [
        float(collectives.all_gather_time(8.0, eight_nodes, replace(rates, fabric=fabric)))
        for fabric in (P5, slow)
    ]
    assert empty[1] - empty[0] == pytest.approx(2 * 7 * 22.7e-6)


def test_an_endless_message_takes_the_share_of_the_best_protocol() -> None:
    at, size = two_nodes(INFINIBAND), 1e15
    # ring Simple: 2 x 15/16 of it at 360 GB/s; tree: 2 x at 0.92 of 360; NVLSTree: 2 x 15/16 at 2 x 384 GB/s
    assert ring_time(15 / 8 * size, 0.0, 2.0, at) == pytest.approx(15 / 8 * size / 360e9, rel=1e-6)
    assert tree_time(size, 0.0, at) == pytest.approx(2 * size / 0.92 / 360e9, rel=1e-6)
    assert switch_tree_time(size, 0.0, 0.0, at) == pytest.approx(15 / 8 * size / 768e9, rel=1e-6)
    more = replace(at, nodes=4.0)
    assert switch_tree_time(size, 0.0, 0.0, more) == pytest.approx(31 / 16 * size / 384e9, rel=1e-6)


def test_the_last_chunk_of_a_switch_tree_is_late_by_five_chunks() -> None:
    # 1 GiB on p5: chunks of 512 KiB would be 16 of each channel and head, so they are cut to 256 KiB: 32 MiB at once
    late = switch_tree_time(GIB, 0.0, 0.0, two_nodes(P5)) - switch_tree_time(0.0, 0.0, 0.0, two_nodes(P5))
    assert late == pytest.approx(15 / 8 * GIB / 768e9 + 5 * 32 * MIB / 384e9)
    assert np.isinf(switch_tree_time(GIB, 0.0, 0.0, two_nodes(P5, 2.0)))


def test_low_latency_protocols_need_ordered_bytes() -> None:
    ordered = replace(P4DE, ordered=True)
    small, large = 8 * KIB, 8 * GIB
    for size, share in ((small, 0.6), (large, 0.999)):
        times = [float(tree_time(size, 0.0, two_nodes(fabric))) for fabric in (ordered, P4DE)]
        assert (times[0] < share * times[1]) == (size == small)
        assert times[0] <= times[1]


def test_ranks_that_meet_over_pcie_have_no_ll128() -> None:
    size = np.concatenate([[0.0], np.geomspace(KIB, GIB, 41), [64 * GIB]])
    for local in (8.0, 1.0):
        nvlink = two_nodes(INFINIBAND, local)
        slower = [
            time(size, 10e-6, *passes, replace(nvlink, nvlink=False)) / time(size, 10e-6, *passes, nvlink)
            for time, passes in ((ring_time, (1.0,)), (tree_time, ()))
        ]
        for ratio in slower:
            assert (ratio[[0, -1]] == 1.0).all()  # LL and Simple are as fast as ever
            assert (ratio >= 1.0).all()
            assert (ratio.max() > 1.1) == (local > 1)
    assert not load_link_rates("l40s", "ada", "pcie", "infiniband").nvlink
    assert load_link_rates("mi300x", "cdna3", "xgmi", "roce").nvlink


def test_timings_of_several_nodes_follow_without_a_fit() -> None:
    """2 x p4de, 2 x p5, 16 x p5en and the long messages of 4 x p6-b200."""
    errors: dict[int, list[float]] = {}
    limits = (64 * KIB, MIB, 16 * MIB, 128 * MIB, np.inf)
    for gpu, operation, ranks, nodes, size, time in link_tables.read_rows():
        if nodes > 1:
            assert operation == "all_reduce"
            device = link_tables.DEVICES[gpu]
            rates = load_link_rates(device.name, device.architecture, "nvlink", "efa")
            fabric = link_tables.FABRICS[gpu]
            group = GroupLinks(ranks, ranks / nodes, device.nominal, fabric, fabric)
            predicted = float(collectives.all_reduce_time(size, group, rates))
            errors.setdefault(int(np.searchsorted(limits, size)), []).append(abs(predicted / time - 1))
    medians = [float(np.median(errors[at])) for at in range(5)]
    assert sum(map(len, errors.values())) == 73
    assert max(medians) < 0.20
    assert medians[0] < 0.12
    assert medians[4] < 0.06


def test_slow_links_inside_nodes_hold_up_every_operation_as_they_do_alone() -> None:
    # 8 ranks of one PCIe host of L40S reach less than the cards carry, each operation its own share
    entry = next(entry for entry in read_links_file(LINKS_FILE).scale_up if entry.outlier)
    rates = combine(entry, read_links_file(PUBLISHED_FILE).fabric[0], "")
    group = GroupLinks(64.0, 8.0, 31e9, 12.5e9, 12.5e9)
    for time, operation in (
        (collectives.all_gather_time, rates.all_gather),
        (collectives.reduce_scatter_time, rates.reduce_scatter),
    ):
        seconds = float(time(10 * GIB, group, rates))
        assert seconds == pytest.approx(10 * GIB * 63 / 64 / (31e9 * operation.fraction[-1]), rel=0.03)
    whole = float(collectives.all_reduce_time(10 * GIB, group, rates))
    bus = 31e9 * rates.all_reduce.fraction[-1]
    assert whole <= 1.03 * 10 * GIB * 2 * 63 / 64 / bus


@pytest.mark.parametrize(
    ("nodes", "operation", "size", "reached"),
    [
        (2, "all_to_all", 256, 79.21), (4, "all_to_all", 64, 44.53), (16, "all_to_all", 64, 26.29),
        (32, "all_to_all", 32, 19.79), (32, "all_to_all", 1024, 38.83),
        (4, "all_gather", 256, 261.53), (16, "all_gather", 64, 47.36), (32, "all_gather", 32, 12.43),
        (8, "all_reduce", 128, 79.40), (16, "all_reduce", 512, 112.78), (32, "all_reduce", 8192, 161.18),
    ],
)  # fmt: skip
def test_timings_of_2_to_32_p5(nodes: int, operation: str, size: int, reached: float) -> None:
    """Size in MiB over time in GB/s: crazyguitar/aws-gpu-communication-benchmark@fd167f9 data. All-to-alls set the
    filling of a message, all-gathers and all-reduces nothing."""
    cluster = load_cluster(f"{nodes}x8 h100 400G-efa", None)
    rates = load_link_rates("h100-sxm-80g", "hopper", "nvlink", "efa")
    group = group_links(1.0, 8.0 * nodes, cluster)
    time = float(getattr(collectives, f"{operation}_time")(size * MIB, group, rates))
    assert size * MIB / time == pytest.approx(reached * 1e9, rel={"all_to_all": 0.15}.get(operation, 0.35))


def test_each_host_of_a_generation_has_its_own_cards() -> None:
    p5, p5en, p6 = (
        load_link_rates(name, generation, "nvlink", "efa").fabric
        for name, generation in (("h100-sxm-80g", "hopper"), ("h200-sxm", "hopper"), ("b300", "blackwell"))
    )
    assert (p5.rendezvous, p5en.rendezvous, p6.rendezvous) == (41e-6, 0.0, 0.0)
    assert p5.message_ramp == p5en.message_ramp == p6.message_ramp > 0
    assert load_link_rates("h100-sxm-80g", "hopper", "nvlink", "infiniband").fabric.message_ramp == 0

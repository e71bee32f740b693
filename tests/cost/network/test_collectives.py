"""Collective times: ring figures by hand, limits, monotony, columns, and published timings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fit_links, link_tables
from planner.catalog.load_links import LINKS_FILE, PUBLISHED_FILE, combine, load_link_rates, read_links_file
from planner.cost.network import collectives
from planner.cost.network.collectives import CollectiveKind
from planner.cost.network.traffic import GroupLinks
from planner.errors import UnknownNameError
from planner.spec.machine.links import FabricRates, LinkRates, OperationRates

GIB, MIB = 2.0**30, 2.0**20
NVLINK, CARD = 450e9, 50e9
GROUP_TIMES = {
    "all_reduce": collectives.all_reduce_time,
    "all_gather": collectives.all_gather_time,
    "broadcast": collectives.broadcast_time,
    "reduce_scatter": collectives.reduce_scatter_time,
    "all_to_all": collectives.all_to_all_time,
}
H100 = load_link_rates("h100-sxm-80g", "hopper", "nvlink", "infiniband")
P5 = load_link_rates("h100-sxm-80g", "hopper", "nvlink", "efa")
MACHINES = {
    "h100": H100,
    "p5": P5,
    "p4de": load_link_rates("a100-sxm-80g", "ampere", "nvlink", "efa"),
    "gb200": load_link_rates("gb200", "blackwell", "nvlink", "infiniband"),
    "b200": load_link_rates("b200", "blackwell", "nvlink", "efa"),
    "a100-pcie": load_link_rates("a100-pcie-80g", "ampere", "pcie", "ethernet"),
    # a host of L40S that reaches far less than others
    "outlier": next(
        combine(entry, read_links_file(PUBLISHED_FILE).fabric[0], "")
        for entry in read_links_file(LINKS_FILE).scale_up
        if entry.outlier
    ),
    "rtx": load_link_rates("rtx-pro-6000-server", "blackwell", "pcie", "roce"),
    "mi300x": load_link_rates("mi300x", "cdna3", "xgmi", "roce"),
}


def group(ranks: Any, local: Any, scale_up: Any = NVLINK, fabric: Any = CARD) -> GroupLinks:
    return GroupLinks(ranks, local, scale_up, fabric, fabric)


def ideal_rates() -> LinkRates:
    """Links without latency that reach their nominal bandwidth."""
    operation = OperationRates(0.0, 0.0, (2.0,), (1.0,), (0.0,))
    fabric = FabricRates(0.0, False, True, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0)
    return LinkRates(*[operation] * 6, float("inf"), fabric, "", "", False, "")


IDEAL = ideal_rates()


def test_ring_within_a_domain_by_hand() -> None:
    # 8 ranks, 8 GB at 400 GB/s: 7/8 of it once is 17.5 ms, twice 35 ms
    assert collectives.all_gather_time(8e9, group(8, 8, 400e9), IDEAL) == pytest.approx(17.5e-3)
    assert collectives.reduce_scatter_time(8e9, group(8, 8, 400e9), IDEAL) == pytest.approx(17.5e-3)
    assert collectives.all_reduce_time(8e9, group(8, 8, 400e9), IDEAL) == pytest.approx(35e-3)
    assert collectives.all_to_all_time(8e9, group(8, 8, 400e9), IDEAL) == pytest.approx(17.5e-3)


def test_ring_across_nodes_is_bound_by_all_cards_of_a_node() -> None:
    # 32 ranks on 4 nodes: 31/32 of 8 TB over 8 cards of 50 GB/s = 400 GB/s, below the 450 of the link; NCCL's
    # latencies are 0.1 ms of it
    assert collectives.all_gather_time(8e12, group(32, 8, 450e9, 50e9), IDEAL) == pytest.approx(
        19.375, rel=1e-5
    )
    # with cards of 100 GB/s the scale-up link is the slower one
    assert collectives.all_gather_time(8e12, group(32, 8, 450e9, 100e9), IDEAL) == pytest.approx(
        31e3 / 4 / 450, rel=1e-5
    )
    # one device per node: ring over the cards, PAT being slower without latency
    assert collectives.all_gather_time(8e12, group(4, 1, 450e9, 50e9), IDEAL) == pytest.approx(120, rel=1e-5)


def test_tree_saves_half_the_crossings_between_two_nodes_only() -> None:
    # 2 nodes of 8: 8 TB / (8 x 10 GB/s) each way = 100 s at 0.92 of the bandwidth against a ring's 2 x 15/16 x 100 s
    assert collectives.all_reduce_time(8e12, group(16, 8, 450e9, 10e9), IDEAL) == pytest.approx(
        100 / 0.92, rel=1e-5
    )
    assert collectives.all_reduce_time(8e12, group(32, 8, 450e9, 10e9), IDEAL) == pytest.approx(
        200 * 31 / 32, rel=1e-5
    )


def test_a_broadcast_takes_every_step_for_one_between_nodes() -> None:
    assert collectives.broadcast_time(GIB, group(8, 8), H100) == collectives.all_gather_time(
        GIB, group(8, 8), H100
    )
    # NCCL's 4 us a step in LL128, 7.4 us to start, whatever lies inside nodes; 64 MB at 0.92 of 8 cards of 50 GB/s
    seconds = collectives.broadcast_time(64e6, group(1024, 8), IDEAL)
    assert seconds == pytest.approx(1023 * 4e-6 + 7.4e-6 + 64e6 / (0.92 * 400e9), rel=1e-6)


def test_all_to_all_shares_by_hand() -> None:
    # 16 ranks, 2 nodes, 1.6 GB each: 0.8 GB over the card, 0.7 GB over the link; NCCL's crossing takes 14 us
    hop = 14e-6
    assert collectives.all_to_all_time(1.6e9, group(16, 8, 400e9, 40e9), IDEAL) == pytest.approx(hop + 20e-3)
    assert collectives.all_to_all_time(1.6e9, group(16, 8, 10e9, 40e9), IDEAL) == pytest.approx(hop + 70e-3)


def test_dispatch_sends_each_token_once_per_node() -> None:
    # 2 nodes of 8, 1 expert per token: half of 1.6 GB crosses at 40 GB/s
    exchange = collectives.DISPATCH_BASE + collectives.DISPATCH_LEVEL
    where = (group(16, 8, 400e9, 40e9), IDEAL)
    assert collectives.dispatch_time(1.6e9, 1, 64, *where) == pytest.approx(exchange + 20e-3)
    # one copy into the buffer of its node's card and one to its rank: 3.2 GB by slow multiprocessors
    slow = collectives.dispatch_time(1.6e9, 1, 64, *where, copies=100e9)
    assert slow == pytest.approx(exchange + 32e-3)
    # one node, all 8 ranks hit: 7 copies over the link, none for a card
    assert collectives.dispatch_time(1e9, 8, 8, group(8, 8, 700e9, 40e9), IDEAL, copies=1e9) == pytest.approx(
        10e-3
    )
    one_node = collectives.dispatch_time(1e9, 8, 256, group(np.array([1, 8]), np.array([1, 8])), H100)
    assert np.asarray(one_node)[0] == 0.0 < np.asarray(one_node)[1]
    # DeepEP, 20 multiprocessors, 4096 tokens of 7168 fp8 with scales: 491 us on one H100 node, 1860 us on four
    tokens = 4096 * 7168 * (1 + 4 / 128)
    for nodes, measured, band in ((1, 491e-6, 0.15), (2, 893e-6, 0.2), (4, 1860e-6, 0.15)):
        time = collectives.dispatch_time(tokens, 8, 256, group(8 * nodes, 8), H100)
        assert time == pytest.approx(measured, rel=band)


def test_deepep_s_own_figures_follow_on_one_to_eight_nodes() -> None:
    ratios = fit_links.deepep_ratios()
    assert sorted(ratios) == [(nodes, what) for nodes in (1, 2, 4, 8) for what in ("combine", "dispatch")]
    assert all(abs(ratio - 1) < 0.15 for ratio in ratios.values()), ratios


def test_moved_bytes() -> None:
    assert collectives.moved_bytes(CollectiveKind.ALL_REDUCE, 800.0, 8) == 1400.0
    assert collectives.moved_bytes(CollectiveKind.ALL_GATHER, 800.0, 8) == 700.0
    assert collectives.moved_bytes(CollectiveKind.P2P, 800.0, 2) == 800.0
    assert collectives.moved_bytes(CollectiveKind.ALL_REDUCE, 800.0, 1) == 0.0


@pytest.mark.parametrize("parts", [1, 2, 3, 6, 12])
def test_remote_copies_of_chosen_groups_equals_enumeration(parts: int) -> None:
    """3 of 12 experts within every choice of 3 of 6 groups, experts dealt in turn, the token at home in part 0."""
    size, counted, number = 12 // parts, 0, 0
    for groups in itertools.combinations(range(6), 3):
        eligible = [expert for expert in range(12) if expert // 2 in groups]
        for choice in itertools.combinations(eligible, 3):
            counted += len({expert // size for expert in choice} - {0})
            number += 1
    assert collectives.remote_copies(3, parts, 12, (3, 6)) == pytest.approx(counted / number)


@pytest.mark.parametrize(
    ("parts", "shards", "chosen"), [(4, 2, (1, 1)), (4, 1, (1, 1)), (12, 4, (3, 6)), (3, 3, (1, 1))]
)
def test_copies_of_cut_experts_equal_enumeration(
    parts: int, shards: int, chosen: tuple[float, float]
) -> None:
    """3 of 12 experts, each cut over `shards` of the parts, the token at home in part 0."""
    size, counted, number = 12 // (parts // shards), 0, 0
    for groups in itertools.combinations(range(int(chosen[1])), int(chosen[0])):
        eligible = [expert for expert in range(12) if expert * chosen[1] // 12 in groups]
        for choice in itertools.combinations(eligible, 3):
            hit = {expert // size * shards + shard for expert in choice for shard in range(shards)}
            counted += len(hit - {0})
            number += 1
    assert collectives.remote_copies(3, parts, 12, chosen, shards) == pytest.approx(counted / number)


def test_dispatch_to_cut_experts() -> None:
    """Ranks share an expert within nodes: the nodes reached stay, the ranks reached are all that share it. Across
    nodes a token goes to all nodes of an expert."""
    exchange = collectives.DISPATCH_BASE + collectives.DISPATCH_LEVEL
    where = (group(16, 8, 400e9, 40e9), IDEAL)
    # slow multiprocessors: a copy for its node's card, and one for each of 2 ranks
    slow = collectives.dispatch_time(1.6e9, 1, 64, *where, copies=100e9, shards=2.0)
    assert slow == pytest.approx(exchange + 48e-3)
    # one expert over both nodes: every token crosses
    fast = (group(16, 8, 4e12, 40e9), IDEAL)
    across = collectives.dispatch_time(1.6e9, 1, 64, *fast, copies=np.inf, shards=16.0)
    assert across == pytest.approx(exchange + 40e-3)


def test_remote_copies_equals_enumeration() -> None:
    """Every choice of k of 8 experts in 4 groups of 2, home group 0."""
    for top_k in range(1, 6):
        choices = list(itertools.combinations(range(8), top_k))
        counted = sum(len({expert // 2 for expert in choice} - {0}) for choice in choices) / len(choices)
        assert collectives.remote_copies(top_k, 4, 8) == pytest.approx(counted)
    assert collectives.remote_copies(1, 4) == pytest.approx(0.75)
    assert collectives.remote_copies(8, 1) == 0.0
    limited = collectives.remote_copies(8, 8, 256, (4, 8))
    assert limited < 3.5 < collectives.remote_copies(8, 8, 256)
    assert collectives.remote_copies(8, 4, 8) == pytest.approx(3.0)  # every expert chosen
    column = collectives.remote_copies(np.array([2.0, 8.0]), np.array([4.0, 16.0]), 64)
    assert column == pytest.approx(
        [collectives.remote_copies(2, 4, 64), collectives.remote_copies(8, 16, 64)]
    )


@pytest.mark.parametrize("name", GROUP_TIMES)
def test_a_group_of_one_is_free(name: str) -> None:
    assert GROUP_TIMES[name](GIB, group(1, 1), P5) == 0.0


@pytest.mark.parametrize("name", GROUP_TIMES)
def test_only_the_links_in_use_count(name: str) -> None:
    time = GROUP_TIMES[name]
    assert time(GIB, group(8, 8), P5) == time(GIB, group(8, 8, NVLINK, CARD / 10), H100)
    assert time(GIB, group(8, 1), P5) == time(GIB, group(8, 1, NVLINK / 10), P5)
    assert time(GIB, group(16, 8), P5) > time(GIB, group(16, 16), P5)


@pytest.mark.parametrize("machine", ["a100-pcie", "outlier", "rtx"])
def test_neighbours_on_pcie_are_no_faster_than_their_ring(machine: str) -> None:
    rates, n = MACHINES[machine], np.array([2.0, 4.0, 8.0])
    ring = collectives.all_gather_time(GIB * n / (n - 1), group(n, n, 32e9), rates)
    send = collectives.p2p_time(GIB, False, 32e9, CARD, rates, n)
    assert (np.asarray(send) > 0.99 * np.asarray(ring)).all()
    assert collectives.p2p_time(GIB, False, NVLINK, CARD, H100, 8.0) == collectives.p2p_time(
        GIB, False, NVLINK, CARD, H100
    )


@pytest.mark.parametrize("name", GROUP_TIMES)
def test_a_link_that_is_absent_is_not_asked(name: str) -> None:
    time = GROUP_TIMES[name]
    assert time(GIB, group(8, 8, NVLINK, 0.0), P5) == time(GIB, group(8, 8), P5)
    assert time(GIB, group(8, 1, 0.0), P5) == time(GIB, group(8, 1), P5)
    assert collectives.p2p_time(GIB, False, NVLINK, 0.0, P5) > 0.0
    column = time(GIB, group(np.array([8.0, 1.0]), np.array([8.0, 1.0]), NVLINK, np.zeros(2)), P5)
    assert np.isfinite(column).all()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", GROUP_TIMES)
def test_more_bytes_or_less_bandwidth_is_never_faster(name: str, machine: str) -> None:
    time, rates = GROUP_TIMES[name], MACHINES[machine]
    sizes = np.geomspace(8, 64 * GIB, 200)
    for ranks, local in ((2, 2), (8, 8), (16, 8), (64, 8), (8, 1), (1024, 4), (72, 72)):
        assert (np.diff(np.asarray(time(sizes, group(ranks, local), rates))) >= 0).all()
        for size in (1e4, 1e7, 1e9):
            faster = np.geomspace(1e9, 1e12, 50)
            assert (np.diff(np.asarray(time(size, group(ranks, local, faster), rates))) <= 0).all()
            assert (np.diff(np.asarray(time(size, group(ranks, local, NVLINK, faster), rates))) <= 0).all()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_more_ranks_are_never_faster_for_a_fixed_shard(name: str, machine: str) -> None:
    time, rates = GROUP_TIMES[name], MACHINES[machine]
    within = np.arange(1.0, 73.0)
    nodes = np.arange(1.0, 257.0)
    for shard in (1e3, 1e5, 1e7, 1e9):
        inside = np.asarray(time(shard * within, group(within, within), rates))
        assert (np.diff(inside) >= -1e-12 * inside[1:]).all()
        for local in (1.0, 4.0, 8.0):
            across = np.asarray(time(shard * nodes * local, group(nodes * local, local), rates))
            assert (np.diff(across) >= -1e-12 * across[1:]).all()


@pytest.mark.parametrize("machine", MACHINES)
def test_an_all_to_all_over_more_nodes_is_never_faster(machine: str) -> None:
    nodes = np.arange(1.0, 257.0)
    local = np.full(256, 8.0)
    # per pair; and per send buffer where leaving the node does not relieve a slower scale-up link (PCIe)
    sizes = [shard * nodes * 8 for shard in (1e3, 1e6, 1e8)]
    if machine in ("h100", "p5", "p4de", "gb200", "b200"):
        sizes += [np.full(256, size) for size in (1e4, 1e7, 1e9)]
    for size in sizes:
        times = collectives.all_to_all_time(size, group(nodes * 8, local), MACHINES[machine])
        assert (np.diff(np.asarray(times)) >= 0).all()


@given(
    st.lists(
        st.tuples(
            st.floats(1, 1e11),
            st.sampled_from([(1, 1), (2, 1), (2, 2), (8, 8), (16, 8), (24, 4), (72, 72), (4096, 8)]),
            st.floats(1e9, 1e12),
            st.floats(1e9, 1e11),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(sorted(GROUP_TIMES)),
)
def test_a_row_alone_equals_the_row_in_a_column(rows: list[Any], name: str) -> None:
    time: Callable[..., Any] = GROUP_TIMES[name]
    size, groups, intra, inter = (list(column) for column in zip(*rows, strict=True))
    ranks, local = np.array(groups, dtype=float).T
    column = time(np.array(size), group(ranks, local, np.array(intra), np.array(inter)), P5)
    alone = [time(s, group(r, n, a, b), P5) for s, (r, n), a, b in rows]
    assert all(isinstance(value, float) for value in alone)
    assert column.tolist() == pytest.approx(alone, rel=1e-12, abs=0.0)


def test_p2p_takes_the_link_it_crosses() -> None:
    # vidur, h100_dgx, send and receive of 64 MiB: 193 us inside, 1871 us across
    times = collectives.p2p_time(64 * MIB, np.array([False, True]), NVLINK, CARD, H100)
    assert times == pytest.approx([193e-6, 1871e-6], rel=0.06)
    assert collectives.p2p_time(64 * MIB, True, NVLINK, CARD, H100) == times[1]


@pytest.mark.parametrize(
    ("machine", "name", "size", "ranks", "measured", "band"),
    [
        ("h100", "all_reduce", 8 * GIB, 8, 31.48e-3, 0.03),  # nccl-tests, median of sources
        ("h100", "all_reduce", 16 * MIB, 8, 122.3e-6, 0.15),
        ("h100", "all_gather", 512 * MIB, 8, 1401.5e-6, 0.05),
        ("h100", "reduce_scatter", 128 * MIB, 8, 381.2e-6, 0.05),
        ("h100", "all_gather", 8192.0, 8, 11.8e-6, 0.15),
        ("h100", "all_gather", 512 * MIB, 2, 1040e-6, 0.05),
        ("p5", "all_reduce", 512 * MIB, 16, 2.56e-3, 0.25),  # two sources, 20 % on either side of it
        ("p5", "all_reduce", 16 * GIB, 16, 66.1e-3, 0.06),
        ("p5", "all_reduce", 16 * GIB, 128, 92.2e-3, 0.06),  # 16 nodes p5en
        ("p5", "all_reduce", 8192.0, 16, 81.4e-6, 0.35),
    ],
)
def test_published_timings(
    machine: str, name: str, size: float, ranks: int, measured: float, band: float
) -> None:
    predicted = GROUP_TIMES[name](size, group(ranks, 8 if ranks >= 8 else ranks), MACHINES[machine])
    assert predicted == pytest.approx(measured, rel=band)


def test_efa_of_p4de_has_a_floor_of_160_us() -> None:
    time = collectives.all_reduce_time(1024.0, group(16, 8, 300e9, 6.25e9), MACHINES["p4de"])
    assert time == pytest.approx(165e-6, rel=0.15)


def test_kin_is_said() -> None:
    assert not H100.kin
    assert P5.measured
    assert not H100.measured  # no multi-node table on InfiniBand
    stand_in = load_link_rates("h800-sxm-80g", "hopper", "nvlink", "efa")
    assert stand_in.kin == "h100-sxm nvlink for h800-sxm-80g nvlink"
    assert not stand_in.measured
    assert "a100-pcie" in load_link_rates("h100-pcie-80g", "hopper", "pcie", "infiniband").kin
    assert load_link_rates("v100-sxm2-16g", "volta", "nvlink", "infiniband").switch_floor == float("inf")
    assert load_link_rates("h100-nvl-94g", "hopper", "nvlink", "infiniband").kin


def test_unknown_links_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="scale-up link"):
        load_link_rates("h100-sxm-80g", "hopper", "carrier pigeon", "efa")
    with pytest.raises(UnknownNameError, match="fabric"):
        load_link_rates("h100-sxm-80g", "hopper", "nvlink", "token ring")


def test_a_switch_bounds_the_latency_of_large_domains() -> None:
    gb200 = MACHINES["gb200"]
    assert collectives.all_reduce_time(8.0, group(72, 72, 900e9), gb200) < 40e-6
    unbounded = replace(gb200, switch_floor=float("inf"))
    assert collectives.all_reduce_time(8.0, group(72, 72, 900e9), unbounded) > 100e-6


@pytest.mark.parametrize(
    ("gpu", "name", "architecture", "nominal"),
    [
        ("h100_sxm_80g", "h100-sxm-80g", "hopper", 450e9),
        ("b200", "b200", "blackwell", 900e9),
        ("a100_sxm_80g", "a100-sxm-80g", "ampere", 300e9),
    ],
)
def test_shipped_rates_reproduce_the_tables(gpu: str, name: str, architecture: str, nominal: float) -> None:
    rates = load_link_rates(name, architecture, "nvlink", "efa")
    rows = [
        row
        for row in link_tables.read_table("collectives")
        if row["gpu"] == gpu and "aiconfigurator" in row["source"]
    ]
    assert len(rows) > 200
    errors = []
    for row in rows:
        time = GROUP_TIMES[{"alltoall": "all_to_all"}.get(row["op"], row["op"])]
        ranks = float(row["n_gpus"])
        predicted = time(float(row["size_bytes"]), group(ranks, ranks, nominal), rates)
        errors.append(abs(predicted / (float(row["latency_us"]) / 1e6) - 1))
    assert np.median(errors) < 0.06
    assert np.quantile(errors, 0.9) < 0.25

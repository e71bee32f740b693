"""Are the bandwidths of clusters nobody has measured physically sensible? From the cluster's description to the bus."""

from __future__ import annotations

import pytest

from planner.catalog.load_links import load_link_rates
from planner.cost.network import collectives
from planner.cost.network.traffic import group_links, pipeline_links
from planner.spec.machine.build_cluster import assemble_cluster
from planner.spec.machine.cluster import Cluster, LinkKind
from planner.spec.machine.links import LinkRates
from planner.spec.machine.load_cluster import load_accelerator, load_cluster
from tests.problems import cluster

GB, GIB, MIB = 1e9, 2.0**30, 2.0**20
FOUR = cluster("4x8 h100 400G-ib")


def rates_of(of: Cluster) -> LinkRates:
    chip, fabric = of.accelerator, of.tiers[-1].kind.value if len(of.tiers) > 1 else "none"
    return load_link_rates(chip.name, chip.architecture.value, of.tiers[0].kind.value, fabric)


def bus(of: Cluster, operation: str, ranks: int, size: float = 8 * GIB, stride: int = 1) -> float:
    """Bus bandwidth of one group, every other group of the axis talking too [bytes/s]."""
    links = group_links(float(stride), float(ranks), of)
    time = getattr(collectives, f"{operation}_time")(size, links, rates_of(of))
    kind = collectives.CollectiveKind(operation)
    return float(collectives.moved_bytes(kind, size, ranks)) / float(time)


def one_card_per_node() -> Cluster:
    """4 nodes of 8 H100 with one 100 Gbit/s card each."""
    return assemble_cluster(load_accelerator("h100-sxm-80g"), 32, 8, 8, LinkKind.INFINIBAND, 12.5 * GB)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_eight_cards_of_400_gbit_carry_most_of_400_gb_per_second(operation: str) -> None:
    assert 330 * GB < bus(FOUR, operation, 32) < 400 * GB
    assert bus(FOUR, operation, 32, MIB) < 60 * GB  # latency


def test_a_group_with_one_rank_per_node_has_one_card() -> None:
    # data parallelism around tp 8: eight such groups at once, each on the card of its rank
    assert 42 * GB < bus(FOUR, "all_reduce", 4, stride=8) < 50 * GB
    # four groups of two ranks per node share the cards two by two
    assert 84 * GB < bus(FOUR, "all_reduce", 8, stride=4) < 100 * GB


def test_one_card_for_eight_devices_is_shared() -> None:
    shared = one_card_per_node()
    assert 9 * GB < bus(shared, "all_reduce", 32) < 12.5 * GB  # one ring of all leaves each node once
    assert 9 / 8 * GB < bus(shared, "all_reduce", 4, stride=8) < 12.5 / 8 * GB  # eight rings through one card
    # inside a node nothing changes
    assert bus(shared, "all_reduce", 8) == pytest.approx(bus(FOUR, "all_reduce", 8))


def test_a_lone_sender_has_the_whole_card() -> None:
    shared = one_card_per_node()
    alone, together = (float(pipeline_links(width, 4.0, shared).bandwidth[-1]) for width in (1.0, 8.0))
    assert alone == pytest.approx(12.5 * GB)
    assert together == pytest.approx(12.5 / 8 * GB)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_rack_of_72_never_asks_the_network(operation: str) -> None:
    rack = load_cluster("gb200-nvl72", 72)
    assert 0.55 * 900 * GB < bus(rack, operation, 72) < 1.2 * 900 * GB
    racks = load_cluster("gb200-nvl72", 288)
    assert bus(racks, operation, 72) == pytest.approx(bus(rack, operation, 72))
    # across racks a ring of all is bound by 72 cards of 400 Gbit/s or by the NVLink, whichever is slower
    assert bus(racks, operation, 288) < bus(racks, operation, 72)
    # one rank per rack: its own card
    assert 42 * GB < bus(racks, operation, 4, stride=72) < 50 * GB


def test_an_all_to_all_across_nodes_is_bound_by_a_device_s_card() -> None:
    where = (group_links(1.0, 32.0, FOUR), rates_of(FOUR))
    # of 4 GiB to send 24 / 32 cross at 50 GB/s
    assert (
        0.75 * 4 * GIB / (50 * GB) < collectives.all_to_all_time(4 * GIB, *where) < 1.3 * 3 * GIB / (50 * GB)
    )


def test_a_dispatch_sends_less_than_an_all_to_all_of_every_copy() -> None:
    where = (group_links(1.0, 32.0, FOUR), rates_of(FOUR))
    tokens = 4096 * 7168 * 2.0
    fused = collectives.dispatch_time(tokens, 8.0, 256.0, *where)
    assert 0.3 < fused / float(collectives.all_to_all_time(8 * tokens, *where)) < 0.7
    limited = collectives.dispatch_time(tokens, 8.0, 256.0, *where, chosen=(2.0, 4.0))
    assert limited < fused


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_more_of_a_network_is_never_slower(operation: str) -> None:
    slow, fast = cluster("8x8 h100 200G-ib"), cluster("8x8 h100 400G-ib")
    for ranks, stride in ((64, 1), (8, 8), (16, 4)):
        assert bus(slow, operation, ranks, stride=stride) < bus(fast, operation, ranks, stride=stride)
        small = [bus(fast, operation, ranks, size, stride) for size in (MIB, 16 * MIB, 256 * MIB, 4 * GIB)]
        assert small == sorted(small)


def test_latency_grows_with_nodes_as_the_algorithm_says() -> None:
    def floor(nodes: int, operation: str) -> float:
        of = cluster(f"{nodes}x8 h100 400G-ib")
        return float(collectives.moved_bytes(collectives.CollectiveKind(operation), 1024.0, nodes * 8)) / bus(
            of, operation, nodes * 8, 1024.0
        )

    # a tree: one level more per doubling; a ring: every node more
    assert floor(64, "all_reduce") - floor(32, "all_reduce") == pytest.approx(
        floor(32, "all_reduce") - floor(16, "all_reduce"), rel=0.05
    )
    assert floor(64, "all_gather") > 1.7 * floor(32, "all_gather")

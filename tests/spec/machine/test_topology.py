"""Tiers against fabrics worked out by hand, and against the flow through the graph."""

import itertools
from dataclasses import replace
from math import gcd

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report.words import texts
from planner.spec.machine.cluster import LinkKind
from planner.spec.machine.links import LinkFactors
from planner.spec.machine.load_cluster import load_accelerator, load_cluster
from planner.spec.machine.topology import (
    DEVICE,
    FabricTier,
    Wiring,
    derive_tiers,
    levels,
    said_of_host,
)

H100_NODES = Wiring(
    accelerator=load_accelerator("h100"),
    num_devices=1024,
    devices_per_node=8,
    scale_up_domain=8,
    scale_up_kind=LinkKind.NVLINK,
    scale_up_bandwidth=450e9,
    nics=8,
    nic_bandwidth=50e9,
    fabric=LinkKind.ROCE,
    tiers=(FabricTier("pod", 256), FabricTier("core", 1024, 4.0)),
)


def topology_graph(wiring: Wiring) -> "networkx.Graph[str]":
    """The fabric as a graph of levels, one vertex each (the fabric is symmetric, so one stands for all)."""
    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_node(DEVICE, size=1, count=wiring.num_devices, kind=None)
    for level in levels(wiring):
        graph.add_node(level.name, size=level.size, count=wiring.num_devices // level.size, kind=level.kind)
        total = (
            level.capacity * level.multiplicity * graph.nodes[level.below]["count"]
        )  # of all links of the level
        graph.add_edge(
            level.below, level.name, capacity=level.capacity, multiplicity=level.multiplicity, total=total
        )
    return graph


def test_p4d_shares_four_nics_between_eight_gpus() -> None:
    fabric = load_cluster("aws-p4d", 64).tiers[-1]
    assert fabric.bandwidth == pytest.approx(4 * 100e9 / 8 / 8)  # 6.25 GB/s
    assert fabric.bandwidth_alone == pytest.approx(12.5e9)  # the one NIC that two GPUs share


def test_p5_gives_four_nics_to_each_gpu() -> None:
    fabric = load_cluster("aws-p5", 64).tiers[-1]
    assert fabric.bandwidth == fabric.bandwidth_alone == pytest.approx(50e9)


def test_meta_24k_is_one_to_seven_above_3072() -> None:
    node, pod, core = load_cluster("meta-24k", None).tiers
    assert (node.size, pod.size, core.size) == (8, 3072, 24_576)
    assert pod.bandwidth == pytest.approx(50e9)
    assert core.bandwidth == pytest.approx(50e9 / 7)
    assert core.bandwidth_alone == pytest.approx(50e9)


def test_nvl72_spans_eighteen_nodes() -> None:
    rack, fabric = load_cluster("gb200-nvl72", 144).tiers
    assert (rack.kind, rack.size, rack.bandwidth) == (LinkKind.NVLINK, 72, 900e9)
    assert (fabric.size, fabric.bandwidth) == (144, 50e9)


def test_deepseek_has_narrow_nvlink_and_full_rails() -> None:
    node, fabric = load_cluster("deepseek-h800", None).tiers
    assert (node.bandwidth, fabric.bandwidth, fabric.size) == (200e9, 50e9, 2048)


def test_a_mesh_gives_a_pair_one_link() -> None:
    tier = load_cluster("mi300x", 8).tiers[0]
    assert (tier.bandwidth, tier.pair_bandwidth) == (448e9, 64e9)  # 7 links of 64 GB/s
    assert load_cluster("dgx-h100", 8).tiers[0].pair_bandwidth is None


def test_oversubscription_multiplies_outward() -> None:
    tiers = derive_tiers(
        replace(H100_NODES, tiers=(FabricTier("pod", 256, 2.0), FabricTier("core", 1024, 4.0)))
    )
    assert [t.bandwidth for t in tiers] == pytest.approx([450e9, 25e9, 6.25e9])
    # the trunk of a node or pod is wide enough for one device alone
    assert [t.bandwidth_alone for t in tiers] == pytest.approx([450e9, 50e9, 50e9])


def test_nics_behind_pcie_gen_3_are_limited_by_it() -> None:
    tiers = derive_tiers(replace(H100_NODES, accelerator=load_accelerator("v100")))
    assert tiers[1].bandwidth == pytest.approx(15.8e9)


def test_ports_on_the_chip_bypass_pcie() -> None:
    assert load_cluster("gaudi2", 16).tiers[-1].bandwidth == pytest.approx(37.5e9)  # 3 x 100 Gbit/s per chip


def test_graph_counts_vertices_and_links() -> None:
    graph = topology_graph(H100_NODES)
    assert graph.nodes[DEVICE]["count"] == 1024
    assert graph.nodes["scale-up"] == {"size": 8, "count": 128, "kind": LinkKind.NVLINK}
    assert graph.nodes["pod"]["count"] == 4
    assert graph.edges["nic", "pod"]["multiplicity"] == 1
    assert graph.edges["pod", "core"]["multiplicity"] == pytest.approx(256 / 4)  # of 400 Gbit/s each
    assert graph.edges["pod", "core"]["total"] == pytest.approx(1024 * 50e9 / 4)


@st.composite
def wirings(draw: st.DrawFn) -> Wiring:
    per_node = draw(st.sampled_from([1, 2, 4, 8, 16]))
    domain = draw(
        st.sampled_from([d for d in (1, 2, 4, 8, 16, 32) if max(d, per_node) % min(d, per_node) == 0])
    )
    size = max(per_node, domain)
    tiers = []
    for index in range(draw(st.integers(1, 3))):
        size *= draw(st.integers(2, 5))
        tiers.append(FabricTier(f"tier{index}", size, draw(st.floats(1, 20))))
    return replace(
        H100_NODES,
        num_devices=size,
        devices_per_node=per_node,
        scale_up_domain=domain,
        nics=draw(st.integers(1, 32)),
        nic_bandwidth=draw(st.floats(1e9, 100e9)),
        tiers=tuple(tiers),
    )


@given(wirings())
def test_tiers_are_the_flow_through_the_graph(wiring: Wiring) -> None:
    graph = topology_graph(wiring)
    for tier in derive_tiers(wiring):
        flow = networkx.maximum_flow_value(graph, DEVICE, tier.name, capacity="total")
        reach = wiring.num_devices * min(1e30, tier.bandwidth)
        # an edge out of the devices has as many links as there are devices
        assert flow == pytest.approx(reach, rel=1e-9)
        path = networkx.shortest_path(graph, DEVICE, tier.name)
        trunks = [
            graph.edges[e]["capacity"] * graph.edges[e]["multiplicity"] for e in itertools.pairwise(path)
        ]
        assert tier.bandwidth_alone == pytest.approx(min(trunks))


@given(wirings(), st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(wiring: Wiring, factor: float) -> None:
    wider = replace(wiring, nic_bandwidth=wiring.nic_bandwidth * factor)
    for before, after in zip(derive_tiers(wiring), derive_tiers(wider), strict=True):
        assert after.bandwidth >= before.bandwidth * (1 - 1e-12)
        assert after.bandwidth <= after.bandwidth_alone * (1 + 1e-12)


@given(wirings())
def test_the_fabric_never_widens_outward(wiring: Wiring) -> None:
    fabric = [t for t in derive_tiers(wiring) if t.kind == wiring.fabric]
    assert all(a.bandwidth >= b.bandwidth * (1 - 1e-12) for a, b in itertools.pairwise(fabric))
    assert gcd(*(t.size for t in fabric)) == fabric[0].size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1x8 l40s", True), ("4x8 rtx4090 100G-ib", True), ("1x4 a100-pcie-80g", True), ("1x2 l40s", False),
        ("4x1 l40s 100G-eth", False), ("1x8 h100", False), ("1x8 h100-nvl-94g", False), ("1x8 tpu-v5e", False),
    ],
)  # fmt: skip
def test_hosts_of_cards_on_pcie_alone_are_said_to_differ(text: str, said: bool) -> None:
    assert any("hosts differ" in line for line in texts(said_of_host(load_cluster(text, None)))) is said


def test_a_measured_host_is_not_assumed() -> None:
    cluster = load_cluster("1x8 l40s", None)
    assert said_of_host(replace(cluster, links=LinkFactors(scale_up_bandwidth=0.12))) == ()
    assert said_of_host(replace(cluster, links=LinkFactors(fabric_bandwidth=0.5)))

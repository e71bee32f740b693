"""Which links does a group use? Hand-worked groups on nodes of 8, in pods of 2,048 at 1:7, in domains of 72."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.cost.network.traffic import boundary_tier, group_links, least_inside, pipeline_links
from planner.spec.machine.build_cluster import assemble_cluster
from planner.spec.machine.load_cluster import load_accelerator, load_cluster
from tests.problems import cluster

SPECS = Path(__file__).parents[3] / "cluster_specs"
NIC = 50e9  # 400 Gbit/s
NODES = cluster("64x8 h100 400G-ib")


@pytest.mark.parametrize(
    ("stride", "size", "local"),
    [
        (1, 8, 8),  # tensor parallelism inside the node
        (1, 64, 8),  # data parallelism on consecutive ranks
        (2, 32, 4),
        (8, 64, 1),  # data parallelism around tp 8: one rank per node
        (16, 4, 1),
        (4, 2, 2),
        (1, 1, 1),
    ],
)
def test_ranks_inside_a_node(stride: float, size: float, local: float) -> None:
    assert float(group_links(stride, size, NODES).local) == local


def test_fabric_gives_every_device_its_own_nic() -> None:
    # 8 rings of one rank per node, or 1 ring of 8 per node: a device's share is its NIC
    for stride, size in ((8.0, 64.0), (1.0, 64.0), (4.0, 16.0)):
        assert float(group_links(stride, size, NODES).fabric) == NIC


def test_oversubscription_slows_groups_with_few_ranks_in_a_pod() -> None:
    pods = cluster("h100-sxm-roce")
    assert [tier.size for tier in pods.tiers] == [8, 3072, 24576]
    inside = group_links(8.0, 384.0, pods)  # 8 x 384 is one pod
    assert float(inside.fabric) == NIC
    # pipeline-like groups with one rank per pod get a seventh, with 2 per pod two sevenths, 7 and more all of it
    assert float(group_links(3072.0, 8.0, pods).fabric) == pytest.approx(NIC / 7)
    assert float(group_links(1536.0, 16.0, pods).fabric) == pytest.approx(2 * NIC / 7)
    assert float(group_links(384.0, 64.0, pods).fabric) == NIC


def test_nvl72_domain_holds_groups_of_up_to_72() -> None:
    racks = load_cluster("gb200-nvl72", 288)
    assert racks.tiers[0].size == 72
    assert float(group_links(1.0, 72.0, racks).local) == 72
    assert float(group_links(1.0, 64.0, racks).local) == 8  # ranks 64 to 127 lie in two racks, 8 and 56
    assert float(group_links(8.0, 18.0, racks).local) == 9
    assert float(group_links(8.0, 16.0, racks).local) == enumerated(8, 16, 72)
    assert float(group_links(72.0, 4.0, racks).local) == 1


def test_one_domain_has_no_fabric() -> None:
    node = cluster("1x8 h100")
    links = group_links(2.0, 4.0, node)
    assert (float(links.local), float(links.fabric)) == (4.0, 450e9)


def test_columns_equal_floats() -> None:
    stride, size = np.array([1.0, 8.0, 3072.0, 1536.0]), np.array([64.0, 64.0, 8.0, 16.0])
    pods = cluster("h100-sxm-roce")
    together = group_links(stride, size, pods)
    for i in range(4):
        alone = group_links(float(stride[i]), float(size[i]), pods)
        assert float(alone.local) == np.asarray(together.local)[i]
        assert float(alone.fabric) == np.asarray(together.fabric)[i]


@given(st.integers(0, 9), st.integers(0, 9))
def test_local_ranks_are_at_least_one_and_at_most_the_group(stride: int, size: int) -> None:
    local = float(group_links(2.0**stride, 2.0**size, NODES).local)
    assert 1 <= local <= 2**size
    assert local * 2**stride <= max(8, 2**stride)


def enumerated(stride: int, size: int, domain: int) -> int:
    """The fewest ranks of a group in a domain it touches, group by group."""
    fewest = size
    for block in range(domain):
        for offset in range(stride):
            ranks = block * stride * size + offset + stride * np.arange(size)
            fewest = min(fewest, int(np.unique(ranks // domain, return_counts=True)[1].min()))
    return fewest


@pytest.mark.parametrize("domain", [4, 6, 8, 18])
def test_the_worst_placed_group_counts(domain: int) -> None:
    for stride in (1, 2, 3, 4, 5, 8, 12, 20):
        for size in (1, 2, 3, 4, 6, 7, 8, 12, 16, 24):
            assert least_inside(stride, size, domain) == enumerated(stride, size, domain), (
                stride,
                size,
                domain,
            )


def test_groups_that_straddle_nodes_use_the_network() -> None:
    # three consecutive ranks on nodes of 8: ranks 6, 7 and 8 lie on two nodes
    links = group_links(1.0, 3.0, NODES)
    assert (float(links.local), float(links.fabric)) == (1, NIC)


def boundaries(width: int, stages: int) -> tuple[list[float], int]:
    links = pipeline_links(float(width), float(stages), NODES)
    return [float(count) for count in links.count], int(links.wrap)


def test_pipelines_that_span_nodes_send_over_the_network() -> None:
    assert boundaries(1, 8) == ([7, 0], 0)  # one node
    assert boundaries(4, 2) == ([1, 0], 0)
    assert boundaries(4, 4) == ([2, 1], 1)  # two stages a node
    assert boundaries(1, 16) == ([14, 1], 1)
    assert boundaries(3, 8) == ([5, 2], 1)  # 24 ranks on three nodes
    assert boundaries(8, 4) == ([0, 3], 1)
    assert [boundary_tier(stage, 4, NODES) for stage in range(3)] == [0, 1, 0]


def test_messages_to_another_pod_share_the_trunk() -> None:
    pods = cluster("h100-sxm-roce")
    trunk = pipeline_links(3072.0, 8.0, pods)
    assert [float(count) for count in trunk.count] == [0, 0, 7]
    assert float(trunk.bandwidth[2]) == pytest.approx(NIC / 7)
    # half of a pod sends: twice the share each
    half = pipeline_links(1536.0, 16.0, pods)
    assert [float(count) for count in half.count] == [0, 8, 7]
    assert float(half.bandwidth[2]) == pytest.approx(2 * NIC / 7)


def test_a_dead_network_makes_every_step_across_nodes_absurd(tmp_path: Path) -> None:
    text = (SPECS / "dgx-h100.yaml").read_text()
    slow = tmp_path / "slow.yaml"
    slow.write_text(re.sub(r"nic_bandwidth: .*", "nic_bandwidth: 8 kbit/s", text))
    for pins in ({"pp": (4,), "cp": (2,)}, {"pp": (16,)}, {"tp": (4,), "pp": (4,)}, {"tp": (8,)}, {}):
        plan = make_estimate(
            Request("llama-3.1-8b", str(slow), 16, seq_len=8192, global_batch="64", set=pins)
        )
        times = [choice.step_time for choice in (*plan.choices, *((plan.nearest,) if plan.nearest else ()))]
        assert max(times) > 3600, pins


def test_a_message_of_a_ring_takes_one_card_however_many_ranks_are_inside() -> None:
    assert float(group_links(1, 16, NODES).message) == NIC
    assert float(group_links(8, 16, NODES).message) == NIC


@pytest.mark.parametrize(
    ("text", "ranks", "bandwidth"),
    [
        (
            "1x8 v100 100G-ib",
            (1, 2, 4, 8),
            (25e9, 25e9, 75e9, 150e9),
        ),  # six links of 25 GB/s, one or two a pair
        ("1x4 v100 100G-ib", (2, 4), (50e9, 150e9)),  # of four devices each pair has two
        ("1x4 gh200 200G-slingshot", (2, 4), (150e9, 450e9)),
        ("1x8 h100 400G-ib", (2, 8), (450e9, 450e9)),
        ("1x8 mi300x 400G-ib", (2, 8), (448e9, 448e9)),  # what two reach of it is said by XGMI's table
    ],
)
def test_a_group_in_a_mesh_has_the_links_of_its_pairs(
    text: str, ranks: tuple[int, ...], bandwidth: tuple[float, ...]
) -> None:
    found = group_links(np.ones(len(ranks)), np.array(ranks, dtype=float), cluster(text))
    assert np.broadcast_to(found.scale_up, len(ranks)).tolist() == list(bandwidth)


def test_a_message_in_a_mesh_takes_a_pairs_links_and_a_switch_gives_all() -> None:
    assert cluster("1x8 v100 100G-ib").tiers[0].hop_bandwidth == 25e9
    switched = assemble_cluster(load_accelerator("v100"), 16, 16, 16)  # DGX-2
    assert switched.tiers[0].hop_bandwidth == 150e9
    assert float(group_links(1.0, 2.0, switched).scale_up) == 150e9

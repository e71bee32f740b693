"""Which links does a group use? Hand-worked groups on nodes of 8, in pods of 2,048 at 1:7, in domains of 72."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.traffic import group_links, neighbour_links
from planner.spec.load_cluster import load_cluster
from tests.problems import cluster

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
    assert float(group_links(1.0, 64.0, racks).local) == 64
    assert float(group_links(8.0, 16.0, racks).local) == 9
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


@pytest.mark.parametrize(("stride", "crosses"), [(1, False), (4, False), (8, True), (64, True)])
def test_neighbours_leave_the_node_from_stride_8(stride: int, crosses: bool) -> None:
    leaves, fabric = neighbour_links(float(stride), NODES)
    assert bool(leaves) is crosses
    assert float(fabric) == NIC


def test_neighbours_in_another_pod_share_the_trunk() -> None:
    _, fabric = neighbour_links(3072.0, cluster("h100-sxm-roce"))
    assert float(fabric) == pytest.approx(NIC / 7)

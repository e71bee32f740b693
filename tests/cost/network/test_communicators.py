"""Buffers of communicators: connections by hand from NCCL's defaults, and what reports of users say."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.network.communicators import CONNECTION, MIB, communicator_bytes
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.stack.kinds import Dispatcher


def opened(
    cluster: Cluster, dispatcher: Dispatcher = Dispatcher.ALL_TO_ALL, **degrees: int
) -> dict[str, float]:
    table = ConfigTable.of([ParallelConfig(**degrees)])
    replicas = (table["dp"] * table["cp"]).astype(float)
    return {axis: float(v[0]) for axis, v in communicator_bytes(table, replicas, cluster, dispatcher).items()}


A100, H100 = load_cluster("dgx-a100", 64), load_cluster("dgx-h100", 64)


def test_a_connection_holds_the_buffers_of_three_protocols() -> None:
    assert CONNECTION == 4 * MIB + 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8


def test_degrees_of_one_open_nothing() -> None:
    assert sum(opened(A100).values()) == 0


def test_inside_a_node_a_ring_of_24_channels_and_nvls_on_hopper() -> None:
    assert opened(A100, tp=8)["tp"] == 24 * CONNECTION
    # 16 channels x 8 heads x 2 directions x 1 MiB
    assert opened(H100, tp=8)["tp"] == 24 * CONNECTION + 256 * MIB


def test_across_nodes_as_reported() -> None:
    # NVIDIA/nccl issue 964: 544 to 688 MB a group with all ranks of the nodes
    assert 544e6 < opened(A100, dp=64)["dp"] < 688e6
    # one rank a node: one NIC
    assert opened(A100, tp=8, dp=8)["dp"] < 0.4 * opened(A100, dp=64)["dp"]


def test_gradients_of_experts_have_a_group_of_their_own() -> None:
    apart = opened(A100, dp=64, ep=8)
    # 8 ranks 8 apart, one in every node: one NIC
    assert apart["edp"] == opened(A100, tp=8, dp=8)["dp"]
    assert opened(A100, dp=64)["edp"] == 0


def test_peers_of_experts_grow_with_the_domain_not_with_the_cluster() -> None:
    inside, across = opened(H100, dp=64, ep=8)["ep"], opened(H100, dp=64, ep=64)["ep"]
    assert inside == 7 * 32 * CONNECTION
    assert across == 7 * 4 * CONNECTION + 128 * MIB
    assert opened(H100, Dispatcher.DEEPEP, dp=64, ep=64)["ep"] == 1024 * MIB
    nvl72 = opened(load_cluster("gb200-nvl72", 72), dp=72, ep=72)["ep"]
    assert nvl72 < 3 * 2**30


@pytest.mark.parametrize("name", ["dgx-h100", "1x8 l40s 100G-ib", "gb200-nvl72", "trainium2"])
def test_a_row_alone_is_a_row_of_a_table(name: str) -> None:
    cluster = load_cluster(name, None if "x8" in name else 8)
    rows = [ParallelConfig(tp=2, dp=4), ParallelConfig(pp=2, dp=4, ep=4), ParallelConfig(cp=4, dp=2)]
    table = ConfigTable.of(rows)
    replicas = (table["dp"] * table["cp"]).astype(float)
    together = communicator_bytes(table, replicas, cluster, Dispatcher.ALL_TO_ALL)
    for i in range(len(rows)):
        alone = communicator_bytes(
            ConfigTable.of([rows[i]]), replicas[i : i + 1], cluster, Dispatcher.ALL_TO_ALL
        )
        for axis, value in alone.items():
            np.testing.assert_array_equal(value, together[axis][i : i + 1])


@pytest.mark.parametrize("name", ["tpu-v5p", "trainium2"])
def test_programs_of_xla_open_no_buffers_of_nccl(name: str) -> None:
    assert sum(opened(load_cluster(name, 64), tp=4, dp=16, ep=4).values()) == 0

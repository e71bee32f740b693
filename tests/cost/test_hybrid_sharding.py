"""Hybrid sharding: gathers and scatters within a group of ranks, all-reduces of shards over the groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.ask.request import cost_model
from planner.catalog.load_stacks import load_stack
from planner.cost.memory.state_bytes import shard_groups
from planner.cost.model import CostModel
from planner.cost.network.collectives import all_gather_time, all_reduce_time, reduce_scatter_time
from planner.cost.network.traffic import group_links
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.machine.load_cluster import load_cluster
from tests.problems import problem

FSDP = ParallelConfig(dp=64, micro_batch=1, num_microbatches=1, zero=3)


@pytest.fixture(scope="module")
def model() -> CostModel:
    subject = replace(
        problem(), cluster=load_cluster("8x8 h100 400G-ib"), stack=load_stack("torchtitan-2026")
    )
    return cost_model(subject)


def sharded(model: CostModel, *groups: int, **axes: int) -> ConfigTable:
    return ConfigTable.of([replace(FSDP, hsdp=group, **axes) for group in groups])  # type: ignore[arg-type]


def collectives(model: CostModel, group: int) -> tuple[float, float]:
    prepared = model.prepare(sharded(model, group))
    return float(prepared.shards.scatter[0]), float(prepared.shards.gather[0])


def test_a_group_of_a_node_gathers_inside_it_and_reduces_across(model: CostModel) -> None:
    cluster, comm, links = model.problem.cluster, model.problem.stack.communication, model.links
    heaviest = float(model.prepare(sharded(model, 8)).shards.most_dense[0])
    here, there = (group_links(1.0, 8.0, cluster), links), (group_links(8.0, 8.0, cluster), links)
    units = model.problem.model.num_layers + 2  # layers, embedding and head: a message each
    size = model.problem.stack.engine.sent_gradient * heaviest / units
    scatter, gather = collectives(model, 8)
    each = reduce_scatter_time(size, *here) + all_reduce_time(size / 8, *there)
    assert scatter == pytest.approx(units * comm.dp_time * each, rel=0.005)
    assert gather == pytest.approx(
        units * comm.dp_time * all_gather_time(2 * heaviest / units, *here), rel=0.005
    )
    assert gather < collectives(model, 0)[1]


def test_a_group_of_all_is_full_sharding(model: CostModel) -> None:
    assert collectives(model, 64) == collectives(model, 0)
    cost = model.evaluate(sharded(model, 0, 64))
    assert cost.step_time[0] == cost.step_time[1]
    assert cost.device_memory[0] == cost.device_memory[1]


def test_smaller_groups_need_more_memory_and_no_bound_is_above_them(model: CostModel) -> None:
    cost = model.evaluate(sharded(model, 64, 32, 16, 8, 4))
    assert (np.diff(cost.device_memory) > 0).all()


def test_a_rank_updates_its_share_of_a_group(model: CostModel) -> None:
    """8 ranks share the states, not 64: an eighth of the parameters each, no faster than the device moves its bytes."""
    detail = model.evaluate(sharded(model, 0, 8), keep_terms=True).detail
    assert detail is not None
    everyone, group = (float(seconds) for seconds in detail.time["optimizer"])
    assert group == pytest.approx(8 * everyone, rel=0.02)
    moved = model.problem.stack.engine.step_bytes(model.problem.job.optimizer)
    heaviest = float(model.prepare(sharded(model, 8)).shards.most_dense[0])
    assert group >= moved * heaviest / 8 / model.problem.cluster.accelerator.memory_bandwidth


def test_without_sharding_a_group_means_nothing(model: CostModel) -> None:
    cost = model.evaluate(sharded(model, 0, 8, zero=0))
    assert cost.step_time[0] == cost.step_time[1]


def test_experts_have_as_many_copies_as_the_rest() -> None:
    replicas, experts = np.array([64.0, 64.0, 64.0]), np.array([8.0, 64.0, 8.0])
    dense, expert = shard_groups(np.array([16.0, 16.0, 0.0]), replicas, experts)
    assert dense.tolist() == [16, 16, 64]
    assert expert.tolist() == [2, 16, 8]

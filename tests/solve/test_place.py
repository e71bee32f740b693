"""Does every axis lie where its groups lie, and do its messages take the time that the cost counts?"""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.cost.messages.message import HiddenBy
from planner.cost.network.collectives import CollectiveKind
from planner.cost.network.traffic import group_links, least_inside
from planner.report.explanation import placement_facts
from planner.solve.place import GROUPS, Layout, Placement, layout_of, place
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig, Schedule
from planner.spec.rule import Problem
from tests.frameworks.rank_groups import rank_groups
from tests.problems import costs, dense_model, moe_model, problem

ORDER, EXPERTS = ("tp", "cp", "dp", "pp"), ("etp", "ep", "edp", "pp")


def placed(subject: Problem, config: ParallelConfig, stage: int = 0) -> Placement:
    assert not explain_config(config, subject, all_rules_for(subject.stack.framework)), config
    return place(costs(subject), config, stage)


def random_layout(seed: int) -> Layout:
    chance = random.Random(seed)
    sizes = {axis: chance.choice([1, 2, 3, 4]) for axis in ORDER}
    devices = int(np.prod(list(sizes.values())))
    inside = devices // sizes["pp"]
    etp = chance.choice([d for d in range(1, inside + 1) if inside % d == 0])
    ep = chance.choice([d for d in range(1, inside // etp + 1) if inside // etp % d == 0])
    return Layout({**sizes, "etp": etp, "ep": ep, "edp": inside // etp // ep}, ORDER, EXPERTS, devices)


@pytest.mark.parametrize("seed", range(30))
def test_groups_are_those_of_the_rank_grids(seed: int) -> None:
    layout = random_layout(seed)
    for name, (_, axes) in GROUPS.items():
        rows = sorted(row.tolist() for row in layout.groups(name))
        assert rows == rank_groups(layout.order(name), layout.sizes, axes)
        for row in rows:  # ranks of a group differ in these axes alone
            kept = [axis for axis in layout.order(name) if axis not in axes]
            places = [layout.place_of(rank) for rank in row]
            assert all(p[axis] == places[0][axis] for p in places for axis in kept)


@pytest.mark.parametrize("seed", range(20))
def test_links_are_those_of_the_cost(seed: int) -> None:
    chance = random.Random(seed)
    subject = problem(dense_model(8), "8x8 h100 400G-ib", global_batch=64)
    tp, cp, pp = (chance.choice([1, 2, 4]) for _ in range(3))
    config = ParallelConfig(tp=tp, cp=cp, pp=pp, dp=64 // (tp * cp * pp), num_microbatches=tp * cp * pp)
    config = ParallelConfig(**{**config.__dict__, "sp": int(tp > 1), "zero": 1})
    for axis in placed(subject, config).axes:
        if axis.axis not in ("tp", "cp", "dp_cp", "dp"):
            continue
        found = group_links(float(axis.stride), float(axis.size), subject.cluster)
        assert (axis.links.local, axis.links.fabric) == (float(found.local), float(found.fabric)), axis
        assert axis.inside[0] == least_inside(axis.stride, axis.size, 8)


def test_links_of_a_torus_are_those_of_the_cost() -> None:
    subject = problem(dense_model(8, kv_heads=16), "32x8 tpu-v6e", stack="maxtext-2024", global_batch=256)
    gpipe = int(Schedule.GPIPE)
    config = ParallelConfig(
        tp=16, dp=8, pp=2, num_microbatches=32, sp=1, zero=3, schedule=gpipe, recompute=2, recompute_layers=4
    )
    placement = placed(subject, config)
    shown = {axis["axis"]: axis["bandwidth"] for axis in placement_facts(placement)["axes"]}
    for axis in placement.axes:
        if axis.axis != "pp":
            found = group_links(float(axis.stride), float(axis.size), subject.cluster)
            assert (axis.links.scale_up, axis.links.exchange) == (found.scale_up, found.exchange)
            assert shown[axis.axis] == found.scale_up
    assert shown == {"tp": 180e9, "dp": 90e9, "pp": 90e9}  # a ring, a line of 8, one link


def term(subject: Problem, config: ParallelConfig, name: str) -> float:
    detail = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    return float(detail.time[name][0])


@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(tp=4, dp=8, num_microbatches=8, sp=1, zero=1),
        ParallelConfig(tp=8, dp=4, num_microbatches=16, sp=0, zero=1),
        ParallelConfig(tp=2, pp=4, dp=4, num_microbatches=16, sp=1, zero=1),
        ParallelConfig(tp=2, pp=2, dp=8, num_microbatches=8, sp=1, zero=1, recompute=2, recompute_layers=4),
    ],
)
def test_tensor_parallel_seconds_are_the_terms(config: ParallelConfig) -> None:
    subject = problem(dense_model(8), "4x8 h100 400G-ib", global_batch=64)
    comm = subject.stack.communication
    again = 1.0 if not config.recompute else 3 / 2  # a third forward pass, counted as recomputation
    busy = max(placed(subject, config, stage).by_axis["tp"].busy for stage in range(config.pp))
    assert busy * comm.tp_exposed / again == pytest.approx(term(subject, config, "tp_comm"), rel=1e-9)


def test_expert_and_data_parallel_seconds_are_the_terms() -> None:
    subject = problem(moe_model(8, experts=8), "4x8 h100 400G-ib", global_batch=64)
    config = ParallelConfig(dp=32, ep=8, num_microbatches=2, zero=1)
    found = placed(subject, config).by_axis
    comm = subject.stack.communication
    assert comm.ep_overlap == 0
    assert found["ep"].busy == pytest.approx(term(subject, config, "ep_comm"), rel=1e-9)
    # the cost hides most of it: what is exposed is not more than the links work
    assert 0 < term(subject, config, "dp_comm") <= found["dp"].busy + found["edp"].busy


def test_bytes_by_hand() -> None:
    """2 x 8 layers x 2 regions x 8 micro-batches of an all-gather of 4096 x 1024 x 2 bytes, 3/4 of it sent."""
    model = dense_model(8)
    subject = problem(model, "4x8 h100 400G-ib", seq_len=4096, global_batch=64)
    config = ParallelConfig(tp=4, dp=8, num_microbatches=8, sp=1, zero=1)
    gather, scatter, again = placed(subject, config).by_axis["tp"].exchanges
    # Megatron keeps shards of the inputs: 6 all-gathers and 4 reduce-scatters a layer and micro-batch
    assert (again.kind, again.calls) == (CollectiveKind.ALL_GATHER, 8 * 2 * 8)
    assert again.hidden_by is HiddenBy.UNCOUNTED
    assert gather.calls == scatter.calls == 2 * 8 * 2 * 8
    assert gather.size == 4096 * model.hidden * 2
    assert gather.sent == 0.75 * gather.size
    reduce, weights = placed(subject, config).by_axis["dp"].exchanges
    assert reduce.size == 2 * weights.size  # fp32 gradients, bf16 weights
    assert reduce.calls == weights.calls == 1


def test_pipeline_sends_nothing_past_its_ends() -> None:
    subject = problem(dense_model(8), "4x8 h100 400G-ib", global_batch=64)
    config = ParallelConfig(pp=4, dp=8, vpp=2, num_microbatches=8, zero=1, schedule=1)
    calls = {
        stage: [(e.what, e.calls) for e in placed(subject, config, stage).by_axis["pp"].exchanges]
        for stage in (0, 1, 3)
    }
    assert calls[1] == [("hidden_states", 16.0), ("their_gradients", 16.0)]
    assert calls[0] == [("hidden_states", 16.0), ("their_gradients", 8.0)]
    assert calls[3] == [("hidden_states", 8.0), ("their_gradients", 16.0)]


def test_experts_fold_over_the_same_ranks() -> None:
    """Megatron-LM, 16 ranks, tp2 cp2 pp2 ep4: ep on consecutive ranks, across tp and cp (research/frameworks.md)."""
    subject = problem(moe_model(8, experts=8), "2x8 h100 400G-ib", global_batch=16)
    config = ParallelConfig(tp=2, cp=2, pp=2, dp=2, ep=4, num_microbatches=8, sp=1, zero=1)
    groups = placed(subject, config).groups_of(0)
    assert groups["tp"] == [0, 1]
    assert groups["cp"] == [0, 2]
    assert groups["dp"] == [0, 4]
    assert groups["pp"] == [0, 8]
    assert groups["ep"] == [0, 1, 2, 3]
    assert groups["edp"] == [0, 4]


def test_rails() -> None:
    subject = problem(dense_model(8), "4x8 h100 400G-ib", global_batch=96)
    straight = placed(subject, ParallelConfig(tp=4, dp=8, num_microbatches=12, sp=1, zero=1)).by_axis["dp"]
    assert straight.same_rail
    assert straight.tier == 1
    assert straight.inside[0] == 2
    layout = layout_of(subject, ParallelConfig(tp=1, pp=2, dp=16))
    assert layout.groups("pp").tolist()[0] == [0, 16]

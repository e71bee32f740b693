"""Are the walls real, and are what-if and why-not what the cost and the rules say?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.model import CostModel
from planner.cost.simulated import simulator_of
from planner.report.words import text_of
from planner.solve.alternatives import (
    Alternative,
    Weigher,
    changes,
    completed,
    dealt_chunks,
    difference,
    walls,
    what_if,
    why_not,
)
from planner.solve.search import search
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config
from planner.space.rules import RULES
from planner.spec.config import ConfigTable, CudaGraphs, ParallelConfig, Recompute, Schedule
from planner.spec.findings import finding
from planner.spec.rule import Problem
from tests.problems import costs, dense_model, moe_model, problem

GIB = 2.0**30


def weighed(subject: Problem, limit: float) -> tuple[Weigher, Alternative]:
    """The fastest configuration within the limit, and what weighs others against it."""
    model = costs(subject)
    weigher = Weigher(model, simulator_of(model), all_rules_for(subject.stack.framework), limit)
    found = search(model, enumerate_configs(subject, rules_for(subject.stack)), limit, 1)
    (planned,) = weigher.weigh([(finding("planned"), found.best.row(0))])
    return weigher, planned


@pytest.fixture(scope="module")
def dense() -> tuple[Weigher, Alternative]:
    return weighed(problem(dense_model(8), "4x8 h100 400G-ib", global_batch=64), 8 * GIB)


@pytest.fixture(scope="module")
def experts() -> tuple[Weigher, Alternative]:
    return weighed(problem(moe_model(8, experts=8), "4x8 h100 400G-ib", global_batch=64), 6 * GIB)


@pytest.mark.parametrize("of", ["dense", "experts"])
def test_walls_are_faster_and_stopped(of: str, request: pytest.FixtureRequest) -> None:
    weigher, planned = request.getfixturevalue(of)
    space = enumerate_configs(weigher.problem, rules_for(weigher.problem.stack))
    found = walls(weigher, planned, space)
    assert found, "something is always faster when memory and rules don't count"
    assert [a.step_time for a in found] == sorted(a.step_time for a in found)
    for a in found:
        assert a.step_time < planned.step_time
        assert a.broken == explain_config(a.config, weigher.problem, weigher.rules)
        assert a.broken or a.memory > weigher.limit
        assert a.change == difference(planned.config, a.config)


def test_a_larger_limit_takes_the_memory_wall_away(dense: tuple[Weigher, Alternative]) -> None:
    weigher, planned = dense
    space = enumerate_configs(weigher.problem, rules_for(weigher.problem.stack))
    assert any(not a.broken for a in walls(weigher, planned, space))
    free, best = weighed(weigher.problem, 1e15)
    assert all(a.broken for a in walls(free, best, space))


@pytest.mark.parametrize("of", ["dense", "experts"])
def test_changes_do_the_same_job_and_are_costed_as_ever(of: str, request: pytest.FixtureRequest) -> None:
    weigher, planned = request.getfixturevalue(of)
    devices, job = weigher.problem.cluster.num_devices, weigher.problem.job
    made = list(changes(planned.config, weigher.problem))
    assert len({config for _, config in made}) == len(made)
    for _, config in made:
        assert config != planned.config
        assert config.tp * config.cp * config.pp * config.dp == devices
    for a in weigher.weigh(made):
        if a.broken or a.config.vpp > 1:
            continue
        assert a.config.dp * a.config.micro_batch * a.config.num_microbatches == job.global_batch
        cost = weigher.model.evaluate(ConfigTable.of([a.config]))
        assert a.step_time == pytest.approx(float(cost.step_time[0]), rel=1e-12)
        assert a.memory == float(cost.device_memory[0])
        assert a.fits == (a.memory <= weigher.limit)


def test_longer_sequences_are_costed_with_their_own_job(dense: tuple[Weigher, Alternative]) -> None:
    weigher, planned = dense
    found = what_if(weigher, planned, lambda p: CostModel(p, weigher.model.kernels, weigher.model.links))
    by_text = {text_of(a.change): a for a in found}
    seq_len = weigher.problem.job.seq_len
    longer = by_text[f"sequences of {2 * seq_len:,}"]
    asked = replace(weigher.problem, job=replace(weigher.problem.job, seq_len=2 * seq_len))
    cost = costs(asked).evaluate(ConfigTable.of([longer.config]))
    assert longer.memory == float(cost.device_memory[0])
    assert longer.tokens == 2 * planned.tokens
    assert longer.step_time > planned.step_time


def test_lengths_that_differ_are_named_by_their_longest(dense: tuple[Weigher, Alternative]) -> None:
    weigher, planned = dense
    job = replace(weigher.problem.job, mean_length=100.0)
    mixed = replace(weigher, model=costs(replace(weigher.problem, job=job)))
    found = what_if(mixed, planned, lambda p: CostModel(p, weigher.model.kernels, weigher.model.links))
    assert f"sequences of at most {2 * job.seq_len:,} (100 on average)" in {text_of(a.change) for a in found}


def test_why_not(dense: tuple[Weigher, Alternative]) -> None:
    weigher, planned = dense
    rules = rules_for(weigher.problem.stack)
    slower = why_not(weigher, planned, {"tp": (8,)}, rules)
    assert slower.best is not None
    assert slower.best.config.tp == 8
    assert slower.best.step_time >= planned.step_time
    assert slower.as_planned.config.tp == 8
    assert slower.as_planned.config.dp * 8 * slower.as_planned.config.pp * slower.as_planned.config.cp == 32
    illegal = why_not(weigher, planned, {"tp": (3,)}, rules)
    assert illegal.best is None
    assert illegal.smallest is None
    assert illegal.removed
    assert illegal.as_planned.broken
    tight = replace(weigher, limit=1 * GIB)
    large = why_not(tight, planned, {"tp": (1,), "pp": (1,)}, rules)
    assert large.best is None
    assert large.smallest is not None
    assert large.smallest.memory > tight.limit


def test_a_schedule_without_an_order_is_not_simulated() -> None:
    """One planned micro-batch size leaves 8 micro-batches on 4 stages; its neighbours break the schedules' rules."""
    subject = problem(dense_model(16), "2x8 h100 400G-ib", global_batch=24)
    stack = subject.stack
    limits = stack.limits.model_copy(update={"schedules": ("interleaved", "dualpipe")})
    subject = replace(subject, stack=stack.model_copy(update={"limits": limits}))
    model = costs(subject)
    weigher = Weigher(model, simulator_of(model), RULES, 80 * GIB)
    interleaved = ParallelConfig(tp=4, pp=4, vpp=2, micro_batch=3, num_microbatches=8, sp=1, schedule=1)
    pairs = replace(interleaved, vpp=1, schedule=int(Schedule.DUALPIPE))
    space = enumerate_configs(subject, RULES)
    refused = set()
    for config in (interleaved, pairs):
        (planned,) = weigher.weigh([(finding("planned"), config)])
        assert planned.step_time is not None
        assert not planned.broken
        assert all(a.step_time is not None for a in walls(weigher, planned, space))
        for a in what_if(weigher, planned, lambda p: CostModel(p, model.kernels, model.links)):
            assert a.step_time is not None or a.broken, text_of(a.change)
            refused |= {b.rule for b in a.broken if a.step_time is None}
    assert {"schedule-chunks", "schedule-microbatches"} <= refused
    assert "interleaving-remainder" not in refused  # chunks follow the micro-batches


def named(config: ParallelConfig, subject: Problem) -> dict[str, ParallelConfig]:
    return {text_of(change): changed for change, changed in changes(config, subject)}


def test_chunks_follow_a_change_of_stages() -> None:
    """16 layers: 4 stages hold 4 chunks of one layer each; 8 stages can hold 2, and 3 micro-batches fill no round."""
    subject = problem(dense_model(16), "4x8 h100 400G-ib", global_batch=64)
    config = ParallelConfig(pp=4, vpp=4, dp=8, num_microbatches=8, schedule=int(Schedule.INTERLEAVED))
    assert dealt_chunks(subject, 4, 8) == (1, 2, 4)
    assert dealt_chunks(subject, 8, 16) == (1, 2)
    assert dealt_chunks(subject, 4, 3) == (1,)
    found = named(config, subject)
    twice = found["pp 8, dp 4, vpp 2"]
    assert (twice.vpp, twice.schedule) == (2, Schedule.INTERLEAVED)
    full = replace(config, vpp=1, schedule=0, recompute=int(Recompute.FULL), recompute_layers=3)
    assert named(full, subject)["vpp 2, 4 layers recomputed"].recompute_layers == 4  # 2 of each chunk
    assert "vpp 2" in found
    assert "vpp 3" not in found  # would be refused
    none = completed(replace(config, dp=8, micro_batch=8), subject, config)  # one micro-batch
    assert (none.vpp, none.schedule) == (1, Schedule.ONE_F_ONE_B)
    model = costs(subject)
    weigher = Weigher(model, simulator_of(model), all_rules_for(subject.stack.framework), 80 * GIB)
    (planned,) = weigher.weigh([(finding("planned"), config)])
    answer = why_not(weigher, planned, {"pp": (8,), "vpp": (4,)}, rules_for(subject.stack))
    assert answer.as_planned.config.vpp == 4  # named chunks stay


def test_shard_groups_go_where_they_cannot_be() -> None:
    subject = problem()  # 16 devices on megatron-2026, whose groups are of ZeRO 1
    config = ParallelConfig(dp=16, micro_batch=1, num_microbatches=4, zero=1, hsdp=4)
    assert completed(replace(config, tp=2, dp=8), subject, config).hsdp == 4
    assert completed(replace(config, tp=8, dp=2), subject, config).hsdp == 0
    found = named(config, subject).items()
    stages = {changed.zero: changed.hsdp for name, changed in found if name.startswith("ZeRO")}
    assert stages == {0: 0, 2: 0}
    assert {changed.hsdp for name, changed in found if name.startswith("micro-batch")} == {4}


def test_all_layers_are_no_number_of_them() -> None:
    """9 layers on 4 stages, which hold 2, 3, 3 and 1."""
    subject = problem(dense_model(9), "1x8 h100", global_batch=64)
    config = ParallelConfig(pp=4, dp=2, num_microbatches=32, recompute_layers=2, recompute=2)
    found = named(config, subject)
    assert found["recompute all layers"].recompute_layers == 3
    assert found["recompute 1 layer"].recompute_layers == 1


def test_difference_names_what_changed() -> None:
    config = ParallelConfig(tp=2, dp=4, sp=1, micro_batch=2)
    assert text_of(difference(config, config)) == "the same degrees"
    other = replace(config, tp=4, dp=2, sp=0, recompute=2, recompute_layers=3)
    assert text_of(difference(config, other)) == "tp 4, dp 2, no sp, 3 layers recomputed"
    assert (
        text_of(difference(config, replace(config, recompute=2, recompute_layers=1))) == "1 layer recomputed"
    )
    assert replace(config, recompute=2, recompute_layers=1).describe().endswith("recompute:1 layer")
    on_host = replace(config, offload=1)
    assert text_of(difference(config, on_host)) == "optimizer in CPU memory"
    assert text_of(difference(on_host, config)) == "nothing in CPU memory"
    graphs = replace(config, cuda_graph_impl=int(CudaGraphs.LOCAL), cuda_graph_modules=1)
    assert text_of(difference(config, graphs)) == "CUDA graphs local+attn"
    deep = replace(config, pp=2, dp=2)
    assert (
        text_of(difference(config, replace(deep, vpp=2, schedule=int(Schedule.INTERLEAVED))))
        == "pp 2, dp 2, vpp 2"
    )
    assert text_of(difference(deep, replace(deep, schedule=int(Schedule.GPIPE)))) == "gpipe"

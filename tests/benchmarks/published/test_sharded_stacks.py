"""Megatron-DeepSpeed's stack, fitted on pipelines, as it runs ZeRO 3."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.published.sharded_stacks import with_muon, with_stage
from planner.catalog.load_stacks import load_stack
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.stack.engines import EngineKind
from tests.problems import costs, dense_model, problem


def test_megatron_deepspeed_runs_stage_3_as_deepspeed_does_and_not_as_fitted() -> None:
    fitted = load_stack("megatron-deepspeed-2022")
    stack, said = with_stage(fitted, 3)
    assert stack.engine.kind is EngineKind.DEEPSPEED
    assert (stack.engine.live_parameters, stack.engine.sent_gradient) == (3e9, 2.0)
    assert stack.compute == fitted.compute
    assert stack.band >= 1.5 * fitted.band
    assert not stack.fitted
    assert "no run" in said[0]


def test_stages_that_a_stack_ran_and_other_stacks_stay() -> None:
    for name, zero in (("megatron-deepspeed-2022", 1), ("torchtitan-2026", 3), ("deepspeed-2025", 3)):
        stack = load_stack(name)
        assert with_stage(stack, zero) == (stack, ())


def test_what_is_not_sharded_is_reduced_by_ddp() -> None:
    stack = load_stack("deepspeed-2025")
    assert not stack.engine.hidden_once(
        0.8, np.zeros(1)
    ).any()  # DeepSpeed's waits for the whole backward pass
    assert with_stage(stack, 0)[0].engine.hidden_once(0.8, np.zeros(1)) == 0.8
    assert with_stage(stack, 1) == (stack, ())


def test_internevo_broadcasts_from_every_owner_of_tensors_after_the_update() -> None:
    usual = load_stack("megatron-2024")
    stack, said = with_stage(usual, 1, "InternEvo")
    assert stack.engine.owners_broadcast
    assert stack.engine.reduces_whole(np.array([1, 2])).all()
    assert "broadcast" in said[0]
    assert with_stage(usual, 1, "ColossalAI") == with_stage(usual, 1) == (usual, ())
    subject = problem(dense_model(4), "2x8 a100 200G-ib", global_batch=16)
    owned, whole = (
        costs(replace(subject, stack=one)).prepare(ConfigTable.of([ParallelConfig(dp=16, zero=1)])).shards
        for one in (stack, usual)
    )
    alone = (
        costs(replace(subject, stack=stack)).prepare(ConfigTable.of([ParallelConfig(dp=2, zero=1)])).shards
    )
    assert owned.gather[0] > whole.gather[0]  # as many latencies as ranks
    assert owned.reduce[0] == whole.reduce[0]  # of 16-bit gradients
    assert owned.scatter[0] > whole.scatter[0]
    assert alone.gather[0] < owned.gather[0]


def test_internevo_broadcasts_within_its_groups_and_reduces_over_all_ranks() -> None:
    stack, _ = with_stage(load_stack("aa-scaling-2023"), 1, "InternEvo")
    subject = replace(problem(dense_model(4), "4x8 a100 200G-ib", global_batch=32), stack=stack)
    both = [ParallelConfig(dp=32, zero=1), ParallelConfig(dp=32, zero=1, hsdp=8)]
    shards = costs(subject).prepare(ConfigTable.of(both)).shards
    assert 1.5 * shards.gather[1] < shards.gather[0]
    assert shards.reduce[1] == shards.reduce[0]
    parts = [
        {one.what: one.ranks for one in step_messages(costs(subject), config, 0) if one.axis == "dp"}
        for config in both
    ]
    assert parts == [{"gradients": 32.0, "weights": 32.0}, {"gradients": 32.0, "weights": 8.0}]


def test_muon_of_others_is_sharded_as_adam_is() -> None:
    """Megatron-Core deals whole matrices from 2026 on; what only stands in for it, and what is older, does not."""
    latest, older = load_stack("megatron-2026"), load_stack("megatron-2024")
    assert with_muon(latest, Optimizer.MUON) == (latest, ())
    assert with_muon(older, Optimizer.ADAMW) == (older, ())
    for stack, kin in ((latest, "FlagScale"), (older, ""), (load_stack("torchtitan-2026"), "")):
        flat, said = with_muon(stack, Optimizer.MUON, kin)
        assert flat.engine.shards_matrices
        assert said


def test_a_loop_under_ddp_has_no_time_of_fsdp_beside_a_step() -> None:
    fsdp = load_stack("fsdp1-2023")
    assert with_stage(fsdp, 0, "nanoGPT")[0].host.step_overhead == 0.0
    assert with_stage(fsdp, 3, "nanoGPT") == with_stage(fsdp, 0) == (fsdp, ())

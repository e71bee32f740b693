"""What shards the state of data-parallel ranks, as curators write it."""

from __future__ import annotations

import pytest

from benchmarks.published.runs import Run, RunReader
from planner.errors import UnsupportedError
from tests.benchmarks.rows import MODELS, ROW

FLAT = {"tp": "1", "pp": "1", "dp": "64", "framework": "PyTorch FSDP", "sequence_parallel": "", "vpp": ""}


def read(**changed: str) -> Run:
    return RunReader(MODELS).read({**ROW, **FLAT, **changed})


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("zero1 (distributed optimizer)", 1), ("distributed optimizer", 1), ("dist-optimizer", 1), ("ZeRO-1", 1),
        ("zero_stage=2", 2), ("SHARD_GRAD_OP", 2), ("FSDP (SHARD_GRAD_OP)", 2), ("optim_grads", 2), ("stage 2", 2),
        ("FULL_SHARD", 3), ("fsdp2", 3), ("ZeRO stage 3", 3), ("optim_grads_params", 3), ("3", 3), ("3.0", 3),
        ("no", 0), ("False", 0), ("NO_SHARD", 0), ("none", 0), ("DDP", 0), ("none (replicated)", 0),
        ("no distributed optimizer", 0), ("zero1, no fsdp", 1),
    ],
)  # fmt: skip
def test_stages(text: str, stage: int) -> None:
    config = read(dp_sharding=text).config
    assert (config.zero, config.hsdp) == (stage, 0)


def test_what_is_no_name_alone_is_said() -> None:
    assert "dp_sharding 'fsdp2': ZeRO stage 3" in read(dp_sharding="fsdp2").assumed
    assert not any("dp_sharding" in said for said in read(dp_sharding="ZeRO-3").assumed)
    with pytest.raises(UnsupportedError, match="dp_sharding"):
        read(dp_sharding="sideways")


@pytest.mark.parametrize(
    ("framework", "extras", "stage"),
    [
        ("FSDP2 with transformers", "", 3), ("HF Accelerate FSDP", "", 3), ("DeepSpeed ZeRO-3", "", 3),
        ("DeepSpeed ZeRO-2", "", 2), ("transformers + DeepSpeed ZeRO3", "", 3), ("DeepSpeed", "zero_stage=3", 3),
        ("DeepSpeed", "flash attention; ZeRO-3", 3), ("FSDP2 with transformers", "FULL_SHARD", 3),
        ("PyTorch FSDP", "SHARD_GRAD_OP", 2), ("MaxText", "", 3), ("Levanter (JAX)", "", 3), ("Primus", "FSDP2", 3),
        ("Megatron-FSDP", "", 3), ("PyTorch DDP", "", 0), ("Megatron-LM", "no distributed optimizer", 0),
        ("Megatron-LM", "overlaps DDP's buckets", 1), ("Megatron-LM", "", 1), ("GPT-NeoX", "ZeRO-1", 1),
        ("Megatron-LM", "pipeline stage 3 of 4", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cell", ["", "n/a"])
def test_a_stage_that_the_column_leaves_out(framework: str, extras: str, stage: int, cell: str) -> None:
    run = read(framework=framework, extras=extras, dp_sharding=cell)
    assert run.config.zero == stage
    assert any(said.startswith("dp_sharding not stated: ") for said in run.assumed)


@pytest.mark.parametrize(
    ("cell", "extras", "group"),
    [
        ("hsdp", "", 8), ("HYBRID_SHARD", "", 8), ("hsdp:16", "", 16), ("hsdp (4)", "", 4), ("hsdp 2x32", "", 32),
        ("hsdp", "dp_replicate=2; dp_shard=32", 32), ("hsdp", "HSDP 4x16", 16), ("hsdp", "dp_replicate=4", 16),
        ("hsdp", "replicate 2 x shard 32", 32), ("hsdp", "HSDP shard 16", 16), ("hsdp", "hybrid shard 2 nodes", 16),
        ("hsdp", "data_parallel_shard_degree=16", 16), ("hsdp", "sharding group size 4", 4), ("", "HSDP 2x32", 32),
        ("hsdp", "num_distributed_optimizer_instances=2", 32),
    ],
)  # fmt: skip
def test_ranks_that_share_a_shard(cell: str, extras: str, group: int) -> None:
    run = read(dp_sharding=cell, extras=extras)
    assert (run.config.zero, run.config.hsdp) == (3, group)
    assert any(said.startswith("hsdp: one shard per") for said in run.assumed)


def test_torchtitans_degree_leaves_out_context_parallel_ranks() -> None:
    words = {"cp": "2", "dp": "32", "framework": "torchtitan", "dp_sharding": "hsdp"}
    assert read(**words, extras="dp_replicate=2; dp_shard=16").config.hsdp == 32
    assert read(**words, extras="dp_shard=16").config.hsdp == 16


def test_a_group_that_does_not_divide_is_said_and_not_taken() -> None:
    run = read(dp_sharding="hsdp:7")
    assert run.config.hsdp == 8
    assert "hsdp: shards of 7 ranks do not divide 64" in run.assumed


def test_one_replica_shards_nothing() -> None:
    config = read(dp_sharding="hsdp", gpus="8", tp="8", dp="1", global_batch="8").config
    assert (config.zero, config.hsdp) == (0, 0)


@pytest.mark.parametrize(
    ("cell", "extras", "group"),
    [
        ("zero1", "zero1=8", 8), ("zero1", "zero1=-1", 0), ("zero1", "zero1 group size 8", 8), ("zero1 (8)", "", 8),
        ("zero1", "hybrid ZeRO", 8), ("zero1", "Hybrid ZeRO-1, 4 GPUs", 4), ("zero1", "ZeRO-1, 8 GPUs per node", 0),
        ("zero1", "optimizer states sharded within 4 GPUs", 4), ("zero1", "ZeRO-1 within a node", 8),
        ("zero1", "optimizer states sharded over 2 nodes", 16), ("zero1", "zero1=64", 0), ("zero1", "zero1=7", 0),
        ("zero1", "optimizer states sharded over all ranks", 0), ("hsdp", "", 8), ("none", "zero1=8", 0),
        ("zero1", "ZeRO-1 4 micro-batches", 0), ("zero1", "AdamW optimizer warmed up over 16 steps", 0),
    ],
)  # fmt: skip
def test_groups_of_optimizer_states_beside_the_stage(cell: str, extras: str, group: int) -> None:
    config = read(
        framework="InternEvo", gpu="a100_sxm_80g", tp="1", pp="1", dp="64", dp_sharding=cell, extras=extras
    ).config
    assert config.hsdp == group
    assert config.zero == (cell != "none")


def test_groups_that_a_stack_has_not_are_said() -> None:
    run = read(framework="DeepSpeed", tp="1", pp="1", dp="64", dp_sharding="zero1", extras="zero1=8")
    assert (run.config.zero, run.config.hsdp) == (1, 0)
    assert any(said.startswith("not modelled: shards of 8 ranks") for said in run.assumed)


@pytest.mark.parametrize(
    ("cell", "extras", "stage"),
    [
        ("fsdp", "reshard_after_forward never (weights kept gathered)", 2), ("zero3", "no reshard after forward", 2),
        ("zero3", "fsdp_reshard_after_forward=never", 2), ("zero3", "reshard_after_forward: False", 2),
        ("fsdp2, no resharding", "", 2), ("zero3", "reshard_after_forward always", 3), ("zero3", "", 3),
        ("zero1", "reshard_after_forward never", 1),
    ],
)  # fmt: skip
def test_weights_that_stay_gathered(cell: str, extras: str, stage: int) -> None:
    run = read(dp_sharding=cell, extras=extras)
    assert run.config.zero == stage
    assert any("stay gathered" in said for said in run.assumed) == (stage == 2)

"""Does torchtitan's own step run on fake tensors, split and sharded as it says? Needs PyTorch and torchtitan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.torchtitan.recipe import TitanRecipe
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from tests.dryrun.steps import HOPPER, LIMIT, held

# torchtitan and what it loads warn of what they use themselves
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NEEDS = ("torch", "torchtitan")
FP32 = 4


def cut(name: str, layers: int) -> ModelSpec:
    """A model with its first layers alone, and a head of its own."""
    model = load_model(name)
    return replace(model, layers=model.layers[:layers], tied_embeddings=False)


def recipe(model: ModelSpec, ranks: int, micro_batches: int = 1, **said: Any) -> TitanRecipe:
    parallelism = {
        "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": ranks, "tensor_parallel_degree": 1,
        "context_parallel_degree": 1, "pipeline_parallel_degree": 1, "fsdp_reshard_after_forward": "always",
    } | said  # fmt: skip
    if parallelism["pipeline_parallel_degree"] > 1:
        parallelism |= {
            "pipeline_parallel_schedule": "1F1B", "pipeline_parallel_microbatch_size": 1,
            "pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 0,
        }  # fmt: skip
    shares = parallelism["data_parallel_shard_degree"] * parallelism["data_parallel_replicate_degree"]
    training = {
        "local_batch_size": micro_batches, "global_batch_size": micro_batches * shares, "seq_len": 256, "steps": 2,
        "mixed_precision_param": "bfloat16",
    }  # fmt: skip
    return TitanRecipe(model, {"training": training, "parallelism": parallelism}, "none", True, ranks)


def recorded(asked: TitanRecipe) -> Recording:
    from planner.dryrun.torchtitan.step import record_step

    return record_step(asked, HOPPER)


def memory(asked: TitanRecipe) -> RankMemory:
    return memory_of(recorded(asked), AllocatorSettings(), LIMIT)


def parameters(model: ModelSpec) -> int:
    from planner.cost.params import model_parameters

    return int(model_parameters(model).total)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_a_rank_holds_its_share_of_moments_in_fp32(name: str) -> None:
    model = cut(name, 2)
    found = memory(recipe(model, 8))
    assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(2 * FP32 * parameters(model) / 8, rel=0.01)


def test_tensor_parallel_ranks_hold_a_part_of_every_layer() -> None:
    model = cut("llama-3.2-1b", 2)
    found = memory(recipe(model, 8, data_parallel_shard_degree=4, tensor_parallel_degree=2))
    assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(2 * FP32 * parameters(model) / 8, rel=0.01)


def test_expert_parallel_ranks_exchange_tokens() -> None:
    model = cut("qwen3-30b-a3b", 2)
    found = recorded(recipe(model, 8, expert_parallel_degree=8))
    sent = [one for one in found.operations if "all_to_all_single" in one.name]
    assert sent
    alone = recorded(recipe(model, 8))
    assert not [one for one in alone.operations if "all_to_all_single" in one.name]


def test_checkpointing_by_operations_runs_some_of_them_again() -> None:
    plain = recipe(cut("llama-3.2-1b", 2), 8)
    counts = {
        kind: sum(one.name == "aten.mm.default" for one in recorded(replace(plain, checkpointing=kind)).operations)
        for kind in ("none", "selective", "full")
    }  # fmt: skip
    assert counts["none"] < counts["selective"] < counts["full"]
    attention = [one.name for one in recorded(replace(plain, checkpointing="selective")).operations]
    assert attention.count("planner.flex.default") == 2 * 2  # kept: once in each layer and step


def test_the_loss_in_parts_holds_a_part_of_the_logits() -> None:
    plain = recipe(cut("llama-3.2-1b", 2), 8).sized(1, 4096)
    assert memory(plain).allocated_peak < memory(replace(plain, chunks_loss=False)).allocated_peak


@pytest.mark.parametrize("reshards", ["never", "always"])
@pytest.mark.parametrize("rank", [0, 1])
def test_repeated_micro_batches_are_those_that_run(rank: int, reshards: str) -> None:
    model = cut("llama-3.2-1b", 8)
    asked = recipe(
        model, 16, 12, data_parallel_shard_degree=2, pipeline_parallel_degree=8, fsdp_reshard_after_forward=reshards
    )  # fmt: skip
    asked = replace(asked, pipeline_rank=rank, checkpointing="full")
    assert memory(asked) == memory(replace(asked, folds=False))


def test_first_and_last_stage_hold_what_others_do_not() -> None:
    asked = recipe(cut("llama-3.2-1b", 4), 4, 4, data_parallel_shard_degree=1, pipeline_parallel_degree=4)
    states = [held(memory(replace(asked, pipeline_rank=rank)), Holds.OPTIMIZER_STATES) for rank in (0, 1, 3)]
    table = 2 * FP32 * asked.model.vocab * asked.model.hidden
    assert states[0] - states[1] == pytest.approx(table, rel=0.01)
    assert states[2] - states[1] == pytest.approx(table, rel=0.01)


def test_interleaved_stages_run() -> None:
    asked = recipe(cut("llama-3.2-1b", 4), 2, 4, data_parallel_shard_degree=1, pipeline_parallel_degree=2)
    parallelism = dict(asked.parallelism) | {
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_layers_per_stage": 1,
    }
    asked = replace(asked, settings={"training": asked.training, "parallelism": parallelism})
    assert memory(asked).allocated_peak > 0

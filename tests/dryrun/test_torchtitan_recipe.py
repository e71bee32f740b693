"""What is run of a configuration of torchtitan, and is what is not run refused by name?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.dryrun.torchtitan.recipe import EAGER, TitanRecipe, family_of, launched_recipe
from planner.errors import UnsupportedError
from planner.frameworks.framework import launch_in
from planner.spec.config import ParallelConfig, Recompute
from planner.spec.load_model import load_model
from planner.spec.precision import Precision
from tests.problems import problem

MODEL = "llama-3.1-8b"


def recipe(config: ParallelConfig, name: str = MODEL, stack: str = EAGER, **said: Any) -> TitanRecipe:
    devices = config.tp * config.cp * config.pp * config.dp
    whole = {"global_batch": config.dp * config.micro_batch * config.num_microbatches, "seq_len": 4096} | said
    asked = problem(
        load_model(name), f"{-(-devices // 8)}x{min(devices, 8)} h100 400G-ib", stack=stack, **whole
    )
    return launched_recipe(launch_in(asked, config))


def test_settings_are_those_of_the_launch_files() -> None:
    found = recipe(ParallelConfig(tp=2, pp=4, dp=2, sp=1, micro_batch=2, num_microbatches=8, zero=3))
    assert found.parallelism["tensor_parallel_degree"] == 2
    assert found.parallelism["data_parallel_shard_degree"] == 2
    assert found.parallelism["fsdp_reshard_after_forward"] == "always"
    assert (found.stages, found.micro_batch, found.seq_len, found.num_microbatches) == (4, 2, 4096, 8)
    assert (found.checkpointing, found.chunks_loss, found.ranks) == ("none", True, 16)


def test_ranks_that_differ_are_the_ends_and_the_fullest_between() -> None:
    found = recipe(ParallelConfig(tp=2, pp=4, dp=2, sp=1, num_microbatches=8, zero=3))
    assert [rank for rank, _ in found.roles()] == [0, 4, 12]
    assert [rank for rank, _ in recipe(ParallelConfig(dp=8, zero=3)).roles()] == [0]


def test_other_sizes_leave_as_many_micro_batches() -> None:
    found = recipe(ParallelConfig(pp=2, dp=4, num_microbatches=4, zero=3)).sized(3, 1024)
    assert (found.micro_batch, found.seq_len, found.num_microbatches) == (3, 1024, 4)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (MODEL, "llama3"), ("qwen3-14b", "qwen3"), ("qwen3-30b-a3b", "qwen3"), ("deepseek-v2-lite", "deepseek_v3"),
        ("gpt-oss-20b", None), ("mixtral-8x7b", None),
    ],
)  # fmt: skip
def test_families_are_known_by_their_dimensions(name: str, family: str | None) -> None:
    assert family_of(load_model(name)) == family


@pytest.mark.parametrize(
    ("config", "said", "named"),
    [
        (ParallelConfig(dp=8, zero=3), {"stack": "torchtitan-2026"}, "torchtitan-2026, which compiles"),
        (ParallelConfig(dp=4, cp=2, zero=3), {}, "context parallelism of 2"),
        (ParallelConfig(dp=8, zero=3), {"precision": Precision.FP8_CS}, "fp8"),
        (ParallelConfig(dp=8, zero=3, offload=3), {}, "offload"),
    ],
)
def test_what_is_not_run_is_named(config: ParallelConfig, said: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        recipe(config, **said)


def test_recomputation_by_operations_is_selective() -> None:
    config = ParallelConfig(dp=8, zero=3)
    assert recipe(replace(config, recompute=Recompute.SELECTIVE)).checkpointing == "selective"

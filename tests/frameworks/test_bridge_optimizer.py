"""Megatron-Bridge's optimizer: what a recipe sets of it is read, and what the plan costs is written.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, recipes/deepseek/h100/deepseek_v3.py (moments in bf16) and
training/utils/omegaconf_utils.py, which takes types by their names.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.megatron_bridge.recipes import RECIPES
from planner.spec.config import ParallelConfig
from planner.spec.job import Optimizer
from tests.frameworks.launches import launch, problem

BRIDGE = framework("megatron-bridge")
CONFIG = ParallelConfig(pp=16, ep=8, dp=8, micro_batch=1, num_microbatches=32, zero=1)


def read(script: str) -> Optimizer | None:
    return BRIDGE.parse({"launch.sh": script}).optimizer


@pytest.mark.parametrize(
    ("model", "found"),
    [("deepseek-v3", Optimizer.ADAMW_BF16), ("llama-3.1-8b", None), ("qwen3-30b-a3b", None)],
)
def test_moments_of_a_recipe_are_read(model: str, found: Optimizer | None) -> None:
    """qwen3-30b-a3b's is precision-aware with moments in fp32."""
    assert read(f"torchrun run_recipe.py --recipe {RECIPES[model]}") is found


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.ADAMW_BF16])
def test_moments_of_the_plan_are_written(optimizer: Optimizer) -> None:
    """DeepSeek-V3's recipe would keep half of what a plan with AdamW counts."""
    given = problem("deepseek-v3", "megatron-2026")
    case = launch("deepseek-v3", CONFIG, replace(given, job=replace(given.job, optimizer=optimizer)))
    script = BRIDGE.render(case, "0.7.0")["launch.sh"]
    assert (read(script) or Optimizer.ADAMW) is optimizer
    narrow = optimizer is Optimizer.ADAMW_BF16
    assert f"optimizer.use_precision_aware_optimizer={str(narrow).lower()}" in script


def test_narrow_moments_need_the_distributed_optimizer() -> None:
    given = problem("llama-3.1-8b", "megatron-2026")
    config = ParallelConfig(tp=2, sp=1, dp=64, micro_batch=1, num_microbatches=4, zero=0)
    job = replace(given.job, optimizer=Optimizer.ADAMW_BF16)
    with pytest.raises(UnsupportedError, match="without the distributed optimizer"):
        BRIDGE.render(launch("llama-3.1-8b", config, replace(given, job=job)), "0.7.0")


def test_what_planner_does_not_write_is_not_laid_to_bridge() -> None:
    given = problem("deepseek-v3", "megatron-2026")
    case = launch("deepseek-v3", CONFIG, replace(given, job=replace(given.job, optimizer=Optimizer.SGD)))
    with pytest.raises(UnsupportedError, match="planner must know how to write") as refused:
        BRIDGE.render(case, "0.7.0")
    assert "export --to megatron" in str(refused.value)


KIMI = "run_recipe.py --recipe kimi_k2_pretrain_512gpu_h100_bf16_config model.tensor_model_parallel_size="


def test_muon_of_a_recipe_is_said_and_one_of_a_script_is_read() -> None:
    parse = framework("megatron-bridge").parse
    unsaid = parse({"run.sh": KIMI + "1"})
    assert unsaid.optimizer is None
    assert any("counted as AdamW" in note for note in unsaid.notes)
    assert parse({"run.sh": KIMI + "1 optimizer.optimizer=muon"}).optimizer is Optimizer.MUON
    dealt = parse({"run.sh": KIMI + "1 optimizer.optimizer=dist_muon ddp.use_distributed_optimizer=false"})
    assert (dealt.optimizer, dealt.axes["zero"]) == (Optimizer.MUON, 1)
    assert any("all-reduces all gradients" in note for note in dealt.notes)
    with pytest.raises(InputError, match="muon_tp_mode must be duplicated"):
        parse({"run.sh": KIMI + "2 optimizer.optimizer=muon"})
    assert (
        parse({"run.sh": KIMI + "2 optimizer.optimizer=muon optimizer.muon_tp_mode=duplicated"}).axes["tp"]
        == 2
    )

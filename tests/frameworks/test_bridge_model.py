"""Megatron-Bridge's model and kernels beside its recipe: what the plan counts is written, what a script sets is read.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, recipes/glm/h100/glm45.py (mtp_num_layers = 1), recipes/nemotronh/gb200/
nemotron_3_nano.py (megatron_fsdp_main_grads_dtype).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ask.question import Question
from planner.cli.files import problem_of
from planner.errors import InputError
from planner.frameworks import framework
from planner.frameworks.megatron_bridge.recipes import RECIPES
from planner.spec.config import ParallelConfig
from planner.spec.load_model import load_model
from planner.spec.stack import Stack
from tests.frameworks.launches import launch, problem

BRIDGE = framework("megatron-bridge")
EXPERTS = ParallelConfig(pp=2, ep=8, dp=64, micro_batch=1, num_microbatches=4, zero=1)


def script(model: str, config: ParallelConfig, stack: str = "megatron-2026", predicts: bool = False) -> str:
    given = replace(problem(model, stack), model=load_model(model, with_mtp=predicts))
    return BRIDGE.render(launch(model, config, given), "0.7.0")["launch.sh"]


@pytest.mark.parametrize("model", ["glm-4.5-air", "deepseek-v3", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("predicts", [False, True])
def test_prediction_modules_are_the_plans(model: str, predicts: bool) -> None:
    """GLM-4.5's recipe trains one unless it is told not to, whose attention is no other's than Llama's."""
    text = script(model, EXPERTS, predicts=predicts)
    assert f"model.mtp_num_layers={1 if predicts else 'null'}" in text
    found = BRIDGE.parse({"launch.sh": text}).model
    assert found is not None
    assert found.mtp_layers == int(predicts)


def test_prediction_modules_of_a_recipe_are_read() -> None:
    for model, layers in (("glm-4.5", 1), ("kimi-k2", 0), ("llama-3.1-8b", 0)):
        found = BRIDGE.parse({"run.sh": f"torchrun run_recipe.py --recipe {RECIPES[model]}"}).model
        assert found is not None
        assert found.mtp_layers == layers, model


def read(text: str) -> Stack:
    return problem_of(BRIDGE.parse({"launch.sh": text}), BRIDGE, Question("", "16x8 h100 400G-ib", 128))[
        0
    ].stack


@pytest.mark.parametrize(
    "option", ["attention-backend=unfused", "hidden-dropout=0.1", "no-bias-swiglu-fusion"]
)
def test_kernels_of_the_plan_are_written_and_read(option: str) -> None:
    config = ParallelConfig(tp=2, sp=1, dp=64, micro_batch=1, num_microbatches=4, zero=1)
    plain, changed = (
        read(script("llama-2-7b", config, f"megatron-2026{more}")).kernels for more in ("", f"+{option}")
    )
    assert changed != plain
    assert changed == problem("llama-2-7b", f"megatron-2026+{option}").stack.kernels


def test_gradients_of_megatron_fsdp_are_written_and_read() -> None:
    config = ParallelConfig(dp=128, micro_batch=1, num_microbatches=2, zero=3)
    for more, width in (("", 2.0), ("+megatron-fsdp-main-grads-dtype=fp32", 4.0)):
        assert read(script("llama-3.1-8b", config, f"megatron-fsdp-2026{more}")).engine.gradient == width


OVERLAP = "model.moe_shared_expert_overlap"
GLM = "run_recipe.py --recipe glm45_air_106b_pretrain_32gpu_h100_bf16_config --mode pretrain "


def test_overlap_of_shared_experts_is_said_and_refused() -> None:
    """The recipe has it on: said where it stands, refused where Megatron-Core does, gone where it is switched off."""
    parse = framework("megatron-bridge").parse
    assert [note for note in parse({"run.sh": GLM}).notes if OVERLAP in note]
    off = parse({"run.sh": GLM + f"{OVERLAP}=false"})
    assert not [note for note in off.notes if OVERLAP in note]
    beside = "model.overlap_moe_expert_parallel_comm=true model.expert_model_parallel_size=8 "
    again = "model.recompute_granularity=selective model.recompute_modules=[shared_experts] "
    for refused in (beside, again):
        with pytest.raises(InputError, match=OVERLAP):
            parse({"run.sh": GLM + refused})
        assert not [n for n in parse({"run.sh": GLM + refused + f"{OVERLAP}=false"}).notes if OVERLAP in n]

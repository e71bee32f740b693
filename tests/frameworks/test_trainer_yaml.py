"""YAMLs of LLaMA-Factory, TRL and Axolotl are read as the words of a Trainer that they stand for."""

from __future__ import annotations

import json

import pytest

from planner.ask.question import Question
from planner.catalog.stack_options import PURE_BF16
from planner.cli.check import check_files
from planner.cli.files import readable, recognize
from planner.errors import PlannerError
from planner.frameworks.adapters import Adapters
from planner.frameworks.framework import ParsedConfig
from planner.spec.config import Recompute
from planner.spec.job import AdapterTargets, Optimizer
from planner.spec.precision import Precision

FACTORY = (
    "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nper_device_train_batch_size: 2\n"
    "gradient_accumulation_steps: 4\nbf16: true\nlearning_rate: 1.0e-4\nreport_to: none\n"
)
AXOLOTL = (
    "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 8\n"
    "optimizer: paged_adamw_8bit\nbf16: auto\ngradient_checkpointing: true\nload_in_4bit:\n"
)
LORA = "adapter: qlora\nlora_r: 32\nlora_target_linear: true\n"
FSDP2 = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n  offload_params: false\n"


def read(text: str, **others: str) -> ParsedConfig:
    files = {"a.yaml": text, **{f"{name}.json": other for name, other in others.items()}}
    kept, _ = readable(files)
    assert kept == files
    return recognize(files).parse(files)


def test_llama_factory() -> None:
    """Its defaults: adapters of rank 8 on all layers, layers recomputed, 2,048 tokens."""
    found = read(FACTORY)
    assert (found.framework, found.seq_len, found.precision) == ("accelerate", 2048, Precision.BF16)
    assert (found.axes["micro_batch"], found.axes["num_microbatches"], found.axes["zero"]) == (2, 4, 0)
    assert found.axes["recompute"] == Recompute.FULL
    assert found.model is not None
    assert found.adapters == Adapters(8)
    full = read(f"{FACTORY}finetuning_type: full\ncutoff_len: 8192\ndisable_gradient_checkpointing: true\n")
    assert (full.adapters, full.seq_len, full.axes["recompute"]) == (None, 8192, Recompute.NONE)


def test_axolotl() -> None:
    found = read(AXOLOTL + LORA)
    assert found.adapters == Adapters(32, AdapterTargets.ALL_LINEAR, 4)
    assert (found.seq_len, found.precision, found.optimizer) == (4096, Precision.BF16, Optimizer.ADAMW_8BIT)
    assert (found.axes["micro_batch"], found.axes["num_microbatches"]) == (2, 8)
    assert found.axes["recompute"] == Recompute.FULL
    full = read(AXOLOTL + FSDP2)
    assert (full.adapters, full.axes["zero"]) == (None, 3)


@pytest.mark.parametrize("text", [FACTORY, AXOLOTL])
def test_a_deepspeed_file_that_it_names(text: str) -> None:
    named = f"{text}deepspeed: configs/zero2.json\n"
    settings = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
    found = read(named, zero2=json.dumps({**settings, "zero_optimization": {"stage": 2}}))
    assert (found.framework, found.axes["zero"], found.axes["micro_batch"]) == ("deepspeed", 2, 2)
    with pytest.raises(PlannerError, match=r"name configs/zero2.json beside"):
        read(named)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (FACTORY.replace("sft", "dpo"), "stage"), (f"{AXOLOTL}rl: dpo\n", "rl"),
        (f"{FACTORY}use_mca: true\n", "use_mca"),
        (f"{AXOLOTL}tensor_parallel_size: 2\n", "tensor_parallel_size"),
        (f"{AXOLOTL}adapter: llama-adapter\n", "adapter"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, field: str) -> None:
    with pytest.raises(PlannerError, match=field):
        read(text)


def test_quantised_adapters_take_less_than_all_weights() -> None:
    full, adapted = (
        check_files({"a.yaml": text}, Question("", "dgx-h100", 8)) for text in (AXOLOTL, AXOLOTL + LORA)
    )
    # 8 billion weights: 0.5 bytes each where they are frozen in 4 bits, 16-bit ones, gradients and states elsewhere
    assert full["peak_memory_bytes"] - adapted["peak_memory_bytes"] > 8e9 * 5
    assert adapted["verdict"] == "fits"


@pytest.mark.parametrize(
    ("text", "others", "pure"),
    [
        (AXOLOTL, {}, True),
        (AXOLOTL.replace("bf16: auto", "fp16: true"), {}, False),
        (AXOLOTL + LORA, {}, False),
        (AXOLOTL + FSDP2, {}, False),
        (AXOLOTL.replace("bf16: auto", "bf16: full") + FSDP2, {}, True),
        (FACTORY + "finetuning_type: full\npure_bf16: true\n", {}, True),
        (FACTORY + "finetuning_type: full\n", {}, False),
    ],
)
def test_weights_trained_in_bf16_alone(text: str, others: dict[str, str], pure: bool) -> None:
    """FSDP under mixed precision raises them to fp32 (accelerate utils/fsdp_utils.py fsdp2_prepare_model)."""
    assert (PURE_BF16 in read(text, **others).stack_options) == pure


def test_a_model_of_8_billion_parameters_trains_on_one_device() -> None:
    """16-bit weights and gradients and two 8-bit moments: 8.03e9 x 6 bytes, 45 GiB."""
    found = check_files({"a.yaml": AXOLOTL}, Question(model="", cluster="1x1 h100 400G-ib"))
    assert found["verdict"] == "fits"
    assert 45 * 2**30 < found["peak_memory_bytes"] < 65 * 2**30


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Qwen/Qwen3-4B-Instruct-9999", "did you mean: qwen3-4b?"),
        ("x/SmolLM9-3B-checkpoints", "did you mean: "),
    ],
)
def test_an_unknown_name_is_quoted_with_those_like_it(name: str, near: str) -> None:
    text = FACTORY.replace("Qwen/Qwen3-8B", name)
    with pytest.raises(PlannerError, match=f"unknown model '{name}'") as error:
        check_files({"a.yaml": text}, Question(model="", cluster="1x8 h100 400G-ib"))
    assert near in error.value.hint


def test_training_by_megatron_is_named() -> None:
    with pytest.raises(PlannerError, match="LLaMA-Factory's training by Megatron-LM") as error:
        read(FACTORY + "tensor_model_parallel_size: 1\npipeline_model_parallel_size: 4\n")
    assert "tensor_model_parallel_size: 1, pipeline_model_parallel_size: 4" in error.value.given

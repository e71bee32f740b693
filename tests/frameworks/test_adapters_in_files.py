"""Adapters that the words of a Trainer's program ask for are costed: their rank, their layers, the frozen weights."""

from __future__ import annotations

import pytest

from planner.ask.question import Question
from planner.cli.check import check_files
from planner.frameworks import framework
from planner.frameworks.adapters import Adapters, adapters_of, targets_of
from planner.frameworks.trainer import words_of
from planner.spec.job import AdapterTargets

ALL, ATTENTION, QKV = AdapterTargets.ALL_LINEAR, AdapterTargets.ATTENTION, AdapterTargets.QKV
TRAINS = (
    "torchrun --nproc_per_node 8 sft.py --model_name_or_path meta-llama/Llama-3.1-8B "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 4096 --bf16"
)


def asked(words: str) -> tuple[Adapters | None, list[str]]:
    return adapters_of(words_of({"run.sh": f"python train.py {words}\n"}))


@pytest.mark.parametrize(
    ("words", "adapters"),
    [
        ("--use_peft --lora_r 8 --lora_target_modules all-linear --dtype bfloat16", Adapters(8, ALL)),
        ("--use_peft --load_in_4bit", Adapters(16, QKV, 4)),
        ("--use_peft --dtype float32 --lora_target_modules q_proj k_proj v_proj o_proj", Adapters(16, ATTENTION, 32)),
        ("--finetuning_type lora", Adapters(8, ALL)),
        ("--finetuning_type lora --lora_rank 4 --lora_target q_proj,v_proj --quantization_bit 8", Adapters(4, QKV, 8)),
        ("--lora_enable True --bf16 True", Adapters(64, ALL)),
        ("--lora_enable True --lora_r 128 --lora_target_modules all --bits 4", Adapters(128, ALL, 4)),
        ("--use_peft_lora --lora_target_modules 'q_proj,down_proj' --use_8bit_quantization", Adapters(64, ALL, 8)),
        ("--lora_r 8 --q_lora True", Adapters(8, QKV, 4)),
        ("--lora_dim 128 --lora_module_name decoder.layers.", Adapters(128, ALL)),
        ("--finetuning_type full --lora_rank 8", None),
        ("--finetuning_type freeze", None),
        ("--use_peft False --lora_r 8", None),
        ("--use_peft False --lora_r 0", None),
        ("--lora_r 0", None),
        ("", None),
    ],
)  # fmt: skip
def test_words_of_programs(words: str, adapters: Adapters | None) -> None:
    assert asked(words)[0] == adapters


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--use_peft --lora_r 8", "keep them in 32"),
        ("--lora_dim 8", "embeddings and norms are trained too"),
        ("--use_peft --lora_r 8", "on no module by name"),
        ("--use_peft --dtype bfloat16", "rank is not stated: 16"),
        ("--lora_r 8", "taken to switch them on"),
        ("--use_peft --use_dora True", "--use_dora: modelled as plain adapters"),
        ("--use_peft --lora_modules_to_save lm_head", "--lora_modules_to_save: modelled as plain adapters"),
        ("--finetuning_type freeze", "all weights are counted as trained"),
    ],
)
def test_what_is_taken_is_said(words: str, said: str) -> None:
    assert any(said in note for note in asked(words)[1])


@pytest.mark.parametrize(
    ("names", "targets", "noted"),
    [
        (["q_proj", "v_proj"], QKV, True), (["q_proj", "k_proj", "v_proj"], QKV, False), (["linear_qkv"], QKV, False),
        (["linear_qkv", "linear_proj"], ATTENTION, False), (["*.layers.0.q_proj", "mystery"], ALL, True),
        (["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"], ALL, False), (["up_proj"], ALL, True),
        ([], ALL, False),
    ],
)  # fmt: skip
def test_modules_by_name(names: list[str], targets: AdapterTargets, noted: bool) -> None:
    found, notes = targets_of(names)
    assert (found, bool(notes)) == (targets, noted)


def test_a_check_costs_them() -> None:
    words = f"{TRAINS} --use_peft --lora_r 16 --lora_target_modules all-linear --dtype bfloat16"
    full, adapted = (check_files({"run.sh": text}, Question("", "dgx-h100", 8)) for text in (TRAINS, words))
    assert adapted["peak_memory_bytes"] < full["peak_memory_bytes"] - 10 * 8e9 / 8
    assert any("adapters of rank 16 (all-linear)" in note for note in adapted["notes"])
    parsed = framework("accelerate").parse({"run.sh": words})
    assert parsed.adapters == Adapters(16)
    assert framework("deepspeed").parse(
        {
            "run.sh": words,
            "ds.json": '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}',
        }
    ).adapters == Adapters(16)

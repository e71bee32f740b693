"""What must change in launch files for a better configuration: in their own words, or by the settings' names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.ask.question import Question
from planner.cli.changes import setting_changes
from planner.cli.check import check_files
from planner.spec.config import ContextKind, ParallelConfig, Recompute, Schedule

CLUSTER = "2x8 h100 400G-ib"
FSDP_1 = """distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_sharding_strategy: FULL_SHARD
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
FSDP_2 = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_activation_checkpointing: true  # not needed
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
ZERO_3 = """deepspeed_config:
  zero3_init_flag: true
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 16
"""
TRL = """model_name_or_path: meta-llama/Llama-3.1-8B
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
gradient_checkpointing: true
bf16: true
max_length: 4096
"""
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 8
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
fsdp: [full_shard, auto_wrap]
"""
FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: lora
lora_rank: 8
deepspeed: ds.json
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
"""
AUTO = """{
  "bf16": {"enabled": "auto"},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": "auto"
  },
  "gradient_accumulation_steps": "auto",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto"
}
"""
MODEL_ARGS = """MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --ffn-hidden-size: 14336
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 8
  --seq-length: 8192
  --swiglu: true
  --tensor-model-parallel-size: 2
  --micro-batch-size: 1
  --global-batch-size: 128
  --bf16: true
  --vocab-size: 128256
"""
TOML = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 8192
global_batch_size = 64
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 16
[activation_checkpoint]
mode = "full"
"""


def better(**files: str) -> dict[str, object]:
    named = {name.replace("__", "."): text for name, text in files.items()}
    found = check_files(named, Question("llama-3.1-8b", CLUSTER, 16, seq_len=4096, global_batch=64))["better"]
    assert found is not None
    return dict(found)


def lines_of(found: dict[str, object]) -> list[str]:
    lines = found["diff"]
    assert isinstance(lines, list)
    return [str(line).strip() for line in lines]


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({"a__yaml": FSDP_1}, []),
        ({"a__yaml": TRL}, ["- gradient_checkpointing: true", "+ gradient_checkpointing: false"]),
        ({"a__yml": AXOLOTL}, ["- gradient_checkpointing: true", "+ gradient_checkpointing: false"]),
    ],
)
def test_what_no_file_states_is_told_by_settings(files: dict[str, str], shown: list[str]) -> None:
    """FSDP 1's words are not FSDP 2's; sharding is none of a Trainer's; whose own lines are told all the same."""
    found = better(**files)
    lines = lines_of(found)
    assert lines[0] == "change of settings:"
    assert "recompute: full (32 layers a pipeline rank) -> none" in lines
    assert isinstance(found["settings"], list)
    told = lines[1 + len(found["settings"]) :]
    assert [line for line in told if "gradient_checkpointing" in line] == shown
    assert not any(word in line for line in told for word in ("train.py", "fsdp_", "--"))


def test_files_of_the_exports_words_are_told_by_their_own_lines() -> None:
    assert lines_of(better(a__yaml=FSDP_2)) == [
        "change in a.yaml:",
        "fsdp_config:",
        "-   fsdp_reshard_after_forward: true",
        "+   fsdp_reshard_after_forward: false",
        "-   fsdp_activation_checkpointing: true",
        "+   fsdp_activation_checkpointing: false",
    ]


def test_deepspeed_under_accelerate_keeps_its_words() -> None:
    """Each file by its name, each line of it as it stands, and no section of another plug-in."""
    lines = lines_of(better(zero3__yaml=ZERO_3, trl__yaml=TRL))
    assert lines[:4] == [
        "change in zero3.yaml:",
        "deepspeed_config:",
        "-   zero_stage: 3",
        "+   zero_stage: 1",
    ]
    assert "change in trl.yaml:" in lines
    assert not any("fsdp_" in line or "zero3_init" in line for line in lines)
    out = [line[2:].strip() for line in lines if line.startswith("-")]
    assert out
    assert all(line in ZERO_3 + TRL for line in out)


def test_nothing_is_taken_out_that_the_files_do_not_have() -> None:
    lines = lines_of(better(train__toml=TOML))
    assert lines[0] == "change in train.toml:"
    assert "- data_parallel_shard_degree = -1" in lines
    assert "- tensor_parallel_degree = 16" in lines
    out = [line[2:].split(" = ")[0] for line in lines if line.startswith("- ")]
    assert all(f"{name} =" in TOML for name in out), lines


def test_arguments_in_a_yaml_are_told_as_its_keys() -> None:
    lines = lines_of(better(opts__yaml=MODEL_ARGS))
    assert lines[0] == "change in opts.yaml:"
    assert "- --tensor-model-parallel-size: 2" in lines
    assert any(line.startswith("+ --tensor-model-parallel-size: ") for line in lines)
    assert "+ --use-distributed-optimizer: true" in lines


def test_a_trainers_yaml_beside_a_deepspeed_file() -> None:
    lines = lines_of(better(lf__yaml=FACTORY, ds__json=AUTO))
    assert "- per_device_train_batch_size: 1" in lines
    assert '- "stage": 3' in lines
    assert not any("auto" in line or "train_micro_batch" in line or "--" in line for line in lines)


def test_a_deepspeed_file_alone_is_told_the_rest_by_settings() -> None:
    """Micro-batches are the program's too."""
    settings = {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }  # fmt: skip
    lines = lines_of(better(ds__json=json.dumps(settings, indent=1)))
    assert lines[0] == "change of settings:"
    assert any(line.startswith("ZeRO stage: 3 -> ") for line in lines)
    assert '- "stage": 3' in lines
    assert not any(line.startswith(("- --", "+ --")) for line in lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tp": 2, "dp": 8}, ["tensor parallelism: 1 -> 2", "data parallelism: 16 -> 8"]),
        ({"zero": 3, "hsdp": 8}, ["ZeRO stage: 2 -> 3", "ranks that share a shard: all -> 8"]),
        ({"recompute": int(Recompute.NONE), "recompute_layers": 0},
         ["recompute: full (32 layers a pipeline rank) -> none"]),
        ({"recompute_layers": 8}, ["recompute: full (32 layers a pipeline rank) -> full (8 layers a pipeline rank)"]),
        ({"sp": 1}, ["sequence parallelism: off -> on"]),
        ({"offload": 1}, ["offload to the host: none -> optimizer"]),
        ({"micro_batch": 5, "num_microbatches": 1},
         ["micro-batch: 2 -> 5", "micro-batches a step (gradient accumulation): 4 -> 1"]),
        ({"pp": 2, "vpp": 2, "schedule": int(Schedule.INTERLEAVED)},
         ["pipeline parallelism: 1 -> 2", "virtual stages a rank: 1 -> 2", "pipeline schedule: none -> interleaved"]),
        ({"cp": 2}, ["context parallelism: 1 -> 2", "exchange of context parallelism: none -> p2p"]),
        ({}, []),
    ],
)  # fmt: skip
def test_settings_in_words(change: dict[str, int], said: list[str]) -> None:
    now = ParallelConfig(
        dp=16, zero=2, micro_batch=2, num_microbatches=4, recompute=int(Recompute.FULL), recompute_layers=32
    )
    assert sorted(setting_changes(now, replace(now, **change), (ContextKind.P2P,))) == sorted(said)

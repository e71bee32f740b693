"""Words of Transformers' Trainer fill what a DeepSpeed file or an Accelerate YAML leaves to the program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.published_data import small_input
from planner.ask.question import Question
from planner.cli.check import check_files
from planner.cli.files import recognize
from planner.errors import InputError
from planner.frameworks import framework
from planner.frameworks.framework import ParsedConfig
from planner.spec.config import OFFLOAD_STATES, ConfigTable, ParallelConfig, Recompute
from planner.spec.job import Optimizer
from planner.spec.precision import Precision
from tests.problems import costs, dense_model, problem

AUTO: dict[str, Any] = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 3},
}  # fmt: skip
WORDS = (
    "--model_name_or_path meta-llama/Llama-3.1-8B-Instruct --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps=4 --model_max_length 4096 --bf16 True --gradient_checkpointing True"
)


def deepspeed(
    words: str, settings: dict[str, Any] | None = None, start: str = "deepspeed --num_gpus 8"
) -> ParsedConfig:
    files = {"run.sh": f"{start} train.py {words}\n", "ds.json": json.dumps(settings or AUTO)}
    return framework("deepspeed").parse(files)


@pytest.mark.parametrize("words", [WORDS, WORDS.replace("_", "-").replace(" True", "")])
def test_a_deepspeed_file_left_to_the_trainer(words: str) -> None:
    read = deepspeed(words)
    assert {axis: read.axes[axis] for axis in ("dp", "micro_batch", "num_microbatches", "recompute", "zero")} == {
        "dp": 8, "micro_batch": 2, "num_microbatches": 4, "recompute": Recompute.FULL, "zero": 3,
    }  # fmt: skip
    assert (read.devices, read.global_batch, read.seq_len, read.precision) == (8, 64, 4096, Precision.BF16)
    assert read.model is not None
    assert read.model.hidden == 4096
    assert not any("micro_batch" in note for note in read.notes)


def test_what_the_file_states_goes_before_the_words() -> None:
    read = deepspeed(WORDS, AUTO | {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": False}})
    assert read.axes["micro_batch"] == 1
    assert read.precision is Precision.FP32


@pytest.mark.parametrize(
    ("words", "precision"),
    [("--fp16 True", Precision.FP16), ("--bf16 False --fp16", Precision.FP16), ("", Precision.FP32)],
)
def test_formats_left_to_the_trainer_are_its_own(words: str, precision: Precision) -> None:
    read = deepspeed(f"--per_device_train_batch_size 1 {words}")
    assert read.precision is precision
    assert deepspeed(words, {**AUTO, "fp16": {"enabled": False}}).precision is not Precision.FP16


@pytest.mark.parametrize(
    ("start", "devices"),
    [
        ("torchrun --nproc_per_node 4 --nnodes=2", 8),
        ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python", 32),
        ("deepspeed --num_nodes 3 --num_gpus 8", 24),
        ("deepspeed", None),
        ("deepspeed --include localhost:0,1,2", 3),
        ("deepspeed --include=a:0,1@b:0,1", 4),
        ("deepspeed --include=a@b", None),
    ],
)
def test_devices_are_those_of_whatever_starts_it(start: str, devices: int | None) -> None:
    assert deepspeed(WORDS, start=start).devices == devices


def test_optimizers_and_adapters() -> None:
    read = deepspeed(WORDS + " --optim adamw_bnb_8bit --lora_r 16")
    assert read.optimizer is Optimizer.ADAMW_8BIT
    assert (
        deepspeed(WORDS + " --optim sgd").optimizer is Optimizer.SGD
    )  # torch's, without momentum unless told
    assert read.adapters is not None
    assert read.adapters.rank == 16
    assert deepspeed(WORDS + " --use_peft False --lora_r 0").adapters is None
    assert (
        "--optim lion_8bit: modelled as AdamW with fp32 moments"
        in deepspeed(WORDS + " --optim lion_8bit").notes
    )
    own = AUTO | {"optimizer": {"type": "Lamb", "params": {"lr": 1e-4}}}
    read = deepspeed(WORDS + " --optim adafactor", own)
    assert read.optimizer is None
    assert "optimizer.type Lamb: modelled as AdamW with fp32 moments" in read.notes


def test_names_that_deepspeed_does_not_look_at_are_no_faults() -> None:
    """LLaMA-Factory's own files have _comment and monitor_config; the models of sections forbid what they lack."""
    read = deepspeed(WORDS, AUTO | {"_comment": "x", "zero_optimisation": {"stage": 1}})
    assert read.unknown == ()
    assert any("passes over what it does not know: zero_optimisation.stage" in note for note in read.notes)
    strict = deepspeed(WORDS, AUTO | {"zero_optimization": {"stage": 3, "reduce_buckets": 1}})
    assert [option.split()[0] for option in strict.unknown] == ["zero_optimization.reduce_buckets"]


def test_the_older_name_of_bf16() -> None:
    read = deepspeed("", {"train_micro_batch_size_per_gpu": 1, "bfloat16": {"enabled": True}})
    assert (read.precision, read.unknown) == (Precision.BF16, ())


def test_trainer_accumulates_whole_gradients_under_fsdp_unless_told_to_reduce_each_batch() -> None:
    """transformers trainer.py and accelerate accumulate(): no_sync but for the last micro-batch."""

    def options(words: str, kind: str = "FSDP") -> tuple[str, ...]:
        yaml = f"distributed_type: {kind}\nnum_processes: 16\nmixed_precision: bf16\n"
        script = f"accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 2 {words}\n"
        return framework("accelerate").parse({"run.sh": script, "a.yaml": yaml}).stack_options

    several = "--gradient_accumulation_steps 4"
    each = """--accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'"""
    apart = "no-compile"
    assert options(several) == ("no-sync", apart)
    assert options("--gradient_accumulation_steps 1") == options("") == (apart,)
    assert options(f"{several} {each}") == (apart,)
    assert options(several, kind="MULTI_GPU") == (apart,)
    assert options("--use_liger_kernel True") == (apart, "use-liger-kernel")
    assert options("--use_liger_kernel False") == (apart,)


@pytest.mark.parametrize(
    ("words", "yaml", "options", "noted"),
    [
        ("--per_device_train_batch_size 2", "", ("no-compile",), False),
        ("--per_device_train_batch_size 2 --torch_compile False", "", ("no-compile",), False),
        ("--per_device_train_batch_size 2 --torch_compile", "", (), False),
        ("--per_device_train_batch_size 2", "dynamo_config:\n  dynamo_backend: INDUCTOR\n", (), False),
        (
            "--per_device_train_batch_size 2",
            "dynamo_config:\n  dynamo_backend: 'NO'\n",
            ("no-compile",),
            False,
        ),
        ("--my-own 2", "", (), True),
    ],
)
def test_what_compiles_under_fsdp(words: str, yaml: str, options: tuple[str, ...], noted: bool) -> None:
    """transformers' Trainer and Accelerate compile nothing unless told to, which is said where no word is known."""
    text = f"distributed_type: FSDP\nnum_processes: 16\nmixed_precision: bf16\n{yaml}"
    script = f"accelerate launch --config_file a.yaml train.py {words}\n"
    read = framework("accelerate").parse({"run.sh": script, "a.yaml": text})
    assert read.stack_options == options
    assert read.usual_options == ("no-compile",) * noted
    assert ("nothing here asks for torch.compile" in str(read.notes)) is noted


def test_a_yaml_alone_is_costed_without_compilation_unless_a_stack_is_named() -> None:
    def checked(more: str = "", stack: str | None = None) -> dict[str, Any]:
        text = f"distributed_type: FSDP\nnum_processes: 16\nmixed_precision: bf16\n{more}"
        return check_files({"a.yaml": text}, Question("llama-3.1-8b", "dgx-h100", 16, stack=stack))

    plain, asked = checked(), checked("dynamo_config:\n  dynamo_backend: INDUCTOR\n")
    assert "stack fsdp1-2023+no-compile" in plain["notes"]
    assert "stack fsdp1-2023" in asked["notes"]
    assert plain["step_time_s"] > asked["step_time_s"]
    assert checked(stack="fsdp1-2023")["step_time_s"] == asked["step_time_s"]


def test_ligers_kernels_move_less_and_keep_no_logits() -> None:
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    assert deepspeed("--use_liger_kernel", config).stack_options == ("use-liger-kernel",)
    rows = ConfigTable.of([ParallelConfig(dp=8, zero=3, micro_batch=4)])

    def costed(option: str) -> tuple[float, float]:
        stack = "deepspeed-2025" + option
        subject = problem(dense_model(4), "1x8 a100", seq_len=4096, global_batch=32, stack=stack)
        found = costs(subject).evaluate(rows, keep_terms=True)
        assert found.detail is not None
        return float(found.step_time[0]), float(found.detail.memory["loss"]["logits"][0, 0])

    plain, fused = costed(""), costed("+use-liger-kernel")
    assert fused[0] < plain[0]
    assert fused[1] < plain[1] / 4


def test_accelerate_takes_the_same_words() -> None:
    yaml = (
        "distributed_type: FSDP\nnum_processes: 16\nmixed_precision: 'no'\nfsdp_config:\n  fsdp_version: 2\n"
    )
    script = f"accelerate launch --config_file a.yaml train.py {WORDS}\n"
    read = framework("accelerate").parse({"run.sh": script, "a.yaml": yaml})
    assert (read.axes["micro_batch"], read.axes["num_microbatches"], read.global_batch) == (2, 4, 128)
    assert (read.seq_len, read.precision, read.axes["recompute"]) == (4096, Precision.BF16, Recompute.FULL)
    assert read.model is not None


@pytest.mark.parametrize(
    ("more", "zero", "offload", "recompute"),
    [
        ('--fsdp "full_shard auto_wrap"', 3, 0, Recompute.NONE),
        ("--fsdp 'shard_grad_op auto_wrap offload' --gradient_checkpointing", 2, 3, Recompute.FULL),
        ("--fsdp full_shard --fsdp_config conf/fsdp.json", 3, 0, Recompute.FULL),
        ("--fsdp full_shard --fsdp_config '{\"activation_checkpointing\": true}'", 3, 0, Recompute.FULL),
        ("--fsdp full_shard --fsdp_config='{\"activation_checkpointing\": true}'", 3, 0, Recompute.FULL),
        ("", 0, 0, Recompute.NONE),
    ],
)
def test_a_trainer_under_torchrun(more: str, zero: int, offload: int, recompute: Recompute) -> None:
    script = (
        "torchrun --nproc_per_node=4 --nnodes 2 train.py --model_name_or_path /models/Llama-2-7b-hf --bf16 True "
        f"--per_device_train_batch_size 4 --gradient_accumulation_steps 8 --model_max_length 2048 {more}\n"
    )
    files = {"run.sh": script}
    if "fsdp.json" in more:
        with pytest.raises(InputError, match="name it beside the script"):
            framework("accelerate").parse(files)
        files["x/fsdp.json"] = json.dumps({"activation_checkpointing": True})
    assert recognize(files).name == "accelerate"
    read = framework("accelerate").parse(files)
    axes = {axis: read.axes[axis] for axis in ("zero", "offload", "recompute", "dp", "micro_batch")}
    assert axes == {"zero": zero, "offload": offload, "recompute": recompute, "dp": 8, "micro_batch": 4}
    assert (read.devices, read.global_batch, read.seq_len, read.precision) == (8, 256, 2048, Precision.BF16)
    assert read.model is not None
    assert read.named == "/models/Llama-2-7b-hf"


def test_a_deepspeed_script_alone_is_asked_for_its_file() -> None:
    files = {"run.sh": f"torchrun --nproc_per_node 8 train.py --deepspeed conf/ds_z3.json {WORDS}\n"}
    assert recognize(files).name == "deepspeed"
    with pytest.raises(InputError, match=r"name conf/ds_z3\.json beside the script"):
        framework("deepspeed").parse(files)


def test_what_is_better_is_told_in_the_trainers_words() -> None:
    """And by neither the exported program's, nor settings that the file leaves to the Trainer."""
    files = {"run.sh": f"deepspeed --num_gpus 16 train.py {WORDS}\n", "ds.json": json.dumps(AUTO)}
    lines = check_files(files, Question("", "dgx-h100"))["better"]["diff"]
    words = {line.split()[1].strip('":') for line in lines if line.startswith("  ")}
    assert {"--gradient_checkpointing", "--per_device_train_batch_size", "stage"} <= words
    assert not words & {"--micro-batch", "--accumulate", "--recompute", "train_micro_batch_size_per_gpu"}
    assert len({line.strip("+- ,") for line in lines}) == len(lines)  # no comma alone is a change
    own = {**files, "run.sh": "torchrun --nproc_per_node 16 train.py --seq-len 4096 --recompute\n"}
    settings = AUTO | {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
    own["ds.json"] = json.dumps(settings)
    lines = check_files(own, Question("llama-3.1-8b", "dgx-h100"))["better"]["diff"]
    assert "  - --recompute" in lines


def test_the_model_that_is_named_is_said_unless_another_is_asked_for() -> None:
    files = {"run.sh": f"llamafactory-cli train --finetuning_type full {WORDS}\n"}
    notes = check_files(files, Question("", "dgx-h100", 8))["notes"]
    assert (
        "the model is taken as llama-3.1-8b, by meta-llama/Llama-3.1-8B-Instruct; --model names another"
        in notes
    )
    assert not any(
        "taken as llama" in note for note in check_files(files, Question("qwen3-8b", "dgx-h100", 8))["notes"]
    )


def test_a_deepspeed_file_named_by_a_variable() -> None:
    script = f'FILE=conf/x.json\nCMD="deepspeed train.py --deepspeed_config=$FILE {WORDS}"\neval $CMD\n'
    assert recognize({"run.sh": script}).name == "deepspeed"
    with pytest.raises(InputError, match=r"name conf/x\.json beside the script"):
        framework("deepspeed").parse({"run.sh": script})


def test_a_number_that_no_file_sets_is_asked_for() -> None:
    with pytest.raises(InputError, match="--per_device_train_batch_size must be a whole number") as refused:
        deepspeed("--per_device_train_batch_size $BS")
    assert "name the file that does" in str(refused.value)
    assert deepspeed("--per_device_train_batch_size ${BS:-4}").axes["micro_batch"] == 4


def test_parameters_alone_on_the_host() -> None:
    """As axolotl's zero3_bf16_cpuoffload_params.json; DeepSpeed 0.19.8 runtime/zero/stage3.py _configure_offloading
    takes either without the other."""
    settings = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    }  # fmt: skip
    facts = check_files({"ds.json": json.dumps(settings)}, Question("llama-3.1-8b", "dgx-h100", 8))
    assert facts["legal"], facts["violations"]
    assert facts["config"].endswith("offload:params")


@pytest.mark.parametrize("file", ["offload_axolotl.yml", "offload_trainer_v5.sh"])
def test_what_fsdp_config_offloads_lies_on_the_host(file: str) -> None:
    """axolotl's offload_params, and cpu_offload of transformers 5 (training_args.py): --fsdp takes neither back."""
    found = framework("accelerate").parse({file: small_input(file).read_text()})
    assert found.axes["offload"] == OFFLOAD_STATES
    assert found.axes["zero"] == 3

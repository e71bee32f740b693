"""What `planner check` says of files that leave something out, contradict themselves, or hold what does not run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.ask.question import Question
from planner.cli.check import check_files
from planner.errors import InputError, PlannerError, UnsupportedError
from planner.frameworks import framework
from planner.spec.config import Recompute

CLUSTER = "2x8 h100 400G-ib"
ACCELERATE = """distributed_type: {kind}
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_sharding_strategy: FULL_SHARD
deepspeed_config:
  zero_stage: 2
  gradient_accumulation_steps: 4
mixed_precision: bf16
num_machines: 2
num_processes: {count}
"""
TOML = """[model]
name = "llama3"
flavor = "{flavor}"
[training]
seq_len = 4096
[parallelism]
tensor_parallel_degree = 8
"""


def checked(files: dict[str, str], **more: Any) -> dict[str, Any]:
    asked = {"gpus": 16, "model": "llama-3.1-8b", "stack": None, "seq_len": 4096, "global_batch": 64, **more}
    return check_files(files, Question(**{**asked, "cluster": CLUSTER, "model": asked["model"] or ""}))


@pytest.mark.parametrize(
    ("kind", "recompute", "accumulated", "passed"),
    [
        ("FSDP", Recompute.FULL, None, ["deepspeed_config"]),
        ("MULTI_GPU", Recompute.NONE, None, ["fsdp_config", "deepspeed_config"]),
        ("DEEPSPEED", Recompute.NONE, 4, ["fsdp_config"]),
    ],
)
def test_accelerate_takes_the_section_of_what_runs(
    kind: str, recompute: Recompute, accumulated: int | None, passed: list[str]
) -> None:
    """accelerate commands/launch.py sets use_fsdp by distributed_type, without which FSDP's is not handed on."""
    parsed = framework("accelerate").parse({"a.yaml": ACCELERATE.format(kind=kind, count=16)})
    assert parsed.axes["recompute"] == recompute
    assert parsed.axes.get("num_microbatches") == accumulated
    said = [note for note in parsed.notes if "passes over" in note]
    assert [note.split()[3].strip(":") for note in said] == passed


def test_a_number_of_processes_that_no_nodes_hold_is_the_files_own() -> None:
    files = {"a.yaml": ACCELERATE.format(kind="FSDP", count=12)}
    with pytest.raises(PlannerError) as refused:
        checked(files, gpus=None)
    assert "the number of processes that the files start" in refused.value.must
    assert "--gpus" not in refused.value.must
    with pytest.raises(PlannerError, match="--gpus above one node"):
        checked(files, gpus=12)
    assert any("start 12 processes, --gpus says 16" in note for note in checked(files)["notes"])


@pytest.mark.parametrize(("batch", "right"), [(100, False), (8, True), (128, True), (4, False)])
def test_a_batch_that_no_number_of_ranks_makes(batch: int, right: bool) -> None:
    triple = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
    }
    files = {"ds.json": json.dumps({**triple, "zero_optimization": {"stage": 2}})}
    if right:
        assert framework("deepspeed").parse(files).axes["dp"] == batch // 8
        return
    with pytest.raises(PlannerError, match="train_batch_size: must be 4 x 2 x N") as refused:
        framework("deepspeed").parse(files)
    assert str(batch) in str(refused.value)


def test_auto_is_named_among_what_a_deepspeed_file_may_say() -> None:
    for name, value in (("train_micro_batch_size_per_gpu", "atuo"), ("bf16", {"enabled": "atuo"})):
        files = {"ds.json": json.dumps({"zero_optimization": {"stage": 2}, name: value})}
        with pytest.raises(PlannerError, match='or "auto"'):
            framework("deepspeed").parse(files)
    files = {"ds.json": json.dumps({"train_micro_batch_size_per_gpu": 0})}
    with pytest.raises(PlannerError) as refused:
        framework("deepspeed").parse(files)
    assert "auto" not in str(refused.value)


def test_what_the_files_state_goes_before_the_options_and_is_said() -> None:
    file = {"a.toml": TOML.format(flavor="8B").replace("4096", "4096\nglobal_batch_size = 32")}
    notes = checked(file, seq_len=8192, global_batch=64)["notes"]
    assert "the files state a sequence length of 4,096, --seq-len says 8,192: the files count" in notes
    assert "the files state a global batch of 32, --global-batch says 64: the files count" in notes
    for agreeing in ({"seq_len": 4096, "global_batch": 32}, {"seq_len": None, "global_batch": None}):
        assert not any("the files count" in note for note in checked(file, **agreeing)["notes"])


def test_a_stack_of_another_launchers_software_is_refused() -> None:
    files = {"a.toml": TOML.format(flavor="8B")}
    with pytest.raises(
        InputError, match="must be one that runs torchtitan files: torchtitan-2024"
    ) as refused:
        checked(files, stack="megatron-2026")
    assert "megatron-2026" in refused.value.given
    assert checked(files, stack="torchtitan-2024")["legal"]
    newest = [checked(files, stack=name)["notes"] for name in ("torchtitan", "torchtitan-2026")]
    assert [("stack torchtitan-2026" in notes) for notes in newest] == [True, False]
    with pytest.raises(InputError, match="must be one that runs Accelerate files"):
        checked({"a.yaml": ACCELERATE.format(kind="FSDP", count=16)}, stack="deepspeed-2025")
    plugged = checked({"a.yaml": ACCELERATE.format(kind="DEEPSPEED", count=16)}, stack="deepspeed-2025")
    assert plugged["legal"]


def test_an_unknown_flavor_is_named() -> None:
    files = {"a.toml": TOML.format(flavor="71B")}
    with pytest.raises(InputError, match=r"model\.flavor 71B: of llama3 planner knows 405B, 70B, 8B"):
        checked(files, model=None)
    assert any("model.flavor 71B" in note for note in checked(files)["notes"])
    assert framework("torchtitan").parse({"a.toml": TOML.format(flavor="8B")}).missing == ""


def test_a_misspelt_table_is_told_with_the_nearest() -> None:
    """Beside names of older releases, for which settings that 0.2.2 does not have are passed over."""
    text = TOML.format(flavor="8B") + '[activation_checkpoin]\nmode = "full"\n'
    text = text.replace("seq_len = 4096", "seq_len = 4096\nbatch_size = 2\nown = 1")
    (note,) = [
        note for note in framework("torchtitan").parse({"a.toml": text}).notes if "passed over" in note
    ]
    assert "activation_checkpoin.mode (nearest: activation_checkpoint.mode)" in note
    assert note.startswith("not of 0.2.2, passed over: training.own, ")


def test_every_release_that_has_the_options_is_named() -> None:
    """As the export writes for 0.18.2 what main takes too."""
    script = (
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --bf16 "
        "--vocab-size 32000 --max-position-embeddings 4096 --micro-batch-size 1 --tensor-model-parallel-size 2 --swiglu"
    )
    parsed = framework("megatron").parse({"run.sh": script})
    assert parsed.version == parsed.releases[-1] == "main-2026-08"
    assert "0.18.2" in parsed.releases
    assert framework("megatron").parse({"run.sh": script + " --no-such-option"}).releases == ()


TENSORS = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
mixed_precision: bf16
num_processes: 16
parallelism_config:
  parallelism_config_dp_replicate_size: {replicas}
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
"""


def test_what_planner_does_not_model_is_no_verdict() -> None:
    """Accelerate's own examples/torch_native_parallelism/configs/tp_hsdp.yaml has tensors divided."""
    with pytest.raises(UnsupportedError, match="planner models tp=1 of Accelerate alone"):
        checked({"a.yaml": TENSORS.format(replicas=2)})
    refused = checked({"a.yaml": TENSORS.format(replicas=2)}, gpus=8)["violations"]
    assert "world-size" in {broken["rule"] for broken in refused}  # whatever is modelled


def test_a_launcher_goes_before_num_processes() -> None:
    """`accelerate launch --num_processes`: as the number of devices of any other framework's files."""
    answer = checked({"a.yaml": ACCELERATE.format(kind="FSDP", count=4)})
    assert answer["legal"]
    assert answer["axes"]["dp"] == 16
    assert "the files start 4 processes, --gpus says 16" in answer["notes"]

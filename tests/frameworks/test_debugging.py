"""Variables of a launch's environment that are meant for finding faults: those that slow a step are named."""

from __future__ import annotations

import pytest

from planner.ask.question import Question
from planner.cli.check import check_files
from planner.frameworks.shell.debugging import debugging_notes


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("export CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING is 1"),
        ("CUDA_LAUNCH_BLOCKING=1 torchrun pretrain.py", "CUDA_LAUNCH_BLOCKING is 1"),
        ("docker run -e NCCL_P2P_DISABLE=1 image", "NCCL_P2P_DISABLE is 1"),
        ("export TORCH_DISTRIBUTED_DEBUG=DETAIL", "TORCH_DISTRIBUTED_DEBUG is DETAIL"),
        ("export TORCH_DISTRIBUTED_DEBUG=INFO", ""),
        ("export CUDA_LAUNCH_BLOCKING=0", ""),
        ("# export NCCL_IB_DISABLE=1", ""),
        ("unset CUDA_LAUNCH_BLOCKING", ""),
        ("export NCCL_DEBUG=INFO", ""),
    ],
)
def test_what_a_script_sets(line: str, named: str) -> None:
    notes = debugging_notes({"run.sh": f"#!/bin/bash\n{line}\n"})
    assert [note.split(":")[0] for note in notes] == [named] * bool(named)


def test_check_says_so() -> None:
    train = (
        "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 "
        "--ffn-hidden-size 8192 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
        "--vocab-size 32000 --bf16 --swiglu --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer"
    )
    files = {"run.sh": f"export CUDA_LAUNCH_BLOCKING=1\n{train}\n"}
    notes = check_files(files, Question("", "1x8 h100 400G-ib"))["notes"]
    assert any(
        note.startswith("CUDA_LAUNCH_BLOCKING is 1: the host waits for every kernel") for note in notes
    )

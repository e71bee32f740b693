"""The program that a DeepSpeed launch brings trains: two processes on the CPU, a tiny model, a few steps.

Needs the extra `frameworks`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from planner.frameworks import framework
from tests.frameworks.launches import golden_launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed not installed"),
]

# what needs a device or a compiler is put aside; the rest is the program as it is written
ON_CPU = """
import runpy, sys
import torch
torch.cuda.synchronize = lambda: None
torch.cuda.max_memory_allocated = lambda: 0
import deepspeed.comm.torch
deepspeed.comm.torch.build_shm_op = lambda: None
sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_path("train.py", run_name="__main__")
"""
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "parts", "words"), [(3, 1, ("--recompute",)), (1, 2, ()), (3, 2, ())], ids=str
)
def test_deepspeed_program_trains(tmp_path: Path, stage: int, parts: int, words: tuple[str, ...]) -> None:
    """ZeRO 3 and Ulysses, which shard the model and the sequence before the first step."""
    files = framework("deepspeed").render(golden_launch("deepspeed"), framework("deepspeed").versions[-1])
    (tmp_path / "train.py").write_text(files["train.py"])
    (tmp_path / "on_cpu.py").write_text(ON_CPU)
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(files["config.json"]), **TINY}))
    settings: dict[str, Any] = json.loads(files["ds_config.json"])
    settings |= {
        "train_batch_size": 4 // parts,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
    }
    settings["zero_optimization"]["stage"] = stage
    settings["optimizer"]["params"]["torch_adam"] = True
    if parts > 1:
        settings["sequence_parallel_size"] = parts
        settings.pop("tensor_parallel", None)  # they do not go together on two processes
    (tmp_path / "ds_config.json").write_text(json.dumps(settings))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "on_cpu.py",
        "--seq-len", "32", "--micro-batch", "2", "--accumulate", "1", "--steps", "2", *words,
    ]  # fmt: skip
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 1 loss" in done.stdout

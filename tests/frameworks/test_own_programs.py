"""The programs that launches bring train: two processes on the CPU, a tiny model, a few steps.

Needs the extra `frameworks`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.frameworks import framework
from planner.spec.config import ParallelConfig
from tests.frameworks.launches import STACKS, golden_launch, launch, problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed not installed"),
]

# what needs a device or a compiler is put aside; the rest is the program as it is written
ON_CPU = """
import os, runpy, sys
import torch
torch.cuda.synchronize = lambda: None
torch.cuda.max_memory_allocated = lambda: 0
import deepspeed.comm.torch
deepspeed.comm.torch.build_shm_op = lambda: None
sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_path("train.py", run_name="__main__")
sys.stdout.flush()
os._exit(0)  # Gloo's threads may still run while the interpreter takes the program's groups down: an abort
"""
# Accelerate counts processes by their devices
ACCELERATE_ON_CPU = """
from accelerate import Accelerator
from accelerate.state import DistributedType, PartialState
if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
    Accelerator.num_processes = property(lambda self: int(os.environ["WORLD_SIZE"]))
else:
    PartialState._prepare_backend = lambda self, *a, **k: ("gloo", DistributedType.MULTI_GPU)
    PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
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
    assert "step 1 loss" in run(command, tmp_path)


def run(command: list[str], folder: Path) -> str:
    """What it prints; its errors fail the test."""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("stage", [1, 3], ids=["deepspeed", "fsdp2"])
def test_accelerate_program_trains(tmp_path: Path, stage: int) -> None:
    """Under both of its plug-ins, with a model whose config.json names bf16: what is trained are fp32 weights."""
    config = ParallelConfig(dp=2, micro_batch=2, num_microbatches=2, zero=stage)
    given = problem("llama-3.1-8b", STACKS["accelerate"], gpus=2, batch="8", cluster="1x2 h100 400G-ib")
    files = framework("accelerate").render(launch("llama-3.1-8b", config, given), "1.15.0")
    seen = "print(type(optimizer).__name__, {p.dtype for p in model.parameters()})\n"
    program = files["train.py"].replace("model, optimizer = acc", seen + "model, optimizer = acc")
    (tmp_path / "train.py").write_text(program)
    before, start = ON_CPU.split("sys.argv =")
    (tmp_path / "on_cpu.py").write_text(before + ACCELERATE_ON_CPU + "sys.argv =" + start)
    (tmp_path / "config.json").write_text(
        json.dumps({**json.loads(files["config.json"]), **TINY, "dtype": "bfloat16"})
    )
    (tmp_path / "accelerate.yaml").write_text(files["accelerate.yaml"])
    assert yaml.safe_load(files["accelerate.yaml"])["num_processes"] == 2
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [
        sys.executable, "-W", "ignore", "-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml",
        "--main_process_ip", "127.0.0.1", "--main_process_port", port,
        "on_cpu.py", "--seq-len", "32", "--micro-batch", "2", "--accumulate", "2", "--steps", "2",
    ]  # fmt: skip
    said = run(command, tmp_path)
    assert "{torch.float32}" in said
    assert "step 1 loss" in said

"""Full bf16 training in launch files: written, read, and refused where a framework's files cannot say it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.stack_options import PURE_BF16
from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Files
from tests.frameworks.launches import CONFIGS, STACKS, launch, problem


def files_of(name: str, stack: str, version: str | None = None, **changes: int) -> Files:
    given = problem("llama-3.1-8b", stack)
    chosen = framework(name)
    config = replace(CONFIGS[name], **changes)
    return chosen.render(launch("llama-3.1-8b", config, given), chosen.version(version))


@pytest.mark.parametrize(("version", "file"), [("0.2.2", "config.toml"), ("0.3.0", "launch.sh")])
def test_torchtitan_writes_and_reads_it(version: str, file: str) -> None:
    files = files_of("torchtitan", f"torchtitan-2026+{PURE_BF16}", version)
    assert "dtype" in files[file]
    assert framework("torchtitan").parse(files).stack_options == (PURE_BF16,)
    plain = files_of("torchtitan", "torchtitan-2026", version)
    assert framework("torchtitan").parse(plain).stack_options == ()


def test_deepspeed_writes_and_reads_it() -> None:
    # deepspeed 0.19.8 runtime/base_optimizer.py: moments in bf16 need masters and gradients in bf16
    files = files_of("deepspeed", f"deepspeed-2025+{PURE_BF16}")
    written = json.loads(files["ds_config.json"])["bf16"]
    assert written == {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert framework("deepspeed").parse(files).stack_options == (PURE_BF16,)
    settings = json.loads(files["ds_config.json"])
    settings["bf16"]["bf16_optimizer_states"] = False
    half = {**files, "ds_config.json": json.dumps(settings)}
    parsed = framework("deepspeed").parse(half)
    assert parsed.stack_options == ()
    assert any("fp32 masters" in note for note in parsed.notes)


def test_deepspeed_without_zero_cannot() -> None:
    with pytest.raises(UnsupportedError, match="without ZeRO"):
        files_of("deepspeed", f"deepspeed-2025+{PURE_BF16}", zero=0)
    given = problem("llama-3.1-8b", f"deepspeed-2025+{PURE_BF16}")
    (rule,) = (rule for rule in framework("deepspeed").rules if rule.id == "pure-bf16-zero")
    axes = ("zero", "dp", "cp")
    table = {
        axis: np.array(column) for axis, column in zip(axes, ((0, 1, 0), (8, 8, 1), (1, 1, 1)), strict=True)
    }
    assert rule.legal(table, given).tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge", "nanotron", "accelerate"])
def test_others_refuse_it(name: str) -> None:
    assert files_of(name, STACKS[name])
    with pytest.raises(UnsupportedError, match="full bf16 training, without fp32 masters"):
        files_of(name, f"fsdp1-2023+{PURE_BF16}")

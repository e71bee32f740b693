"""ZeRO on a single device: for an optimizer on the host, where the framework runs it; nothing to shard otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

JOB = ["llama-3.1-8b", "1x1 h100", "--seq-len", "2048", "--global-batch", "16"]


def answered(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code in (0, 1), result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def broken(stack: str, *pins: str) -> set[str]:
    return refused(JOB, stack, *pins)


def refused(job: list[str], stack: str, *pins: str) -> set[str]:
    sets = [word for pin in pins for word in ("--set", pin)]
    found = answered("estimate", *job, "--stack", stack, *sets)
    return {violation["rule"] for violation in found["violations"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("stack", "pins"),
    [
        ("deepspeed-2025", ["zero=1", "offload=optimizer"]),
        ("deepspeed-2025", ["zero=2", "offload=optimizer"]),
        ("deepspeed-2025", ["zero=3", "offload=optimizer+params"]),
        ("megatron-2026", ["zero=1", "offload=optimizer"]),
    ],
)
def test_zero_offload_on_one_device(stack: str, pins: list[str]) -> None:
    assert not broken(stack, *pins)
    without = [pin for pin in pins if not pin.startswith("offload")]
    assert "zero-replicas" in broken(stack, *without)


@pytest.mark.parametrize("stack", ["deepspeed-2025", "megatron-2026"])
def test_an_optimizer_on_the_host_is_one_of_zero(stack: str) -> None:
    """DeepSpeed's stage 0 makes no optimizer that heeds offload_optimizer; Megatron-LM's is the distributed one."""
    assert "zero-replicas" in broken(stack, "zero=0", "offload=optimizer")
    assert not broken(stack, "offload=optimizer")  # the stage not named is one that can


def test_offloading_that_a_framework_refuses_is_illegal() -> None:
    eight = ["llama-3.1-8b", "8 h100", "--global-batch", "64", "--seq-len", "4096"]
    assert refused(eight, "deepspeed-2025", "pp=2", "offload=optimizer") == {"pipeline-offload"}
    assert refused(eight, "megatron-2026", "offload=activations", "recompute=full") == {"offload-recompute"}
    assert not refused(eight, "megatron-2026", "offload=activations")


def test_a_plan_that_offloads_can_be_launched(tmp_path: Path) -> None:
    plan, launch = str(tmp_path / "plan.json"), str(tmp_path / "launch")
    asked = ["llama-3.1-8b", "1x8 rtx4090 100G-ib", "--stack", "deepspeed-2025", "--global-batch", "64"]
    found = answered("plan", *asked, "--set", "offload=none,optimizer", "-o", plan)
    assert not any("launched without" in line["text"] for line in found["assumptions"])  # type: ignore[attr-defined]
    assert CliRunner().invoke(app, ["export", plan, "--to", "deepspeed", "-o", launch]).exit_code == 0


def test_torchtitan_shards_nothing_on_one_device() -> None:
    assert "zero-replicas" in broken("torchtitan-2026", "zero=3", "offload=optimizer+params")


@pytest.mark.parametrize(
    ("stack", "to", "stage"), [("deepspeed-2025", "deepspeed", 2), ("megatron-2026", "megatron", 1)]
)
def test_files_of_it_are_checked_as_they_are(tmp_path: Path, stack: str, to: str, stage: int) -> None:
    plan, launch = str(tmp_path / "plan.json"), str(tmp_path / "launch")
    pins = ["--set", f"zero={stage}", "--set", "offload=optimizer", "--stack", stack, "-o", plan]
    answered("estimate", *JOB, *pins)
    assert CliRunner().invoke(app, ["export", plan, "--to", to, "-o", launch]).exit_code == 0
    checked = answered("check", launch, "--cluster", "1x1 h100", "--model", JOB[0], "--stack", stack)
    assert (checked["axes"]["zero"], checked["axes"]["offload"]) == (stage, "optimizer")  # type: ignore[index]
    assert checked["violations"] == []

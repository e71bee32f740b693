"""A hybrid of Mamba-2, attention, MLPs and experts goes through every verb, from planning to checking its launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app

CONFIG = {
    "model_type": "nemotron_h", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 8192,
    "hybrid_override_pattern": "M-M*MEM-M*MEM-M*ME", "mamba_num_heads": 64, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 2048, "moe_shared_expert_intermediate_size": 2048,
}  # fmt: skip
CLUSTER = "1x8 h100 400G-ib"


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("hybrid")
    model, plan = folder / "config.json", folder / "plan.json"
    model.write_text(json.dumps(CONFIG))
    words = (
        "--seq-len",
        "4096",
        "--global-batch",
        "64",
        "--set",
        "pp=2",
        "--set",
        "vpp=1",
        "--set",
        "tp=1,2",
    )
    said("plan", str(model), CLUSTER, *words, "-o", str(plan))
    return model, plan


def test_the_plan_splits_layers_and_says_what_is_uncertain(planned: tuple[Path, Path]) -> None:
    plan: dict[str, Any] = json.loads(planned[1].read_text())
    best = plan["choices"][0]
    assert sum(best["split"]["layers_per_chunk"]) == 18
    assert best["memory"]["verdict"] == "fits"
    assert "state spaces" in plan["confidence"]["explanation"]
    assert best["time"]["memory_bound"] > 0


@pytest.mark.parametrize("words", [("explain",), ("explain", "--rank", "5"), ("estimate",)])
def test_verbs_that_read_the_plan(planned: tuple[Path, Path], words: tuple[str, ...]) -> None:
    assert said(words[0], str(planned[1]), *words[1:])


def test_trace_and_report(planned: tuple[Path, Path], tmp_path: Path) -> None:
    said("trace", str(planned[1]), "-o", str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())
    said("report", str(planned[1]), "-o", str(tmp_path / "report.html"))
    assert "memory" in (tmp_path / "report.html").read_text()


def test_export_and_check(planned: tuple[Path, Path], tmp_path: Path) -> None:
    release = ("--framework-version", "main-2026-08")
    said("export", str(planned[1]), "--to", "megatron", "-o", str(tmp_path / "launch"), *release)
    checked = said("check", str(tmp_path / "launch" / "launch.sh"), "--cluster", CLUSTER)
    assert "legal; fits" in " ".join(checked.split())


def test_context_parallelism_costs_exchanges_of_scans(planned: tuple[Path, Path]) -> None:
    words = ("estimate", str(planned[0]), CLUSTER, "--seq-len", "8192", "--global-batch", "64", "--json")
    found = [json.loads(said(*words, "--set", f"cp={cp}", "--set", "tp=1"))["choices"][0] for cp in (1, 4)]
    assert found[0]["time"]["cp_comm"] == 0
    assert found[1]["time"]["cp_comm"] > 0


def test_an_illegal_degree_names_the_groups(planned: tuple[Path, Path]) -> None:
    words = ("estimate", "granite-4.0-h-small", CLUSTER, "--seq-len", "4096", "--global-batch", "64")
    assert "1 groups of state spaces" in " ".join(said(*words, "--set", "tp=2", code=1).split())

"""A hybrid of gated delta nets, gated attention and experts goes through every verb, from planning to checking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app

CONFIG = {
    "model_type": "qwen3_next", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 128, "num_hidden_layers": 14, "vocab_size": 32000, "max_position_embeddings": 8192, "num_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "linear_num_key_heads": 8, "linear_num_value_heads": 16, "rope_theta": 1e7,
}  # fmt: skip
CLUSTER = "1x8 h100 400G-ib"


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("delta")
    model, plan = folder / "config.json", folder / "plan.json"
    model.write_text(json.dumps(CONFIG))
    words = (
        "--seq-len",
        "4096",
        "--global-batch",
        "64",
        *("--set", "pp=4", "--set", "vpp=1", "--set", "tp=1"),
    )
    said("plan", str(model), CLUSTER, *words, "-o", str(plan))
    return model, plan


def test_stages_of_unlike_layers_and_what_is_uncertain(planned: tuple[Path, Path]) -> None:
    """14 layers, three delta nets to one attention, over 4 stages."""
    plan: dict[str, Any] = json.loads(planned[1].read_text())
    best = plan["choices"][0]
    assert sum(best["split"]["layers_per_chunk"]) == 14
    assert len(best["memory"]["per_stage"]) == 4
    assert best["memory"]["verdict"] == "fits"
    assert "gated delta nets" in plan["confidence"]["explanation"]
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


def test_parameters_and_work_are_listed(planned: tuple[Path, Path]) -> None:
    found = json.loads(said("model", str(planned[0]), "--seq-len", "4096", "--json"))
    assert found["flops_forward_scan"] > 0
    text = " ".join(said("model", str(planned[0])).split())
    assert "delta net" in text
    assert "forward scan" in text


def test_context_parallelism_costs_exchanges_of_scans(planned: tuple[Path, Path]) -> None:
    words = ("estimate", str(planned[0]), CLUSTER, "--seq-len", "8192", "--global-batch", "64", "--json")
    found = [json.loads(said(*words, "--set", f"cp={cp}", "--set", "tp=1"))["choices"][0] for cp in (1, 4)]
    assert found[0]["time"]["cp_comm"] == 0
    assert found[1]["time"]["cp_comm"] > 0


def test_an_illegal_degree_names_the_heads(planned: tuple[Path, Path]) -> None:
    words = ("estimate", str(planned[0]), CLUSTER, "--seq-len", "4096", "--global-batch", "64")
    text = " ".join(said(*words, "--set", "tp=2", "--set", "cp=8", code=1).split())
    assert "8 heads of keys" in text
    assert "gated delta nets" in text


def test_multi_token_prediction_adds_a_layer(planned: tuple[Path, Path]) -> None:
    words = ("estimate", "qwen3-next-80b-a3b", "dgx-h100", "--gpus", "128", "--seq-len", "4096", "--global-batch",
             "1024", "--set", "pp=4", "--set", "ep=8", "--json")  # fmt: skip
    plain, more = (json.loads(said(*words, *extra))["choices"][0] for extra in ((), ("--mtp",)))
    assert more["time"]["gemm"] > plain["time"]["gemm"]

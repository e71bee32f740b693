"""A model of sparse attention goes through every verb, from an estimate to checking its launch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

CLUSTER = "1x8 h100 400G-ib"
SMALL = {
    "model_type": "deepseek_v32", "hidden_size": 1024, "num_attention_heads": 64, "num_hidden_layers": 8,
    "vocab_size": 32000, "intermediate_size": 4096, "moe_intermediate_size": 512, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "q_lora_rank": 512, "kv_lora_rank": 512,
    "max_position_embeddings": 65536, "first_k_dense_replace": 1, "index_topk": 1024,
}  # fmt: skip


def said(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_from_the_estimate_to_the_check_of_its_launch(tmp_path: Path) -> None:
    model, plan = tmp_path / "config.json", tmp_path / "plan.json"
    model.write_text(json.dumps(SMALL))
    job = ("--gpus", "8", "--seq-len", "32768", "--global-batch", "16")
    axes = ("--set", "cp=2", "--set", "ep=4", "--set", "recompute=full", "--set", "cuda_graph_impl=none")
    text = said("estimate", str(model), CLUSTER, *job, *axes, "-o", str(plan))
    assert "no run with sparse attention was fitted" in " ".join(text.split())
    assert "+dsa-kernel-backend=tilelang" in text  # texts over two ranks, not packed
    best = json.loads(plan.read_text())["choices"][0]
    assert best["time"]["indexer"] > best["time"]["attention"] > 0
    assert sum(best["time"].values()) == pytest.approx(best["step_time"])
    files = tmp_path / "launch"
    said("export", str(plan), "--to", "megatron", "--framework-version", "main-2026-08", "-o", str(files))
    assert "--dsa-indexer-topk 1024" in (files / "launch.sh").read_text()
    packed = ("--packed", "--mean-len", "32768", "--json")
    cheaper = json.loads(said("estimate", str(model), CLUSTER, *job, *axes, *packed))["choices"][0]
    assert cheaper["time"]["indexer"] < best["time"]["indexer"] / 5


def test_a_plan_of_long_texts_names_kernels_under_which_ranks_share_them(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps(SMALL))
    for length, cp, told in (("32768", "1", True), ("4096", "1", False), ("4096", "2", True)):
        job = (CLUSTER, "--gpus", "8", "--seq-len", length, "--global-batch", "16")
        axes = (f"cp={cp}", "ep=4", "recompute=full", "cuda_graph_impl=none")
        text = said("estimate", str(model), *job, *(word for axis in axes for word in ("--set", axis)))
        assert ("+dsa-kernel-backend=tilelang" in text) is told, (length, cp)


def test_another_stack_that_runs_no_such_model_is_not_recommended(tmp_path: Path) -> None:
    model, plan = tmp_path / "config.json", tmp_path / "plan.json"
    model.write_text(json.dumps(SMALL))
    said("estimate", str(model), CLUSTER, "--seq-len", "4096", "--set", "ep=8", "-o", str(plan))
    words = ["export", str(plan), "--to", "torchtitan", "-o", str(tmp_path / "launch")]
    refused = " ".join(CliRunner().invoke(app, words).stderr.split())
    assert "rule indexer-kernels" in refused
    assert "plan for it" not in refused

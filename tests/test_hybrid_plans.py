"""Hybrids, of Mamba-2 and of gated delta nets, go through every verb, from planning to checking their launch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app

CLUSTER = "1x8 h100 400G-ib"
MAMBA = {
    "model_type": "nemotron_h", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 8192,
    "hybrid_override_pattern": "M-M*MEM-M*MEM-M*ME", "mamba_num_heads": 64, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 2048, "moe_shared_expert_intermediate_size": 2048,
}  # fmt: skip
DELTA = {
    "model_type": "qwen3_next", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 128, "num_hidden_layers": 14, "vocab_size": 32000, "max_position_embeddings": 8192, "num_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "linear_num_key_heads": 8, "linear_num_value_heads": 16, "rope_theta": 1e7,
}  # fmt: skip


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.stdout


@dataclass(frozen=True)
class Planned:
    """A model of `layers` layers that was planned over `stages`; `unsure`: what the plan says no run backs."""

    model: Path
    plan: Path
    layers: int
    stages: int
    part: str
    unsure: str


@pytest.fixture(scope="module", params=["mamba", "delta"])
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder, mamba = tmp_path_factory.mktemp(request.param), request.param == "mamba"
    model, plan = folder / "config.json", folder / "plan.json"
    model.write_text(json.dumps(MAMBA if mamba else DELTA))
    degrees = ("pp=2", "tp=1,2") if mamba else ("pp=4", "tp=1")
    sets = [word for degree in (*degrees, "vpp=1") for word in ("--set", degree)]
    said("plan", str(model), CLUSTER, "--seq-len", "4096", "--global-batch", "64", *sets, "-o", str(plan))
    if mamba:
        return Planned(model, plan, 18, 2, "state space", "state spaces")
    return Planned(model, plan, 14, 4, "delta net", "gated delta nets")


def test_stages_of_unlike_layers_and_what_is_uncertain(planned: Planned) -> None:
    plan: dict[str, Any] = json.loads(planned.plan.read_text())
    best = plan["choices"][0]
    assert sum(best["split"]["layers_per_chunk"]) == planned.layers
    assert sum(best["layers_per_stage"]) == planned.layers
    assert len(best["layers_per_stage"]) == planned.stages
    assert best["memory"]["verdict"] == "fits"
    assert planned.unsure in str(plan["confidence"]["explanation"])
    assert best["time"]["memory_bound"] > 0


@pytest.mark.parametrize("words", [("explain",), ("explain", "--rank", "5"), ("estimate",)])
def test_verbs_that_read_the_plan(planned: Planned, words: tuple[str, ...]) -> None:
    assert said(words[0], str(planned.plan), *words[1:])


def test_trace_and_report(planned: Planned, tmp_path: Path) -> None:
    said("trace", str(planned.plan), "-o", str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())
    said("report", str(planned.plan), "-o", str(tmp_path / "report.html"))
    assert "memory" in (tmp_path / "report.html").read_text()


def test_export_and_check(planned: Planned, tmp_path: Path) -> None:
    release = ("--framework-version", "main-2026-08")
    said("export", str(planned.plan), "--to", "megatron", "-o", str(tmp_path / "launch"), *release)
    checked = said("check", str(tmp_path / "launch" / "launch.sh"), "--cluster", CLUSTER)
    assert "legal; fits" in " ".join(checked.split())


def test_parameters_and_work_are_listed(planned: Planned) -> None:
    found = json.loads(said("model", str(planned.model), "--seq-len", "4096", "--json"))
    assert found["flops_forward_scan"] > 0
    text = " ".join(said("model", str(planned.model)).split())
    assert planned.part in text
    assert "forward scan" in text


def test_context_parallelism_costs_exchanges_of_scans(planned: Planned) -> None:
    words = ("estimate", str(planned.model), CLUSTER, "--seq-len", "8192", "--global-batch", "64", "--json")
    found = [json.loads(said(*words, "--set", f"cp={cp}", "--set", "tp=1"))["choices"][0] for cp in (1, 4)]
    assert found[0]["time"]["cp_comm"] == 0
    assert found[1]["time"]["cp_comm"] > 0


def test_an_illegal_degree_names_the_groups() -> None:
    words = ("estimate", "granite-4.0-h-small", CLUSTER, "--seq-len", "4096", "--global-batch", "64")
    assert "1 groups of state spaces" in " ".join(said(*words, "--set", "tp=2", code=1).split())


def test_an_illegal_degree_names_the_heads(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DELTA))
    words = ("estimate", str(tmp_path / "config.json"), CLUSTER, "--seq-len", "4096", "--global-batch", "64")
    text = " ".join(said(*words, "--set", "tp=2", "--set", "cp=8", code=1).split())
    assert "8 heads of keys" in text
    assert "gated delta nets" in text


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b", "nemotron-3-super-120b-a12b"])
def test_multi_token_prediction_adds_layers_that_no_stage_is_dealt(model: str) -> None:
    words = ("estimate", model, "dgx-b200", "--gpus", "128", "--seq-len", "4096", "--global-batch", "1024",
             "--set", "pp=4", "--set", "ep=8", "--json")  # fmt: skip
    plain, more = (json.loads(said(*words, *extra))["choices"][0] for extra in ((), ("--mtp",)))
    assert more["step_time"] > plain["step_time"]
    assert sum(more["layers_per_stage"]) == sum(plain["layers_per_stage"])

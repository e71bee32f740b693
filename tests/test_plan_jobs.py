"""Do the readers of a plan file read the job it was made for: adapters, lengths, packing, expert loads?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.cost.mfu import causal_half_flops_per_token, weight_gradient_flops_per_token
from planner.report.words import text_of
from planner.spec.load_model import load_model
from planner.spec.load_plan import load_plan

DENSE = [
    "llama-3.1-8b",
    "1x8 h100",
    "--seq-len",
    "4096",
    "--global-batch",
    "32",
    "--set",
    "tp=2",
    "--set",
    "pp=2",
]
EXPERTS = [
    "Qwen/Qwen3-30B-A3B",
    "4x8 h100 400G-ib",
    "--seq-len",
    "4096",
    "--set",
    "pp=2",
    "--set",
    "ep=8",
    "--set",
    "recompute=full",
]
JOBS = {
    "lora": [*DENSE, "--lora-rank", "16"],
    "qlora": [*DENSE, "--lora-rank", "16", "--frozen-bits", "4", "--lora-targets", "qkv"],
    "padded": [*DENSE, "--mean-len", "512"],
    "packed": [*DENSE, "--mean-len", "512", "--packed"],
    "loads": [*EXPERTS, "--expert-loads", "zipf:1.2"],
    "replicas": [*EXPERTS, "--expert-loads", "zipf:1.2", "--expert-replicas", "256"],
}


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The estimate of a job as a file, made once."""
    folder = tmp_path_factory.mktemp("plans")

    def of(job: str) -> str:
        path = folder / f"{job}.json"
        if not path.exists():
            run("estimate", *JOBS[job], "-o", str(path))
        return str(path)

    return of


@pytest.mark.parametrize("job", ["qlora", "packed"])
def test_a_search_costs_the_job_as_an_estimate_does(
    plan_file: Callable[[str], str], tmp_path: Path, job: str
) -> None:
    """The configuration of `JOBS` is one of those that `plan` looks through: its best is no slower."""
    path = str(tmp_path / "plan.json")
    run("plan", *JOBS[job], "-o", path)
    found = load_plan(path).choices[0]
    assert found.step_time <= load_plan(plan_file(job)).choices[0].step_time
    again = json.loads(run("estimate", path, "--json"))["choices"][0]
    assert again["config"] == json.loads(found.config.model_dump_json())
    assert again["step_time"] == pytest.approx(found.step_time)


@pytest.mark.parametrize("job", JOBS)
def test_every_reader_costs_the_job_of_the_plan(
    plan_file: Callable[[str], str], tmp_path: Path, job: str
) -> None:
    path = plan_file(job)
    planned = load_plan(path).choices[0]
    again = json.loads(run("estimate", path, "--json"))["choices"][0]
    assert again["step_time"] == planned.step_time
    assert again["memory"] == json.loads(planned.memory.model_dump_json())
    assert again["mfu"] == planned.mfu
    explained = json.loads(run("explain", path, "--json"))
    assert explained["step_time"] == planned.step_time
    run("trace", path, "-o", str(tmp_path / "trace.json"))


def test_an_explanation_reduces_gradients_of_adapters_alone(plan_file: Callable[[str], str]) -> None:
    axes = json.loads(run("explain", plan_file("lora"), "--json"))["placement"]["axes"]
    (data,) = (axis for axis in axes if axis["axis"] == "dp")
    assert 0 < data["exchanges"][0]["size"] < 100e6  # the model's own are 4 bytes x 8e9 / 4 a rank


@pytest.mark.parametrize(
    "to", ["megatron", "megatron-bridge", "torchtitan", "nanotron", "deepspeed", "accelerate"]
)
def test_no_framework_is_told_full_training_of_a_plan_with_adapters(
    plan_file: Callable[[str], str], tmp_path: Path, to: str
) -> None:
    path = plan_file("lora")
    said = run("export", path, "--to", to, "-o", str(tmp_path / "launch"), code=2)
    assert "LoRA of rank 16" in said
    assert not (tmp_path / "launch").exists()


def test_replicas_of_experts_are_not_exported(plan_file: Callable[[str], str], tmp_path: Path) -> None:
    path = plan_file("replicas")
    said = run("export", path, "--to", "megatron", "-o", str(tmp_path / "launch"), code=2)
    assert "256 replicas" in said


@pytest.mark.parametrize(
    ("job", "said"), [("padded", "- lengths:"), ("packed", "- packing:"), ("loads", "- expert loads:")]
)
def test_an_export_says_what_of_the_job_it_leaves_out(
    plan_file: Callable[[str], str], tmp_path: Path, job: str, said: str
) -> None:
    run("export", plan_file(job), "--to", "megatron", "-o", str(tmp_path / "launch"))
    assert said in (tmp_path / "launch" / "README.md").read_text().split("do not express")[1]


def test_mfu_of_adapters_counts_no_weight_gradients(plan_file: Callable[[str], str]) -> None:
    choice = load_plan(plan_file("lora")).choices[0]
    model = load_model("llama-3.1-8b")
    whole, skipped = causal_half_flops_per_token(model, 4096.0), weight_gradient_flops_per_token(model)
    assert 0.28 < skipped / float(whole) < 1 / 3
    assert choice.flops_per_device == pytest.approx(
        choice.tokens_per_second_per_device * (float(whole) - skipped)
    )
    assert "weight gradients" in text_of(choice.mfu_convention)

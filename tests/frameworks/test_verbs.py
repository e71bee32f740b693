"""`planner export` and `planner check` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

runner = CliRunner()
CLUSTER = "4x8 h100 400G-ib"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    words = ["plan", "llama-3.1-8b", CLUSTER, "--seq-len", "4096", "--global-batch", "256", "-o", str(path)]
    assert runner.invoke(app, words).exit_code == 0
    return path


def test_export_then_check(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "launch"
    done = runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "step time" in (out / "README.md").read_text()
    words = ["check", str(out), "--cluster", CLUSTER, "--json"]
    checked = runner.invoke(app, words)
    assert checked.exit_code == 0, checked.output
    answer = json.loads(checked.stdout)
    best = json.loads(plan.read_text())["choices"][0]
    assert answer["legal"]
    assert answer["devices"] == 32
    assert answer["config"] == best["config"]["text"]
    assert answer["step_time_s"] == pytest.approx(best["step_time"], rel=1e-6)
    assert answer["better"] is None
    again = runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out)])
    assert again.exit_code == 2
    assert (
        runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out), "--force"]).exit_code
        == 0
    )


def test_check_finds_something_better(tmp_path: Path) -> None:
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        "train_batch_size": 256,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "reduce_bucket_sise": 1},
    }
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(settings))
    words = ["check", str(path), "--cluster", CLUSTER, "--gpus", "32", "--model", "llama-3.1-8b", "--json"]
    done = runner.invoke(app, words)
    answer = json.loads(done.stdout)
    assert done.exit_code == 1, "an option that DeepSpeed does not have"
    assert "reduce_bucket_size" in answer["unknown_options"][0]
    assert answer["axes"]["zero"] == 2


def test_check_of_an_illegal_configuration(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(
        "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
        "--vocab-size 32000 --micro-batch-size 1 --global-batch-size 250 --tensor-model-parallel-size 8 --bf16 "
        "--max-position-embeddings 4096 --position-embedding-type rope --swiglu --disable-bias-linear"
    )
    done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER, "--gpus", "32"])
    assert done.exit_code == 1
    assert "batch" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "--num-layers x --tensor-model-parallel-size 2",
        "[parallelism\n",
        "{",
        "distributed_type: [",
    ],
)
def test_check_of_nonsense(text: str, tmp_path: Path) -> None:
    for name in ("a.sh", "a.toml", "a.yaml", "ds_config.json"):
        path = tmp_path / name
        path.write_text(text)
        done = runner.invoke(app, ["check", str(path), "--cluster", CLUSTER])
        assert done.exit_code == 2, (name, done.output)
        assert "Traceback" not in done.output


def test_export_refuses(plan: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "x")
    for words in (
        ["--to", "megatrn"],
        ["--to", "megatron", "--choice", "99"],
        ["--to", "megatron", "--choice", "-1"],
        ["--to", "megatron", "--framework-version", "9"],
    ):
        assert runner.invoke(app, ["export", str(plan), "-o", out, *words]).exit_code == 2
    assert not Path(out).exists()

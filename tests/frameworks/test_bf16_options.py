"""--first-last-layers-bf16: written where the job keeps layers in bf16, read back, refused where Megatron-LM does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Files
from planner.spec.rule import Problem
from tests.frameworks.launches import CONFIGS, launch, problem

WORDS = (
    "pretrain_gpt.py --num-layers 32 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 "
    "--micro-batch-size 1 --bf16 --use-distributed-optimizer --first-last-layers-bf16 "
)
runner = CliRunner()


def given(ends: tuple[int, int], precision: str = "fp8_cs", stack: str = "megatron-2026") -> Problem:
    found = problem("llama-3.1-8b", stack, precision=precision)
    return replace(found, job=replace(found.job, bf16_layers=ends))


def written(name: str, ends: tuple[int, int], release: str = "", precision: str = "fp8_cs") -> Files:
    found = framework(name)
    which = launch("llama-3.1-8b", CONFIGS[name], given(ends, precision))
    return found.render(which, release or found.default_version)


@pytest.mark.parametrize("release", ["0.16.1", "0.18.2", "main-2026-08"])
@pytest.mark.parametrize("ends", [(1, 1), (0, 4), (2, 0)])
def test_written_and_read(release: str, ends: tuple[int, int]) -> None:
    files = written("megatron", ends, release)
    first, last = ends
    text = " ".join(files["launch.sh"].split())
    assert "--first-last-layers-bf16" in text
    assert f"--num-layers-at-start-in-bf16 {first}" in text
    assert f"--num-layers-at-end-in-bf16 {last}" in text
    assert framework("megatron").parse({"launch.sh": files["launch.sh"]}).bf16_layers == ends


def test_nothing_is_written_where_there_are_none() -> None:
    text = written("megatron", (0, 0))["launch.sh"]
    assert "in-bf16" not in text
    assert "layers-bf16" not in text
    assert framework("megatron").parse({"launch.sh": text}).bf16_layers == (0, 0)


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ("--fp8-format hybrid --fp8-recipe tensorwise", (1, 1)),  # one each where no number is given
        ("--fp4-format e2m1 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 9", (0, 9)),
        ("--num-layers-at-end-in-bf16 4", (0, 0)),  # all layers are in bf16
    ],
)
def test_read_with_megatrons_defaults(words: str, ends: tuple[int, int]) -> None:
    assert framework("megatron").parse({"run.sh": WORDS + words}).bf16_layers == ends


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ("--fp8-format hybrid", "delayed scaling"),
        (
            "--fp8-format e4m3 --fp8-recipe mxfp8 --num-layers-at-end-in-bf16 9",
            "layers of a pipeline stage, 8",
        ),
        (
            "--fp4-format e2m1 --num-layers-at-start-in-bf16 30 --num-layers-at-end-in-bf16 9",
            "the model's, 32",
        ),
    ],
)
def test_refused(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        framework("megatron").parse({"run.sh": WORDS + words})


def test_bridge_is_told_where_its_recipes_differ() -> None:
    """Current scaling keeps a layer at either end in bf16 unless a configuration takes its place."""
    bridge = framework("megatron-bridge")
    for ends, named in (((0, 0), False), ((1, 2), False), ((1, 1), True)):
        script = written("megatron-bridge", ends)["launch.sh"]
        assert ("MixedPrecisionConfig" not in script) is named
        assert bridge.parse({"launch.sh": script}).bf16_layers == ends
    files = written("megatron-bridge", (0, 0), precision="fp8_mx")
    assert bridge.parse({"launch.sh": files["launch.sh"]}).bf16_layers == (0, 0)


@pytest.mark.parametrize("name", ["torchtitan", "accelerate"])
def test_other_frameworks_do_not_have_them(name: str) -> None:
    with pytest.raises(UnsupportedError, match="first and last layers in bf16"):
        written(name, (1, 1))


JOB = ["llama-3.1-8b", "4x8 h100 400G-ib", "--seq-len", "4096", "--global-batch", "64"]


def test_a_plan_carries_them_to_its_launch_files(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    options = ["--precision", "fp8_cs", "--bf16-layers", "1,2", "--top", "1", "-o", str(plan)]
    found = runner.invoke(app, ["plan", *JOB, *options])
    assert found.exit_code == 0, found.output
    assert "1 first and 2 last layers in bf16" in " ".join(found.output.split())
    assert json.loads(plan.read_text())["subject"]["job"]["bf16_layers"] == [1, 2]
    out = tmp_path / "out"
    assert runner.invoke(app, ["export", str(plan), "--to", "megatron", "-o", str(out)]).exit_code == 0
    assert "--num-layers-at-end-in-bf16 2" in " ".join((out / "launch.sh").read_text().split())
    checked = runner.invoke(app, ["check", str(out / "launch.sh"), "--cluster", "4x8 h100 400G-ib", "--json"])
    assert checked.exit_code == 0, checked.output
    time = json.loads(plan.read_text())["choices"][0]["step_time"]
    assert f"{time:.6g}"[:5] in checked.output or str(time)[:6] in checked.output


@pytest.mark.parametrize(
    ("options", "must"),
    [
        (["--precision", "fp8_cs", "--bf16-layers", "1"], "two numbers"),
        (["--precision", "fp8_cs", "--bf16-layers", "20,20"], "no more than the model's 32"),
        (["--precision", "bf16", "--bf16-layers", "1,1"], "8- or 4-bit recipe"),
        (
            ["--precision", "fp8_cs", "--stack", "torchtitan-2026", "--bf16-layers", "1,1"],
            "Megatron-LM alone",
        ),
    ],
)
def test_asked_for_in_vain(options: list[str], must: str) -> None:
    found = runner.invoke(app, ["plan", *JOB, *options])
    assert found.exit_code == 2
    assert must in " ".join(found.output.split())


def test_layers_in_bf16_are_costed_and_nothing_else_is_said() -> None:
    text = (
        "pretrain_gpt.py --num-layers 32 --tensor-model-parallel-size 1 --micro-batch-size 1 --bf16 "
        "--fp8-format hybrid --fp8-recipe mxfp8 --first-last-layers-bf16 --num-layers-at-end-in-bf16 2"
    )
    parsed = framework("megatron").parse({"launch.sh": text})
    assert parsed.bf16_layers == (1, 2)
    assert not [note for note in parsed.notes if "bf16" in note]

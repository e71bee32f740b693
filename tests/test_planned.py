"""A plan is read again where nothing else of it is left: without the files of its model and cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.ask.planned import planned_problem
from planner.cli import app
from planner.spec.load_plan import load_plan
from planner.spec.rule import Problem

runner = CliRunner()
DESCRIBED = "name: ours\nlayers: 8\nhidden: 1024\nffn: 4096\nheads: 8\nvocab: 32000\ncontext: 4096\n"
CLUSTER = """name: dgx-h100
accelerator: h100-sxm-80g
nodes: 4
node:
  accelerators: 8
  nics: 8
  nic_bandwidth: {} Gbit/s
  scale_up: {{kind: nvlink, domain: 8}}
fabric: {{kind: infiniband, rails: 8, tiers: [{{name: leaf, devices: 32, oversubscription: 1}}]}}
sources: {{node: measured, fabric: measured}}
"""


def planned(folder: Path, model: str, cluster: str, *more: str) -> Path:
    path = folder / "plan.json"
    done = runner.invoke(
        app, ["estimate", model, cluster, "--gpus", "16", "--set", "pp=2", *more, "-o", str(path)]
    )
    assert done.exit_code == 0, done.output
    return path


def problem_in(path: Path) -> Problem:
    """What the best configuration of a plan file is for."""
    plan = load_plan(path)
    return planned_problem(plan, plan.choices[0])


@pytest.mark.parametrize("form", ["description", "config.json"])
def test_the_plan_holds_the_model_of_a_file(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if form == "description":
        file = tmp_path / "ours.yaml"
        file.write_text(DESCRIBED)
    else:
        file = tmp_path / "ours.json"
        shape = {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
        }
        file.write_text(json.dumps({"model_type": "llama", "vocab_size": 32000, **shape}))
    path = planned(tmp_path, file.name, "dgx-h100")
    assert load_plan(path).subject.model.source == file.name
    file.unlink()
    for verb in (
        ["explain"],
        ["trace", "-o", "trace.json"],
        ["estimate"],
        ["export", "--to", "megatron", "-o", "x"],
    ):
        done = runner.invoke(app, [verb[0], str(path), *verb[1:]])
        assert done.exit_code == 0, (verb, done.output)


def test_the_plan_holds_the_cluster_of_a_file(tmp_path: Path) -> None:
    """Though a shipped one has the same name."""
    file = tmp_path / "ours.yaml"
    file.write_text(CLUSTER.format(100))
    path = planned(tmp_path, "llama-3.2-1b", str(file))
    file.unlink()
    assert problem_in(path).cluster.tiers[-1].bandwidth == 100e9 / 8
    done = runner.invoke(app, ["estimate", str(path), "--gpus", "32"])
    assert done.exit_code == 0, done.output


def test_the_plan_names_the_network_of_a_shorthand(tmp_path: Path) -> None:
    path = planned(tmp_path, "llama-3.2-1b", "2x8 h100 100G-roce")
    assert load_plan(path).subject.cluster.name == "2x8 h100-sxm-80g 100G-roce"
    assert problem_in(path).cluster.tiers[-1].bandwidth == 100e9 / 8


def test_another_cluster_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """Plans from before the file was part of them."""
    file = tmp_path / "ours.yaml"
    file.write_text(CLUSTER.format(100))
    path = planned(tmp_path, "llama-3.2-1b", str(file))
    document = json.loads(path.read_text())
    document["subject"]["cluster"]["described"] = {}
    path.write_text(json.dumps(document))
    done = runner.invoke(app, ["explain", str(path)])
    assert done.exit_code == 2
    assert "leaf of 16 at 12.5 GB/s" in done.output
    assert runner.invoke(app, ["explain", str(path), "--cluster", str(file)]).exit_code == 0

"""`planner explain`: what it prints is what the plan and the placement say, at any width; bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app

runner = CliRunner()
JOB = ["--seq-len", "4096", "--global-batch", "64"]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plans")
    asked = {
        "dense": ["llama-3.1-8b", "dgx-h100", "--gpus", "32", "--set", "pp=4", "--set", "vpp=1,2"],
        "experts": ["qwen3-30b-a3b", "dgx-h100", "--gpus", "32", "--set", "pp=2", "--set", "vpp=1,2"],
        "one": ["llama-3.2-1b", "dgx-h100", "--gpus", "1"],
        "torchtitan": ["llama-3.1-8b", "dgx-h100", "--gpus", "16", "--stack", "torchtitan-2026"],
        "no pipeline": ["llama-3.2-1b", "dgx-h100", "--gpus", "8", "--stack", "fsdp1-2023"],
    }
    made = {}
    for name, words in asked.items():
        made[name] = folder / f"{name}.json"
        done = runner.invoke(app, ["plan", *words, *JOB, "-o", str(made[name])])
        assert made[name].exists(), done.output
    return made


def explained(path: Path, *options: str) -> dict[str, Any]:
    done = runner.invoke(app, ["explain", str(path), "--json", *options])
    assert done.exit_code == 0, done.output
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.parametrize("name", ["dense", "experts", "one", "torchtitan", "no pipeline"])
def test_facts_are_the_plans(plans: dict[str, Path], name: str) -> None:
    choice = json.loads(plans[name].read_text())["choices"][0]
    facts = explained(plans[name])
    assert facts["step_time"] == pytest.approx(choice["step_time"], rel=1e-9)
    assert facts["memory"] == pytest.approx(choice["memory"]["peak"], rel=1e-9)
    devices = 1
    for axis in ("tp", "cp", "pp", "dp"):
        devices *= choice["config"][axis]
    for axis in facts["placement"]["axes"]:
        assert axis["size"] * axis["groups"] == devices
        assert axis["sent_per_step"] == pytest.approx(sum(e["sent"] * e["calls"] for e in axis["exchanges"]))
        assert 0 in facts["rank"]["groups"][axis["axis"]]


def test_messages_are_those_of_the_plans_split(plans: dict[str, Path], tmp_path: Path) -> None:
    plan = json.loads(plans["dense"].read_text())
    choice = plan["choices"][0]
    chunks = choice["split"]["layers_per_chunk"]
    choice["layout"] = ""  # which would have to be moved, too
    sent = []
    for moved in (0, 1):
        chunks[0], chunks[1] = chunks[0] + moved, chunks[1] - moved
        path = tmp_path / f"moved{moved}.json"
        path.write_text(json.dumps(plan))
        (axis,) = (
            a for a in explained(path)["placement"]["axes"] if a["axis"] in ("dp", "dp_cp") and a["exchanges"]
        )
        sent.append(max(e["size"] for e in axis["exchanges"]))
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert sent[1] - sent[0] == pytest.approx(4 * layer / choice["config"]["tp"], rel=1e-3)


def test_any_rank(plans: dict[str, Path]) -> None:
    facts = explained(plans["dense"], "--rank", "31")
    assert facts["rank"]["place"]["pp"] == 3 == facts["placement"]["stage"]
    assert facts["rank"]["groups"]["pp"] == [7, 15, 23, 31]
    assert all(31 in group for group in facts["rank"]["groups"].values())


@pytest.mark.parametrize("width", ["80", "160"])
@pytest.mark.parametrize("name", ["dense", "experts", "one", "torchtitan"])
def test_document_keeps_to_the_terminal(
    plans: dict[str, Path], name: str, width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    done = runner.invoke(app, ["explain", str(plans[name]), "--why-not", "tp=8,pp=1"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= int(width)
    for title in ("Rank layout", "What if", "Why not tp=8, pp=1"):
        assert title in lines


def test_why_not_is_headed_in_the_words_of_the_question(plans: dict[str, Path]) -> None:
    asked = "recompute=full,recompute_layers=1,offload=optimizer,cuda_graph_impl=full_iteration,schedule=zb-v"
    done = runner.invoke(app, ["explain", str(plans["dense"]), "--why-not", asked])
    assert done.exit_code == 0, done.output
    assert f"Why not {asked.replace(',', ', ')}" in " ".join(done.stdout.split())


def test_why_not_says_how_much_longer_a_step_takes(plans: dict[str, Path]) -> None:
    """The share is that of the seconds listed under it, not that of the throughput lost."""
    facts = explained(plans["dense"], "--why-not", "tp=8,pp=1")["why_not"]
    rate = 1 + facts["best"]["throughput_change"]
    assert f"takes {1 / rate - 1:.1%} longer" in facts["sentence"]


def test_why_not_names_the_rule(plans: dict[str, Path]) -> None:
    facts = explained(plans["dense"], "--why-not", "tp=3")
    assert facts["why_not"]["best"] is None
    assert "no configuration" in facts["why_not"]["sentence"]
    assert {"world-size", "heads-tp"} & {b["rule"] for b in facts["why_not"]["as_planned"]["broken"]}


@pytest.mark.parametrize(
    "options",
    [
        ["--rank", "32"],
        ["--rank", "-1"],
        ["--choice", "99"],
        ["--why-not", "tp"],
        ["--why-not", "speed=9"],
        ["--why-not", ""],
        ["--cluster", "no-such-cluster"],
    ],
)
def test_bad_input_is_refused(plans: dict[str, Path], options: list[str]) -> None:
    done = runner.invoke(app, ["explain", str(plans["dense"]), *options])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Traceback" not in done.output


def test_a_rule_is_said_once(plans: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows name the rules that stop them; under the table each is said once, without the values of a row."""
    monkeypatch.setenv("COLUMNS", "160")
    done = runner.invoke(app, ["explain", str(plans["dense"])])
    assert done.exit_code == 0, done.output
    rule = "the stack shards as ZeRO 0 or 1"
    assert done.stdout.count(rule) == 1
    assert f"zero-supported: {rule}\n" in done.stdout
    assert "zero=2" not in done.stdout


@pytest.mark.parametrize(
    ("model", "pins", "said"),
    [
        ("deepseek-v2-lite", ["ep=8", "pp=2"], "token dispatch and"),
        ("llama-3.2-1b", ["cp=8", "tp=2"], "keys and values, gradients"),
    ],
)
def test_messages_say_what_they_carry_at_80_columns(
    tmp_path: Path, model: str, pins: list[str], said: str
) -> None:
    plan = str(tmp_path / "plan.json")
    sets = [word for pin in pins for word in ("--set", pin)]
    asked = ["estimate", model, "4x8 h100 400G-ib", "--seq-len", "131072", "--global-batch", "32", *sets]
    CliRunner().invoke(app, [*asked, "-o", plan])
    assert said in CliRunner().invoke(app, ["explain", plan], env={"COLUMNS": "80"}).stdout

"""`planner estimate --memory`: every term in JSON, and they add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

QUESTION = ["estimate", "llama-3.1-8b", "1x8 h100", "--set", "tp=2", "--set", "pp=2", "--memory"]


def test_json_holds_every_term() -> None:
    result = CliRunner().invoke(app, [*QUESTION, "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert [rank for stage in facts["stages"] for rank in stage["ranks"]] == [0, 1]
    for stage in facts["stages"]:
        totals = [sum(terms.values()) for terms in stage["moments"].values()]
        assert max(totals) + sum(stage["outside_allocator"].values()) == pytest.approx(stage["peak"])
    assert max(stage["peak"] for stage in facts["stages"]) == pytest.approx(facts["peak"])
    assert facts["logged_counter"] == "allocated memory"
    assert facts["longest_sequence"] > 0


def test_what_takes_host_memory_is_named_where_it_is_too_much() -> None:
    words = ["estimate", "llama-3.1-405b", "dgx-h100", "--gpus", "8", "--set", "tp=8", "--memory"]
    told = " ".join(CliRunner().invoke(app, words).stdout.split())
    assert "over its limit of 2 TiB (checkpoint copy 5.17 TiB)" in told
    assert "host memory 5.17 TiB of 2 TiB: over the limit" in told
    assert "micro-batch none fits" in told
    assert "sequence none fits" in told
    waits = " ".join(
        CliRunner().invoke(app, [*words, "--assume", "checkpoint_writing=blocking"]).stdout.split()
    )
    assert "host memory nothing per node: nothing is offloaded" in waits


def test_one_stage_alone() -> None:
    result = CliRunner().invoke(app, [*QUESTION, "--stage", "1", "--json"])
    assert [stage["ranks"] for stage in json.loads(result.stdout)["stages"]] == [[1]]


def test_ranks_that_hold_the_same_are_told_together() -> None:
    words = ["estimate", "llama-3.1-8b", "2x8 h100 400G-ib", "--set", "pp=8", "--memory"]
    told = CliRunner().invoke(app, words).stdout
    assert re.search(r"^Ranks \d+-\d+, ", told, re.MULTILINE)
    assert "Rank 0, " in told
    assert not re.search(r"Rank \d+-", told)


def test_a_stage_that_does_not_exist_is_refused() -> None:
    result = CliRunner().invoke(app, [*QUESTION, "--stage", "2"])
    assert result.exit_code == 2
    assert "from 0 to 1" in result.stderr


def test_the_table_names_phases_and_moves() -> None:
    result = CliRunner().invoke(app, QUESTION)
    assert result.exit_code == 0
    for words in ("Memory of each pipeline rank", "What saves memory", "nvidia-smi"):
        assert words in result.stdout


def test_a_counter_of_reserved_memory_is_what_nvidia_smi_shows() -> None:
    """At the loss torchtitan's log shows blocks that are free: more than the device needs, and so does nvidia-smi."""
    where = ["llama-3.1-70b", "h100-sxm-96g-hbm2e-500w", "--gpus", "256", "--stack", "torchtitan-2024"]
    sets = ["tp=8", "zero=3", "micro_batch=16", "recompute=full"]
    job = ["--seq-len", "8192", "--global-batch", "512", *(word for one in sets for word in ("--set", one))]
    result = CliRunner().invoke(app, ["estimate", *where, *job, "--memory"])
    needs, log, shown = (
        float(found[1])
        for word in (r"fits, ([\d.]+) GiB of", r"logged +([\d.]+) GiB", r"nvidia-smi +([\d.]+) GiB")
        if (found := re.search(word, result.stdout))
    )
    assert needs < log < shown
    assert "returns when memory is short" in " ".join(result.stdout.split())


def test_what_still_fits_is_asked_of_the_split_that_is_shown() -> None:
    runner = CliRunner()
    asked = [*QUESTION, "--set", "vpp=1", "--global-batch", "64", "--json"]
    own, stated = (
        json.loads(runner.invoke(app, [*asked, *more]).stdout) for more in ((), ("--set", "layout=25,7"))
    )
    assert [stage["layers"] for stage in stated["stages"]] == [25, 7]
    assert stated["peak"] > own["peak"]
    assert stated["longest_sequence"] < own["longest_sequence"]
    moved, kept = (
        next(move for move in facts["moves"] if move["move"]["text"] == "optimizer states in CPU memory")
        for facts in (stated, own)
    )
    assert moved["saved"] > kept["saved"]


def test_a_plan_in_which_nothing_fits_is_said(tmp_path: Path) -> None:
    runner, plan = CliRunner(), tmp_path / "plan.json"
    asked = ["plan", "llama-3.1-70b", "1x8 h100", "--set", "tp=8", "--without", "offload", "-o", str(plan)]
    assert runner.invoke(app, asked).exit_code == 1
    result = runner.invoke(app, ["estimate", str(plan), "--memory"])
    assert result.exit_code == 1
    assert "Needs least memory" in result.stdout


def test_what_the_host_holds_stands_beside_what_it_has() -> None:
    asked = [
        "estimate",
        "llama-3.1-8b",
        "--memory",
        "--gpus",
        "8",
        "--set",
        "tp=1",
        "--set",
        "offload=optimizer",
    ]
    asked += ["--stack", "deepspeed-2025", "--set", "zero=2"]
    runner = CliRunner()
    facts = json.loads(runner.invoke(app, [*asked, "aws-p4d", "--json"]).stdout)
    # 16 bytes of 8.03e9 parameters
    assert facts["host_per_node"] == pytest.approx(16 * 8030261248, rel=1e-6)
    assert facts["host_memory"] == 1152 * 2**30
    told = " ".join(runner.invoke(app, [*asked, "aws-p4d"]).stdout.split())
    assert "of 1.12 TiB per node: offloaded 120 GiB" in told
    assert json.loads(runner.invoke(app, [*asked, "1x8 a100", "--json"]).stdout)["host_memory"] is None

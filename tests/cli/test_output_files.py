"""No verb writes its answer over a file that its question reads, whichever option names it and however."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.ask.option import options_of
from planner.ask.question import ComparisonQuestion, DryrunQuestion, Request, SizeQuestion
from planner.cli import app

KINDS = (Request, DryrunQuestion, ComparisonQuestion, SizeQuestion)
FILES = {"model", "cluster", "clusters", "stack", "calibration", "expert_loads"}
JOB = ("llama-3.2-1b", "1x1 h100")


def refused(words: list[str], target: Path, before: str = "kept\n") -> None:
    told = CliRunner().invoke(app, [*words, "-o", str(target)])
    assert told.exit_code == 2, told.output
    assert "another file than those" in told.stderr
    assert target.read_text(encoding="utf-8") == before


def test_every_option_that_names_a_file_is_known() -> None:
    named = {
        name
        for kind in KINDS
        for name, one in options_of(kind).items()
        if one.reader.may_be_file or "path" in str(one.metavar).lower() or "file" in one.help.lower()
    }
    assert named == FILES


@pytest.mark.parametrize("verb", ["plan", "estimate", "dryrun", "compare", "size"])
@pytest.mark.parametrize("option", sorted(FILES - {"clusters"}))
def test_a_file_that_is_read_is_not_written_over(verb: str, option: str, tmp_path: Path) -> None:
    target = tmp_path / "own.yaml"
    target.write_text("kept\n", encoding="utf-8")
    given = {"model": JOB[0], "cluster": JOB[1]} | {option: str(target)}
    clusters = ["--clusters", f"dgx-h100,{given['cluster']}"] if verb == "compare" else [given["cluster"]]
    more = [] if option in ("model", "cluster") else [f"--{option.replace('_', '-')}", str(target)]
    refused([verb, given["model"], *clusters, *more], target)


@pytest.mark.parametrize("verb", ["plan", "estimate", "dryrun", "size"])
def test_a_model_folder_keeps_its_configuration(verb: str, tmp_path: Path) -> None:
    target = tmp_path / "config.json"
    target.write_text("kept\n", encoding="utf-8")
    refused([verb, str(tmp_path), JOB[1]], target)


def test_what_a_plan_was_made_from_is_not_written_over(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    shipped = files("planner.catalog") / "models" / JOB[0] / "config.json"
    text = shipped.read_text(encoding="utf-8")
    model.write_text(text, encoding="utf-8")
    plan = tmp_path / "plan.json"
    job = ["--seq-len", "512", "--global-batch", "8"]
    made = CliRunner().invoke(app, ["estimate", str(tmp_path), JOB[1], *job, "-o", str(plan)])
    assert made.exit_code in (0, 1), made.output
    assert json.loads(plan.read_text(encoding="utf-8"))["asked"]["model"] == str(tmp_path)
    for verb in ("estimate", "trace"):
        refused([verb, str(plan)], model, text)

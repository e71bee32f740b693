"""Does every verb that predicts take a calibration, and does a plan made with one need it again?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.catalog.load_overlay import load_overlay, save_overlay
from planner.cli import app
from planner.spec.overlay import Overlay

RUNNER = CliRunner()
JOB = ["llama-3-8b", "dgx-h100", "--gpus", "16", "--seq-len", "8192", "--global-batch", "64"]


@pytest.fixture
def ours(tmp_path: Path) -> str:
    slow = Overlay(
        name="ours",
        date="2026-11-21",
        level="L3",
        made_from=("a run",),
        multiply={"compute.gemm": 1.4},
        band=0.05,
    )
    save_overlay(slow, tmp_path / "ours.yaml")
    load_overlay.cache_clear()
    return str(tmp_path / "ours.yaml")


def step(arguments: list[str]) -> float:
    told = RUNNER.invoke(app, [*arguments, "--json"])
    assert told.exit_code == 0, told.output
    facts = json.loads(told.stdout)
    best = facts.get("choices") or facts.get("clusters") or [facts.get("best") or facts]
    return float(best[0].get("step_time") or best[0].get("step_time_s"))


@pytest.mark.parametrize(
    "verb",
    [
        ["plan", *JOB, "--set", "tp=2", "--set", "pp=1"],
        ["estimate", *JOB, "--set", "tp=2"],
        ["compare", "llama-3-8b", "--clusters", "dgx-h100", "--gpus", "16", "--set", "tp=2", "--set", "pp=1"],
    ],
)
def test_a_slower_machine_is_slower(verb: list[str], ours: str) -> None:
    assert step([*verb, "--calibration", ours]) > 1.15 * step(verb)


def test_a_calibrated_plan_is_traced_and_explained_with_its_calibration(tmp_path: Path, ours: str) -> None:
    plan, trace = str(tmp_path / "plan.json"), str(tmp_path / "trace.json")
    made = RUNNER.invoke(
        app, ["plan", *JOB, "--set", "tp=2", "--set", "pp=2", "--top", "2", "--calibration", ours, "-o", plan]
    )
    assert made.exit_code == 0, made.output
    assert "L3" in made.output
    page = str(tmp_path / "page.html")
    assert RUNNER.invoke(app, ["report", plan, "-o", page, "--calibration", ours]).exit_code == 0
    assert "The passes are not drawn" not in Path(page).read_text()
    assert RUNNER.invoke(app, ["trace", plan, "-o", trace, "--calibration", ours]).exit_code == 0
    named = Path(trace).read_bytes()
    assert RUNNER.invoke(app, ["trace", plan, "-o", trace]).exit_code == 0, "the plan knows its own"
    assert Path(trace).read_bytes() == named
    explained = RUNNER.invoke(app, ["explain", plan, "--calibration", ours])
    assert explained.exit_code == 0, explained.output


def test_a_calibration_is_not_made_on_another(ours: str) -> None:
    refused = RUNNER.invoke(app, ["calibrate", *JOB, "--run", "5 s:tp=2", "--calibration", ours])
    assert refused.exit_code == 2
    assert "not another one" in refused.output


@pytest.mark.parametrize(
    ("times", "words"), [(1.0, "explains this run as it is"), (0.3, "off: check sequence length")]
)
def test_a_run_far_off_is_not_explained(times: float, words: str) -> None:
    """Where nothing moved since the run cannot be what was asked about, that is said."""
    plan = json.loads(RUNNER.invoke(app, ["estimate", *JOB, "--set", "tp=2", "--json"]).stdout)
    seconds = times * plan["choices"][0]["step_time"]
    told = RUNNER.invoke(app, ["calibrate", *JOB, "--run", f"{seconds:.4f} s:tp=2"])
    assert told.exit_code == 0, told.output
    assert words in " ".join(told.output.split())


@pytest.mark.parametrize("axis", ["vpp", "num_microbatches"])
def test_own_runs_without_micro_batches_are_refused(ours: str, axis: str) -> None:
    run = f"{{model: m, layers: 1, hidden: 1, seq_len: 1, precision: bf16, axes: {{{axis}: 0}}, factor: 1.1}}"
    with Path(ours).open("a") as file:
        file.write(f"runs: [{run}]\n")
    load_overlay.cache_clear()
    refused = RUNNER.invoke(app, ["plan", *JOB, "--calibration", ours])
    assert refused.exit_code == 2
    assert f"{axis} must be 1 or more" in " ".join(refused.output.split())


@pytest.mark.parametrize(
    "verb", ["plan", "estimate", "compare", "size", "check", "trace", "explain", "validate"]
)
def test_every_verb_lists_the_option(verb: str) -> None:
    assert "--calibration" in RUNNER.invoke(app, [verb, "--help"]).output


def test_what_needs_no_number_of_devices_asks_for_none(tmp_path: Path) -> None:
    told = RUNNER.invoke(app, ["calibrate", "-", "dgx-h100", "--nodes", "gpu[01-04]", "--json"])
    assert (told.exit_code, json.loads(told.stdout)["notes"]) == (0, ["4 nodes, gpu01 to gpu04"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes", "gpu[01-04]", "-o", "ours.yaml"], "needs --run, --nccl or --profile"),
        (["--run", "9 s", "--cluster-file", "ours.yaml"], "--cluster-file needs"),
        (["--run", "no.log", "--nodes", "a,b", "--cluster-file", "ours.yaml"], "the log must exist"),
    ],
)
def test_nothing_is_written_that_was_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = RUNNER.invoke(app, ["calibrate", *JOB, *options])
    assert (told.exit_code, said in told.output) == (2, True), told.output
    assert not list(tmp_path.iterdir())

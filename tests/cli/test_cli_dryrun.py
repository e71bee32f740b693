"""`planner dryrun --snapshot`, `-o` and the page of what it wrote; verbs that need an extra which is not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import memory_of
from planner.dryrun.question import DryRun
from tests.dryrun.snapshots import pickled, snapshot
from tests.dryrun.test_dryrun_outcome import MIB, two_steps

JOB = ["llama-3.2-1b", "1x1 h100"]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> DryRun:
    """What a dry run finds, without one."""
    memory = memory_of(two_steps(), AllocatorSettings(), 1000 * MIB)
    found = DryRun("m", "h100", 1, "tp1", "transformers-2026", {}, (memory,), None, None, None, ())
    monkeypatch.setattr("planner.dryrun.question.make_dryrun", lambda *asked: found)
    monkeypatch.setattr("planner.dryrun.extra.NEEDED", ())
    return found


def test_a_run_is_laid_beside_and_drawn(stand_in: DryRun, tmp_path: Path) -> None:
    own, answer, page = (tmp_path / name for name in ("own.pickle", "dry.json", "dry.html"))
    recording = two_steps()
    own.write_bytes(pickled(snapshot(recording.trace, replay(recording.trace))))
    told = CliRunner().invoke(app, ["dryrun", *JOB, "--snapshot", str(own), "-o", str(answer)])
    assert told.exit_code == 0, told.output
    assert "Beside the run of the snapshot, device 0" in told.stdout
    found = json.loads(answer.read_text(encoding="utf-8"))
    assert found["snapshot"]["allocated_peak"] == found["allocated_peak"] == stand_in.worst.allocated_peak
    assert found["snapshot"]["only_run"] == found["snapshot"]["only_dryrun"] == []
    drawn = CliRunner().invoke(app, ["report", str(answer), "-o", str(page)])
    assert drawn.exit_code == 0, drawn.output
    assert 'data-chart="run-timeline"' in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("stand_in")
def test_a_file_that_is_no_snapshot_ends_before_the_run(tmp_path: Path) -> None:
    bad = tmp_path / "own.pickle"
    for content in (None, b"no pickle"):
        if content is not None:
            bad.write_bytes(content)
        told = CliRunner().invoke(app, ["dryrun", *JOB, "--snapshot", str(bad)])
        assert (told.exit_code, told.stdout) == (2, "")
        assert "own.pickle" in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["plan", *JOB], ["estimate", *JOB], ["dryrun", *JOB], ["check", "none.sh", "--cluster", "1x1 h100"],
        ["export", "none.json", "-o", "launch"],
    ],
)  # fmt: skip
def test_a_missing_extra_is_told_first(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    told = CliRunner().invoke(app, words if words[0] == "dryrun" else [*words, "--dryrun"])
    assert told.exit_code == 2
    assert "no torch" in told.stderr

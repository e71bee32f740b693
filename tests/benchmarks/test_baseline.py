"""Does the baseline tell what differs, and nothing else?"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import baseline


def test_errors_are_of_predicted_over_measured() -> None:
    found = baseline.errors([0.9, 1.0, 1.2])
    assert (found["rows"], found["ratio"], found["median"]) == (3, 1.0, 0.1)
    assert found["p90"] == pytest.approx(0.18)
    assert baseline.errors([0.5])["p90"] == 0.5


def test_what_differs_by_more_than_a_hundredth_is_told() -> None:
    before = {"a": {"median": 0.100, "p90": 0.2}, "gone": 1, "same": "x"}
    now = {"a": {"median": 0.1005, "p90": 0.3}, "new": 2, "same": "x"}
    assert list(baseline.differences(before, now)) == [
        "a / p90: 0.2 -> 0.3",
        "gone: 1 -> None",
        "new: None -> 2",
    ]
    assert not list(baseline.differences(before, before))


def test_lines_are_those_of_the_files(tmp_path: Path) -> None:
    for name, text in (("planner/cost/a.py", "1\n2\n"), ("planner/b.py", "1\n"), ("tests/c.py", "1\n2\n3\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert baseline.lines(tmp_path) == {"planner/cost": 2, "planner": 1, "planner, all": 3, "tests": 3}


def test_twelve_commands_are_timed() -> None:
    assert len(set(baseline.COMMANDS)) == 12


def test_accuracy_keeps_what_every_source_is_judged_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step, peak = {"rows": 9, "median": 0.02}, {"rows": 3, "median": 0.03}
    source = {"rows": 9, "status": {"ok": 9}, "step_time_dense": step, "step_time_moe": None, "memory": peak}
    heads = ("headline_dense", "headline_moe", "step_time_hybrid")
    summary = {"sources": {"a source": source}, **dict.fromkeys(heads, step)}
    monkeypatch.setattr(baseline, "_run", lambda *_: {"summary": summary})
    assert baseline.accuracy(tmp_path) == {
        "a source": {"step_time_dense": step, "memory": peak},
        **dict.fromkeys(heads, step),
    }

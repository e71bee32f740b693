"""How a verdict on launch files looks in a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from planner.report.checked import checked_document
from planner.report.facts import speedup
from planner.report.text import render, terminal

ANSWER: dict[str, Any] = {
    "framework": "megatron", "version": "main-2026-08", "releases": ["0.18.2", "main-2026-08"], "config": "tp1 pp1 dp8",
    "devices": 8, "legal": True, "violations": [], "unknown_options": [], "notes": ["word " * 60], "verdict": "fits",
    "step_time_s": 2.0, "tokens_per_s_per_gpu": 1000.0, "mfu": 0.4, "peak_memory_bytes": 2.0**36,
    "memory_limit_bytes": 2.0**37, "host_memory_short_bytes": 0.0, "host_memory_limit_bytes": 0.0, "better": None,
    "routing": [],
}  # fmt: skip
BROKEN = {"rule": "slice-size", "reason": "the axes must be those of a slice", "hint": "change them"}


def shown(monkeypatch: pytest.MonkeyPatch, columns: int = 80, **changes: Any) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    return render(checked_document({**ANSWER, **changes}), terminal(), crop=False)


def test_notes_are_wrapped_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (60, 80, 110):
        lines = shown(monkeypatch, columns).splitlines()
        assert max(map(len, lines)) <= columns
    assert " ".join(lines).count("word") == 60


def test_lines_to_copy_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "+ --pipeline-model-parallel-layout '" + "t*3|" * 30 + "tL'"
    better = {"config": "tp2", "faster": 0.5, "step_time_s": 1.0, "diff": ["change in run.sh:", f"  {line}"]}
    lines = shown(monkeypatch, better=better).splitlines()
    assert f"    {line}" in lines
    assert "better: tp2 (1 s a step, 1.5 times as fast)" in lines


def test_what_is_refused_at_the_start_is_not_called_illegal_and_legal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = shown(monkeypatch, legal=False, violations=[BROKEN])
    assert "does not start (slice-size): the axes" in refused
    assert "not legal" not in refused
    assert "costed as if it were accepted, its degrees being legal; fits" in refused
    broken = {name: value for name, value in ANSWER.items() if name != "step_time_s"}
    monkeypatch.setenv("COLUMNS", "80")
    told = render(checked_document({**broken, "legal": False, "violations": [BROKEN]}), terminal())
    assert "not legal (slice-size)" in told


def test_the_releases_that_take_the_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch).startswith("megatron 0.18.2 to main-2026-08: tp1")
    assert shown(monkeypatch, releases=["0.3.0"]).startswith("megatron 0.3.0: tp1")


@pytest.mark.parametrize(
    ("ratio", "than", "said"),
    [
        (1.28, "", "28.0% faster"),
        (1.05, "predicted", "5.0% faster than predicted"),
        (1.5, "", "1.5 times as fast"),
        (1.966, "predicted", "1.97 times as fast as predicted"),
        (4.68, "", "4.68 times as fast"),
    ],
)
def test_faster_is_one_measure(ratio: float, than: str, said: str) -> None:
    assert speedup(ratio, than) == said

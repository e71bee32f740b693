"""Are the runs of others tables that planner reads, each row with its source, and judged as told?"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import rounds
from benchmarks.results_file import section_of
from planner.calibrate.measured import Measurement
from planner.calibrate.run_table import read_run_table
from planner.calibrate.statistics import Answer

FILES = {path: read_run_table(path) for path in rounds.tables()}


def test_every_round_is_there() -> None:
    assert [path.stem for path in FILES] == [f"round_{number:02d}" for number in rounds.TITLES]
    rows = [row for table in FILES.values() for row in table]
    assert len(rows) >= 600
    assert len({row.cells["publisher"] for row in rows}) >= 30


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_say_where_they_stand_and_what_was_measured(path: Path) -> None:
    for number, row in enumerate(FILES[path], 1):
        missing = {"source", "publisher", "source_ref", "first_seen"} - set(row.cells)
        assert not missing, (number, missing)
        measured = {"step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "peak_mem_gib"} & set(row.cells)
        assert measured or "outcome" in row.cells, number
        for name in ("model", "stack"):
            if (named := row.cells.get(name, "")).endswith(".yaml"):
                assert (path.parent / named).exists(), (number, named)


def test_no_file_beside_the_tables_is_without_a_row() -> None:
    named = {row.cells.get(name) for rows in FILES.values() for row in rows for name in ("model", "stack")}
    there = {
        f"{part}/{path.name}" for part in ("models", "stacks") for path in (rounds.TABLES / part).iterdir()
    }
    assert not there - named


def answer(step: float, measured: float, publisher: str, verdict: str = "fits", oom: bool = False) -> Answer:
    output = {
        "step_time_s": step, "step_time_low_s": 0.9 * step, "step_time_high_s": 1.1 * step, "peak_mem_gib": 40.0,
        "verdict": verdict, "reason": "",
    }  # fmt: skip
    told = Measurement(None, None, oom=True) if oom else Measurement(measured, 80 * 2.0**30)
    cells = {"publisher": publisher, "first_seen": "2026-11-22"}
    return Answer(cells, output, told, source="s", sweep=())


def test_figures_are_those_of_the_rows() -> None:
    answers = [
        answer(1.0, 1.05, "a"), answer(1.0, 2.0, "a"), answer(3.0, 2.0, "b"), answer(1.0, 0.0, "b", "fits", oom=True),
        answer(1.0, 0.0, "b", "does_not_fit", oom=True),
    ]  # fmt: skip
    part = rounds.figures(answers)
    assert (part["runs"], part["publishers"]) == (5, 2)
    assert part["times"]["median"] == pytest.approx(0.5)
    assert part["within"] == pytest.approx(1 / 3)
    assert part["peaks"]["ratio"] == 0.5
    assert (part["oom"], part["oom_called"], part["oom_missed"]) == (2, 1, 1)
    same = rounds.each_the_same(answers)
    assert same["error"] == pytest.approx(((1 - 1 / 1.05 + 0.5) / 2 + 0.5) / 2)


def test_the_readme_tells_what_the_results_tell() -> None:
    first = section_of(rounds.README.read_text(encoding="utf-8"), "rounds").splitlines()[2]
    told = section_of(
        (rounds.TABLES.parent / "RESULTS.md").read_text(encoding="utf-8"), "rounds"
    ).splitlines()[4]
    whole = [cell.strip() for cell in told.split("|")]
    assert [cell.strip().removesuffix(" %") for cell in first.split("|")[2:5]] == [
        whole[5],
        whole[7],
        whole[8],
    ]

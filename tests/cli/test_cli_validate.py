"""Does `planner validate` answer, and refuse what it cannot read?"""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from planner.cli import app
from tests.calibrate.tables import ROW, written


def said_of(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["validate", *map(str, arguments)])
    return result.exit_code, result.output


def test_it_predicts_and_writes_every_row(tmp_path: Path) -> None:
    runs, out = written(tmp_path, ROW, {**ROW, "tp": "4"}), tmp_path / "out.json"
    code, said = said_of(runs, "--json", out)
    assert code == 0, said
    rows = json.loads(out.read_text())["rows"]
    assert [(row["row"], row["status"]) for row in rows] == [(0, "ok"), (1, "ok")]
    assert rows[0]["step_time_low_s"] < rows[0]["step_time_s"] < rows[0]["step_time_high_s"]
    assert "mine" in said
    assert "by stack and devices" in said
    assert "  row 1 mine llama-3.1-8b 8 GPUs tp2" in said
    assert said.count("row 1 is the first below the header") == 1


def test_sections_without_rows_are_left_out(tmp_path: Path) -> None:
    code, said = said_of(written(tmp_path, {**ROW, "model": "other"}))
    assert code == 0
    assert "1 row: 1 unsupported" in said
    assert "rows without figures:" in said
    assert "sweeps" not in said
    assert "furthest off" not in said


def test_missing_files_and_unwritable_outputs_are_bad_input(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    assert said_of(runs)[0] == 2
    written(tmp_path, ROW)
    assert said_of(runs, "--json", tmp_path / "no" / "such" / "out.json")[0] == 2
    assert said_of(runs, "--json", runs)[0] == 2
    assert said_of(runs, "--calibration", tmp_path / "none.yaml")[0] == 2
    code, said = said_of(written(tmp_path, dict.fromkeys(ROW, ""), name="none.csv"))
    assert (code, "must be stated" in said) == (2, True)
    (tmp_path / "none.csv").write_text(",".join(ROW) + "\n")
    code, said = said_of(tmp_path / "none.csv")
    assert (code, "a run or more" in said) == (2, True)


def test_a_bad_cell_refuses_the_file_and_writes_nothing(tmp_path: Path) -> None:
    runs, out = written(tmp_path, ROW, {**ROW, "gpus": "eight"}), tmp_path / "out.json"
    code, said = said_of(runs, "--json", out)
    assert (code, out.exists()) == (2, False)
    assert "row 2, gpus 'eight': must be a whole number" in said
    assert "furthest off" not in said

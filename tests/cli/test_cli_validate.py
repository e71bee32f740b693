"""Does `planner validate` answer, and refuse what it cannot read?"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from typer.testing import CliRunner

from planner.cli import app

HEADER = "source,model,gpu,gpus,seq_len,global_batch,micro_batch,tp,pp,framework,precision,step_time_s"
ROW = "mine,small,h100_sxm_80g,8,4096,64,1,2,1,Megatron-LM,bf16,3.0"
MODEL = {
    "small": {
        "layers": 16, "hidden": 2048, "ffn": 8192, "heads": 16, "kv_heads": 8, "head_dim": 128, "vocab": 32000,
        "tied_embeddings": False, "gated_mlp": True, "attention": "gqa",
    }
}  # fmt: skip


def test_it_predicts_and_writes_every_row(tmp_path: Path) -> None:
    runs, models, out = tmp_path / "runs.csv", tmp_path / "models.json", tmp_path / "out.json"
    runs.write_text(f"{HEADER}\n{ROW}\n")
    models.write_text(json.dumps(MODEL))
    result = CliRunner().invoke(app, ["validate", str(runs), str(models), "--json", str(out)])
    assert result.exit_code == 0, result.output
    row = json.loads(out.read_text())["rows"][0]
    assert row["status"] == "ok"
    assert row["step_time_s"] > 0
    assert "mine" in result.output


def test_sections_without_rows_are_left_out(tmp_path: Path) -> None:
    runs, models = tmp_path / "runs.csv", tmp_path / "models.json"
    runs.write_text(f"{HEADER}\n{ROW.replace('small', 'other')}\n")
    models.write_text(json.dumps(MODEL))
    said = CliRunner().invoke(app, ["validate", str(runs), str(models)]).output
    assert "1 row: 1 unsupported" in said
    assert "rows without figures:" in said
    assert "sweeps" not in said
    assert "furthest off" not in said


def test_missing_files_and_unwritable_outputs_are_bad_input(tmp_path: Path) -> None:
    runs, models = tmp_path / "runs.csv", tmp_path / "models.json"
    assert CliRunner().invoke(app, ["validate", str(runs), str(models)]).exit_code == 2
    runs.write_text(f"{HEADER}\n{ROW}\n")
    models.write_text(json.dumps(MODEL))
    (tmp_path / "none.csv").write_text(f"{HEADER}\n")
    none = CliRunner().invoke(app, ["validate", str(tmp_path / "none.csv"), str(models)])
    assert (none.exit_code, "a run or more" in none.output) == (2, True)
    where = str(tmp_path / "no" / "such" / "out.json")
    assert CliRunner().invoke(app, ["validate", str(runs), str(models), "--json", where]).exit_code == 2


def test_cells_are_read_as_spreadsheets_write_them_or_named(tmp_path: Path) -> None:
    runs, models = tmp_path / "runs.csv", tmp_path / "models.json"
    row = ROW.replace(",8,4096", ',"1,024",4096')
    runs.write_text(f"{HEADER}\n{row}\n{ROW.replace('3.0', '3.2 s')}\n")
    models.write_text(json.dumps(MODEL))
    result = CliRunner().invoke(app, ["validate", str(runs), str(models)])
    assert result.exit_code == 0, result.output
    assert "step_time_s of 1 row is no number above 0" in result.output


def test_a_bad_cell_is_named_with_its_row(tmp_path: Path) -> None:
    runs, models = tmp_path / "runs.csv", tmp_path / "models.json"
    measured = ROW.replace(",3.0", ',"1,234.5 s"')
    broken = ROW.replace("mine,small,h100_sxm_80g,8", "mine,small,h100_sxm_80g,eight")
    runs.write_text("\n".join([HEADER, ROW, measured, *[broken] * 7]) + "\n")
    models.write_text(json.dumps(MODEL))
    said = CliRunner().invoke(app, ["validate", str(runs), str(models)]).output
    assert "step_time_s of 1 row is no number above 0: not compared (row 2: '1,234.5 s')" in said
    assert "'eight' (rows 3, 4, 5, 6, 7, ...)" in said
    assert "  row 1 mine small" in said
    assert said.count("row 1 is the first below the header") == 1


def test_files_that_no_reader_takes_are_bad_input(tmp_path: Path) -> None:
    runs, models = tmp_path / "runs.csv", tmp_path / "models.json"
    runs.write_text(f"{HEADER}\n{ROW}\n")
    models.write_text("[" * 100_000)
    deep = CliRunner().invoke(app, ["validate", str(runs), str(models)])
    assert (deep.exit_code, "must be valid JSON" in " ".join(deep.output.split())) == (2, True)
    runs.write_text(f"{HEADER}\n{ROW}{'x' * 200_000}\n")
    usual = csv.field_size_limit(131_072)  # of the whole process: other tests raise it
    try:
        long = CliRunner().invoke(app, ["validate", str(runs), str(models)])
    finally:
        csv.field_size_limit(usual)
    assert (long.exit_code, "must be a valid CSV file" in " ".join(long.output.split())) == (2, True)

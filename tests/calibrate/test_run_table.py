"""Is every cell of a table of runs read by its type, and is each that cannot be named?"""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibrate.run_table import COLUMNS, FAULTS_NAMED, NEEDED, read_run_table
from planner.errors import FileInputError
from tests.calibrate.tables import ROW, written


def refused(path: Path) -> str:
    with pytest.raises(FileInputError) as error:
        read_run_table(path)
    return str(error.value)


def test_cells_become_values_of_their_types(tmp_path: Path) -> None:
    stated = {
        **ROW,
        "packed": "true",
        "mean_len": "512.5",
        "outcome": "oom",
        "first_seen": "2026-11-22",
        "vpp": "",
    }
    (row,) = read_run_table(written(tmp_path, stated))
    assert (row.values["gpus"], row.values["step_time_s"], row.values["mean_len"]) == (8, 7.5, 512.5)
    assert (row.values["packed"], row.values["outcome"]) == (True, "oom")
    assert "vpp" not in row.cells
    assert sorted(row.axes) == ["micro_batch=1", "recompute=none", "tp=2", "zero=1"]


@pytest.mark.parametrize(
    ("column", "cell", "must"),
    [
        ("gpus", "eight", "whole number"),
        ("gpus", "8.0", "whole number"),
        ("seq_len", "8q", "whole number"),
        ("global_batch", "16Mtok", "whole number"),
        ("precision", "bf-16", "unknown precision 'bf-16'; did you mean: bf16"),
        ("optimizer", "adam", "adamw"),
        ("tp", "2,4", "one value"),
        ("tp", "2 pp=4", "one value"),
        ("recompute", "full, 4 layers", "none, selective or full"),
        ("schedule", "1f2b", "did you mean: 1f1b"),
        ("frozen_bits", "5", "unknown frozen_bits"),
        ("packed", "maybe", "True or False"),
        ("bf16_layers", "1", "two numbers"),
        ("step_time_s", "7.5 s", "without a unit"),
        ("step_time_s", "nan", "a number above 0"),
        ("tokens_per_s_per_gpu", "1,234", "a number above 0"),
        ("peak_mem_gib", "-3", "a number above 0"),
        ("flops_kind", "model", "full_square"),
        ("outcome", "crashed", "failed"),
        ("first_seen", "22.11.2026", "2026-11-22"),
        ("model", "", "must be stated"),
    ],
)
def test_a_cell_that_cannot_be_read_is_named_with_its_row_and_column(
    tmp_path: Path, column: str, cell: str, must: str
) -> None:
    said = refused(written(tmp_path, ROW, {**ROW, column: cell}))
    assert "runs.csv" in said
    assert f"row 2, {column}" in said
    assert repr(cell) in said or not cell
    assert must in said
    assert "row 1," not in said


def test_all_bad_cells_are_named_up_to_a_number(tmp_path: Path) -> None:
    said = refused(written(tmp_path, {**ROW, "gpus": "x", "tp": "y"}, ROW, *[{**ROW, "pp": "z"}] * 30))
    assert "32 are not" in said
    assert [what in said for what in ("row 1, gpus", "row 1, tp", "row 3, pp", "row 20, pp")] == [True] * 4
    assert f"and {32 - FAULTS_NAMED} more" in said
    assert "row 22," not in said


def test_tflops_need_their_convention(tmp_path: Path) -> None:
    said = refused(written(tmp_path, {**ROW, "tflops_per_gpu": "400"}))
    assert "row 1, flops_kind: must say what tflops_per_gpu counts" in said


def test_columns_must_be_known_once_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,gpuss,seq_len,tp,tp\nllama-3.1-8b,8,4096,1,1\n")
    said = refused(path)
    assert "unknown column 'gpuss': did you mean gpus" in said
    assert "tp is named 2 times" in said
    assert [f"no column {name}" in said for name in NEEDED] == [False, True, True, False, True]


def test_a_row_of_another_length_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, ROW)
    path.write_text(path.read_text() + "mine,llama-3.1-8b\n")
    assert f"row 2, 2 cells: must have the {len(ROW)} of the header" in refused(path)


def test_the_former_columns_are_told_what_they_became(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "source,model,gpu,gpus,framework,extras,dp_sharding\nmine,small,h100,8,NeMo,deepep off,zero3\n"
    )
    said = refused(path)
    assert "the columns gpu, framework, extras, dp_sharding" in said
    assert "stack states what framework, extras did" in said
    assert "docs/own_runs.md" in said


def test_files_as_spreadsheets_save_them(tmp_path: Path) -> None:
    path = written(tmp_path, ROW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n")
    assert len(read_run_table(path)) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'model,"cluster\n', b"model\n" + b"x" * 200_000])
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert "runs.csv" in refused(path)
    assert "must exist" in refused(tmp_path / "none.csv")


def test_every_column_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "own_runs.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []

"""Is the share of rows within their band counted by stack and size, and does a calibration reach it?"""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibrate.coverage import coverage_lines, size_of
from planner.calibrate.validate import validate_table
from tests.calibrate.tables import ROW, written


def rows_off_by(folder: Path, factors: tuple[float, ...]) -> Path:
    """Rows whose measured time is `factors` of the predicted one."""
    predicted = validate_table(written(folder, ROW)).rows[0]["step_time_s"]
    return written(folder, *({**ROW, "step_time_s": str(predicted * factor)} for factor in factors))


def test_rows_within_the_band_are_counted(tmp_path: Path) -> None:
    (part,) = validate_table(rows_off_by(tmp_path, (1.0, 1.01, 0.99, 5.0))).summary["coverage"]
    assert part["covered"] == 0.75
    assert part["errors"]["rows"] == 4
    assert part["band"] > 0.01
    assert len(coverage_lines([part])) == 2


def test_a_calibration_holds_for_its_stack_and_device(tmp_path: Path) -> None:
    table = rows_off_by(tmp_path, (1.2,))
    shipped = validate_table(table).rows[0]
    ours = tmp_path / "ours.yaml"
    made = (
        "schema_version: 1\nname: x\ndate: '2026'\nlevel: L3\nmade_from: [x]\nmultiply: {compute.gemm: 1.2}\n"
    )
    ours.write_text(made + f"stack: {shipped['stack']}\n")
    told = validate_table(table, str(ours)).rows[0]
    assert told["step_time_s"] > 1.05 * shipped["step_time_s"]
    assert told["calibration_level"] == "L3"
    other = tmp_path / "other.yaml"
    other.write_text(made + "stack: another\n")
    assert validate_table(table, str(other)).rows[0] == shipped


@pytest.mark.parametrize(
    ("devices", "words"), [(1, "to 8"), (8, "to 8"), (9, "9 to 64"), (10**5, "above 512")]
)
def test_sizes(devices: int, words: str) -> None:
    assert size_of(devices) == words

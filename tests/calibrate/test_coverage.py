"""Is the share of rows within their band counted by stack and size, and does a calibration reach it?"""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.calibrate.coverage import coverage_lines, size_of
from planner.calibrate.validate import validate_rows
from planner.spec.overlay import Overlay
from planner.spec.stack import PUBLISHER_BAND, UNLIKE_BAND
from tests.calibrate.rows import MODELS, ROW


def rows_off_by(factors: tuple[float, ...]) -> list[dict[str, str]]:
    """Rows whose measured time is `factors` of the predicted one."""
    predicted = validate_rows([dict(ROW)], MODELS).rows[0]["step_time_s"]
    return [{**ROW, "step_time_s": str(predicted * factor)} for factor in factors]


def test_rows_within_the_band_are_counted() -> None:
    (part,) = validate_rows(rows_off_by((1.0, 1.01, 0.99, 5.0)), MODELS).summary["coverage"]
    assert part["covered"] == 0.75
    assert part["errors"]["rows"] == 4
    assert part["band"] > 0.01
    assert len(coverage_lines([part])) == 2


def test_a_calibration_holds_for_its_stack_and_device() -> None:
    rows = rows_off_by((1.2,))
    shipped = validate_rows(rows, MODELS).rows[0]
    made = {"name": "x", "date": "2026", "level": "L3", "made_from": ("x",)}
    slower = {"multiply": {"compute.gemm": 1.2}}
    ours = Overlay.model_validate({**made, **slower, "stack": shipped["stack"]})
    told = validate_rows(rows, MODELS, ours).rows[0]
    assert told["step_time_s"] > 1.05 * shipped["step_time_s"]
    assert told["calibration_level"] == "L3"
    other = Overlay.model_validate({**made, **slower, "stack": "another"})
    assert validate_rows(rows, MODELS, other).rows[0] == shipped


@pytest.mark.parametrize(
    ("devices", "words"), [(1, "to 8"), (8, "to 8"), (9, "9 to 64"), (10**5, "above 512")]
)
def test_sizes(devices: int, words: str) -> None:
    assert size_of(devices) == words


def test_the_documented_columns_are_read() -> None:
    from planner.calibrate.published.runs import INPUT_COLUMNS

    text = (Path(__file__).parents[2] / "docs" / "own_runs.md").read_text()
    assert [name for name in INPUT_COLUMNS if f"`{name}`" not in text] == []


def test_the_band_of_a_row_is_wider_where_its_publisher_was_not_fitted_on() -> None:
    rows = [{**ROW, "source": source} for source in ("nemo_24.11", "bench_24.11")]
    published, own = (row["band"] for row in validate_rows(rows, MODELS).rows)
    assert own == pytest.approx((published**2 + PUBLISHER_BAND**2) ** 0.5)


def test_the_band_of_a_row_is_wider_on_a_device_that_the_stack_saw_no_run_on_as_estimate_shows_it() -> None:
    rows = [{**ROW, "gpu": gpu} for gpu in ("h100_sxm_80g", "a100_sxm_80g")]
    seen, unseen = (row["band"] for row in validate_rows(rows, MODELS).rows)
    shown = planner.estimate(
        "llama-3-8b", "8x8 a100-sxm-80g 400G-ib", seq_len=8192, global_batch=128, stack="megatron-2024",
        set={"tp": 4, "pp": 2},
    )  # fmt: skip
    assert unseen == pytest.approx(UNLIKE_BAND * seen)
    assert unseen == pytest.approx(shown.confidence.band)

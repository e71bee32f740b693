"""How wide is the band of a published row?"""

from __future__ import annotations

import pytest

from benchmarks.published.runs import RunReader
from benchmarks.published.validate import validate_rows
from planner.answer.interval import step_band
from planner.calibrate.predict import predict_runs
from planner.spec.stack import elsewhere
from tests.benchmarks.rows import MODELS, ROW


def test_the_band_of_a_row_is_wider_where_its_publisher_was_not_fitted_on() -> None:
    rows = [{**ROW, "source": source} for source in ("nemo_24.11", "bench_24.11")]
    published, own = (row["band"] for row in validate_rows(rows, MODELS).rows)
    assert own >= elsewhere(published) > published


def test_the_band_of_a_row_is_that_of_its_stack_elsewhere_and_of_its_step_s_parts() -> None:
    row = {**ROW, "gpu": "a100_sxm_80g"}
    run = RunReader(MODELS).read(row)
    (told,) = predict_runs([run])
    assert told is not None
    of_kernels = elsewhere(run.problem.stack.band_at(64, moe=False))
    shown = validate_rows([row], MODELS).rows[0]["band"]
    assert shown == pytest.approx(step_band(of_kernels, told.time), rel=1e-9)
    assert shown > of_kernels

"""How wide is the band of a published row?"""

from __future__ import annotations

import pytest

import planner
from benchmarks.published.validate import validate_rows
from planner.spec.stack import elsewhere
from tests.benchmarks.rows import MODELS, ROW


def test_the_band_of_a_row_is_wider_where_its_publisher_was_not_fitted_on() -> None:
    rows = [{**ROW, "source": source} for source in ("nemo_24.11", "bench_24.11")]
    published, own = (row["band"] for row in validate_rows(rows, MODELS).rows)
    assert own >= elsewhere(published) > published


def test_the_band_of_a_row_is_the_one_that_estimate_shows() -> None:
    unseen = validate_rows([{**ROW, "gpu": "a100_sxm_80g"}], MODELS).rows[0]["band"]
    shown = planner.estimate(
        "llama-3-8b", "8x8 a100-sxm-80g 400G-ib", seq_len=8192, global_batch=128, stack="megatron-2024",
        set={"tp": 4, "pp": 2},
    )  # fmt: skip
    assert unseen == pytest.approx(shown.confidence.band, rel=0.05)  # of nearly the same step

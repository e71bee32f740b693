"""Does the guard of the accuracy say which of the committed bounds a run breaks?"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from benchmarks.accuracy_bounds import BOUNDS, broken_bounds

HELD: dict[str, Any] = {
    "rows": 1000, "answered": 985, "headline_dense": {"median": 0.035},
    "headline_moe_no_hybrids": {"median": 0.03}, "step_time_hybrid": {"median": 0.073},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"answered": 979}, "answered"),
        ({"headline_dense": {"median": 0.037}}, "dense"),
        ({"headline_moe_no_hybrids": {"median": 0.034}}, "moe_no_hybrids"),
        ({"step_time_hybrid": {"median": 0.081}}, "hybrids"),
        ({"headline_dense": {"median": float("nan")}}, "dense"),
    ],
)
def test_a_broken_bound_is_named(change: dict[str, Any], word: str) -> None:
    bounds = yaml.safe_load(BOUNDS.read_text(encoding="utf-8"))
    assert broken_bounds(HELD, bounds) == []
    (said,) = broken_bounds({**HELD, **change}, bounds)
    assert word in said

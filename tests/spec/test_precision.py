"""Recipes by their other names."""

from __future__ import annotations

import pytest

from planner.spec.precision import Precision


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("mxfp8", Precision.FP8_MX), ("MXFP8", Precision.FP8_MX), ("fp8-tensorwise", Precision.FP8_CS)],
)
def test_recipes_go_by_other_names(name: str, recipe: Precision) -> None:
    assert Precision(name) is recipe


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match="bf17"):
        Precision("bf17")

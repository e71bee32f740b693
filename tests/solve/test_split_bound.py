"""What a stage of a model of layers of many widths may hold is found without listing every mix of them."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from planner.solve.split_bound import LEVELS, LayerCosts


def test_levels_are_those_of_all_mixes() -> None:
    widths, counts, whole, outer, least = [3, 5, 5, 11], [2, 1, 2, 3], 4, {0, 7}, 12.0
    mixes = [mix for mix in product(*(range(count + 1) for count in counts)) if sum(mix) <= whole]
    held = {own + sum(a * b for a, b in zip(mix, widths, strict=True)) for mix in mixes for own in outer}
    above = sorted(level for level in held if level > least)
    bound: Any = SimpleNamespace(counts=counts, whole=whole)
    found = LayerCosts.levels(bound, widths, outer, least)
    assert found == sorted({above[i] for i in np.linspace(0, len(above) - 1, LEVELS).astype(int)})


def test_levels_of_thirty_widths_take_no_minutes() -> None:
    bound: Any = SimpleNamespace(counts=[3] * 30, whole=40)
    found = LayerCosts.levels(bound, list(range(100, 130)), {0}, 0.0)
    assert found[-1] == 3 * sum(range(117, 130)) + 116  # the 40 widest

"""Which layers are found to be equal, and by which names?"""

from __future__ import annotations

import random

import pytest

from planner.dryrun.periods import PERIODS, Stretch, longest_stretch


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_stretch_is_that_of_trying_all(seed: int) -> None:
    chance = random.Random(seed)
    period = [chance.choice("ab") for _ in range(chance.randint(1, 4))]
    signs = (
        [chance.choice("abc") for _ in range(chance.randint(0, 4))]
        + period * chance.randint(5, 12)
        + [chance.choice("abc") for _ in range(chance.randint(0, 4))]
    )
    most = max(
        (count - PERIODS) * length
        for length in range(1, 9)
        for first in range(len(signs))
        for count in range(PERIODS, len(signs) + 1)
        if first + count * length <= len(signs)
        and signs[first : first + count * length] == signs[first : first + length] * count
    )
    first, length, count = longest_stretch(signs)
    assert signs[first : first + count * length] == signs[first : first + length] * count
    assert (count - PERIODS) * length == most


def test_modules_are_of_the_period_of_their_layer() -> None:
    stretch = Stretch("model.layers", 3, 2)
    assert stretch.period("model.layers.2.mlp") is None
    assert stretch.period("model.layers.3") == 0
    assert stretch.period("reference.model.layers.10.self_attn.q_proj") == 3
    assert stretch.period("model.layers.11") is None
    assert stretch.behind("model.layers.11")
    assert not stretch.behind("other.layers.11")
    assert stretch.period("other_model.layers.3") is None
    assert stretch.moved("base.model.layers.10.mlp.experts.10", 2) == "base.model.layers.14.mlp.experts.10"

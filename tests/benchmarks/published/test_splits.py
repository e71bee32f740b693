"""How software without a stack of its own deals layers."""

from __future__ import annotations

import pytest

from benchmarks.published.runs import RunReader
from benchmarks.published.splits import libai_split
from tests.benchmarks.rows import MODELS, ROW


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [
        (24, 2, None),
        (25, 4, None),
        (4, 4, None),
        (24, 4, (6, 7, 7, 4)),
        (48, 8, (6, 6, 7, 7, 7, 7, 7, 1)),
        (8, 8, (1,) * 8),
    ],
)
def test_libai_gives_its_last_ranks_fewer_layers(
    layers: int, stages: int, split: tuple[int, ...] | None
) -> None:
    assert libai_split(layers, stages) == split
    assert split is None or sum(split) == layers


def test_a_row_of_libai_is_split_so() -> None:
    read = RunReader(MODELS).read
    stages = {**ROW, "pp": "8", "dp": "2", "framework": "LiBai (OneFlow)"}
    assert read(stages).problem.stack.split == (4, 4, 4, 4, 5, 5, 5, 1)

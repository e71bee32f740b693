"""How much memory do kernels of attention ask for? By hand."""

from __future__ import annotations

import pytest

from planner.spec.kernel_space import masked_space, padded_width


@pytest.mark.parametrize(
    ("width", "padded"), [(64, 64), (80, 96), (128, 128), (160, 160), (192, 192), (256, 256)]
)
def test_heads_are_padded_to_whole_blocks(width: int, padded: int) -> None:
    assert padded_width(width) == padded


def test_tiles_hold_sums_and_a_lock_each() -> None:
    # 1,024 rows in 8 tiles of 128 x 128 floats and 4 of a lock
    assert masked_space(2, 8, 1024, 1024, (128, 128), 2) == 2 * 8 * 8 * (128 * 128 + 4) * 4


def test_wide_heads_are_summed_by_splits_of_the_keys() -> None:
    tiles = 8 * 4 * (128 * 64 + 4)  # 1,024 rows by 128, 256 columns by 64
    few, many = (masked_space(batch, 8, 1024, 1024, (256, 256), 2) for batch in (1, 100))
    assert few == 8 * (tiles + 16 * 64 * (256 + 256)) * 4  # no more splits than tiles of keys
    assert many == 800 * (tiles + 64 * (256 + 256)) * 4

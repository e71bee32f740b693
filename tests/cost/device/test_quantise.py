"""Are the bytes of quantising those that the recipes' kernels read and write?"""

import numpy as np
import pytest

from planner.cost.device.quantise import OPERANDS
from planner.spec.machine.accelerator import Architecture
from planner.spec.precision import RECIPES, Dtype, Precision

HOPPER, BLACKWELL = Architecture.HOPPER, Architecture.BLACKWELL
ALONE, EIGHT = np.ones(1), np.full(1, 8.0)


def test_every_narrow_recipe_and_no_other_quantises() -> None:
    assert {p for p, recipe in RECIPES.items() if recipe.gemm in (Dtype.FP8, Dtype.FP4)} == set(OPERANDS)


@pytest.mark.parametrize(
    ("precision", "architecture", "split", "bytes_moved"),
    [
        (Precision.FP8, HOPPER, ALONE, 2 + 1 + 1),  # read, write, write transposed
        (Precision.FP8, BLACKWELL, ALONE, 2 + 1),
        (Precision.FP8_CS, HOPPER, ALONE, 2 + 2 + 1 + 1),  # the largest value first
        (
            Precision.FP8_CS,
            HOPPER,
            EIGHT,
            (2 + 2 + 1) / 8 + 2,
        ),  # the gathered tensor is read and written once more
        (Precision.FP8_CS, BLACKWELL, EIGHT, (2 + 2 + 1) / 8),
        (Precision.FP8_MX, BLACKWELL, ALONE, 2 + 2 * (1 + 1 / 32)),
        (Precision.FP8_MX, BLACKWELL, EIGHT, (2 + 2 * (1 + 1 / 32)) / 8),
        (Precision.NVFP4, BLACKWELL, ALONE, 2 + 2 + 2 * 0.5625),
    ],
)
def test_bytes_of_a_value(
    precision: Precision, architecture: Architecture, split: np.ndarray, bytes_moved: float
) -> None:
    assert OPERANDS[precision].bytes_moved(split, architecture)[0] == pytest.approx(bytes_moved)


@pytest.mark.parametrize("precision", list(OPERANDS))
def test_frozen_weights_need_no_copy_along_columns(precision: Precision) -> None:
    operand = OPERANDS[precision]
    frozen = operand.bytes_moved(ALONE, HOPPER, trained=False)
    assert frozen[0] == operand.bytes_moved(ALONE, HOPPER)[0] - operand.stored

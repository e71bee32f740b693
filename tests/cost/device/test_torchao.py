"""Are the bytes that torchao's casts move those that its kernels read and write?"""

from __future__ import annotations

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.device.products import casts_of
from planner.cost.device.torchao import CASTS, ROW_RATE, Casts, cast_bytes, operands
from planner.cost.operations.operation import Gemm, Shard
from planner.spec.config import ParallelConfig
from planner.spec.precision import Precision
from planner.spec.stack.kinds import Float8Scales
from tests.problems import dense_model, layer_of, problem

TENSOR, ROW = Float8Scales.TENSOR, Float8Scales.ROW
TOKENS, IN, OUT = 1000.0, 64.0, 48.0
VALUES = (np.array([TOKENS * IN]), np.array([TOKENS * OUT]), np.array([IN * OUT]))


def moved(
    casts: Casts, name: str = "q_b", shard: Shard = Shard.COLUMN, split: float = 1.0, narrow: bool = False
) -> tuple[float, float]:
    gemm = Gemm(name, int(IN), int(OUT), shard)
    ahead, back = cast_bytes(casts, operands(gemm, VALUES, np.array([split]), narrow))
    return float(ahead[0]), float(back[0])


@pytest.mark.parametrize(
    ("scales", "compiled", "input_bytes", "gradient_bytes", "weight_bytes", "output_bytes"),
    [
        # the largest value in the kernel before; 2 read, 1 + 1 written; weights 2, and 2 read and 1 written twice
        (TENSOR, True, 4, 4, 8, 0),
        # 1 written in the kernel before, 2 along columns, 2 read and 1 written; weights 2 + 1, 2 + 2, 2 + 1
        (ROW, True, 6, 6, 10, 4),
        # |x| 4, its largest 2, fp32 6, scaled 8, clamped 8, cast 5; a copy along columns 2
        (TENSOR, False, 35, 35, 68, 0),
        (ROW, False, 68, 68, 68, 12),
    ],
)
def test_bytes_of_a_product(
    scales: Float8Scales,
    compiled: bool,
    input_bytes: int,
    gradient_bytes: int,
    weight_bytes: int,
    output_bytes: int,
) -> None:
    """torchao's own table: get_tensor_memory_traffic_ovhd_s with fuse_with_prev, which weights have not."""
    total = sum(moved(CASTS[scales, compiled]))
    inputs, outputs, weights = (float(values[0]) for values in VALUES)
    expected = input_bytes * inputs + gradient_bytes * outputs + weight_bytes * weights
    assert total == pytest.approx(expected + output_bytes * (inputs + weights))


@pytest.mark.parametrize("scales", Float8Scales)
def test_what_no_compiled_kernel_wrote_is_read_once_more(scales: Float8Scales) -> None:
    casts = CASTS[scales, True]
    plain = moved(casts)
    attention, last = moved(casts, "attention_out"), moved(casts, "mlp_fc2")
    assert attention[0] - plain[0] == pytest.approx(2 * TOKENS * IN)
    assert last[1] - plain[1] == pytest.approx(2 * TOKENS * OUT)
    assert (attention[1], last[0]) == (plain[1], plain[0])


def test_tensors_are_cast_before_they_are_gathered() -> None:
    """Over 8 ranks an eighth of the input is cast; the gathered one is read and written along columns."""
    inputs, outputs, weights = (float(values[0]) for values in VALUES)
    ahead, back = moved(CASTS[TENSOR, True], split=8.0, narrow=True)
    assert ahead == pytest.approx(3 / 8 * inputs + 5 * weights)
    assert back == pytest.approx(2 * inputs + (3 + 1) * outputs + 3 * weights)
    # the gradient of a row-parallel output likewise
    assert moved(CASTS[TENSOR, True], shard=Shard.ROW, split=8.0, narrow=True)[1] == pytest.approx(
        1 * inputs + (3 / 8 + 2) * outputs + 3 * weights
    )
    # with a scale a row all of it, after the gather, by a kernel of its own
    assert moved(CASTS[ROW, True], split=8.0)[0] == pytest.approx(3 * inputs + 3 * weights)


def test_gathered_weights_are_only_transposed() -> None:
    casts = CASTS[TENSOR, True]
    wide, narrow = moved(casts), moved(casts.gathered())
    weights = float(VALUES[2][0])
    assert (wide[0] - narrow[0], wide[1] - narrow[1]) == pytest.approx((5 * weights, 1 * weights))


def test_frozen_weights_need_no_copy_along_columns() -> None:
    gemm = Gemm("q_b", int(IN), int(OUT), Shard.COLUMN)
    for casts in CASTS.values():
        x = operands(gemm, VALUES, np.ones(1), False)
        trained, frozen = cast_bytes(casts, x), cast_bytes(casts, x, trained=False)
        assert trained[0] == frozen[0]
        less = (
            casts.input_columns * x.inputs + casts.gradient_columns * x.outputs + casts.rescaled * x.weights
        )
        assert trained[1] - frozen[1] == pytest.approx(less)


def test_it_is_torchao_alone_that_casts_so() -> None:
    for stack, precision, scales in (
        ("torchtitan-2024", Precision.FP8_CS, CASTS[TENSOR, True]),
        ("torchtitan-2024+enable-fsdp-float8-all-gather", Precision.FP8_CS, CASTS[TENSOR, True].gathered()),
        ("torchtitan-2026", Precision.FP8_CS, CASTS[ROW, True]),
        ("torchtitan-2026-eager", Precision.FP8_CS, CASTS[ROW, False]),
        ("torchtitan-2026", Precision.FP8_MX, None),
        ("megatron-2026", Precision.FP8_CS, None),
    ):
        assert casts_of(problem(precision=precision, stack=stack)) == scales


def test_small_products_gain_nothing_from_float8() -> None:
    """Casts cost a share that falls with the size: with few tokens those of weights alone outweigh the products."""
    spec = load_stack("torchtitan-2024")
    equal = {"gemm": {"bf16": 1.0, "fp8": 1.0}}
    stack = spec.model_copy(update={"compute": spec.compute.model_copy(update=equal)})

    def seconds(seq_len: int, precision: Precision) -> float:
        subject = problem(dense_model(), "1x8 h100", seq_len=seq_len, precision=precision, stack=stack)
        cost = layer_of(subject, ParallelConfig())
        return float(cost.forward["gemm"][0] + cost.backward["gemm"][0])

    def gain(seq_len: int) -> float:
        return seconds(seq_len, Precision.BF16) / seconds(seq_len, Precision.FP8_CS)

    assert gain(512) < 1 < gain(32768) < 2


def test_products_of_rows_run_slower_on_hopper() -> None:
    """Forward, casts apart: those are set to nothing."""

    def ratio(chip: str, monkey: pytest.MonkeyPatch) -> float:
        nothing = Casts(0, 0, 0, 0, 0, 0)
        monkey.setattr("planner.cost.device.products.casts_of", lambda problem: nothing)
        stacks = ("torchtitan-2024+recipe-name=rowwise", "torchtitan-2024")
        subjects = (
            problem(dense_model(), f"1x8 {chip}", precision=Precision.FP8_CS, stack=s) for s in stacks
        )
        rows, whole = (float(layer_of(s, ParallelConfig()).forward["gemm"][0]) for s in subjects)
        return rows / whole

    with pytest.MonkeyPatch.context() as monkey:
        assert ratio("h100", monkey) == pytest.approx(1 / ROW_RATE)
        assert ratio("b200", monkey) == pytest.approx(1.0)

"""Is FlashAttention-2 as fast on H100 as its authors measured?"""

import numpy as np
import pytest

from planner.catalog.loader import load_kernel_rates
from planner.cost.device.flash import cudnn_slowdown, flash_2_rates, flash_2_slowdown, runs_cudnn
from planner.cost.device.kernels import Roofline, attention_time
from planner.spec.config import ConfigTable, ParallelConfig
from tests.problems import costs, dense_model, problem

ROOFLINE = Roofline(989.4e12, 3350e9, load_kernel_rates("h100-sxm-80g"))
TOKENS, HIDDEN = 16384, 2048  # of every bar


@pytest.mark.parametrize(
    ("length", "width", "forward", "both"),  # TFLOP/s of the bars, causal; forward, and both passes
    [
        (1024, 128, 260, 221),
        (2048, 64, 262, 232),
        (4096, 128, 319, 294),
        (16384, 64, 299, 284),
        (16384, 128, 335, 328),
    ],
)
def test_causal_bars(length: int, width: int, forward: float, both: float) -> None:
    batch, heads = TOKENS // length, HIDDEN // width
    shape = (batch, length, length, heads, heads, width, width, True)
    table = attention_time(*shape, ROOFLINE)
    ahead, back = np.multiply(table, flash_2_slowdown(float(length), float(width)))
    work = 2 * TOKENS * length * HIDDEN * 1e-12
    assert work / ahead == pytest.approx(forward, rel=0.01)
    assert 3.5 * work / (ahead + back) == pytest.approx(both, rel=0.01)


def test_blocks_without_a_mask_are_up_to_a_seventh_faster_forward() -> None:
    shape = (1, TOKENS, TOKENS, 16, 16, 128, 128, False)
    ahead, back = attention_time(*shape, ROOFLINE)
    slower = flash_2_slowdown(2.0 * TOKENS, 128.0)
    work = 4 * TOKENS * TOKENS * HIDDEN * 1e-12
    assert 370 / 1.16 < work / (slower[0] * ahead) < 370
    assert 2.5 * work / (slower[1] * back) == pytest.approx(327, rel=0.02)  # 338 of both passes, 370 forward


def test_held_beyond_what_is_measured() -> None:
    assert flash_2_slowdown(131072.0, 256.0) == flash_2_slowdown(16384.0, 128.0)


def test_rates_are_those_of_the_bars() -> None:
    """On H100's 132 multiprocessors, as the slowdown of its tables has it."""
    for length, width in ((1024, 128), (4096, 64), (16384, 128)):
        batch, heads = TOKENS // length, HIDDEN // width
        table = attention_time(batch, length, length, heads, heads, width, width, True, ROOFLINE)
        ahead, back = np.multiply(table, flash_2_slowdown(float(length), float(width)))
        work = 2 * TOKENS * length * HIDDEN
        rates = np.multiply(flash_2_rates(float(length), float(width)), 132)
        assert [work / ahead, 2.5 * work / back] == pytest.approx(rates, rel=0.01)


def test_blackwell_runs_it_unit_by_unit() -> None:
    """Qwen3-4B on B200: 16,384 and 65,536 tokens in steps of two sequences took 3.743 and 39.613 s; what grows with the
    square is 32.9 s, 347 TFLOP/s with all recomputed (prime-rl, benchmarks/baselines)."""
    pairs, layers, heads = 65536 * 65536 / 2, 36, 32
    forward, backward = np.multiply(flash_2_rates(65536.0, 128.0), 148)
    work = 2 * layers * 2 * heads * pairs * 256
    assert 2 * work / forward + 2.5 * work / backward == pytest.approx(32.9, rel=0.07)


def test_flash_2_is_no_faster_for_blackwells_products() -> None:
    """It takes what it takes on H100 by multiprocessors, not a share of the time of B200's own kernels."""
    seconds = {}
    for cluster in ("1x1 h100", "1x1 b200"):
        given = problem(dense_model(4), cluster, stack="deepspeed-2025", seq_len=32768, global_batch=1)
        table = ConfigTable.of([ParallelConfig(micro_batch=1)])
        detail = costs(given).evaluate(table, keep_terms=True).detail
        assert detail is not None
        seconds[cluster] = detail.time["attention"][0]
    assert seconds["1x1 b200"] == pytest.approx(seconds["1x1 h100"] * 132 / 148, rel=0.05)


def test_heads_of_longer_sequences_than_were_measured_fill_a_device_as_more_heads_would() -> None:
    """Beyond the longest measured span, 16,384, a head's blocks go on growing in number, and with them the rate."""

    def rate(heads: float, length: float) -> float:
        shape = (1.0, length, length, heads, heads, 128.0, 128.0, True)
        return heads * length**2 / float(attention_time(*shape, ROOFLINE)[0])

    assert rate(4.0, 131072.0) == pytest.approx(rate(32.0, 16384.0), rel=1e-6)
    assert rate(4.0, 131072.0) > 1.03 * rate(4.0, 16384.0)


@pytest.mark.parametrize(
    ("shape", "forward", "backward"),  # batch, length, heads, heads of keys, width; seconds under torch 2.11
    [
        ((2, 4096, 32, 8, 64), 387e-6, 1160e-6),
        ((1, 16384, 32, 8, 64), 2385e-6, 6367e-6),
        ((2, 4096, 32, 8, 128), 538e-6, 1679e-6),
        ((1, 8192, 32, 8, 128), 1027e-6, 3007e-6),
        ((1, 16384, 8, 1, 128), 1028e-6, 2800e-6),
    ],
)
def test_cudnn_on_h100(shape: tuple[int, ...], forward: float, backward: float) -> None:
    batch, length, heads, kv, width = shape
    table = attention_time(batch, length, length, heads, kv, width, width, True, ROOFLINE)
    told = np.multiply(table, cudnn_slowdown(float(length), float(width)))
    assert told == pytest.approx([forward, backward], rel=0.06)
    assert (np.multiply(table, flash_2_slowdown(float(length), float(width))) > 1.1 * told).all()


def test_pytorch_takes_cudnn_where_it_has_the_width() -> None:
    assert runs_cudnn(9, 128, 128)
    assert runs_cudnn(10, 192, 128)
    assert not runs_cudnn(9, 256, 256)
    assert not runs_cudnn(8, 128, 128)
    assert not runs_cudnn(12, 128, 128)

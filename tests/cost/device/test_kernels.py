"""Do kernel times follow the measured tables, the roofline and common sense?"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.loader import load_kernel_rates
from planner.cost.device.kernels import (
    Roofline,
    attended_pairs,
    attention_time,
    gemm_backward_time,
    gemm_efficiency,
    gemm_time,
    grouped_gemm_backward_time,
    grouped_gemm_time,
    interpolate,
    memory_bound_time,
    misaligned_slowdown,
    shape_distance,
)
from planner.errors import UnknownNameError, UnsupportedError
from planner.spec.machine.rates import KernelRates, under_load
from planner.spec.precision import Dtype, Precision

H100 = load_kernel_rates("h100-sxm-80g")
PEAK, BANDWIDTH = 989.4e12, 3350e9
ROOFLINE = Roofline(PEAK, BANDWIDTH, H100)
MEASURED = [
    "a100-sxm-80g",
    "h100-sxm-80g",
    "h200-sxm",
    "b200",
    "gb200",
    "b300",
    "gb300",
    "l40s",
    "rtx-pro-6000-server",
]
extent = st.integers(min_value=64, max_value=100_000)


def flat_rates(efficiency: float) -> KernelRates:
    """Rates with one efficiency everywhere, for hand-worked cases."""
    table = H100.gemm[Dtype.BF16]
    flat = replace(table, efficiency=np.full_like(table.efficiency, efficiency))
    attention = replace(
        H100.attention,
        efficiency=np.full_like(H100.attention.efficiency, efficiency),
        backward_ratio=np.full_like(H100.attention.backward_ratio, 0.8),
    )
    return replace(H100, gemm={Dtype.BF16: flat}, attention=attention, memory_efficiency=0.8)


def test_products_in_fp32_wait_for_arithmetic() -> None:
    """At 0.8 of 67 TFLOP/s, also of 64 outputs; of 16, as LoRA's, reading the inputs takes longer."""
    roofline = Roofline(67e12, BANDWIDTH, H100)
    told = gemm_time(4096, 64, 4096, Dtype.FP32, roofline)
    assert told == pytest.approx(2 * 4096 * 64 * 4096 / (67e12 * 0.8))
    read = memory_bound_time(4 * (4096 * 4096 + 2 * 16 * 4096), BANDWIDTH, H100)
    assert gemm_time(4096, 16, 4096, Dtype.FP32, roofline) == pytest.approx(read)


class TestGemm:
    def test_compute_bound_by_hand(self) -> None:
        # 2 * 4096 * 8192 * 1024 FLOP / (100e12 * 0.5) = 1.374 ms
        got = gemm_time(4096, 8192, 1024, Dtype.BF16, Roofline(100e12, 10e12, flat_rates(0.5)))
        assert got == pytest.approx(68_719_476_736 / 50e12, rel=1e-12)

    def test_memory_bound_by_hand(self) -> None:
        # 2 bytes * (512 * 512 + 512 * 1024 + 512 * 1024) = 2.62 MB at 1 GB/s * 0.8
        got = gemm_time(512, 1024, 512, Dtype.BF16, Roofline(1000e12, 1e9, flat_rates(0.5)))
        assert got == pytest.approx(2 * (512 * 512 + 512 * 1024 + 512 * 1024) / 0.8e9, rel=1e-12)

    @pytest.mark.parametrize("name", MEASURED)
    def test_a_node_of_the_table_is_returned_exactly(self, name: str) -> None:
        rates = load_kernel_rates(name)
        table = rates.gemm[Dtype.BF16]
        for i, j, k in ((0, 0, 0), (4, 8, 9), (7, 17, 17), (3, 15, 16)):
            shape = (2.0 ** table.log2_m[i], 2.0 ** table.log2_n[j], 2.0 ** table.log2_k[k])
            assert gemm_efficiency(*shape, Dtype.BF16, rates) == pytest.approx(
                table.efficiency[i, j, k], rel=1e-9
            )

    @settings(deadline=None)
    @given(st.lists(st.tuples(extent, extent, extent), min_size=2, max_size=20))
    def test_a_row_alone_equals_the_row_in_a_column(self, shapes: list[tuple[int, int, int]]) -> None:
        column = np.array(shapes, dtype=float).T
        times = gemm_time(*column, Dtype.BF16, ROOFLINE)
        gradients = gemm_backward_time(*column, Dtype.BF16, ROOFLINE)
        for i, shape in enumerate(shapes):
            assert times[i] == gemm_time(*shape, Dtype.BF16, ROOFLINE)
            alone = gemm_backward_time(*shape, Dtype.BF16, ROOFLINE)
            assert (gradients[0][i], gradients[1][i]) == alone

    @settings(deadline=None)
    @given(extent, extent, extent, st.floats(1.0, 4.0))
    def test_more_bandwidth_or_peak_is_never_slower(self, m: int, n: int, k: int, factor: float) -> None:
        base = gemm_time(m, n, k, Dtype.BF16, ROOFLINE)
        assert gemm_time(m, n, k, Dtype.BF16, Roofline(PEAK, BANDWIDTH * factor, H100)) <= base
        assert gemm_time(m, n, k, Dtype.BF16, Roofline(PEAK * factor, BANDWIDTH, H100)) <= base

    @settings(deadline=None)
    @given(extent, extent, extent, st.integers(0, 2))
    def test_twice_the_work_is_never_faster(self, m: int, n: int, k: int, axis: int) -> None:
        shape = [float(m), float(n), float(k)]
        base = gemm_time(*shape, Dtype.BF16, ROOFLINE)
        shape[axis] *= 2
        # the measured tables themselves have neighbours where the larger GEMM is up to a tenth faster
        assert gemm_time(*shape, Dtype.BF16, ROOFLINE) >= 0.9 * base

    @settings(deadline=None)
    @given(extent, extent, extent, st.integers(0, 2))
    def test_sharding_in_two_is_little_more_than_twice_as_fast(
        self, m: int, n: int, k: int, axis: int
    ) -> None:
        shape = [float(m), float(n), float(k)]
        base = gemm_time(*shape, Dtype.BF16, ROOFLINE)
        shape[axis] /= 2
        # halving may land on a better tile: the tables hold cells up to a third more efficient at half the
        # size
        assert gemm_time(*shape, Dtype.BF16, ROOFLINE) >= 0.5 * base / 1.4

    def test_small_shapes_lose_efficiency_below_the_grid(self) -> None:
        edge = gemm_efficiency(256, 4096, 4096, Dtype.BF16, H100)
        assert gemm_efficiency(32, 4096, 4096, Dtype.BF16, H100) < 0.5 * edge
        assert gemm_efficiency(8192, 4096, 64, Dtype.BF16, H100) < gemm_efficiency(
            8192, 4096, 512, Dtype.BF16, H100
        )

    def test_gradients_of_a_large_gemm_take_about_as_long_as_the_forward_pass(self) -> None:
        forward = gemm_time(8192, 8192, 8192, Dtype.BF16, ROOFLINE)
        dgrad, wgrad = gemm_backward_time(8192, 8192, 8192, Dtype.BF16, ROOFLINE, 8.0)
        assert dgrad == pytest.approx(forward / H100.dgrad_ratio)
        assert forward < wgrad < 1.15 * forward

    def test_quantising_is_taken_off_the_tables_that_include_it(self) -> None:
        """Their rate falls with few outputs, because every input value is quantised; the product's hardly does."""

        def over_bf16(n: int, timed: Callable[..., float]) -> float:
            return timed(n, Dtype.BF16, PEAK) / timed(n, Dtype.FP8, 2 * PEAK)

        def table(n: int, dtype: Dtype, peak: float) -> float:
            return 2.0 * 4096 * n * 16384 / (peak * float(gemm_efficiency(4096, n, 16384, dtype, H100)))

        def product(n: int, dtype: Dtype, peak: float) -> float:
            return float(gemm_time(4096, n, 16384, dtype, Roofline(peak, BANDWIDTH, H100)))

        assert over_bf16(1024, table) < 0.65 * over_bf16(16384, table)
        assert over_bf16(1024, product) == pytest.approx(over_bf16(16384, product), rel=0.12)
        # 3.55 bytes over 85 % of 3,350 GB/s
        apart = table(4096, Dtype.FP8, 2 * PEAK) - product(4096, Dtype.FP8, 2 * PEAK)
        assert apart == pytest.approx(3.55 * 4096 * 16384 / (0.85 * 3350e9), rel=0.01)

    def test_rows_that_are_no_whole_16_bytes_are_slow(self) -> None:
        # GPT-2's vocabulary cut by 1, 2, 4 and 8 ranks, and padded
        columns = np.array([50257, 50257 / 2, 50257 // 4, 50257 // 8, 50304])
        assert misaligned_slowdown(columns, 4096.0).tolist() == [3.0, 1.0, 2.0, 2.0, 1.0]
        assert misaligned_slowdown(4096.0, columns).tolist() == [3.0, 1.0, 2.0, 2.0, 1.0]

    def test_a_product_with_a_vector_has_no_rows_of_outputs(self) -> None:
        assert misaligned_slowdown(np.array([1.0, 3.0]), 2048.0).tolist() == [
            1.0,
            3.0,
        ]  # a gate of shared experts

    def test_a_product_is_never_above_the_peak(self) -> None:
        shape = (65536, 256, 1024)  # quantising would take all the table's time
        assert gemm_time(*shape, Dtype.FP8, Roofline(2 * PEAK, 1e15, H100)) >= 2.0 * 65536 * 256 * 1024 / (
            2 * PEAK
        )

    def test_fp8_is_faster_than_bf16_but_less_than_twice(self) -> None:
        bf16 = gemm_time(8192, 8192, 8192, Dtype.BF16, ROOFLINE)
        fp8 = gemm_time(8192, 8192, 8192, Dtype.FP8, Roofline(2 * PEAK, BANDWIDTH, H100))
        assert 0.5 * bf16 < fp8 < bf16

    def test_recipes_resolve_to_their_own_table_or_their_number_format(self) -> None:
        shape = (8192.0, 8192.0, 8192.0)
        assert gemm_efficiency(*shape, Precision.FP8_CS, H100) == gemm_efficiency(*shape, Dtype.FP8, H100)
        assert gemm_efficiency(*shape, Precision.FP8_BLOCKWISE, H100) != gemm_efficiency(
            *shape, Dtype.FP8, H100
        )
        with pytest.raises(UnsupportedError, match="fp4"):
            gemm_efficiency(*shape, Dtype.FP4, flat_rates(0.5))


class TestGroupedGemm:
    def test_one_group_is_a_gemm(self) -> None:
        rates = replace(H100, grouped_gemm_ratio=1.0)
        one = grouped_gemm_time(4096, 4096, 7168, 1, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates))
        assert one == pytest.approx(gemm_time(4096, 4096, 7168, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates)))

    def test_one_group_is_a_plain_product_and_its_gradients(self) -> None:
        rates = replace(flat_rates(0.5), grouped_gemm_ratio=0.5, grouped_wgrad_ratio=0.5, wgrad_ratio=0.9)
        shape = (8192.0, 2048, 7168)
        one, two = (
            grouped_gemm_time(*shape, g, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates)) for g in (1, 2)
        )
        assert one == pytest.approx(gemm_time(*shape, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates)))
        assert two > 1.9 * one
        back = grouped_gemm_backward_time(*shape, 1, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates), 8.0)
        assert back == pytest.approx(
            gemm_backward_time(*shape, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates), 8.0)
        )

    def test_more_groups_of_the_same_rows_are_never_faster(self) -> None:
        groups = np.array([1.0, 4, 16, 64, 256])
        times = grouped_gemm_time(16384.0, 2048, 7168, groups, Dtype.BF16, ROOFLINE)
        assert np.all(np.diff(times) > -0.05 * times[:-1])

    def test_idle_units_are_shared_by_at_most_four_groups(self) -> None:
        # one group of 128 x 128 is one tile of 132: four run in the time of one of four times the width
        rates = replace(flat_rates(0.5), grouped_gemm_ratio=1.0)
        alone = gemm_time(128, 4 * 128, 4096, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates))
        grouped = grouped_gemm_time(128.0 * 8, 128, 4096, 8, Dtype.BF16, Roofline(PEAK, BANDWIDTH, rates))
        assert grouped == pytest.approx(2 * alone)

    def test_gradients_take_longer_than_the_forward_pass(self) -> None:
        blackwell = load_kernel_rates("b200")
        shape = (65536.0, 2048, 7168, 32, Dtype.BF16, Roofline(2250e12, 8e12, blackwell))
        forward, (dgrad, wgrad) = grouped_gemm_time(*shape), grouped_gemm_backward_time(*shape, 8.0)
        assert 0.8 * forward < dgrad < wgrad < 2 * forward

    def test_every_expert_s_weights_move(self) -> None:
        slow = grouped_gemm_time(64.0, 2048, 7168, 64, Dtype.BF16, Roofline(PEAK, 1e10, flat_rates(0.5)))
        assert slow >= 64 * 2048 * 7168 * 2 / 0.8e10


class TestAttention:
    def test_causal_square_by_hand(self) -> None:
        # 2 * 2 batch * 32 heads * (4096^2 / 2) pairs * 256 / (100e12 * 0.5); backward 2.5 / 0.8 times that
        forward, backward = attention_time(
            2, 4096, 4096, 32, 8, 128, 128, True, Roofline(100e12, 1e13, flat_rates(0.5))
        )
        assert forward == pytest.approx(2 * 2 * 32 * 4096**2 / 2 * 256 / 50e12, rel=1e-12)
        assert backward == pytest.approx(forward * 2.5 / 0.8, rel=1e-12)

    def test_pairs(self) -> None:
        assert attended_pairs(8, 8, True) == 32
        assert attended_pairs(8, 8, False) == 64
        assert attended_pairs(4, 8, True) == 24  # the second half of the square: 32 - 8
        assert attended_pairs(8, 8, True, 2) == 14  # 8 * 2 less the triangle of 2 * 2 / 2
        assert attended_pairs(8, 8, True, 100) == 32

    def test_context_parallel_halves_add_up(self) -> None:
        whole = attended_pairs(8192, 8192, True)
        first, second = attended_pairs(4096, 4096, True), attended_pairs(4096, 8192, True)
        assert first + second == whole

    def test_a_window_is_faster_and_full_attention_slower(self) -> None:
        def forward(causal: bool, window: float = np.inf) -> float:
            shape = (1, 16384, 16384, 32, 8, 128, 128, causal)
            return float(attention_time(*shape, ROOFLINE, window)[0])

        assert forward(True, 1024) < 0.3 * forward(True) < forward(True) < forward(False)

    def test_latent_attention_has_a_slower_backward_pass(self) -> None:
        def ratio(d_qk: int, d_v: int) -> float:
            forward, backward = attention_time(
                1, 4096, 4096, 128, 128, d_qk, d_v, True, Roofline(PEAK, BANDWIDTH, load_kernel_rates("b200"))
            )
            return float(backward / forward)

        # SimuMax on B200: 0.415 of the peak backward against 0.473 forward at widths 128, 0.32 and 0.415 at 192/128
        assert ratio(128, 128) == pytest.approx(2.5 * 0.473 / 0.415, rel=0.08)
        assert ratio(192, 128) == pytest.approx(2.5 * 0.471 / 0.322, rel=0.08)

    def test_the_backward_pass_fills_the_device_with_fewer_heads(self) -> None:
        def backward(heads: int) -> float:
            shape = (1, 4096, 4096, heads, 1, 128, 128, True)
            return float(
                attention_time(*shape, Roofline(312e12, 1935e9, load_kernel_rates("a100-pcie-80g")))[1]
            )

        # SimuMax on A100 PCIe: 0.503 of the peak with 64 heads, 0.337 with 4
        assert backward(64) / backward(4) == pytest.approx(16 * 0.337 / 0.503, rel=0.16)

    def test_a_limit_on_power_slows_attention_as_it_slows_products(self) -> None:
        limited = load_kernel_rates("h100-sxm-96g-hbm2e-500w")
        share = limited.sustained_fraction / H100.sustained_fraction
        assert share == pytest.approx((500 / 700) ** (1 / 3), rel=0.01)
        shape = (1, 16384, 16384, 32, 8, 128, 128, True)
        slower = np.divide(
            attention_time(*shape, Roofline(PEAK, BANDWIDTH, limited)), attention_time(*shape, ROOFLINE)
        )
        assert slower == pytest.approx(1 / share)

    def test_row_alone_equals_row_in_column(self) -> None:
        sequence = np.array([512.0, 4096, 5000, 131072])
        column = attention_time(1, sequence, sequence, 16, 4, 128, 128, True, ROOFLINE)
        for i, s in enumerate(sequence):
            alone = attention_time(1, s, s, 16, 4, 128, 128, True, ROOFLINE)
            assert (column[0][i], column[1][i]) == alone


class TestUnderLoad:
    def test_the_plateau_keeps_its_fraction_and_faster_kernels_lose_more(self) -> None:
        burst = np.array([0.2, 0.6, 0.8, 0.95])
        held = under_load(burst, 0.8, 0.9)
        assert held[2] == pytest.approx(0.72)  # 0.8 x 0.9
        assert held[3] == pytest.approx(0.95 * 0.9 * (2 / (1 + (0.95 / 0.8) ** 4)) ** 0.25)
        assert held[0] == burst[0]  # a kernel that draws little power is not slowed

    @given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.3, 1.0))
    def test_never_above_the_burst_and_never_reorders(self, a: float, b: float, fraction: float) -> None:
        low, high = under_load(np.array(sorted((a, b))), 0.75, fraction)
        assert low <= high * (1 + 1e-12)
        assert high <= max(a, b)


class TestRates:
    @pytest.mark.parametrize("name", MEASURED)
    def test_measured_tables_are_their_own(self, name: str) -> None:
        rates = load_kernel_rates(name)
        assert rates.measured
        assert rates.kin == ""
        for table in rates.gemm.values():
            assert table.efficiency.min() > 0
            assert table.efficiency.max() <= 1
        assert 0 < rates.attention.efficiency.min() < rates.attention.efficiency.max() < 1
        assert 0 < rates.sustained_fraction <= 1
        assert set(rates.sources) >= {"sustained_fraction", "dgrad_ratio", "memory_efficiency"}

    def test_kin_is_stated(self) -> None:
        assert load_kernel_rates("h800_sxm_80g").kin == "h100-sxm-80g"
        assert load_kernel_rates("gh200").kin == "h200-sxm"

    def test_a_cpu_takes_its_share_of_a_module_s_power(self) -> None:
        """828.6 TFLOP/s of a module of 900 W, 794.5 of a GPU of 700: what the rest takes is gone at 680 W, too."""
        rest = 900 - 700 * (828.6 / 794.5) ** 3
        clock = ((680 - rest) / 700) ** (1 / 3)
        alone, module = (load_kernel_rates(name).sustained_fraction for name in ("h200-sxm", "gh200"))
        assert module == pytest.approx(clock * alone, abs=1e-3)

    def test_what_an_estimate_lacks_is_said(self) -> None:
        assert not load_kernel_rates("mi300x").measured

    def test_an_unknown_accelerator_has_none(self) -> None:
        with pytest.raises(UnknownNameError, match="h100-sxm-80g"):
            load_kernel_rates("h101-sxm")

    def test_a_larger_chip_reaches_of_larger_products_what_its_kin_reaches_of_theirs(self) -> None:
        """Leonardo's A100 has 124 units for 108."""
        own, kin = load_kernel_rates("a100-sxm-64g"), load_kernel_rates("a100-sxm-80g")
        assert own.compute_units == 124
        rows = 4096.0 * 124 / 108
        assert own.gemm[Dtype.BF16].efficiency.tolist() == kin.gemm[Dtype.BF16].efficiency.tolist()
        found, expected = (
            float(gemm_efficiency(m, 8192.0, 8192.0, Dtype.BF16, rates))
            for m, rates in ((rows, own), (4096.0, kin))
        )
        assert found == pytest.approx(expected, rel=0.01)
        assert own.attention.log2_rows == pytest.approx(kin.attention.log2_rows + np.log2(124 / 108))

    def test_every_accelerator_of_the_catalog_has_rates(self) -> None:
        from importlib.resources import files

        for path in (files("planner.catalog") / "accelerators").iterdir():
            rates = load_kernel_rates(path.name.removesuffix(".yaml"))
            assert Dtype.BF16 in rates.gemm

    @pytest.mark.parametrize(
        ("name", "peak", "measured", "within"),
        [
            ("rtx-pro-6000-server", 503.8, (399.93, 417.34, 387.01), 0.05),
            ("rtx4090", 165.2, (151.50, 160.17, 158.54), 0.08),
        ],
    )
    def test_squares_that_others_measured(
        self, name: str, peak: float, measured: tuple[float, ...], within: float
    ) -> None:
        """PyTorch's bf16 products of 4096, 8192 and 10240 [TFLOP/s] (zzc0721/torch-performance-test-data, issues 161
        and 78): the one has tables of others' measurements, the other a roofline with its best shape known."""
        rates = load_kernel_rates(name)
        for side, rate in zip((4096.0, 8192.0, 10240.0), measured, strict=True):
            guess = peak * float(gemm_efficiency(side, side, side, Dtype.BF16, rates))
            assert guess == pytest.approx(rate, rel=within), side

    def test_products_of_marenostrum5_are_those_of_an_h100(self) -> None:
        """PyTorch's bf16 products in a short burst [TFLOP/s], a published report of one H100 64GB: its tables are at
        the clock of a long load."""
        rates = load_kernel_rates("h100-sxm-64g")
        for shape, rate in (
            ((4096.0,) * 3, 772.7),
            ((8192.0,) * 3, 718.8),
            ((16384.0, 1536.0, 8960.0), 695.5),
        ):
            guess = 989.4 * float(gemm_efficiency(*shape, Dtype.BF16, rates))
            assert 0.91 * rate < guess < rate

    def test_a_power_limited_card_is_slower_than_its_kin(self) -> None:
        shape = (8192.0, 8192.0, 8192.0)
        sxm, pcie = load_kernel_rates("a100-sxm-80g"), load_kernel_rates("a100-pcie-80g")
        assert gemm_efficiency(*shape, Dtype.BF16, pcie) < gemm_efficiency(*shape, Dtype.BF16, sxm)


class TestPieces:
    def test_interpolation_is_linear_between_nodes_and_held_outside(self) -> None:
        axes = [np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0])]
        values = np.array([[0.0, 2.0], [1.0, 3.0], [3.0, 5.0]])  # x + y
        got = interpolate(axes, values, (np.array([0.5, 2.0, 9.0, -1.0]), np.array([1.0, 0.5, 9.0, -1.0])))
        assert got.tolist() == [1.5, 2.5, 5.0, 0.0]

    def test_distance_is_zero_inside_and_grows_outside(self) -> None:
        axes = H100.gemm[Dtype.BF16].axes
        assert shape_distance(axes, (4096, 4096, 4096)) == (0, 0)
        assert shape_distance(axes, (128, 4096, 4096)) == pytest.approx((1, 1))
        assert shape_distance(axes, (128, 256, 4096)) == pytest.approx((np.sqrt(2), np.sqrt(2)))
        assert shape_distance(axes, (2.0**16, 4096, 4096)) == pytest.approx((1, 1))
        assert shape_distance(axes, (4096, 4096, 2**0.25 * 4096)) == pytest.approx(
            (np.log2(5120 / 4096) - 0.25, 0), abs=1e-6
        )

    def test_memory_bound_by_hand(self) -> None:
        assert memory_bound_time(8e9, 1e10, flat_rates(0.5)) == pytest.approx(1.0)


def test_weight_gradients_of_few_tokens_are_bound_by_their_accumulation() -> None:
    """64 tokens an expert: adding to an fp32 buffer moves 8 bytes an element, which the product cannot hide."""
    shape = (64.0 * 8, 4096, 7168, 8, Dtype.BF16, ROOFLINE)
    moved = 8 * (4096 * 7168 * 8.0 + 64 * (4096 + 7168) * 2.0)
    _, wgrad = grouped_gemm_backward_time(*shape, 8.0)
    assert wgrad == pytest.approx(memory_bound_time(moved, BANDWIDTH, H100) / H100.grouped_wgrad_ratio)
    assert wgrad > 1.5 * grouped_gemm_backward_time(*shape)[1]


@pytest.mark.parametrize("tokens", [2048, 4096, 32768])
def test_half_of_an_accumulation_lengthens_a_product_of_many_tokens(tokens: int) -> None:
    shape = (tokens, 8192, 8192, Dtype.BF16, ROOFLINE)
    added = gemm_backward_time(*shape, 8.0)[1] - gemm_backward_time(*shape)[1]
    traffic = 8 * 8192 * 8192 / (0.85 * 3350e9)
    assert added == pytest.approx(0.5 * traffic / H100.wgrad_ratio)


@pytest.mark.parametrize(("device", "units"), [("mi300x", 304), ("mi325x", 304), ("mi355x", 256)])
def test_products_of_amd_fill_waves_of_tiles_of_256(device: str, units: int) -> None:
    rates = load_kernel_rates(device)
    few, many = (float(gemm_efficiency(size, size, 4096.0, Dtype.BF16, rates)) for size in (4096.0, 16384.0))
    waves = [size**2 / 256**2 / units for size in (4096.0, 16384.0)]
    assert few / many == pytest.approx(
        (waves[0] / (waves[0] + 0.2)) / (waves[1] / (waves[1] + 0.2)), rel=0.01
    )


class TestSystolicArrays:
    """TPUs and Trainium: what of an array is filled, times a plateau."""

    @pytest.mark.parametrize(
        ("name", "side"), [("tpu-v4", 128), ("tpu-v5p", 128), ("tpu-v6e", 256), ("trainium2", 128)]
    )
    def test_an_extent_below_the_side_leaves_rows_empty(self, name: str, side: int) -> None:
        rates = load_kernel_rates(name)
        whole = gemm_efficiency(8192.0, 8192.0, 8192.0, Dtype.BF16, rates)
        assert float(gemm_efficiency(8192.0, side, 8192.0, Dtype.BF16, rates)) == pytest.approx(
            float(whole), rel=1e-3
        )
        half = gemm_efficiency(8192.0, side / 2, 8192.0, Dtype.BF16, rates)
        assert float(half) == pytest.approx(float(whole) / 2, rel=0.02)

    def test_wide_arrays_are_half_filled_by_heads_of_128(self) -> None:
        narrow, wide = (load_kernel_rates(name).attention for name in ("tpu-v5p", "tpu-v6e"))
        heads = int(np.argmin(abs(narrow.log2_head_dim - 7.0)))
        assert wide.efficiency[..., heads] == pytest.approx(narrow.efficiency[..., heads] / 2, rel=1e-3)

    def test_blocks_on_the_diagonal_cost_short_sequences_more(self) -> None:
        table = load_kernel_rates("tpu-v5p").attention
        reached = table.efficiency[:, 0, -1]
        spans = np.exp2(table.log2_span)
        np.testing.assert_allclose(reached, 0.9 * spans / (spans + 512), rtol=2e-3)

    def test_a_program_has_no_launches_and_nothing_was_measured(self) -> None:
        for name in ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "trainium2"):
            rates = load_kernel_rates(name)
            assert rates.launch_latency == 0.0
            assert not rates.measured
            assert "gemm" in rates.unverified


def test_t4_is_clocked_by_its_70_watts() -> None:
    """V100 draws 300 W for 80 SMs at 1,530 MHz: (70/40 / (300/80)) ** (1/3) of that is 0.75 of T4's 1,590 MHz. By the
    squares that were timed on both T4 keeps a seventh more."""
    clock = 1530 * (70 / 40 / (300 / 80)) ** (1 / 3) / 1590
    t4, v100 = (load_kernel_rates(name) for name in ("t4-pcie-16g", "v100-sxm2-32g"))
    large = [float(rates.gemm[Dtype.FP16].efficiency[-1, -1, -1]) for rates in (t4, v100)]
    assert not t4.measured
    assert large[0] / large[1] / clock == pytest.approx(1.14, rel=0.02)

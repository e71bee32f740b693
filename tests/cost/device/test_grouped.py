"""Grouped products of software with kernels of its own, and a probe that runs PyTorch's."""

from __future__ import annotations

import pytest

from planner.calibrate.profile import Measurement, expected
from planner.catalog.loader import load_kernel_rates
from planner.cost.device.products import TORCH_GROUPED
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.precision import Precision
from planner.spec.stack.engines import FullyShard
from tests.problems import dense_model, moe_model, problem, seconds_of

OWN = TORCH_GROUPED


@pytest.mark.parametrize(
    ("chip", "stack", "precision", "slower"),
    [
        ("b200", "torchtitan-2026", Precision.BF16, True),
        ("b200", "transformers-2026", Precision.BF16, True),
        ("gb300", "torchtitan-2026", Precision.BF16, True),
        ("h100", "torchtitan-2026", Precision.BF16, False),
        ("rtx5090", "torchtitan-2026", Precision.BF16, False),  # compute capability 12
        ("b200", "torchtitan-2026", Precision.FP8_MX, False),
        ("b200", "transformers-2026+eager-experts", Precision.BF16, False),
        ("b200", "torchtitan-2024", Precision.BF16, False),  # before PyTorch had it
        ("b200", "fsdp1-2023", Precision.BF16, False),
    ],
)
def test_only_16_bit_products_of_experts_that_torch_groups_on_blackwell(
    chip: str, stack: str, precision: Precision, slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (moe_model(), dense_model()):
        subject = problem(model, f"1x8 {chip}", precision=precision, stack=stack)
        of_torch = seconds_of(subject, "gemm", 2)
        with monkeypatch.context() as patch:
            patch.setattr(FullyShard, "groups_by_torch", False)
            told = of_torch / seconds_of(subject, "gemm", 2)
        if slower and model.is_moe:
            assert 1.02 < told < OWN
        else:
            assert told == 1.0


def seconds_expected(chip: str, rows: int, n: int, k: int, groups: int) -> float:
    """Of the grouped product that a probe runs."""
    device = load_cluster(f"1x8 {chip}").accelerator
    shape = {"rows": rows, "n": n, "k": k, "groups": groups}
    measurement = Measurement(kind="grouped_gemm", name="experts", dtype="bf16", shape=shape)
    found = expected(measurement, device, load_kernel_rates(device.name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rows", "n", "k", "milliseconds"),
    [
        (8192, 8192, 5120, 1.31),
        (8192, 5120, 8192, 1.26),
        (16640, 8192, 5120, 2.331),
        (16640, 5120, 8192, 2.424),
    ],
)
def test_a_probe_expects_what_torch_grouped_mm_takes_on_h100(
    rows: int, n: int, k: int, milliseconds: float
) -> None:
    """torchao's own timings, 16 groups (pull requests 2490 and 2756)."""
    assert seconds_expected("h100", rows, n, k, 16) == pytest.approx(milliseconds / 1e3, rel=0.06)


def test_a_probe_expects_less_of_blackwell_than_its_tables() -> None:
    """torchao's README: Llama 4's experts in bf16 reach 790 to 970 TFLOP/s there, forward and backward."""
    rate = 2 * 131072 * 8192 * 5120 / seconds_expected("b200", 131072, 8192, 5120, 8)
    assert 790e12 < rate < 970e12

"""At which rates do jobs multiply, in their products and in attention?"""

from dataclasses import replace

import pytest

from planner.cost.device.rates import DeviceRates
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.precision import Dtype, Precision
from planner.spec.stack.kinds import AttentionKernel
from tests.problems import costs, problem


def rates(machine: str, precision: Precision, stack: str = "deepspeed-2025") -> DeviceRates:
    return costs(problem(machine=machine, precision=precision, stack=stack)).layers.rates


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16, Precision.FP8])
def test_attention_and_what_is_not_in_the_recipes_format_are_in_16_bits(precision: Precision) -> None:
    found = rates("1x8 h100", precision)
    assert found.wide_dtype() is Dtype.BF16
    assert found.attention_peak == found.wide_peak == pytest.approx(989.4e12)


@pytest.mark.parametrize(
    ("machine", "products", "attention"),  # TFLOP/s
    [
        ("1x8 a100", 156.0, 52.0),  # 3xTF32
        ("1x8 h100", 494.7, 164.9),
        ("1x8 v100", 15.7, 15.7),  # no TF32
        ("1x8 mi300x", 653.7, 653.7),  # kernels of its own
        ("1x8 mi250x", 47.9, 47.9),  # matrix cores
    ],
)
def test_an_fp32_job_multiplies_nothing_in_16_bits(machine: str, products: float, attention: float) -> None:
    found = rates(machine, Precision.FP32)
    assert found.gemm_peak == found.wide_peak == pytest.approx(products * 1e12)
    assert found.attention_peak == pytest.approx(attention * 1e12)


def test_attention_in_fp32_on_a100_takes_six_times_as_long() -> None:
    config = ConfigTable.of([ParallelConfig(dp=8, num_microbatches=8)])
    seconds = []
    for precision in (Precision.BF16, Precision.FP32):
        model = costs(problem(machine="1x8 a100", precision=precision, stack="deepspeed-2025"))
        detail = model.evaluate(config, keep_terms=True).detail
        assert detail is not None
        seconds.append(detail.time["attention"][0])
    assert seconds[1] / seconds[0] == pytest.approx(6.0, rel=1e-3)


def test_fp32_attention_on_hopper_loses_what_instructions_of_ampere_lose() -> None:
    """The stack's kernel would be Hopper's own; in fp32 it is PyTorch's memory-efficient one, as with FlashAttention-2:
    six times as long on either count, and as much longer as FlashAttention-2 takes in 16 bits."""
    config = ConfigTable.of([ParallelConfig(dp=8, micro_batch=1, num_microbatches=8)])

    def seconds(precision: Precision, kernel: AttentionKernel) -> float:
        subject = problem(machine="1x8 h100", precision=precision, stack="torchtitan-2026")
        kernels = subject.stack.kernels.model_copy(update={"attention": kernel})
        stack = subject.stack.model_copy(update={"kernels": kernels})
        detail = costs(replace(subject, stack=stack)).evaluate(config, keep_terms=True).detail
        assert detail is not None
        return float(detail.time["attention"][0])

    slower = seconds(Precision.BF16, AttentionKernel.FLASH_2) / seconds(Precision.BF16, AttentionKernel.FLASH)
    fp32 = seconds(Precision.FP32, AttentionKernel.FLASH)
    assert fp32 == seconds(Precision.FP32, AttentionKernel.FLASH_2)
    assert slower > 1.3
    assert fp32 / seconds(Precision.BF16, AttentionKernel.FLASH) == pytest.approx(6.0 * slower, rel=1e-3)


def test_workstation_blackwell_loses_nothing_by_instructions_of_ampere() -> None:
    """Of compute capability 12, it has no others: a kernel in Triton loses what it loses on A100."""
    config = ConfigTable.of([ParallelConfig(dp=8, micro_batch=1, num_microbatches=8)])

    def slower(device: str) -> float:
        seconds = []
        for kernel in (AttentionKernel.FLASH, AttentionKernel.FLASH_TRITON):
            subject = problem(machine=f"1x8 {device}", stack="torchtitan-2026")
            kernels = subject.stack.kernels.model_copy(update={"attention": kernel})
            stack = subject.stack.model_copy(update={"kernels": kernels})
            detail = costs(replace(subject, stack=stack)).evaluate(config, keep_terms=True).detail
            assert detail is not None
            seconds.append(float(detail.time["attention"][0]))
        return seconds[1] / seconds[0]

    assert 1.4 < slower("rtx-pro-6000-server") < 2.0
    assert slower("b200") > 2.0

"""Do phases of a step take what their operations take on the device and the host?"""

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_host import load_host_rates
from planner.catalog.loader import load_kernel_rates
from planner.cost.captured.kernels import Device
from planner.cost.captured.operation import HostWork, Operation, Phase, Shape
from planner.cost.captured.seconds import issue_seconds
from planner.cost.device.flash import cudnn_slowdown
from planner.cost.device.kernels import (
    Roofline,
    attention_time,
    gemm_backward_time,
    gemm_time,
    grouped_gemm_backward_time,
    grouped_gemm_time,
)
from planner.dryrun.recording import Recording
from planner.dryrun.timing.step import time_of, time_of_operations
from planner.spec.machine.load_cluster import accelerator_names, load_accelerator
from planner.spec.precision import Dtype

RATES = load_kernel_rates("h100-sxm-80g")
H100 = Device(load_accelerator("h100"), RATES)
ROOFLINE = Roofline(989.4e12, 3350e9, RATES)
HOST = load_host_rates()
IDLE = HOST.slower(0.0)


def tensor(*shape: int, dtype: str = "bfloat16") -> Shape:
    return shape, dtype


def operation(
    name: str, taken: list[Shape], given: list[Shape], *flags: bool, phase: Phase = Phase.FORWARD
) -> Operation:
    return Operation(f"aten.{name}.default", "", phase, 0, tuple(taken), tuple(given), flags=flags)


X, W = tensor(8192, 2048), tensor(2048, 6144)
PRODUCT = operation("mm", [X, W], [tensor(8192, 6144)], False, True)
HEADS, KEYS = tensor(2, 32, 4096, 128), tensor(2, 8, 4096, 128)
ATTENTION = operation("_scaled_dot_product_flash_attention", [HEADS, KEYS, KEYS], [HEADS], True)
COPY = operation("clone", [X], [X])


def test_products_are_those_of_estimates() -> None:
    assert H100.seconds(PRODUCT) == gemm_time(8192, 6144, 2048, Dtype.BF16, ROOFLINE)
    dgrad, wgrad = gemm_backward_time(8192, 6144, 2048, Dtype.BF16, ROOFLINE)
    gradient = tensor(8192, 6144)
    back = operation("mm", [gradient, tensor(6144, 2048)], [X], False, False)
    weight = operation("mm", [tensor(6144, 8192), X], [tensor(6144, 2048)], True, False)
    assert [H100.seconds(back), H100.seconds(weight)] == pytest.approx([dgrad, wgrad])


def test_layouts_have_their_ratios() -> None:
    slow = replace(RATES, dgrad_ratio=0.5, wgrad_ratio=0.25)
    device = Device(H100.accelerator, slow)
    plain = H100.seconds(PRODUCT)
    back, weight = replace(PRODUCT, flags=(False, False)), replace(PRODUCT, flags=(True, False))
    assert device.seconds(back) == pytest.approx(2 * plain)
    assert device.seconds(weight) == pytest.approx(4 * plain)


def test_bias_and_batches() -> None:
    biased = operation("addmm", [tensor(6144), X, W], [tensor(8192, 6144)], False, False, True)
    assert H100.seconds(biased) == H100.seconds(PRODUCT)
    each = tensor(64, 2048, 64)
    batched = operation("bmm", [each, tensor(64, 64, 2048)], [tensor(64, 2048, 2048)], False, True)
    # 64 products write 0.54 GB
    assert H100.seconds(batched) > 64 * 2048 * 2048 * 2 / 3350e9


def test_odd_rows_are_slow() -> None:
    even = operation("mm", [X, tensor(2048, 50256)], [tensor(8192, 50256)], False, True)
    odd = operation("mm", [X, tensor(2048, 50257)], [tensor(8192, 50257)], False, True)
    assert H100.seconds(odd) == pytest.approx(3 * H100.seconds(even), rel=0.01)


def test_products_in_fp32_know_no_tensor_cores() -> None:
    wide = tensor(8192, 2048, dtype="float32")
    plain = operation("mm", [wide, tensor(2048, 6144, dtype="float32")], [X], False, True)
    assert 2 * 8192 * 6144 * 2048 / H100.seconds(plain) == pytest.approx(0.8 * 67e12, rel=0.1)


def test_grouped_products() -> None:
    rows, experts = tensor(65536, 2048), tensor(64, 2048, 1024)
    ahead = operation("_grouped_mm", [rows, experts, tensor(64, dtype="int32")], [tensor(65536, 1024)])
    assert H100.seconds(ahead) == grouped_gemm_time(65536, 1024, 2048, 64, Dtype.BF16, ROOFLINE)
    weights = operation("_grouped_mm", [tensor(2048, 65536), tensor(65536, 1024)], [experts])
    _, expected = grouped_gemm_backward_time(65536, 1024, 2048, 64, Dtype.BF16, ROOFLINE)
    assert H100.seconds(weights) == pytest.approx(expected, rel=0.02)


def test_attention_is_cudnns_on_hopper() -> None:
    both = attention_time(2, 4096, 4096, 32, 8, 128, 128, True, ROOFLINE)
    slower = cudnn_slowdown(4096.0, 128.0)
    assert H100.seconds(ATTENTION) == pytest.approx(both[0] * slower[0])
    back = operation(
        "_scaled_dot_product_flash_attention_backward", [HEADS, HEADS, KEYS, KEYS], [HEADS], True
    )
    assert H100.seconds(back) == pytest.approx(both[1] * slower[1])


def test_attention_under_a_mask_meets_every_key() -> None:
    masked = operation(
        "_scaled_dot_product_efficient_attention", [HEADS, HEADS, HEADS, X], [HEADS], True, False
    )
    causal = operation("_scaled_dot_product_efficient_attention", [HEADS, HEADS, HEADS], [HEADS], True, True)
    assert H100.seconds(masked) > 1.7 * H100.seconds(causal)
    # PyTorch has no cuDNN for it on A100, and its memory-efficient kernel is half as fast as FlashAttention-2
    a100 = Device(load_accelerator("a100-sxm-80g"), load_kernel_rates("a100-sxm-80g"))
    flash = operation("_scaled_dot_product_flash_attention", [HEADS, HEADS, HEADS], [HEADS], True)
    assert a100.seconds(causal) == pytest.approx(2 * a100.seconds(flash))


@pytest.mark.parametrize("name", accelerator_names())
def test_any_accelerator_runs_a_step(name: str) -> None:
    device = Device(load_accelerator(name), load_kernel_rates(name))
    wide = tensor(512, 512, dtype="float32")
    half = tensor(512, 512, dtype="float16")
    products = [operation("mm", [one, one], [one], False, True) for one in (wide, half, tensor(512, 512))]
    took = time_of_operations([*products, PRODUCT, ATTENTION, COPY], device, HOST)
    assert 0 < took.forward < 10


def test_phases_add_up() -> None:
    operations = [PRODUCT, replace(PRODUCT, phase=Phase.BACKWARD), replace(COPY, phase=Phase.OPTIMIZER)]
    took = time_of_operations(operations, H100, IDLE)
    each = H100.seconds(PRODUCT)
    assert [took.forward, took.backward, took.optimizer] == pytest.approx([each, each, H100.seconds(COPY)])
    assert took.step == pytest.approx(took.busy)
    assert took.step == pytest.approx(took.forward + took.backward + took.optimizer)


def test_the_last_micro_batch_stands_for_others() -> None:
    twice = [replace(PRODUCT, phase=phase) for phase in 2 * (Phase.FORWARD, Phase.BACKWARD)]
    four = time_of_operations([*twice, replace(COPY, phase=Phase.OPTIMIZER)], H100, IDLE, 4)
    assert four.forward == pytest.approx(4 * H100.seconds(PRODUCT))
    assert four.step == pytest.approx(8 * H100.seconds(PRODUCT) + H100.seconds(COPY))
    assert four.busy == pytest.approx(four.step)


def test_the_host_issues_views_modules_and_operations() -> None:
    plain = issue_seconds([COPY, COPY], HOST)
    assert plain == pytest.approx([HOST.call + HOST.operation, HOST.operation])
    work = replace(COPY, host=HostWork(views=3, modules=2))
    assert issue_seconds([COPY, work], HOST)[1] == pytest.approx(
        HOST.operation + 3 * HOST.view + 2 * HOST.module
    )
    engine = replace(COPY, phase=Phase.BACKWARD, host=HostWork(1, 0, by_autograd=True))
    assert issue_seconds([engine, engine], HOST)[1] == pytest.approx(
        HOST.backward_operation + HOST.backward_view
    )
    view = operation("_unsafe_view", [X], [X])
    assert issue_seconds([COPY, view], HOST)[1] == HOST.view


def test_small_operations_wait_for_the_host_and_reads_for_the_device() -> None:
    small = operation("add", [tensor(8)], [tensor(8)])
    took = time_of_operations([small] * 1000, H100, HOST)
    assert took.step == pytest.approx(HOST.call + 1000 * HOST.operation, rel=0.01)
    assert took.busy < took.step / 2
    read = operation("_local_scalar_dense", [tensor()], [])
    waiting = time_of_operations([PRODUCT, read] * 50, H100, HOST)
    assert waiting.step > time_of_operations([PRODUCT] * 50, H100, HOST).step + 50 * HOST.read
    # an optimizer's counts of steps lie in the host's memory
    steps = [replace(PRODUCT, phase=Phase.OPTIMIZER), replace(read, phase=Phase.OPTIMIZER)] * 50
    assert time_of_operations(steps, H100, IDLE).step == pytest.approx(50 * H100.seconds(PRODUCT))


def test_the_second_step_of_a_recording_counts() -> None:
    recording = Recording()
    first, second = (replace(PRODUCT, first=number) for number in (0, 5))
    recording.operations.extend([first, first, second])
    recording.second_step = 5
    assert time_of(recording, H100, IDLE).step == pytest.approx(H100.seconds(PRODUCT))


def test_a_step_of_ten_thousand_operations_is_timed_at_once() -> None:
    """Counted in calls of Python, which are as many on a busy machine: kernels are costed once for all that are
    alike."""
    many, calls = [PRODUCT, ATTENTION, COPY] * 3500, Counter[str]()
    time_of_operations(many[:3], H100, HOST)  # imports
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        found = time_of_operations(many, H100, HOST)
    finally:
        sys.setprofile(None)
    assert calls["call"] < 5 * len(many)
    assert np.isfinite(found.step)

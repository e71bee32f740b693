"""How long does each operation of a step run on the device?

By the laws that estimates use (`cost/device`): products and attention from the accelerator's tables, everything else by
bytes. Left out: when the host launches them (`clocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from planner.cost.captured.operation import Operation, Shape
from planner.cost.captured.traffic import moved_by, plain_name, total
from planner.cost.device.flash import (
    FLEX_SLOWDOWN,
    MEMORY_EFFICIENT_SLOWDOWN,
    cudnn_slowdown,
    flash_2_slowdown,
    runs_cudnn,
)
from planner.cost.device.kernels import (
    Roofline,
    attended_pairs,
    attention_time,
    gemm_time,
    grouped_gemm_backward_time,
    grouped_gemm_time,
    misaligned_slowdown,
)
from planner.cost.device.moved import Moved, moved_time
from planner.spec.machine.accelerator import Accelerator, Architecture
from planner.spec.machine.rates import KernelRates
from planner.spec.precision import Dtype

_FORMATS: Final = {"bfloat16": Dtype.BF16, "float16": Dtype.FP16, "float8_e4m3fn": Dtype.FP8}
_HALVES: Final = (Dtype.BF16, Dtype.FP16)
_VECTOR_SHARE: Final = 1 / 16  # of the 16-bit peak, where a device's fp32 peak is not known
_SPLIT: Final = 3.0  # products that attention in fp32 makes of one: see `DeviceRates.attention_peak`


@dataclass(frozen=True)
class Device:
    """What operations run on."""

    accelerator: Accelerator
    rates: KernelRates

    def seconds(self, operation: Operation) -> float:
        """Time of an operation on the device [s]."""
        found = _KERNELS.get(plain_name(operation))
        if found is not None:
            return max(float(found(self, operation)), self.rates.launch_latency)
        return self.moving(moved_by(operation))

    def moving(self, parts: Iterable[Moved]) -> float:
        """Time of kernels that only move bytes [s]."""
        return sum(moved_time(one, self.accelerator, self.rates) for one in parts)

    def roofline(self, dtype: Dtype, products: float = 1.0) -> Roofline:
        """What bounds kernels of a format, of which `products` are computed for one [1]."""
        return Roofline(self._peak(dtype) / products, self.accelerator.memory_bandwidth, self.rates)

    def _peak(self, dtype: Dtype) -> float:
        """Dense peak rate [FLOP/s], of the nearest format where the device has none of this one."""
        known = dict(self.accelerator.peak)
        half = known.get(Dtype.BF16) or known.get(Dtype.FP16) or max(known.values())
        return known.get(dtype) or (half * _VECTOR_SHARE if dtype is Dtype.FP32 else half)


def _format(shape: Shape) -> Dtype:
    """The format that products of a tensor run in: of fp32 ones fp32, unless somebody allows TF32."""
    return _FORMATS.get(shape[1], Dtype.FP32)


def _product(device: Device, operation: Operation) -> float:
    """A product of two matrices, or of a batch of pairs of them: the last two tensors taken."""
    left, right = operation.taken[-2:]
    turned = operation.flags[-2:]
    batch = left[0][0] if len(left[0]) == 3 else 1
    m, k = left[0][-2:]
    n = right[0][-1]
    form, rates = _format(left), device.rates
    seconds = gemm_time(batch * m, n, k, form, device.roofline(form))
    # forward products read weights that lie transposed; gradients of inputs read them as they are, those of weights
    # read what lies the other way
    ratio = rates.wgrad_ratio if turned[0] else 1.0 if turned[1] else rates.dgrad_ratio
    if form in _HALVES and device.accelerator.architecture.is_nvidia:
        seconds *= max(misaligned_slowdown(n, row) for row in (m if turned[0] else k, k if turned[1] else n))
    streamed = device.moving((Moved(total(operation.taken), total(operation.given)),)) if batch > 1 else 0.0
    return max(seconds / ratio, streamed)


def _grouped(device: Device, operation: Operation) -> float:
    """Products of the rows of each group: with a matrix a group, or of two that are cut alike."""
    left, right = operation.taken[:2]
    form = _format(left)
    roofline = device.roofline(form)
    if len(right[0]) == 3:
        groups, k, n = right[0]
        return float(grouped_gemm_time(left[0][0], n, k, groups, form, roofline))
    groups, m, n = operation.given[0][0]
    return float(grouped_gemm_backward_time(left[0][1], m, n, groups, form, roofline)[1])


class _Kernel(Enum):
    """Of fused attention: cuDNN's or FlashAttention-2, whichever PyTorch takes; memory-efficient; FlexAttention."""

    PLAIN = "plain"
    MASKED = "masked"
    FLEX = "flex"


def _attention(backward: bool, kernel: _Kernel = _Kernel.PLAIN) -> Callable[[Device, Operation], float]:
    """Time of fused attention; behind the gradient of the output, if there is one, come query, key and value."""

    def seconds(device: Device, operation: Operation) -> float:
        first = int(backward)
        (query, dtype), (key, _), (value, _) = operation.taken[first : first + 3]
        if len(query) != 4:
            return device.moving(moved_by(operation))
        batch, heads, seq_q, d_qk = query
        kv_heads, seq_kv, d_v = key[1], key[2], value[-1]
        causal = kernel is _Kernel.FLEX or (bool(operation.flags) and operation.flags[-1])
        form = _FORMATS.get(dtype, Dtype.FP32)
        splits = form is Dtype.FP32 and Dtype.TF32 in dict(device.accelerator.peak)
        roofline = device.roofline(Dtype.BF16, _SPLIT) if splits else device.roofline(form)
        both = attention_time(batch, seq_q, seq_kv, heads, kv_heads, d_qk, d_v, causal, roofline)
        span = 2.0 * attended_pairs(seq_q, seq_kv, causal) / seq_q
        slower = _slowdown(device.accelerator, form, span, (d_qk, d_v), kernel)
        return float(both[backward] * slower[backward])

    return seconds


def _slowdown(
    chip: Accelerator, form: Dtype, span: float, widths: tuple[int, int], kernel: _Kernel
) -> tuple[float, float]:
    """Time of the kernel that PyTorch takes over that of the tables, forward and backward [1]."""
    width = sum(widths) / 2.0
    if form in _HALVES and kernel is not _Kernel.FLEX and runs_cudnn(chip.compute_major, *widths):
        return cudnn_slowdown(span, width)
    newer = chip.instructions in (Architecture.HOPPER, Architecture.BLACKWELL)
    ahead, behind = flash_2_slowdown(span, width) if newer else (1.0, 1.0)
    if kernel is _Kernel.FLEX:
        return FLEX_SLOWDOWN[0] * ahead, FLEX_SLOWDOWN[1] * behind
    times = MEMORY_EFFICIENT_SLOWDOWN if kernel is _Kernel.MASKED and form in _HALVES else 1.0
    return times * ahead, times * behind


_KERNELS: Final[Mapping[str, Callable[[Device, Operation], float]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"), _product),
    "_grouped_mm": _grouped,
    "_scaled_dot_product_flash_attention": _attention(backward=False),
    "_scaled_dot_product_flash_attention_backward": _attention(backward=True),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(backward=False),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(backward=True),
    "_scaled_dot_product_cudnn_attention": _attention(backward=False),
    "_scaled_dot_product_cudnn_attention_backward": _attention(backward=True),
    "_scaled_dot_product_efficient_attention": _attention(backward=False, kernel=_Kernel.MASKED),
    "_scaled_dot_product_efficient_attention_backward": _attention(backward=True, kernel=_Kernel.MASKED),
    "flex": _attention(backward=False, kernel=_Kernel.FLEX),
    "flex_backward": _attention(backward=True, kernel=_Kernel.FLEX),
}


def kind_of(operation: Operation) -> str:
    """Of a term of a step's time: "gemm", "attention", or "memory_bound" where it only moves bytes."""
    found = _KERNELS.get(plain_name(operation))
    if found is None:
        return "memory_bound"
    return "gemm" if found in (_product, _grouped) else "attention"

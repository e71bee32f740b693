"""How much longer do other fused attention kernels take than the one of the tables?

Left out: that FlashAttention-2 loses more to the diagonal of short causal blocks than to blocks without a mask, which
at the same span it does up to a seventh faster forward.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from planner.cost.device.kernels import interpolate

Quantity = Any  # a float or a float64 column: the same text serves both

# FlashAttention-2 against the table of H100, forward and backward, by length of a causal sequence and head width. It
# issues Ampere's instructions, which leave Hopper's products at about 0.34 of the peak from 2,000 keys on, where the
# tables' kernels still rise. Forward: bars of Dao-AILab/flash-attention@0251105 assets/flash3_fp16_fwd.png; backward:
# flash2_h100_fwd_bwd_benchmark.png less those (BSD-3-Clause).
_LENGTHS: Final = np.log2([512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0])
_WIDTHS: Final = np.log2([64.0, 128.0])
_FORWARD: Final = np.array([[1.04, 1.0, 1.32, 1.47, 1.61, 1.66], [1.33, 1.38, 1.59, 1.8, 1.91, 2.02]]).T
_BACKWARD: Final = np.array([[1.16, 1.08, 1.34, 1.6, 1.76, 1.82], [1.17, 1.17, 1.4, 1.61, 1.81, 1.8]]).T
# The same bars as rates of one of H100's 132 multiprocessors [FLOP/s].
_UNITS: Final = 132
_FORWARD_RATES: Final = (
    np.array([[180.0, 230.0, 262.0, 284.0, 294.0, 299.0], [190.0, 260.0, 298.0, 319.0, 334.0, 335.0]]).T
    * 1e12
    / _UNITS
)
_BACKWARD_RATES: Final = (
    np.array([[129.0, 181.0, 222.0, 248.0, 265.0, 279.0], [154.0, 209.0, 254.0, 285.0, 299.0, 326.0]]).T
    * 1e12
    / _UNITS
)
# cuDNN's attention of PyTorch 2.11 on an H100 against its table, by length and head width: 12 causal shapes, of which
# some were repeated 200 times; of the others the host's 20 us forward and 50 us backward are taken off.
_CUDNN_LENGTHS: Final = np.log2([1024.0, 4096.0, 16384.0])
_CUDNN_FORWARD: Final = np.array([[0.95, 1.1, 1.09], [1.15, 1.14, 1.2]]).T
_CUDNN_BACKWARD: Final = np.array([[1.07, 1.25, 1.18], [1.25, 1.14, 1.18]]).T
# FlashAttention in Triton against FlashAttention-2, which is 1.3 to 1.5 times as fast forward and about twice backward
# on A100 (Dao 2023, arXiv 2307.08691, section 4.1).
TRITON_SLOWDOWN: Final = (1.4, 2.0)
# Time of PyTorch's FlexAttention over FlashAttention-2's, forward and backward: forward 0.87 to 1.07 of it (pytorch/
# benchmark pull request 2443, lengths 512 to 16,384), backward 1.15 (pytorch/pytorch pull request 137036, A6000).
FLEX_SLOWDOWN: Final = (1.0, 1.15)
# Time of PyTorch's memory-efficient kernel over FlashAttention-2's on the same pairs: it is xformers', about as fast as
# FlashAttention, of which FlashAttention-2 is twice as fast (Dao 2023, arXiv 2307.08691, abstract and figure 4).
MEMORY_EFFICIENT_SLOWDOWN: Final = 2.0


def flash_2_slowdown(span: Quantity, width: Quantity) -> tuple[Quantity, Quantity]:
    """Time of FlashAttention-2 over that of the tables' kernels on Hopper, forward and backward [1].

    `span`: twice the mean keys a query; `width`: mean of the query-key and value widths [1]. Held beyond 512 to
    16,384 keys and widths of 64 to 128.
    """
    at = np.log2(span), np.log2(width)
    return interpolate((_LENGTHS, _WIDTHS), _FORWARD, at), interpolate((_LENGTHS, _WIDTHS), _BACKWARD, at)


def flash_2_rates(span: Quantity, width: Quantity) -> tuple[Quantity, Quantity]:
    """What FlashAttention-2 computes on one multiprocessor of Hopper or Blackwell, forward and backward [FLOP/s].

    `span` and `width` as in `flash_2_slowdown`. Blackwell's products are faster by instructions that it does not issue;
    a multiprocessor's shared memory and exponentials are Hopper's (vanshverma.com/notes/flashattention-4-blackwell).
    Validity: clocks taken as equal; two runs of prime-rl on 8 B200, of 16,384 and 65,536 tokens, give 347 TFLOP/s for
    both passes, where this gives 369.
    """
    at, axes = (np.log2(span), np.log2(width)), (_LENGTHS, _WIDTHS)
    return interpolate(axes, _FORWARD_RATES, at), interpolate(axes, _BACKWARD_RATES, at)


def runs_cudnn(capability: int, d_qk: int, d_v: int) -> bool:
    """Does PyTorch take cuDNN's attention, in 16 bits, with a mask or without?

    From 2.11 on it does first where that is later than 9.15, on compute capability 9 and 10 (`capability`: its first
    number), of heads no wider than 128, or of 192 for queries and 128 for values (pytorch/pytorch@001f694
    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `check_prefer_cudnn_attention`, `check_cudnn_tensor_shapes`;
    of 256 from cuDNN 9.23 on, which is left out).
    """
    return capability in (9, 10) and (max(d_qk, d_v) <= 128 or (d_qk, d_v) == (192, 128))


def cudnn_slowdown(span: Quantity, width: Quantity) -> tuple[Quantity, Quantity]:
    """Time of cuDNN's attention under PyTorch over that of the tables' kernels on Hopper, forward and backward [1].

    `span` and `width` as in `flash_2_slowdown`, held beyond 1,024 to 16,384 keys. Validity: Blackwell is taken alike.
    """
    at, axes = (np.log2(span), np.log2(width)), (_CUDNN_LENGTHS, _WIDTHS)
    return interpolate(axes, _CUDNN_FORWARD, at), interpolate(axes, _CUDNN_BACKWARD, at)

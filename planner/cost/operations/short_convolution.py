"""What does a gated short convolution do between its projections: seconds, bytes it keeps and needs?

Liquid AI, LFM2 technical report, arXiv 2511.23404, section 2, as transformers 5.23 runs it (models/lfm2/modular_lfm2.py
Lfm2ShortConv) with the kernel of causal-conv1d: one product before the convolution and one behind it. Left out: the
projections, which are products like others; the convolution of torch where that kernel is not installed.
"""

from __future__ import annotations

from typing import Final

from planner.cost.operations.operation import Operation, Run, Weights
from planner.cost.operations.state_space import Cut, Quantity, Scan, reached_bandwidth, scan_operations
from planner.spec.mixers import ShortConvolution

# Reads and writes of a value, as PyTorch dispatches them (tests/cost/operations/test_mixers.py). Forward: B x 3,
# convolution 2, times C 3. Backward: gradients of C and of the convolution's output 6, of its input 3, of B and of x 6,
# joined 6, and of several sequences put in the product's order 6; compiled, those of a product are one
# kernel, in order: 5, 3, 7.
PASSES: Final = {True: (8.0, 15.0), False: (8.0, 21.0)}
ORDER: Final = 6.0
# Forward launches: norm, product, B x, convolution, times C, product, add; the norm's eight of single operations.
LAUNCHES: Final = {True: 14.0, False: 7.0}


def operations(s: ShortConvolution, run: Run, beside: bool) -> tuple[Operation, ...]:
    """The gated convolution, which has nothing but its projections and taps (transformers, models/lfm2)."""
    return scan_operations(s, run, beside, Scan(flops, kept_parts, working_bytes, launches, Weights(), 0))


def flops(s: ShortConvolution, tokens: Quantity) -> Quantity:
    """Forward FLOPs of the taps [FLOP]."""
    return tokens * 2 * s.conv * s.conv_width


def launches(s: ShortConvolution, seq: float, single: bool) -> float:
    """Forward launches of a layer; `single`: operation by operation [1]."""
    return LAUNCHES[single]


def seconds(
    s: ShortConvolution, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float,
    fused: bool,
) -> tuple[Quantity, Quantity]:  # fmt: skip
    """Forward and backward seconds, bound by traffic [s]. `interleaved`: 1 for a micro-batch of several sequences."""
    (ahead, back), more = PASSES[fused], ORDER * interleaved * (not fused)
    values = c.tokens * act * c.inner / reached_bandwidth(bandwidth)
    return values * ahead, values * (back + more)


def kept_parts(
    s: ShortConvolution, c: Cut, act: float, saved: float, fused: bool = True
) -> dict[str, Quantity]:
    """Bytes kept for the backward pass: B, C and x, the convolution's input and output; the last product's input."""
    return {"state_space": c.tokens * act * 5.0 * c.inner, "state_out": c.tokens * saved * c.inner}


def working_bytes(s: ShortConvolution, c: Cut, act: float) -> Quantity:
    """Alive at the widest point of the backward pass: gradients of B, C and x, joined, of the convolution's input and
    output [bytes]."""
    return c.tokens * act * 8.0 * c.inner

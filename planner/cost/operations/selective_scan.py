"""What does a Mamba-1 layer do between its projections: seconds of its scan, bytes it keeps and needs?

Gu and Dao 2023, arXiv 2312.00752, section 3, with the kernels of state-spaces/mamba@e9594ce and causal-conv1d
(ops/selective_scan_interface.py MambaInnerFn, checkpoint_lvl 1: the convolution's output and the time steps are made
again), or one after the other where norms stand between them (Jamba). The scan is no product: no tensor core works on
it. Left out: the projections, which are products like others; transformers' loops without these kernels.
"""

from __future__ import annotations

from typing import Final

from planner.cost.operations.operation import Gemm, Operation, Run, Shard, Weights, product
from planner.cost.operations.state_space import (
    NORM_LAUNCHES,
    SCAN_SLOWDOWN,
    Cut,
    Quantity,
    Scan,
    reached_bandwidth,
    scan_operations,
)
from planner.spec.mixers import SelectiveScan

# Passes over the channels. Convolution 2; backward again 2 and its gradient 3. The scan reads its input, time steps and
# gate and writes its output plain and gated: 5; backward it reads those, the output and its gradient, and writes three
# gradients and the gated output again: 9.
CONVOLUTION_PASSES: Final = (2.0, 5.0)
SCAN_PASSES: Final = (5.0, 9.0)
STATE_TOKENS: Final = 2048  # of which the scan writes the last states, twice in fp32 (csrc/selective_scan)
# Forward launches: norm, input product, convolution, two products of the scan's coefficients, two layouts, scan, output
# product, add; of norms between them five each, in single operations.
LAUNCHES: Final = 10.0


def operations(s: SelectiveScan, run: Run, beside: bool) -> tuple[Operation, ...]:
    """A Mamba-1 mixer: time steps of low rank, B and C come from what the convolution made."""
    coefficients = s.rank + 2 * s.state
    weights = Weights(column_row=s.inner * (s.state + 1) + coefficients * s.normed)
    scan = Scan(flops, kept_parts, working_bytes, launches, weights, 2 + 3 * s.normed, "mamba")
    gates = (
        product(Gemm("state_x", s.inner, coefficients, Shard.NONE), s.kind),
        product(Gemm("state_dt", s.rank, s.inner, Shard.NONE), s.kind, True),
    )
    return scan_operations(s, run, beside, scan, gates)


def launches(s: SelectiveScan, seq: float, single: bool) -> float:
    """Forward launches of a layer; `single`: norms operation by operation [1]."""
    return LAUNCHES + NORM_LAUNCHES * single + s.normed * 3 * (1.0 + NORM_LAUNCHES * single)


def flops(s: SelectiveScan, tokens: Quantity) -> Quantity:
    """Forward FLOPs between the projections [FLOP].

    Convolution 2 w i; of every state the step times A, its exponential, B times the input, the state decayed and summed
    up, C times it and summed up: 7 i N; of a channel the step times the input, D times it and their sum: 4 i.
    """
    return tokens * s.inner * (2 * s.conv + 7 * s.state + 4)


def seconds(
    s: SelectiveScan, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float,
    fused: bool = True,
) -> tuple[Quantity, Quantity]:  # fmt: skip
    """Forward and backward seconds of convolution and scan, bound by traffic [s]. No timing of the scan ships: it is
    taken to be as far from it as Mamba-2's (`SCAN_SLOWDOWN`)."""
    rate, values = reached_bandwidth(bandwidth), c.tokens * act * c.inner
    ahead, back = (
        values * (convolution + SCAN_SLOWDOWN * scan) / rate
        for convolution, scan in zip(CONVOLUTION_PASSES, SCAN_PASSES, strict=True)
    )
    return ahead, back


def kept_parts(s: SelectiveScan, c: Cut, act: float, saved: float, fused: bool = True) -> dict[str, Quantity]:
    """Bytes that it keeps for its backward pass, by part; `saved` bytes a value of the last product's input.

    The input projection's outputs (2 i), coefficients (r + 2 N), B and C laid out for the scan (2 N), its output (i),
    states. Where norms stand between kernels also the convolution's output and time steps (2 i), normed time steps of
    low rank (r), the gated output.
    """
    states = 8.0 * s.state * c.inner / STATE_TOKENS
    kept = act * (3.0 * c.inner + s.rank + 4 * s.state) + states
    if not s.normed:
        return {"state_space": c.tokens * kept}
    return {
        "state_space": c.tokens * (kept + act * (2.0 * c.inner + s.rank)),
        "state_out": c.tokens * saved * c.inner,
    }


def working_bytes(s: SelectiveScan, c: Cut, act: float) -> Quantity:
    """Alive at the widest point of the scan's backward pass, beside what is kept: the convolution's output, time steps
    and the gated output again, gradients of all three, of the gate and of the output (8 i) [bytes]."""
    return c.tokens * act * 8.0 * c.inner

"""What does lightning attention do between its projections: seconds of its blocks, bytes it keeps and needs?

Qin et al. 2024, arXiv 2405.17381, as transformers 5.23 runs it (models/minimax/modular_minimax.py
MiniMaxLightningAttention): block after block in products and single operations, no kernel of its own. Checked against
what PyTorch dispatches (tests/cost/operations/test_mixers.py). Left out: the projections, which are products like
others; what is kept of operands copied where a micro-batch has several sequences.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from planner.cost.operations.norms import norm_bytes
from planner.cost.operations.operation import Operation, Run, Weights
from planner.cost.operations.state_space import (
    PRODUCT_SHARE,
    Cut,
    Quantity,
    Scan,
    flops,
    reached_bandwidth,
    scan_operations,
)
from planner.spec.layer import NormKind
from planner.spec.mixers import LightningAttention


class Passes(NamedTuple):
    """Reads and writes a token: of values, of scores of its block, of its share of a state."""

    values: float
    scores: float
    states: float


# Forward: SiLU of q, k and v 6; of products Q K^T 2, with V 2, q and the state 2, K^T V 2; q and k decayed 4, both
# parts summed 3, blocks joined 2, in the projection's order 2; gate 5. Scores written, decayed, read; states read,
# written, decayed, summed. Backward twice the products, SiLU 9, decays 4, what the blocks' two uses bring 6,
# projections joined 6, gate 9. Compiled, sums and copies are taken as one kernel with the norm or SiLU; not measured.
EAGER: Final = (Passes(30.0, 5.0, 7.0), Passes(50.0, 7.0, 9.0))
FUSED: Final = (Passes(22.0, 5.0, 5.0), Passes(36.0, 7.0, 8.0))
# Passes of a fused norm; of single operations see `norms.norm_bytes`.
FUSED_NORM: Final = (2.0, 4.0)
# Backward, autograd lays the gradient of every block's q, k and v into zeros as long as the sequence and sums those.
SLICES: Final = 12.0
# Copies of operands of products where a micro-batch has several sequences, which do not lie in the order of heads.
COPIES: Final = (12.0, 4.0)
# Forward launches of every block, and of the layer around them.
LAUNCHES: Final = {True: (13.0, 25.0), False: (9.0, 8.0)}


def operations(s: LightningAttention, run: Run, beside: bool) -> tuple[Operation, ...]:
    """Lightning attention, which has a norm alone (transformers, models/minimax)."""
    norm = Weights(column_row=s.inner * s.norm)
    return scan_operations(
        s, run, beside, Scan(flops, kept_parts, working_bytes, launches, norm, int(s.norm))
    )


def launches(s: LightningAttention, seq: float, single: bool) -> float:
    """Forward launches of a layer over sequences of `seq` tokens; `single`: operation by operation [1]."""
    each, around = LAUNCHES[single]
    return each * max(seq / s.chunk, 1.0) + around


def traffic(
    s: LightningAttention, c: Cut, act: float, interleaved: Quantity, seq: Quantity, fused: bool
) -> tuple[Quantity, Quantity]:
    """Bytes that activation, blocks, norm and gate read and write, forward and backward [bytes].

    `interleaved`: 1 where a micro-batch has several sequences. The backward pass of single operations grows with the
    square of the sequence (`SLICES`).
    """
    scores, states = c.heads * s.chunk, c.inner * s.state / s.chunk
    norms = [act * n for n in FUSED_NORM] if fused else norm_bytes(NormKind.RMS, act, True)
    slices = (0.0, 0.0) if fused else (0.0, SLICES * np.maximum(seq / s.chunk, 1.0))
    ahead, back = (
        c.tokens
        * (
            act * ((passes.values + copies * interleaved + sliced) * c.inner)
            + act * (passes.scores * scores + passes.states * states)
            + norm * c.inner
        )
        for passes, norm, copies, sliced in zip(FUSED if fused else EAGER, norms, COPIES, slices, strict=True)
    )
    return ahead, back


def seconds(
    s: LightningAttention, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float,
    fused: bool,
) -> tuple[Quantity, Quantity]:  # fmt: skip
    """Forward and backward seconds, of which the longer of traffic and products, twice as many backward [s]."""
    rate = reached_bandwidth(bandwidth)
    work = flops(s, c.tokens) * c.heads / s.heads / (PRODUCT_SHARE * peak)
    ahead, back = traffic(s, c, act, interleaved, seq, fused)
    return np.maximum(ahead / rate, work), np.maximum(back / rate, 2.0 * work)


def kept_parts(s: LightningAttention, c: Cut, act: float, saved: float, fused: bool) -> dict[str, Quantity]:
    """Bytes kept for the backward pass, by part.

    The projection's outputs (3 i) and their SiLU (3 i), decayed scores, states, the output, the gate's; `saved` bytes a
    value of the last product's input. Of single operations decayed q and k, the normed output before its gate (3 i),
    and the norm's input in fp32 and 16 bits, too.
    """
    values = act * (8.0 if fused else 11.0) + (0.0 if fused else 4.0 + act)
    kept = values * c.inner + act * (c.heads * s.chunk + c.inner * s.state / s.chunk)
    return {"state_space": c.tokens * kept, "state_out": c.tokens * saved * c.inner}


def working_bytes(s: LightningAttention, c: Cut, act: float) -> Quantity:
    """Alive at the widest point of the backward pass, beside what is kept: gradients of q, k and v, those of a block in
    zeros, joined, and SiLU's (10 i) [bytes]."""
    return c.tokens * act * 10.0 * c.inner

"""What does a gated delta net do between its projections: seconds of its chunks, bytes it keeps and needs?

Kernel by kernel as fla-org/flash-linear-attention@bc3b101 runs them (ops/gated_delta_rule/chunk.py, modules/conv,
modules/l2norm.py) and as Megatron-Core calls them (ssm/gated_delta_net/gdn.py, common.py, main of 2026-08): keys and
queries are normed and repeated for every head of values before the rule. Left out: the projections, which are products
like others; the recomputation of the gated norm alone (Megatron's gdn_norm_out); kernels that norm and repeat inside,
as transformers calls them, which keep less.
"""

from __future__ import annotations

import numpy as np

from planner.cost.flops import delta_flops
from planner.cost.state_space import PRODUCT_SHARE, Cut, Quantity, reached_bandwidth
from planner.spec.model import DeltaNet

# Seconds from one chunk of a sequence to the next in the kernel that carries the state along, which no number of heads
# or devices shortens. With this and `state_space.BANDWIDTH_SHARES`, 237 timings of the forward rule over 2,048 to
# 65,536 tokens of 16 to 64 heads come out 6 to 10 % off on H100, H200 and B200 on average, 80 on L40S 15 %
# (ai-dynamo/aiconfigurator@095f58a systems/data/*/linear_attention/trtllm/1.3.0rc20/gdn_perf.parquet); another
# server's copy of the kernels takes 1.3 times as long on H100. The backward rule, of which no timing was found, carries
# the state and then its gradient along.
STEP = 1.1e-6
# Forward launches of a layer: norm and input product, convolution, copies of q and k, of v and of the gate, l2 norm,
# two repeats, decay, write strength, sums of decays, five of the rule, norm, gate, output product, add.
LAUNCHES = 21.0


def _keys(s: DeltaNet, c: Cut) -> Quantity:
    """Values a token of the keys of all heads of values, and of their queries [1]."""
    return c.heads * s.state


def rule_traffic(s: DeltaNet, c: Cut, act: float) -> Quantity:
    """Bytes that the forward rule reads and writes [bytes].

    Per token, i values, r keys, states of i K / q, triangles of q a head: the inverse r; w and u r + i and as much
    written; the states 2 r + i, new values written; the output 2 r + i, i written. In all 6 i + 7 r; states are written
    and read once, triangles filled, written and read.
    """
    states, triangles = c.inner * s.state / s.chunk, c.heads * s.chunk
    return c.tokens * act * (6.0 * c.inner + 7.0 * _keys(s, c) + 2.0 * states + 3.0 * triangles)


def forward_traffic(s: DeltaNet, c: Cut, act: float, interleaved: Quantity) -> Quantity:
    """Bytes that convolution, rule and gated norm read and write, forward [bytes].

    Around the rule, n keys a token before they are repeated: convolution 2 i + 4 n; copies, norms and repeats
    4 i + 10 n + 2 r; norm and gate 5 i; decays. `interleaved`: see `state_space.forward_traffic`.
    """
    around = (11.0 + 2.0 * interleaved) * c.inner + 14.0 * c.shared + 2.0 * _keys(s, c)
    return rule_traffic(s, c, act) + c.tokens * (act * around + 24.0 * c.heads)


def backward_traffic(s: DeltaNet, c: Cut, act: float, interleaved: Quantity) -> Quantity:
    """The same backward [bytes].

    Gate and norm 8 i; w, u and the states again 4 i + 4 r; gradients of new values 2 i + 2 r, of states 3 i + 3 r, of
    q, k and w 3 i + 5 r, of k and v through the inverse 3 i + 7 r; repeats, norms and their sum 2 r + 8 n; what the
    convolution and the projection get 9 i + 14 n; states and their gradients written and read, triangles read twice.
    """
    r, states, triangles = _keys(s, c), c.inner * s.state / s.chunk, c.heads * s.chunk
    streams = (32.0 + 2.0 * interleaved) * c.inner + 22.0 * c.shared + 23.0 * r
    return c.tokens * (act * (streams + 4.0 * states + 2.0 * triangles) + 60.0 * c.heads)


def products(s: DeltaNet, c: Cut) -> tuple[Quantity, Quantity]:
    """FLOPs of the rule's products, forward and backward [FLOP].

    Forward `flops.delta_flops`. Backward, per token and head of values: w, u and the states again 2 q (K + V) + 4 K V;
    gradients of the new values 2 q (K + V), of the states 6 K V, of q, k and w 6 K V + q (6 K + 2 V), through the
    inverse q (10 K + 4 V) + 4 q^2. In all 16 K V + q (20 K + 10 V) + 4 q^2.
    """
    forward = delta_flops(c.heads, s.state, s.head_dim, s.chunk)
    pairs = s.chunk * (20 * s.state + 10 * s.head_dim) + 4 * s.chunk * s.chunk
    return c.tokens * forward, c.tokens * c.heads * (16 * s.state * s.head_dim + pairs)


def rule_time(
    s: DeltaNet, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float
) -> tuple[Quantity, Quantity]:
    """Forward and backward seconds of convolution, rule and norm [s].

    The longer of traffic and products, and `STEP` for every chunk of a sequence of `seq` tokens, twice backward.
    """
    rate, work, steps = reached_bandwidth(bandwidth), products(s, c), STEP * seq / s.chunk
    moved = forward_traffic(s, c, act, interleaved), backward_traffic(s, c, act, interleaved)
    return (
        np.maximum(moved[0] / rate, work[0] / (PRODUCT_SHARE * peak)) + steps,
        np.maximum(moved[1] / rate, work[1] / (PRODUCT_SHARE * peak)) + 2.0 * steps,
    )


def kept_parts(s: DeltaNet, c: Cut, act: float, saved: float) -> dict[str, Quantity]:
    """Bytes that a gated delta net keeps for its backward pass, by part.

    The input projection's outputs, which the convolution reads (2 i + 2 n + 2 heads); queries and keys normed (2 n) and
    repeated (2 r); values, the gate, the rule's output and its norm (4 i); write strengths and triangles; decays and
    statistics in fp32; the gated output, `saved` bytes a value. The convolution's output and the states are made again.
    """
    values = 6.0 * c.inner + 4.0 * c.shared + 2.0 * _keys(s, c) + c.heads * (s.scalars + 1 + s.chunk)
    kept = act * values + 8.0 * c.heads + 8.0 * c.groups
    return {"state_space": c.tokens * kept, "state_out": c.tokens * saved * c.inner}


def working_bytes(s: DeltaNet, c: Cut, act: float) -> Quantity:
    """Bytes alive at the widest point of the rule's backward pass, beside what is kept [bytes].

    Where gradients go through the inverse: w, u, new values, states and their gradients; gradients of the output, of
    new values before and after the states' part, of v, q, w, and of k twice; that of the gate; decays' in fp32.
    """
    states = c.inner * s.state / s.chunk
    streams = 6.0 * c.inner + 5.0 * _keys(s, c) + 2.0 * states
    return c.tokens * (act * streams + 20.0 * c.heads)

"""What does a gated delta net do between its projections: seconds of its chunks, bytes it keeps and needs?

Kernel by kernel as fla-org/flash-linear-attention@bc3b101 runs them (ops/gated_delta_rule/chunk.py, modules/conv,
modules/l2norm.py) and as Megatron-Core calls them (ssm/gated_delta_net/gdn.py, common.py, main of 2026-08): keys and
queries are normed and repeated for every head of values before the rule. Where every channel decays by itself (Kimi
Delta Attention) as ops/kda/chunk_fwd.py, chunk_intra.py, wy_fast.py, chunk_bwd.py and transformers 5.23's
modeling_kimi_linear.py do: decays are sums in fp32, and heads are repeated inside the kernels. Left out: the
projections, which are products like others; the recomputation of the gated norm alone (Megatron's gdn_norm_out);
kernels of a gated delta net that norm and repeat inside, as transformers calls them, which keep less; norms behind the
rule that are not fused.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.operations.operation import Gemm, Operation, Run, Shard, Weights, product
from planner.cost.operations.state_space import (
    NORM_LAUNCHES,
    PRODUCT_SHARE,
    Cut,
    Quantity,
    Scan,
    reached_bandwidth,
    scan_operations,
)
from planner.spec.mixers import DeltaNet

# Seconds from one chunk of a sequence to the next in the kernel that carries the state along, which no number of heads
# or devices shortens. With this and `state_space.BANDWIDTH_SHARES`, 237 timings of the forward rule over 2,048 to
# 65,536 tokens of 16 to 64 heads come out 6 to 10 % off on H100, H200 and B200 on average, 80 on L40S 15 %
# (ai-dynamo/aiconfigurator@095f58a systems/data/*/linear_attention/trtllm/1.3.0rc20/gdn_perf.parquet); another
# server's copy of the kernels takes 1.3 times as long on H100. 432 timings of the forward rule with a decay of every
# channel, over 4,096 tokens and more of 12 to 96 heads, all of a server's copy (kda/sglang/0.5.16/kda_perf.parquet,
# chunk_kda), come out 11 to 19 % short in the median of these devices; nothing was fitted to them. The backward rule,
# of which no timing was found, carries the state and then its gradient along.
STEP = 1.1e-6
# Bytes a channel of decays costs forward and backward, and keeps: from the projection's output in 16 bits to sums over
# a chunk in fp32 in one kernel, which runs again backward; or operation by operation as autograd runs softplus in fp32
# (modeling_kimi_linear.py KimiLinearForgetGate): eight forward (64), their sums (8), gradients (88); kept are the
# exponential, the logarithm's input, the choice, the softplus, the decay and its sums.
FUSED_DECAY: Final = (6.0, 22.0, 2.0)
EAGER_DECAY: Final = (72.0, 88.0, 21.0)


def operations(s: DeltaNet, run: Run, beside: bool) -> tuple[Operation, ...]:
    """A gated delta net: no skip, and one norm that its heads share (Megatron-Core, ssm/gated_delta_net/common.py);
    projections down to a low rank are whole."""
    scalars = Weights(column_row=s.scalars * s.heads, replicated=s.head_dim)
    gates = (
        product(Gemm("gate_down", run.hidden, s.ranks, Shard.NONE), s.kind),
        product(Gemm("gate_up", s.gate_rank, s.ranked_width, Shard.COLUMN), s.kind),
    )
    scan = Scan(flops, kept_parts, working_bytes, launches, scalars, 3)
    return scan_operations(s, run, beside, scan, gates)


def delta_flops(heads: Quantity, key: int, value: int, chunk: int) -> Quantity:
    """Forward FLOPs of the gated delta rule in chunks of q tokens, per token [FLOP].

    Per head of values, keys K and values V wide: K K^T 2 q K; the inverse of a unit lower triangle (q - 1) (q - 2) / 3;
    w and u, its products with keys and values, 2 q (K + V); what the state holds of w, its update and the output's part
    of it, 2 K V each; Q K^T 2 q K, and its product with the new values 2 q V. In all 6 K V + q (6 K + 4 V) and the
    inverse. Yang et al. 2024, arXiv 2406.06484, section 3.2, with the decay of arXiv 2412.06464, section 3.3, as
    fla-org/flash-linear-attention@bc3b101 ops/gated_delta_rule/chunk.py has it, and ops/kda/chunk_fwd.py with a decay
    of every channel; the whole square of a chunk is counted.
    """
    return heads * (6 * key * value + chunk * (6 * key + 4 * value) + (chunk - 1) * (chunk - 2) // 3)


def flops(s: DeltaNet, tokens: Quantity) -> Quantity:
    """Forward FLOPs of convolution and rule [FLOP]."""
    return tokens * (2 * s.conv * s.conv_width + delta_flops(s.heads, s.state, s.head_dim, s.chunk))


def launches(s: DeltaNet, seq: float, single: bool) -> float:
    """Forward launches of a layer; `single`: with norms and decays of channels operation by operation [1].

    Norm and input product, convolution, copies of q and k, of v and of the gate, l2 norm, two repeats, decay, write
    strength, sums of decays, five of the rule, norm, gate, output product, add. With a decay of every channel: norm,
    eight products, joined, convolution, three copies, two l2 norms, write strength, sums of decays, six of the rule,
    norm and gate, output product, add.
    """
    many = 27.0 + 18.0 * single if s.channel_decay else 21.0
    return many + NORM_LAUNCHES * (single and not s.channel_decay)


def _keys(s: DeltaNet, c: Cut) -> Quantity:
    """Values a token of the keys of all heads of values, and of their queries [1]."""
    return c.heads * s.state


def _decay(s: DeltaNet, c: Cut, fused: bool) -> tuple[Quantity, Quantity, Quantity]:
    """Bytes a token that decays of channels cost forward and backward, and keep; 0 for decays of heads [bytes]."""
    ahead, back, kept = FUSED_DECAY if fused else EAGER_DECAY
    channels = _keys(s, c) * s.channel_decay
    return ahead * channels, back * channels, kept * channels


def rule_traffic(s: DeltaNet, c: Cut, act: float, fused: bool = True) -> Quantity:
    """Bytes that the forward rule reads and writes [bytes].

    Per token, i values, r keys, states of i K / q, triangles of q a head: the inverse r; w and u r + i and as much
    written; the states 2 r + i, new values written; the output 2 r + i, i written. In all 6 i + 7 r; states are written
    and read once, triangles filled, written and read. With a decay of every channel, n keys a token: blocks on the
    diagonal and beside it 4 n, w, u and decayed keys 2 i + n + 2 r, the states 2 i + 2 r, the output 2 i + n; decays in
    fp32 are read by four kernels; two triangles, one filled before, blocks of the diagonal once more in fp32.
    """
    i, r, states, triangles = c.inner, _keys(s, c), c.inner * s.state / s.chunk, c.heads * s.chunk
    if s.channel_decay:
        streams = 6.0 * i + 6.0 * c.shared + 4.0 * r + 2.0 * states + 6.0 * triangles
        return c.tokens * (act * streams + 16.0 * r + _decay(s, c, fused)[0])
    return c.tokens * act * (6.0 * i + 7.0 * r + 2.0 * states + 3.0 * triangles)


def forward_traffic(s: DeltaNet, c: Cut, act: float, interleaved: Quantity, fused: bool = True) -> Quantity:
    """Bytes that convolution, rule and gated norm read and write, forward [bytes].

    Around the rule, n keys a token before they are repeated: convolution 2 i + 4 n; copies, norms and repeats
    4 i + 10 n + 2 r; norm and gate 5 i; decays. With a decay of every channel, projections joined, convolved and copied
    2 i + 4 n each, norms 4 n. `interleaved`: see `state_space.forward_traffic`.
    """
    before = 16.0 * c.shared if s.channel_decay else 14.0 * c.shared + 2.0 * _keys(s, c)
    around = (11.0 + 2.0 * interleaved) * c.inner + before
    return rule_traffic(s, c, act, fused) + c.tokens * (act * around + 24.0 * c.heads)


def backward_traffic(s: DeltaNet, c: Cut, act: float, interleaved: Quantity, fused: bool = True) -> Quantity:
    """The same backward [bytes].

    Gate and norm 8 i; w, u and the states again 4 i + 4 r; gradients of new values 2 i + 2 r, of states 3 i + 3 r, of
    q, k and w 3 i + 5 r, of k and v through the inverse 3 i + 7 r; repeats, norms and their sum 2 r + 8 n; what the
    convolution and the projection get 9 i + 14 n; states and their gradients written and read, triangles read twice.
    With a decay of every channel: w, u, decayed q and k and the states again 4 i + 2 n + 5 r; gradients of new values
    3 i, of states 3 i + 3 r, through the inverse 5 i + 2 n, inside chunks 2 n, norms 4 n; in fp32 decays, gradients of
    q, k and decays twice 14 r, norms 6 n; triangles are read twice, their gradients in fp32 written and read.
    """
    i, n, r = c.inner, c.shared, _keys(s, c)
    states, triangles = i * s.state / s.chunk, c.heads * s.chunk
    streams = (32.0 + 2.0 * interleaved) * i + 4.0 * states
    if s.channel_decay:
        streams = streams + 24.0 * n + 8.0 * r + 11.0 * triangles
        return c.tokens * (act * streams + 56.0 * r + 24.0 * n + _decay(s, c, fused)[1] + 60.0 * c.heads)
    streams = streams + 22.0 * n + 23.0 * r + 2.0 * triangles
    return c.tokens * (act * streams + 60.0 * c.heads)


def products(s: DeltaNet, c: Cut) -> tuple[Quantity, Quantity]:
    """FLOPs of the rule's products, forward and backward [FLOP].

    Forward `delta_flops`. Backward, per token and head of values: w, u and the states again 2 q (K + V) + 4 K V;
    gradients of the new values 2 q (K + V), of the states 6 K V, of q, k and w 6 K V + q (6 K + 2 V), through the
    inverse q (10 K + 4 V) + 4 q^2. In all 16 K V + q (20 K + 10 V) + 4 q^2; 6 q K less with a decay of every channel,
    whose kernels keep Q K^T and make no K K^T again.
    """
    forward = delta_flops(c.heads, s.state, s.head_dim, s.chunk)
    again = 14 if s.channel_decay else 20
    pairs = s.chunk * (again * s.state + 10 * s.head_dim) + 4 * s.chunk * s.chunk
    return c.tokens * forward, c.tokens * c.heads * (16 * s.state * s.head_dim + pairs)


def seconds(
    s: DeltaNet, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float,
    fused: bool = True,
) -> tuple[Quantity, Quantity]:  # fmt: skip
    """Forward and backward seconds of convolution, rule and norm [s].

    The longer of traffic and products, and `STEP` for every chunk of a sequence of `seq` tokens, twice backward.
    `fused`: are decays of channels made by one kernel, not operation by operation?
    """
    rate, work, steps = reached_bandwidth(bandwidth), products(s, c), STEP * seq / s.chunk
    moved = forward_traffic(s, c, act, interleaved, fused), backward_traffic(s, c, act, interleaved, fused)
    return (
        np.maximum(moved[0] / rate, work[0] / (PRODUCT_SHARE * peak)) + steps,
        np.maximum(moved[1] / rate, work[1] / (PRODUCT_SHARE * peak)) + 2.0 * steps,
    )


def kept_parts(s: DeltaNet, c: Cut, act: float, saved: float, fused: bool = True) -> dict[str, Quantity]:
    """Bytes that a gated delta net keeps for its backward pass, by part.

    The input projection's outputs, which the convolution reads (2 i + 2 n + 2 heads); queries and keys normed (2 n) and
    repeated (2 r); values, the gate, the rule's output and its norm (4 i); write strengths and triangles; decays and
    statistics in fp32; the gated output, `saved` bytes a value. The convolution's output and the states are made again.
    With a decay of every channel nothing is repeated and the gate not copied; the ranks of two projections, write
    strengths twice, two triangles and the decays are kept.
    """
    if s.channel_decay:
        values = 5.0 * c.inner + 4.0 * c.shared + s.ranks + c.heads * (2 + 2 * s.chunk)
    else:
        values = 6.0 * c.inner + 4.0 * c.shared + 2.0 * _keys(s, c) + c.heads * (s.scalars + 1 + s.chunk)
    kept = act * values + 8.0 * c.heads + 8.0 * c.groups + _decay(s, c, fused)[2]
    return {"state_space": c.tokens * kept, "state_out": c.tokens * saved * c.inner}


def working_bytes(s: DeltaNet, c: Cut, act: float) -> Quantity:
    """Bytes alive at the widest point of the rule's backward pass, beside what is kept [bytes].

    Where gradients go through the inverse: w, u, new values, states and their gradients; gradients of the output, of
    new values before and after the states' part, of v, q, w, and of k twice; that of the gate; decays' in fp32. With a
    decay of every channel inside chunks: w, decayed q and k, u, new values, gradients of the output, of v and of the
    gate; in fp32 the decays, gradients of q, k and decays twice, and of two triangles.
    """
    r, states = _keys(s, c), c.inner * s.state / s.chunk
    if s.channel_decay:
        streams = 5.0 * c.inner + 3.0 * r + 2.0 * states
        return c.tokens * (act * streams + 28.0 * r + 8.0 * c.heads * s.chunk)
    streams = 6.0 * c.inner + 5.0 * r + 2.0 * states
    return c.tokens * (act * streams + 20.0 * c.heads)

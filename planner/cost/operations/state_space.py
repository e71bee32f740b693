"""What does a Mamba-2 layer do between its projections: seconds of its scan, bytes it keeps and needs?

Kernel by kernel as state-spaces/mamba@e9594ce runs them (ops/triton/ssd_combined.py mamba_split_conv1d_scan_combined,
without its own norm and output product), as Megatron-Core calls them (ssm/mamba_mixer.py, _ssm_training: the
memory-efficient path). Left out: the projections, which are products like others; sums over time steps of a head.
transformers hands norm and output product to the same function, which keeps 2 inner values a token less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.operations.operation import Amount, Gemm, Operation, Run, Shard, Weights, product
from planner.spec.mixers import StateSpace

Quantity = Any  # a float or a float64 column: the same text serves both

# Share of a device's bandwidth that the causal convolution reaches over 8,192 to 32,768 tokens of 6,144 to 20,480
# channels, against the bandwidth in bytes/s of L40S, H100, H200 and B200 (ai-dynamo/aiconfigurator@095f58a
# systems/data/*/linear_attention/trtllm/1.3.0rc20/mamba2_perf.parquet). The norm is taken to reach as much.
BANDWIDTHS = (0.864e12, 3.35e12, 4.8e12, 8.0e12)
BANDWIDTH_SHARES = (0.72, 0.74, 0.62, 0.44)
# Time of the scan's five kernels, which are bound by memory and latency, over that of their traffic at those rates. No
# timing of them was found: one kernel in their place is 1.5 to 2.5 times as fast and saves 15 to 17 % of a pass of
# Mamba2-2.7B over 64k tokens on A100 and H100 (vllm-project/vllm#27299; PyTorch blog, "Accelerating Mamba2 with kernel
# fusion", 2026). At twice as fast they take 28 % of it; at those rates they would take 21 % on H100 and 14 % on A100:
# 1.4 and 2.3 times as long. Other readings of the same figures give 1.1 to 4.
SCAN_SLOWDOWN = 1.8
# Share of the peak that the scan's small products are taken to reach; unverified, and without effect where traffic
# binds, as it does on every device and model of the catalog.
PRODUCT_SHARE = 0.3
# Forward launches of a layer: norm, input product, decay (4), convolution, scan (5), two layouts, norm, output product,
# add; a fused attention or MLP layer has 7 and 5 of the 12 that a stack's floor counts.
LAUNCHES = 17.0
# More of them where the norm before the layer runs operation by operation (`eager.LAUNCHES`).
NORM_LAUNCHES = 7.0


@dataclass(frozen=True)
class Cut:
    """A rank's share of the scan, one value per key. `tokens`: of the whole sequences, as all-to-all context
    parallelism deals heads. `inner`, `shared`: values of x, and of B or of C, a token. `heads`, `groups`: of a rank."""

    tokens: Quantity
    heads: Quantity
    groups: Quantity
    inner: Quantity
    shared: Quantity


def operations(s: StateSpace, run: Run, beside: bool) -> tuple[Operation, ...]:
    """A Mamba-2 mixer; `beside` attention, whose norm it shares."""
    scalars = Weights(column_row=3 * s.scalars * s.heads + s.inner * s.norm)
    return scan_operations(
        s, run, beside, Scan(flops, kept_parts, working_bytes, launches, scalars, 3 + s.norm, "mamba")
    )


def launches(s: StateSpace, seq: float, single: bool) -> float:
    """Forward launches of a layer; `single`: with the norm before it operation by operation [1]."""
    return LAUNCHES - (not s.norm) + NORM_LAUNCHES * single


def flops(s: StateSpace, tokens: Quantity) -> Quantity:
    """Forward FLOPs of a state space between its projections [FLOP].

    Convolution 2 w (x + 2 g n), and the scan in chunks of q: C B^T 2 q g n, its product with x 2 q x, states of the
    chunks and what they add to the output, 2 n x each; per token, x = heads x head_dim. Dao and Gu 2024, arXiv
    2405.21060, section 6, as state-spaces/mamba ops/triton/ssd_combined.py has it; the whole square of a chunk is
    counted.
    """
    pairs = 2 * s.chunk * (s.groups * s.state + s.inner)
    return tokens * (2 * s.conv * s.conv_width + pairs + 4 * s.state * s.inner)


def reached_bandwidth(bandwidth: float) -> float:
    """Bytes/s at which kernels between projections move data on a device of this bandwidth [bytes/s]."""
    return bandwidth * float(np.interp(bandwidth, BANDWIDTHS, BANDWIDTH_SHARES))


def cut_of(s: StateSpace, tokens: Quantity, t: Quantity, c: Quantity) -> Cut:
    """The share of one of t x c ranks; `tokens`: of a context-parallel rank outside the scan.

    With fewer groups than ranks, ranks of context parallelism hold copies of one.
    """
    heads = s.heads / (t * c)
    groups = np.maximum(s.groups / (t * c), 1.0)
    return Cut(tokens * c, heads, groups, heads * s.head_dim, groups * s.state)


class Scan(NamedTuple):
    """What one kind does between its projections: FLOPs of tokens, bytes kept by part and alive in the backward pass,
    forward launches, parameters of heads and norms and their tensors, the module of CUDA graphs that holds it."""

    flops: Callable[[Any, Quantity], Quantity]
    kept_parts: Callable[[Any, Cut, float, float, bool], dict[str, Quantity]]
    working_bytes: Callable[[Any, Cut, float], Quantity]
    launches: Callable[[Any, float, bool], float]
    weights: Weights
    tensors: int
    graph: str = "attn"


def scan_operations(
    s: StateSpace, run: Run, beside: bool, scan: Scan, gates: tuple[Operation, ...] = ()
) -> tuple[Operation, ...]:
    """A mixer of any kind: projection of the input, `gates` through a low rank, convolution and scan, projection of the
    output. All but the output's bias are divided by heads (Megatron-Core, ssm/mamba_mixer.py)."""
    act, single, width = run.act, run.kernels.code.single, s.in_width - s.ranked_width
    biases = Weights(column_row=s.in_width * s.bias)
    convolution = Weights(column_row=s.conv_width * (s.conv + s.conv_bias))

    def cut(x: LayerShape) -> Cut:
        return cut_of(s, x.tokens, x.t, x.c)

    def kept(part: str) -> Amount:
        return lambda x: scan.kept_parts(s, cut(x), act, run.saved, not single).get(part, 0.0 * x.tokens)

    return (
        product(Gemm("state_in", run.hidden, width, Shard.COLUMN), s.kind, more=biases),
        *gates,
        Operation(
            "scan", s.kind, weights=convolution + scan.weights, graph=scan.graph,
            tensors=(s.conv > 0) * (1 + s.conv_bias) + scan.tensors,
            flops=lambda batch, seq: scan.flops(s, batch * seq),
            kept={part: kept(part) for part in ("state_space", "state_out")},
            alive_late=lambda x: act * run.stream(x) + scan.working_bytes(s, cut(x), act),
            launches=scan.launches(s, run.seq, single) - (1.0 + NORM_LAUNCHES * single) * beside,
        ),
        product(Gemm("state_out", s.inner, run.hidden, Shard.ROW), s.kind, s.bias),
    )  # fmt: skip


def forward_traffic(s: StateSpace, c: Cut, act: float, interleaved: Quantity) -> tuple[Quantity, Quantity]:
    """Bytes that convolution and norm read and write, and those of the scan, forward [bytes].

    Per token, i values of x, n of B and of C, chunks of q, states of i N / q: convolution 2 (i + 2 n); sums of decays;
    chunk states i + n; passing them on; C B^T 2 n and g q in fp32; the scan 5 i + n; the norm, if any, 2 i.
    `interleaved`: 1 where the sequences of a micro-batch lie interleaved and change their layout, 0 where there is one.
    """
    states, scores = c.inner * s.state / s.chunk, c.groups * s.chunk
    streams = act * (6.0 * c.inner + 4.0 * c.shared)
    scan = streams + (8.0 + 2.0 * act) * states + 8.0 * scores + (act + 24.0) * c.heads
    outside = (2.0 + 2.0 * s.norm) * c.inner + 4.0 * c.shared
    return c.tokens * act * (outside + _layouts(c, interleaved)), c.tokens * scan


def _layouts(c: Cut, interleaved: Quantity) -> Quantity:
    return 2.0 * interleaved * (3.0 * c.inner + 2.0 * c.shared + c.heads)


def backward_traffic(s: StateSpace, c: Cut, act: float, interleaved: Quantity) -> tuple[Quantity, Quantity]:
    """The same backward: convolution, chunk states and C B^T again, then gradients of all [bytes].

    25 i and 21 n in 16 bits, of which 5 (i + 2 n) are the convolution's and 3 i the norm's, if any; gradients of B
    and C in fp32 twice, 5 passes over states in 16 bits and 6 in fp32, 6 over C B^T.
    """
    states, scores = c.inner * s.state / s.chunk, c.groups * s.chunk
    streams = act * (17.0 * c.inner + 11.0 * c.shared) + 16.0 * c.shared
    scan = streams + (24.0 + 5.0 * act) * states + 24.0 * scores + 60.0 * c.heads
    outside = (5.0 + 3.0 * s.norm) * c.inner + 10.0 * c.shared
    return c.tokens * act * (outside + _layouts(c, interleaved)), c.tokens * scan


def products(s: StateSpace, c: Cut) -> tuple[Quantity, Quantity]:
    """FLOPs of the scan's products, forward and backward [FLOP].

    Forward 4 i N + 2 q i + 2 q n, see `flops`; backward 10 i N + 6 q i + 6 q n: two for each, and
    states, C B^T and gradients of decays.
    """
    each, pairs = 2.0 * c.inner * s.state, 2.0 * s.chunk * (c.inner + c.shared)
    return c.tokens * (2.0 * each + pairs), c.tokens * (5.0 * each + 3.0 * pairs)


def seconds(
    s: StateSpace, c: Cut, act: float, interleaved: Quantity, seq: Quantity, bandwidth: float, peak: float,
    fused: bool = True,
) -> tuple[Quantity, Quantity]:  # fmt: skip
    """Forward and backward seconds of convolution, norm and scan, of which the longer of traffic and products [s].

    No timing of the whole scan ships: see `SCAN_SLOWDOWN`.
    """
    rate = reached_bandwidth(bandwidth)

    def longer(moved: tuple[Quantity, Quantity], work: Quantity) -> Quantity:
        scan = np.maximum(SCAN_SLOWDOWN * moved[1] / rate, work / (PRODUCT_SHARE * peak))
        return moved[0] / rate + scan

    forward, backward = products(s, c)
    return (
        longer(forward_traffic(s, c, act, interleaved), forward),
        longer(backward_traffic(s, c, act, interleaved), backward),
    )


def kept_parts(s: StateSpace, c: Cut, act: float, saved: float, fused: bool = True) -> dict[str, Quantity]:
    """Bytes that a state space keeps for its backward pass, by part; `saved` bytes a value of the last product's input.

    The input projection's outputs (2 i + 2 n + heads), the scan's output before its gate, the gated one that the norm
    reads, the norm's statistics, and its output. Without a norm the scan gates its output itself, and transformers,
    which alone runs such layers, has the function make the product too, whose input is made again. What the convolution
    makes is computed again.
    """
    if not s.norm:
        return {"state_space": c.tokens * act * (3.0 * c.inner + 2.0 * c.shared + c.heads)}
    kept = act * (4.0 * c.inner + 2.0 * c.shared + c.heads) + 4.0 * c.groups
    return {"state_space": c.tokens * kept, "state_out": c.tokens * saved * c.inner}


def working_bytes(s: StateSpace, c: Cut, act: float) -> Quantity:
    """Bytes alive at the widest point of the scan's backward pass, beside what is kept [bytes].

    Gradients of the projection's outputs (2 i + 2 n + heads), of the convolution's (i + 2 n), of the gated and the
    plain output (2 i); the convolution's outputs again (i + 2 n); states and their gradients in fp32 and 16 bits;
    C B^T and its gradient, gradients of B and C in fp32.
    """
    states, scores = c.inner * s.state / s.chunk, c.groups * s.chunk
    streams = act * (6.0 * c.inner + 6.0 * c.shared + c.heads)
    wide = (8.0 + 2.0 * act) * states + 8.0 * scores + 8.0 * c.shared + 16.0 * c.heads
    return c.tokens * (streams + wide)


def exchanged_bytes(s: StateSpace, c: Cut, act: float) -> tuple[Quantity, Quantity]:
    """What a rank holds before the two all-to-all of context parallelism in a pass, into a scan and out of it [bytes].

    The gate, x, B, C and every head's scalars, then the output (Megatron-Core, ssm/mamba_context_parallel.py,
    ssm/gated_delta_net/common.py a2a_cp_to_hp). Groups that are fewer than ranks are copied before they are sent.
    """
    into = 2.0 * c.inner + 2.0 * c.shared + s.scalars * c.heads
    return c.tokens * act * into, c.tokens * act * c.inner

"""What does attention to all keys, or those of a window, cost: multi-head, multi-query and grouped queries?

Also what attention of other kinds shares with it: rotation, the core that computes all pairs, the projection of its
output. Single operations of PyTorch are counted in transformers (models/llama/modeling_llama.py apply_rotary_pos_emb)
as those of norms are (`norms.py`). Left out: what the core takes in time (`device/mixing.py`), rotary tables.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.operations import sparse_blocks
from planner.cost.operations.mlp import ACTIVATION_PASSES
from planner.cost.operations.norms import STATISTIC_BYTES, eager_norm_bytes, run_norm_bytes
from planner.cost.operations.operation import Amount, Array, Gemm, Operation, Run, Shard, Weights, product
from planner.cost.operations.pairs import attention_flops
from planner.cost.operations.residual import MASK_BYTES, SUM_PASSES, gradient_stream, summed_gradients
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.config import ContextKind
from planner.spec.stack.kinds import AttentionKernel, NarrowKept
from planner.spec.stack.layer_code import Part

# Rotation of queries or keys in single operations. Forward: times the cosine 2, negation of a half 1, cat 2, times the
# sine 2, sum 3. Backward: two products 4, negation 1, two halves written into zeros 4, sums 3 and 3, a copy in the
# order of the product 2.
ROTARY_PASSES: Final = (10.0, 17.0)
# Forward launches of the first half of a layer: norm, qkv, rotary of q and k, attention, projection, add; norm 8, two
# rotations of 5, products 4, attention 1, sum 1 in single operations.
LAUNCHES: Final = (7.0, 24.0)
# Backward of an unfused softmax: gradients of its output and input in fp32 and 16 bits.
SCORE_GRADIENT_BYTES = 12.0
E5M6: Final = 1.5  # bytes


def operations(a: Attention, run: Run) -> tuple[Operation, ...]:
    """Queries, keys and values in one product, rotation and norms, an indexer of blocks, attention, its output."""
    q, pairs = a.heads * a.head_dim, a.kv_heads * (a.head_dim + a.v_head_dim)
    linear = 3 if a.kv_width else 1
    qkv = Gemm("qkv", run.hidden, q + a.gate_width, Shard.COLUMN, kv_out_features=a.kv_width, linear=linear)
    gate = Weights(column_row=a.heads * a.gate_bias - a.qkv_bias * a.head_gate * a.gate_width)
    indexed: Amount = lambda x: x.tokens * sparse_blocks.index_width(a, x)  # noqa: E731
    return (
        product(qkv, "attention", a.qkv_bias, gate, int(a.gate_bias)),
        *rotated(
            a, run, {"qkv": lambda x: _kept_inputs(a, run, x)}, sums=0.0 if a.borrows_kv else 2.0,
            more=(lambda x: run.act * rotations(a, run) * indexed(x)) if a.chooses_blocks else None,
        ),
        *(sparse_blocks.indexer(a, run) if a.chooses_blocks else ()),
        *lent(a, "qkv", lambda x: run.act * x.tokens * pairs / x.kv_split),
        core(a, run, *(sparse_blocks.held(a, run) if a.chooses_blocks else ())),
        output(a, run),
    )  # fmt: skip


def rotations(a: Attention, run: Run) -> float:
    """Passes of fused kernels that rotate and norm queries and keys [1]."""
    return (2.0 if run.rotated else 0.0) + (2.0 if a.qk_norm is not QkNorm.NONE else 0.0)


def _qk_norm_parameters(a: Attention) -> int:
    """Learned norms of queries and keys [parameters]."""
    width = {
        QkNorm.NONE: 0,
        QkNorm.KEY: a.head_dim,
        QkNorm.HEAD: (2 if a.rotated_kv_heads else 1) * a.head_dim,
        QkNorm.FULL: (a.heads + a.rotated_kv_heads) * a.head_dim,
    }[a.qk_norm]
    return width * (1 + a.qk_norm_bias)


def _kept_inputs(a: Attention, run: Run, x: LayerShape) -> Array:
    """Queries, keys and values, before and after their norms, and a gate."""
    act, kernels = run.act, run.kernels
    q = act * x.tokens * a.heads * a.head_dim / x.t
    k = act * x.tokens * a.rotated_kv_heads * a.head_dim / x.kv_split
    values = x.tokens * a.own_kv_heads * a.v_head_dim / x.kv_split
    kv = k + act * values
    if kernels.attention_of(a) is AttentionKernel.MEMORY_EFFICIENT:  # one key and value for every query head
        kv = act * x.tokens * a.heads * (a.head_dim + a.v_head_dim) / x.t
    copies = 2.0 if a.qk_norm is not QkNorm.NONE else 1.0
    pinned = kv if kernels.code.pins_qkv and a.kv_heads == a.heads else 0.0
    # what the norm of values reads; tied ones are the keys before theirs
    raw = act * values * (a.value_norm and not a.tied_values)
    kept = q * copies + kv + (copies - 1) * k + raw + pinned + act * x.tokens * a.gate_width / x.t
    if not kernels.code.fused_norm:  # of values, whose norm has no weight, the stack's own
        norm = max(eager_norm_bytes(run), kernels.code.norm_bytes)
        kept = kept + (copies - 1) * (q + k) / act * norm + values * a.value_norm * kernels.code.norm_bytes
    return np.asarray(kept)


def rotated(
    a: Attention, run: Run, kept: dict[str, Amount], more: Amount | None = None, norms: tuple[int, int] | None = None,
    sums: float = 1.0,
) -> tuple[Operation, ...]:  # fmt: skip
    """Rotation and norms of queries and keys, norms of values, a gate on the output. `more`: bytes moved beside, in
    kernels of their own; `norms`: their parameters and tensors, if not those of queries and keys of all heads; `sums`:
    of gradients of the stream that several products read."""
    act, gated = run.act, a.gate_width > 0
    count, norm = rotations(a, run), run_norm_bytes(run)

    def queries(x: LayerShape) -> Array:
        return a.heads * a.head_dim / x.t

    def keys(x: LayerShape) -> Array:
        return a.rotated_kv_heads * a.head_dim / x.kv_split

    def fused(x: LayerShape) -> Array:
        values = 2.0 * a.own_kv_heads * a.v_head_dim / x.kv_split * a.value_norm
        gate = (a.gate_width + 2.0 * a.heads * a.v_head_dim * gated) / x.t
        beside = 2.0 * queries(x) * a.scaled + values + gate + 2.0 * a.qk_rope_dim * a.rotated_norm
        moved = act * x.tokens * (count * (queries(x) + keys(x)) + beside)
        return moved if more is None else moved + more(x)

    def single(x: LayerShape, back: bool) -> Array:
        each = act * run.rotated * ROTARY_PASSES[back] + (a.qk_norm is not QkNorm.NONE) * norm[back]
        moved = each * (queries(x) + keys(x) * (1 + a.value_norm))
        moved = moved + act * ACTIVATION_PASSES[True][back] * a.heads * a.v_head_dim * gated / x.t
        # gradients of keys and values that a layer lends or borrows are summed
        lent = SUM_PASSES * act * 2 * a.kv_heads * a.head_dim * a.borrows_kv * back
        return x.tokens * (moved + lent)

    one = run.single(Part.ROTARY in run.kernels.code.fused)
    parameters, tensors = norms or (_qk_norm_parameters(a), 2 * (a.qk_norm is not QkNorm.NONE))
    operation = Operation(
        "qkv", "norms", modules={"mla_up_proj": 1.0}, kept=kept,
        weights=Weights(replicated=parameters), tensors=tensors,
        moved=(lambda x: single(x, False)) if one else fused, moved_back=(lambda x: single(x, True)) if one else None,
    )  # fmt: skip
    return operation, *summed_gradients(run, sums)


def lent(a: Attention, part: str, amount: Amount) -> tuple[Operation, ...]:
    """Keys and values that a layer lends to later ones, which outlast its recomputation as its input does; raw keys in
    place of as many rotated ones."""
    if not a.lends_kv:
        return ()
    return (Operation("lent", kept={"input": amount, part: lambda x: -amount(x)}),)


def widths(a: Attention, x: LayerShape) -> tuple[Array, Array, Array]:
    """Values a token of queries, of attention's output, and of keys and values, on a rank [1]."""
    shared = a.heads / x.t if a.kind is AttentionKind.MLA else a.kv_heads / x.kv_split
    heads = a.heads / x.t
    return heads * a.head_dim, heads * a.v_head_dim, shared * (a.head_dim + a.v_head_dim)


def core(
    a: Attention, run: Run, kept: dict[str, Amount] | None = None, late: Amount | None = None,
) -> Operation:  # fmt: skip
    """Attention itself: to all keys, unless what it keeps and has alive (`Operation.alive_late`) is given."""
    act = run.act

    def ahead(x: LayerShape) -> Array:
        return act * x.tokens * sum(widths(a, x)) - act * run.stream(x)

    return Operation(
        "core_attn", "attention", weights=Weights(column_row=a.heads * (a.sinks + 2 * a.scaled)),
        tensors=a.sinks + 2 * a.scaled,
        modules={"core_attn": 1.0}, graph="attn", launches=run.launches(*LAUNCHES), ahead=ahead,
        flops=lambda batch, seq: attention_flops(a, batch, seq), mixing=lambda x: widths(a, x),
        kept=kept or {"core_attn": lambda x: _kept_by_core(a, run, x)},
        alive_late=late or (lambda x: _alive(a, run, x)),
    )  # fmt: skip


def _kept_by_core(a: Attention, run: Run, x: LayerShape) -> Array:
    heads, kernels = a.heads / x.t, run.kernels
    if kernels.attention_of(a).tiled:
        return STATISTIC_BYTES * heads * x.tokens
    dropped = (MASK_BYTES + run.act) if kernels.dropout else 0.0
    return (kernels.code.score_bytes or run.act + dropped) * heads * x.tokens * x.seq_kv


def _alive(a: Attention, run: Run, x: LayerShape) -> Array:
    """Fp32 and 16-bit gradients of an unfused softmax's input and output, 12 bytes a score; buffers of context
    parallelism."""
    scores = a.heads / x.t * x.tokens * x.seq_kv * (not run.kernels.attention_of(a).tiled)
    alive = gradient_stream(run, x) + SCORE_GRADIENT_BYTES * scores
    return np.where(x.c > 1, np.maximum(alive, context_working(a, run, x)), alive)


def context_working(a: Attention, run: Run, x: LayerShape) -> Array:
    """Alive in the backward pass of context-parallel attention [bytes].

    Gradients of q, k, v and the output, and buffers: the ring holds keys, values and their gradients twice, one pair
    at work and one on its way; all-gather holds those of the whole sequence; all-to-all a second layout of q, k, v,
    the output and their gradients (Transformer Engine, attention/dot_product_attention/context_parallel.py). Left
    out: the ring's outputs of every step, which the forward pass alone holds.
    """
    each = run.act * x.tokens
    queries, outputs, pairs = (each * width for width in widths(a, x))
    buffers = np.select(
        [x.context == ContextKind.P2P, x.context == ContextKind.ALL_GATHER],
        [4.0 * pairs, 2.0 * x.c * pairs],
        2.0 * (queries + outputs + pairs),
    )
    return np.asarray(queries + outputs + pairs + buffers)


def output(a: Attention, run: Run) -> Operation:
    """The projection of attention's output; keeps that, in the width of attention and as the product reads it."""
    part = "core_attn" if run.kernels.code.keeps_by_name else "attention_out"
    gemm = Gemm("attention_out", a.heads * a.v_head_dim, run.hidden, Shard.ROW)
    narrow = run.kernels.narrow_kept is NarrowKept.SWIGLU_AND_ATTENTION
    kept = E5M6 if narrow else run.act
    if run.saved < run.act and not narrow and run.keeps_input(gemm):
        kept += run.saved
    kept += run.act * (a.gate_width > 0)  # the output before its gate
    return product(
        gemm, "attention", a.out_bias,
        kept={part: lambda x: kept * a.heads * a.v_head_dim * x.tokens / x.t},
    )  # fmt: skip

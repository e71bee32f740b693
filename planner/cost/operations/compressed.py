"""What does attention to a window and to compressed keys cost (DeepSeek-V4)?

Queries by way of a low rank, one key for all heads, which is the value too, and the output in groups (transformers 5.23
models/deepseek_v4/modeling_deepseek_v4.py). Queries and outputs of heads are divided, the key and what compresses it
whole on every rank. The core is that of `sparse.py`.
"""

from __future__ import annotations

from dataclasses import replace

from planner.cost.cut import LayerShape
from planner.cost.operations import attention, sparse
from planner.cost.operations.operation import Array, Gemm, Operation, Run, Shard, Weights, product
from planner.spec.attention import Attention


def operations(a: Attention, run: Run) -> tuple[Operation, ...]:
    """Products down and up, compression and its gates, an indexer, attention, the output's groups, whose blocks make
    one product of the same work."""
    c = a.compression
    assert c is not None
    h, act, rank, grouped = run.hidden, run.act, a.q_lora_rank, a.out_groups * a.out_rank
    width, up = a.heads * a.v_head_dim, {"mla_up_proj": 1.0}
    entering = 2 * c.series * (a.head_dim + (0 if a.indexer is None else a.indexer.head_dim))
    positions = Weights(replicated=c.series * a.head_dim * c.rate)
    out = Gemm("attention_out", grouped, h, Shard.ROW)

    def streams(x: LayerShape) -> Array:
        """Compressed queries and the key before and after their norms, what enters compressed keys, and a gate."""
        return act * x.tokens * (2 * (a.q_lora_rank + a.head_dim) + entering + a.gate_width / x.t)

    return (
        product(Gemm("q_a", h, rank, Shard.NONE), "attention"),
        product(Gemm("q_b", rank, a.heads * a.head_dim, Shard.COLUMN), "attention", modules=up),
        product(Gemm("kv_a", h, a.head_dim, Shard.NONE), "attention"),
        product(Gemm("compress", h, 2 * c.series * a.head_dim, Shard.NONE), "attention", False, positions, 2),
        *attention.rotated(
            a, run, {"mla_streams": streams}, lambda x: sparse.compressed_bytes(a, x.tokens, x.t, act),
            norms=(rank + a.head_dim * (1 + (c.rate > 0)), 2 + (c.rate > 0)), sums=0.0 if a.borrows_kv else 2.0,
        ),
        *sparse.indexer(a, run),
        attention.core(a, run, *sparse.held(a, run)),
        product(
            Gemm("out_groups", width // a.out_groups, grouped, Shard.COLUMN), "attention",
            kept={"attention_out": lambda x: run.saved * x.tokens * grouped / x.t},
        ),
        replace(attention.output(a, run), product=out, weights=Weights(column_row=grouped * h)),
    )  # fmt: skip

"""What does multi-head latent attention cost (DeepSeek-V2, arXiv 2405.04434, section 2.1)?

Down-projections are whole on every rank, up-projections divided. Its keys and values are those of as many heads as
queries have, or, behind an indexer, the latent key itself (`sparse.py`).
"""

from __future__ import annotations

from planner.cost.cut import LayerShape
from planner.cost.operations import attention, sparse
from planner.cost.operations.operation import Amount, Array, Gemm, Operation, Run, Shard, product
from planner.spec.attention import Attention


def operations(a: Attention, run: Run) -> tuple[Operation, ...]:
    """Queries by way of a low rank, keys and values down and up, a gate, an indexer, attention, its output."""
    h, q, rank, chooses = run.hidden, a.heads * a.head_dim, a.q_lora_rank, a.indexer is not None
    expanded, up = a.heads * (a.qk_nope_dim + a.v_head_dim), {"mla_up_proj": 1.0}
    kept: dict[str, Amount] = {"mla_streams": lambda x: _streams(a, run, x)}
    if not chooses:
        kept["mla_up_proj"] = lambda x: _expanded(a, run, x)
    return (
        product(Gemm("q", h, 0 if rank else q, Shard.COLUMN), "attention"),
        product(Gemm("q_a", h, rank, Shard.NONE), "attention", a.qkv_bias),
        product(Gemm("q_b", rank, q, Shard.COLUMN), "attention", modules=up),
        product(Gemm("kv_a", h, a.kv_streams, Shard.NONE), "attention", a.qkv_bias),
        # absorbed into queries and outputs it is no linear layer (Megatron-Core, absorbed_mla.py)
        product(Gemm("kv_b", a.kv_lora_rank, expanded, Shard.COLUMN, wide=chooses), "attention", modules=up),
        product(Gemm("head_gate", h, a.gate_width, Shard.COLUMN), "attention"),
        *attention.rotated(
            a, run, kept, (lambda x: sparse.absorbed_bytes(a, x.tokens, x.t, run.act)) if chooses else None,
            norms=(
                rank + (not a.borrows_kv) * (a.kv_lora_rank + a.qk_rope_dim * a.rotated_norm),
                (rank > 0) + (not a.borrows_kv) * (1 + a.rotated_norm),
            ),
        ),
        *sparse.indexer(a, run),
        *attention.lent(a, "mla_streams", lambda x: run.act * x.tokens * a.kv_streams),
        attention.core(a, run, *(sparse.held(a, run) if chooses else ())),
        attention.output(a, run),
    )  # fmt: skip


def _streams(a: Attention, run: Run, x: LayerShape) -> Array:
    """Compressed queries, keys and values before and after their norms, and a gate."""
    keys = 2 * a.kv_lora_rank + (1 + a.rotated_norm) * a.qk_rope_dim
    streams = 2 * a.q_lora_rank + keys * (not a.borrows_kv)
    return run.act * x.tokens * (streams + a.gate_width / x.t)


def _expanded(a: Attention, run: Run, x: LayerShape) -> Array:
    """Queries and keys of all heads, before and after the rotated part is joined to them, and values. Liu 2024, arXiv
    2405.04434."""
    widths = a.heads * (2 * a.head_dim + a.qk_nope_dim + a.v_head_dim)
    return run.act * x.tokens * widths / x.t

"""What does attention to chosen blocks of keys do between its projections: seconds, bytes it keeps and needs?

Of MiniMax Sparse Attention (arXiv 2606.13392) the indexer's scores of every key before a query, the largest of each
block, the choice of the best blocks for every group of heads, attention to them, and the indexer's loss, whose
gradients are made with attention's own; as kernels for training run them (MiniMax-AI/MSA@806faf8 training/msa_v1;
flash-msa 0.1.1 on PyPI). Left out: projections of queries and keys (`attention.py`), lists of the queries of every
block, launches.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.operations import sparse
from planner.cost.operations.operation import Amount, Gemm, Operation, Run, Shard, Weights, product
from planner.cost.operations.sparse import Device, Quantity, Sight
from planner.spec.attention import Attention
from planner.spec.indexer import Indexer
from planner.spec.machine.accelerator import Architecture
from planner.spec.stack.kinds import SparseKernel

# Share of the 16-bit peak that attention to chosen blocks reaches forward: of the whole module of MiniMax-M3, 64 heads
# over 4, of vLLM 0.24 on one sequence of 16,384 tokens (ai-dynamo/aiconfigurator@095f58a systems/data/*/msa/vllm/
# 0.24.0/msa_context_module_perf.parquet: 4.57 ms on B200 with the kernels of MSA, 13.2 ms on H100 with Triton's) what
# is left without its products at 0.7 of the peak and the indexer's scores. At 32,768 tokens 0.24 and 0.13.
BLOCK_FORWARD_SHARE: Final = {Architecture.HOPPER: 0.14, Architecture.BLACKWELL: 0.23}


def index_width(a: Attention, x: LayerShape) -> Quantity:
    """Values a token of the indexer's queries, dealt like the keys they choose among, and of its key [1]."""
    index = a.indexer
    assert index is not None
    return (index.heads / x.t + 1.0) * index.head_dim


def indexer(a: Attention, run: Run) -> tuple[Operation, ...]:
    """Products to queries and to the key, without weights for heads, and norms of both without a bias (transformers
    5.23 models/minimax_m3_vl/modeling_minimax_m3_vl.py MiniMaxM3VLIndexer)."""
    x = a.indexer
    assert x is not None
    queries = Gemm(
        "index_q", run.hidden, x.heads * x.head_dim, Shard.COLUMN, detached=True, frozen=not x.trained
    )
    key = Gemm("index_k", run.hidden, x.head_dim, Shard.REPEATED, detached=True, frozen=not x.trained)
    weights = Weights(kv=queries.in_features * queries.out_features)
    return sparse.index_operations(
        a,
        (
            Operation("index_q", "indexer", queries, weights, 1),
            product(key, "indexer", False, Weights(replicated=2 * x.head_dim), 2),
        ),
    )


def held(a: Attention, run: Run) -> tuple[dict[str, Amount], Amount]:
    """What it keeps, by part, and has alive in its backward pass."""
    kernel = sparse.kernel_of(run)

    def kept(x: LayerShape) -> tuple[Quantity, Quantity]:
        return kept_bytes(a, sparse.whole_sight(a, x), kernel, run.act, x.kv_split)

    def alive(x: LayerShape) -> Quantity:
        return run.act * run.stream(x) + working_bytes(
            a, sparse.whole_sight(a, x), kernel, run.act, x.kv_split
        )

    return {"qkv": lambda x: kept(x)[0], "core_attn": lambda x: kept(x)[1]}, alive


def forward_share(on: Device) -> float:
    return on.share(BLOCK_FORWARD_SHARE)


def backward_share(on: Device) -> float:
    """What the backward kernel reaches; unverified, nobody times one: it loses what that of single keys does [1]."""
    return forward_share(on) * on.share(sparse.BACKWARD_SHARE) / on.share(sparse.FORWARD_SHARE)


def core_time(a: Attention, see: Sight, on: Device) -> tuple[Quantity, Quantity]:
    """Forward and backward seconds of attention to the chosen blocks; by PyTorch of all scores, masked [s]."""
    if not on.fused:
        return sparse.dense_core_time(a, see, on)
    ahead, behind = sparse.core_flops(a, see.heads, see.chosen)
    return ahead / (forward_share(on) * on.peak), behind / (backward_share(on) * on.peak)


def index_heads(a: Attention, x: Indexer, see: Sight) -> Quantity:
    """Heads of the indexer on a rank: those that choose for its own key/value heads [1]."""
    return x.heads * see.heads / a.heads


def score_time(a: Attention, x: Indexer, see: Sight, on: Device) -> Quantity:
    """Seconds of scoring all keys before a query and choosing the best blocks [s].

    Kernels multiply in 16 bits and write the largest of every block in fp32, which choosing reads. PyTorch multiplies
    in fp32, writes all scores, and reads them to mask them and for the largest.
    """
    heads = index_heads(a, x, see)
    blocks = sparse.FP32 * heads * see.causal / x.block
    if not on.fused:
        square = heads * see.queries * see.scored
        products = 2.0 * x.head_dim * square / (sparse.SCORE_SHARE * on.fp32)
        return products + 4.0 * sparse.FP32 * square / on.bandwidth
    products = 2.0 * heads * x.head_dim * see.causal / (sparse.SCORE_SHARE * on.peak)
    return np.maximum(products, blocks / on.bandwidth) + blocks / (sparse.TOP_K_SHARE * on.bandwidth)


def loss_time(a: Attention, x: Indexer, see: Sight, on: Device) -> Quantity:
    """Seconds of the loss's gradients with respect to an indexer's queries and key, 2 a d + 6 h_i d_i a pair [s].

    Attention's scores again, as the target; the indexer's again, and two gradients (MSA benchmarks/training/msa_v1/
    README.en.md). The kernel keeps weights of a block in registers.
    """
    if not x.trained:
        return 0.0 * see.taught
    pairs = 2.0 * see.heads * a.head_dim + 6.0 * index_heads(a, x, see) * x.head_dim
    return pairs * see.taught / (backward_share(on) * on.peak)


def kept_bytes(
    a: Attention, see: Sight, kernel: SparseKernel, act: float, kv_split: Quantity
) -> tuple[Quantity, Quantity]:
    """Bytes kept beside queries, keys, values and output: of the indexer and of other ranks, and of attention [bytes].

    The indexer's queries and key before and after their norms; keys and values that context parallelism gathered.
    Statistics of both softmaxes, chosen blocks of every query and, block by block, the queries that chose it. PyTorch's
    operations keep what they do of chosen single keys.
    """
    x = a.indexer
    assert x is not None
    heads, rows = index_heads(a, x, see), see.queries
    width = a.kv_heads * (a.head_dim + a.v_head_dim) / kv_split + x.head_dim
    inputs = 2.0 * act * rows * (heads + 1.0) * x.head_dim * x.trained + act * (see.gathered - rows) * width
    chosen = 2.0 * sparse.FP32 * rows * heads * np.minimum(x.top_k // x.block, np.ceil(see.keys / x.block))
    core = sparse.FP32 * rows * (see.heads + heads) + chosen
    if kernel is SparseKernel.NONE:
        core = core + sparse.DENSE_KEPT * see.heads * rows * see.keys
    return inputs, core


def working_bytes(a: Attention, see: Sight, kernel: SparseKernel, act: float, kv_split: Quantity) -> Quantity:
    """Bytes alive at the widest point of the backward pass, beside what is kept [bytes].

    The output's gradient, that of queries in fp32, which blocks add to one after another, and in 16 bits; those of keys
    and values in fp32. PyTorch's operations need fp32 gradients of all scores.
    """
    if kernel is SparseKernel.NONE:
        return sparse.DENSE_WORKING * see.heads * see.queries * see.keys
    queries = see.queries * see.heads * (act * (a.head_dim + a.v_head_dim) + sparse.FP32 * a.head_dim)
    return queries + sparse.FP32 * see.gathered * a.kv_heads * (a.head_dim + a.v_head_dim) / kv_split

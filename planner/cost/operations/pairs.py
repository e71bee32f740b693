"""Which pairs of a query and a key does attention of any kind compute, score and learn from, and with how many FLOPs?

Left out: projections, which are products like others (`flops.py`).
"""

from __future__ import annotations

import numpy as np

from planner.cost.operations.operation import Quantity
from planner.spec.attention import Attention
from planner.spec.indexer import IndexerLoss


def attended_pairs(attention: Attention, seq: Quantity) -> Quantity:
    """Query-key pairs inside the causal mask of one sequence [pairs].

    Full: s (s + 1) / 2. Sliding window w: sum over queries i of min(i, w) = s w - w (w - 1) / 2 with
    w = min(w, s). Chunks of c: each chunk is a full causal square of its own.
    """
    if attention.window is None:
        return seq * (seq + 1) / 2
    if attention.chunked:
        chunks, rest = seq // attention.window, seq % attention.window
        return chunks * (attention.window * (attention.window + 1) / 2) + rest * (rest + 1) / 2
    width: Quantity = np.minimum(attention.window, seq)
    return seq * width - width * (width - 1) / 2


def chosen_pairs(top_k: float, seq: Quantity, block: int = 0) -> Quantity:
    """Query-key pairs of one sequence whose queries see the best `top_k` of the keys before them [pairs].

    Sum over queries i of min(i, k) = s k - k (k - 1) / 2 with k = min(k, s), as of a window. Of blocks of B keys a
    query sees its own up to itself, and of the j before that min(j, k / B - 1): with n = s // B whole blocks, r tokens
    after them and w = min(n, k / B - 1), n B (B + 1) / 2 + r (r + 1) / 2 + B^2 (w (w - 1) / 2 + w (n - w)) + r B w.
    """
    if block:
        n, r = seq // block, seq % block
        w: Quantity = np.minimum(n, top_k // block - 1)
        own = n * (block * (block + 1) // 2) + r * (r + 1) / 2
        return own + block**2 * (w * (w - 1) / 2 + w * (n - w)) + r * block * w
    width: Quantity = np.minimum(top_k, seq)
    return seq * width - width * (width - 1) / 2


def compressed_keys(attention: Attention, seq: Quantity) -> Quantity:
    """Keys of one sequence that stand for several tokens each: whole stretches of them [keys]."""
    rate = 0 if attention.compression is None else attention.compression.rate
    return seq // rate if rate else 0 * seq


def compressed_pairs(attention: Attention, seq: Quantity, most: float = np.inf) -> Quantity:
    """Pairs of a query and a compressed key whose stretch ended before or at it, `most` of a query [pairs].

    Sum over queries i from 1 of min(i // m, k) = m k (k - 1) / 2 + k (s - k m + 1) with k = min(k, s // m).
    """
    rate = 0 if attention.compression is None else attention.compression.rate
    if not rate:
        return 0 * seq
    k: Quantity = np.minimum(most, seq // rate)
    return rate * k * (k - 1) / 2 + k * (seq - k * rate + 1)


def seen_pairs(attention: Attention, seq: Quantity) -> Quantity:
    """Pairs of a query and a key of one sequence that attention to gathered keys computes, by head [pairs]."""
    x = attention.indexer
    if attention.compression is None:
        return attended_pairs(attention, seq) if x is None else chosen_pairs(x.top_k, seq, x.block)
    return attended_pairs(attention, seq) + compressed_pairs(attention, seq, np.inf if x is None else x.top_k)


def scored_pairs(attention: Attention, seq: Quantity) -> Quantity:
    """Pairs of one sequence that an indexer scores, with a key before the query [pairs]."""
    if attention.compression is not None:
        return compressed_pairs(attention, seq)
    return seq * (seq + 1) / 2


def scored_keys(attention: Attention, seq: Quantity) -> Quantity:
    """Keys of one sequence among which an indexer chooses [keys]."""
    return seq if attention.compression is None else compressed_keys(attention, seq)


def taught_pairs(a: Attention, seq: Quantity) -> Quantity:
    """Pairs of one sequence over which an indexer's loss compares its scores with attention's weights [pairs]."""
    x = a.indexer
    if x is None or not x.trained:
        return 0 * seq
    if x.loss is IndexerLoss.DENSE:
        return scored_pairs(a, seq)
    if a.compression is not None:
        return compressed_pairs(a, seq, x.top_k)
    return chosen_pairs(x.top_k, seq, x.block)


def attention_flops(attention: Attention, batch: Quantity, seq: Quantity) -> Quantity:
    """Forward FLOPs of Q K^T and of the product with V over the full square of one layer [FLOP].

    2 b s^2 a (d_qk + d_v). Korthikanti 2022, arXiv 2205.05198, appendix A, with separate head widths.
    Masks and windows are ignored: see `seen_pairs`. Compressed keys stand beside those of all tokens.
    """
    keys = seq + compressed_keys(attention, seq)
    return 2 * batch * seq * keys * attention.heads * (attention.head_dim + attention.v_head_dim)


def indexer_flops(attention: Attention, pairs: Quantity) -> Quantity:
    """Forward FLOPs of an indexer's scores over `pairs` queries and keys [FLOP].

    2 h_i (d_i + 1): a product for every head and the weighted sum of them (arXiv 2512.02556, equation 1), as
    Megatron-Bridge 067f987 training/utils/flop_utils.py counts them. Heads that choose blocks are not summed up: 2 h_i
    d_i (MiniMax-AI/MSA@806faf8 benchmarks/training/msa_v1/README.en.md).
    """
    x = attention.indexer
    if x is None or x.shared:
        return 0 * pairs
    return 2 * x.heads * (x.head_dim + (not x.block)) * pairs


def indexer_backward_flops(attention: Attention, projections: Quantity, seq: Quantity) -> Quantity:
    """FLOPs that the loss of an indexer adds to the backward pass of one sequence [FLOP].

    Weight gradients of its `projections`, whose inputs are detached, as many as forward; over the pairs of the loss the
    gradients of queries and key, 2 x the scores, and attention's own scores as the target, 2 a d. As Megatron-Bridge
    067f987 training/utils/flop_utils.py counts them; of kernels that score again, a third more, nothing is counted.
    """
    x = attention.indexer
    if x is None or not x.trained:
        return 0 * seq
    pairs = taught_pairs(attention, seq)
    target = 2 * attention.heads * attention.latent_dim * pairs
    return projections + 2 * indexer_flops(attention, pairs) + target

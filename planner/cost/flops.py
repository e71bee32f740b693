"""How many FLOPs does a step need: per matrix product, per model?

A multiply-add is 2 FLOP. Left out: norms, activations, rotary rotation and softmax, which are bound by bytes
moved and belong to the time model; recomputation, which belongs to a configuration; frameworks' own counts (`mfu.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.spec.attention import Attention, AttentionKind
from planner.spec.indexer import IndexerLoss
from planner.spec.layer import Layer
from planner.spec.mixers import DeltaNet, ShortConvolution, StateSpace
from planner.spec.model import ModelSpec

Quantity = TypeVar("Quantity", float, NDArray[np.float64])


class Shard(StrEnum):
    """Which side of a weight matrix tensor parallelism divides."""

    COLUMN = "column"  # out_features / tp
    ROW = "row"  # in_features / tp
    NONE = "none"  # the whole matrix on every rank
    REPEATED = "repeated"  # and every token, sequence parallelism or not


@dataclass(frozen=True)
class Gemm:
    """One matrix product of a layer: [tokens x rows_per_token, in_features] x [in_features, out_features].

    `kv_out_features`: further columns of a fused q, k, v product, divided by min(tp, kv_heads) instead of tp.
    `groups`: 1, or the number of experts, over which the rows spread. `rows_per_token`: top_k for routed
    experts. `expert`: divided by etp and ep instead of tp. `detached`: its input gets no gradient; `frozen`: nor
    does its weight, whatever the job trains. `wide`: in 16 bits under every recipe.
    """

    name: str
    in_features: int
    out_features: int
    shard: Shard
    groups: int = 1
    rows_per_token: float = 1
    expert: bool = False
    kv_out_features: int = 0
    detached: bool = False
    frozen: bool = False
    wide: bool = False


def indexer_gemms(a: Attention, hidden: int) -> tuple[Gemm, ...]:
    """Projections of an indexer, which no gradient of the model passes: to queries, to the key, to a weight a head.

    Every tensor-parallel rank does them for all tokens (Megatron-Core, experimental_attention_variant/dsa.py
    DSAIndexer.forward_before_topk gathers what sequence parallelism shards). One that chooses blocks has no weights,
    and a rank the queries of its own key/value heads.
    """
    x = a.indexer
    if x is None or x.shared:
        return ()
    if x.block:
        return (
            Gemm("index_q", hidden, x.heads * x.head_dim, Shard.COLUMN, detached=True, frozen=not x.trained),
            Gemm("index_k", hidden, x.head_dim, Shard.REPEATED, detached=True, frozen=not x.trained),
        )
    keys = 1 if a.compression is None else 2 * a.compression.series  # and their gates
    shapes = (
        ("index_q", a.q_lora_rank or hidden, x.heads * x.head_dim),
        ("index_k", hidden, keys * x.head_dim),
        ("index_weights", hidden, x.heads),
    )
    return tuple(
        Gemm(name, inputs, outputs, Shard.REPEATED, detached=True, frozen=not x.trained)
        for name, inputs, outputs in shapes
    )


def compressed_gemms(a: Attention, hidden: int) -> tuple[Gemm, ...]:
    """Projections of compressed attention: queries by way of a low rank, the one key, what compresses it and its gates,
    and the output in groups, whose blocks make one product of the same work."""
    assert a.compression is not None
    width = 2 * a.compression.series * a.head_dim
    grouped = a.out_groups * a.out_rank
    return (
        Gemm("q_a", hidden, a.q_lora_rank, Shard.NONE),
        Gemm("q_b", a.q_lora_rank, a.heads * a.head_dim, Shard.COLUMN),
        Gemm("kv_a", hidden, a.head_dim, Shard.NONE),
        *((Gemm("compress", hidden, width, Shard.NONE),) if width else ()),
        *indexer_gemms(a, hidden),
        Gemm("out_groups", a.heads * a.v_head_dim // a.out_groups, grouped, Shard.COLUMN),
        Gemm("attention_out", grouped, hidden, Shard.ROW),
    )


def stream_gemms(layer: Layer, hidden: int) -> tuple[Gemm, ...]:
    """What weighs the residual streams at every branch, from all of them; 16 bits under every recipe."""
    weights = Gemm("streams", layer.streams * hidden, layer.stream_weights, Shard.NONE, wide=True)
    return (weights,) * layer.sublayers if layer.streams > 1 else ()


def _attention_gemms(a: Attention, hidden: int) -> tuple[Gemm, ...]:
    if a.compression is not None:
        return compressed_gemms(a, hidden)
    out = Gemm("attention_out", a.heads * a.v_head_dim, hidden, Shard.ROW)
    if a.kind is not AttentionKind.MLA:
        columns = a.heads * a.head_dim + a.gate_width
        qkv = Gemm("qkv", hidden, columns, Shard.COLUMN, kv_out_features=a.kv_width)
        return (qkv, *indexer_gemms(a, hidden), out)
    q_width = a.heads * a.head_dim
    kv_width = a.heads * (a.qk_nope_dim + a.v_head_dim)
    query: tuple[Gemm, ...]
    if a.q_lora_rank:
        query = (
            Gemm("q_a", hidden, a.q_lora_rank, Shard.NONE),
            Gemm("q_b", a.q_lora_rank, q_width, Shard.COLUMN),
        )
    else:
        query = (Gemm("q", hidden, q_width, Shard.COLUMN),)
    down = (Gemm("kv_a", hidden, a.kv_streams, Shard.NONE),) if a.kv_streams else ()
    # absorbed into queries and outputs it is no linear layer (Megatron-Core, absorbed_mla.py)
    up = Gemm("kv_b", a.kv_lora_rank, kv_width, Shard.COLUMN, wide=a.indexer is not None)
    gate = (Gemm("head_gate", hidden, a.gate_width, Shard.COLUMN),) if a.gate_width else ()
    return (*query, *down, up, *gate, *indexer_gemms(a, hidden), out)


def _mixer_gemms(layer: Layer, hidden: int) -> tuple[Gemm, ...]:
    s = layer.state_space
    attention = () if layer.attention is None else _attention_gemms(layer.attention, hidden)
    if s is None:
        return attention
    gemms = [Gemm("state_in", hidden, s.in_width - s.ranked_width, Shard.COLUMN)]
    if isinstance(s, DeltaNet) and s.gate_rank:
        gemms.append(Gemm("gate_down", hidden, s.ranks, Shard.NONE))
        gemms.append(Gemm("gate_up", s.gate_rank, s.ranked_width, Shard.COLUMN))
    return (*gemms, Gemm("state_out", s.inner, hidden, Shard.ROW), *attention)


def _moe_gemms(layer: Layer, hidden: int) -> tuple[Gemm, ...]:
    moe = layer.moe
    if moe is None:
        return ()
    inputs = 2 if moe.gated else 1
    ffn, k, n, width = moe.expert_ffn, moe.mean_k, moe.experts, moe.width(hidden)
    gemms = [Gemm("router", hidden, moe.choices, Shard.NONE, wide=True)]
    if moe.shared_ffn:
        gemms.append(Gemm("shared_fc1", hidden, inputs * moe.shared_ffn, Shard.COLUMN))
        gemms.append(Gemm("shared_fc2", moe.shared_ffn, hidden, Shard.ROW))
    if moe.shared_gate:
        gemms.append(Gemm("shared_gate", hidden, 1, Shard.NONE))
    if moe.latent:
        gemms.append(Gemm("latent_down", hidden, width, Shard.NONE))
    gemms.append(
        Gemm("expert_fc1", width, inputs * ffn, Shard.COLUMN, groups=n, rows_per_token=k, expert=True)
    )
    gemms.append(Gemm("expert_fc2", ffn, width, Shard.ROW, groups=n, rows_per_token=k, expert=True))
    if moe.latent:
        gemms.append(Gemm("latent_up", width, hidden, Shard.NONE))
    return tuple(gemms)


def layer_gemms(layer: Layer, hidden: int) -> tuple[Gemm, ...]:
    """The matrix products of one layer in order of execution; q, k, v fused, gate and up fused."""
    if layer.then is not None:
        return tuple(gemm for block in layer.blocks for gemm in layer_gemms(block, hidden))
    mixer, side = (*stream_gemms(layer, hidden), *_mixer_gemms(layer, hidden)), _side_gemms(layer, hidden)
    if layer.mlp is None:
        return mixer + _moe_gemms(layer, hidden) + side
    ffn, inputs = layer.mlp.ffn, 2 if layer.mlp.gated else 1
    return (
        *mixer,
        Gemm("mlp_fc1", hidden, inputs * ffn, Shard.COLUMN),
        Gemm("mlp_fc2", ffn, hidden, Shard.ROW),
        *side,
    )


def _side_gemms(layer: Layer, hidden: int) -> tuple[Gemm, ...]:
    """Around the product with a layer's own input."""
    if not layer.side:
        return ()
    return Gemm("side_gate", hidden, layer.side, Shard.NONE), Gemm("side_out", layer.side, hidden, Shard.NONE)


def head_gemm(model: ModelSpec) -> Gemm:
    """The projection onto the vocabulary, tied or not."""
    return Gemm("head", model.embedding_width, model.vocab, Shard.COLUMN)


def outer_gemms(model: ModelSpec) -> tuple[Gemm, ...]:
    """Products outside the layers: the head, the projections of a narrower embedding, MTP's projections.

    Each multi-token-prediction module projects the embedding and every residual stream, hidden -> hidden each, and runs
    the head again; layers' own inputs are a projection of the embedding, too.
    """
    n = model.streams
    gemms = [head_gemm(model)] * (1 + model.mtp_layers)
    gemms += [Gemm("mtp_projection", (1 + n) * model.hidden, model.hidden, Shard.NONE)] * model.mtp_layers
    if n > 1:
        gemms += [Gemm("last_streams", n * model.hidden, n, Shard.NONE)] * (1 + model.mtp_layers)
    if model.side_width:
        gemms.append(Gemm("side_inputs", model.hidden, model.side_width, Shard.NONE))
    if model.embedding_width != model.hidden:
        gemms.append(Gemm("project_in", model.embedding_width, model.hidden, Shard.NONE))
        gemms.append(Gemm("project_out", model.hidden, model.embedding_width, Shard.NONE))
    return tuple(gemms)


def gemm_flops(gemm: Gemm, tokens: Quantity) -> Quantity:
    """Forward FLOPs of one product over `tokens` [FLOP].

    2 x tokens x rows_per_token x in x (out + kv_out), all ranks together.
    """
    weights = gemm.in_features * (gemm.out_features + gemm.kv_out_features)
    return 2 * tokens * gemm.rows_per_token * weights


def attention_flops(attention: Attention, batch: Quantity, seq: Quantity) -> Quantity:
    """Forward FLOPs of Q K^T and of the product with V over the full square of one layer [FLOP].

    2 b s^2 a (d_qk + d_v). Korthikanti 2022, arXiv 2205.05198, appendix A, with separate head widths.
    Masks and windows are ignored: see `seen_pairs`. Compressed keys stand beside those of all tokens.
    """
    keys = seq + compressed_keys(attention, seq)
    return 2 * batch * seq * keys * attention.heads * (attention.head_dim + attention.v_head_dim)


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


def scan_flops(s: StateSpace, tokens: Quantity) -> Quantity:
    """Forward FLOPs of a state space between its projections [FLOP].

    Convolution 2 w (x + 2 g n), and the scan in chunks of q: C B^T 2 q g n, its product with x 2 q x, states of the
    chunks and what they add to the output, 2 n x each; per token, x = heads x head_dim. Dao and Gu 2024, arXiv
    2405.21060, section 6, as state-spaces/mamba ops/triton/ssd_combined.py has it; the whole square of a chunk is
    counted. Of a gated delta net see `delta_flops`; a short convolution has nothing else.
    """
    convolution = 2 * s.conv * s.conv_width
    if isinstance(s, ShortConvolution):
        return tokens * convolution
    if isinstance(s, DeltaNet):
        return tokens * (convolution + delta_flops(s.heads, s.state, s.head_dim, s.chunk))
    pairs = 2 * s.chunk * (s.groups * s.state + s.inner)
    return tokens * (convolution + pairs + 4 * s.state * s.inner)


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


def indexer_backward_flops(attention: Attention, hidden: int, seq: Quantity) -> Quantity:
    """FLOPs that the loss of an indexer adds to the backward pass of one sequence [FLOP].

    Weight gradients of its projections, whose inputs are detached; over the pairs of the loss the gradients of queries
    and key, 2 x the scores, and attention's own scores as the target, 2 a d. As Megatron-Bridge 067f987
    training/utils/flop_utils.py counts them; of kernels that score again, a third more, nothing is counted.
    """
    x = attention.indexer
    if x is None or not x.trained:
        return 0 * seq
    pairs = taught_pairs(attention, seq)
    target = 2 * attention.heads * attention.latent_dim * pairs
    projections = sum(gemm_flops(gemm, seq) for gemm in indexer_gemms(attention, hidden))
    return projections + 2 * indexer_flops(attention, pairs) + target


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of one forward and backward pass over a batch.

    `forward_linear`: all matrix products with weights, experts included. `forward_attention`: full square, windows and
    what an indexer chooses ignored. `forward_scan`: of state spaces alone.
    `forward_indexer`: scores of indexers over the full square. `backward`: 2 x forward (one product for the input's
    gradient, one for the weight's), on the full square; of indexers what their loss needs (`indexer_backward_flops`).
    """

    forward_linear: float
    forward_attention: float
    forward_scan: float
    forward_indexer: float
    backward: float

    def as_mapping(self) -> dict[str, float]:
        """The keys of `planner model --json`."""
        return {
            "flops_forward_linear": self.forward_linear,
            "flops_forward_attention": self.forward_attention,
            "flops_forward_scan": self.forward_scan,
            "flops_forward_indexer": self.forward_indexer,
            "flops_backward": self.backward,
        }


def layer_counts(model: ModelSpec) -> list[tuple[Layer, int]]:
    """Distinct layers of one block and how often each runs, multi-token-prediction modules included."""
    counts = Counter(model.layer_kind_of)
    counts.update(dict(model.mtp_kinds))
    kinds = ((model.layer_kinds[index], count) for index, count in sorted(counts.items()))
    return [(block, count) for layer, count in kinds for block in layer.blocks]


def model_flops(model: ModelSpec, batch: float, seq: float) -> ModelFlops:
    """FLOPs of one step over `batch` sequences of `seq` tokens, without recomputation [FLOP].

    Linear: 2 x tokens x active matrix parameters. Attention: 2 b s^2 a (d_qk + d_v) per layer. Agrees with
    counts made on the transformers implementations to the last FLOP. Integers in, integers out.
    """
    tokens = batch * seq
    linear = sum(gemm_flops(gemm, tokens) for gemm in outer_gemms(model))
    square: float = 0
    scan: float = 0
    scores: float = 0
    taught: float = 0
    for layer, count in layer_counts(model):
        linear += count * sum(gemm_flops(gemm, tokens) for gemm in layer_gemms(layer, model.hidden))
        if layer.attention is not None:
            square += count * attention_flops(layer.attention, batch, seq)
            scores += count * indexer_flops(layer.attention, batch * seq * scored_keys(layer.attention, seq))
            taught += count * batch * indexer_backward_flops(layer.attention, model.hidden, seq)
        if layer.state_space is not None:
            scan += count * scan_flops(layer.state_space, tokens)
    detached = sum(
        count * gemm_flops(gemm, tokens)
        for layer, count in layer_counts(model)
        for gemm in layer_gemms(layer, model.hidden)
        if gemm.detached
    )
    backward = 2 * (linear - detached + square + scan) + taught
    return ModelFlops(linear, square, scan, scores, backward)

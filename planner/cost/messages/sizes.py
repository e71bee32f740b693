"""How large are the messages of a layer's parallelism?

Left out: how often they are sent and over which links (the files of each axis).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.spec.attention import Attention, AttentionKind
from planner.spec.layer import Layer
from planner.spec.precision import RECIPES, Precision
from planner.spec.rule import Problem

Quantity = float | NDArray[np.float64]


def stream_bytes(tokens: Quantity, hidden: float, width: float) -> Quantity:
    """The hidden state of `tokens` tokens at `width` bytes a value: n h w [bytes].

    Gathered before and scattered after every tensor-parallel region (Korthikanti 2022, arXiv 2205.05198, section
    4.2.2); divided by t where sequence parallelism shards it, as between pipeline stages.
    """
    return tokens * hidden * width


def gathered_width(problem: Problem) -> float:
    """Bytes of a value that sequence-parallel ranks gather before a tensor-parallel region, in either pass.

    torchao casts a layer's input before the gather, and the gradient of a region's output before its own; what is
    scattered is a product's output, of 16 bits (torchao float8/float8_tensor_parallel.py PrepareFloat8ModuleInput,
    Float8RowwiseParallel; torchtitan 0.2.2 models/llama3/infra/parallelize.py: enable_float8_tensorwise_tp, scales by
    rows gather in 16 bits). Left out: all-reduces of the largest value of every tensor, tens of microseconds each.
    """
    narrow = problem.stack.kernels.tp_gathers_float8 and not problem.model.is_moe
    tensorwise = narrow and problem.job.precision is Precision.FP8_CS
    recipe = RECIPES[problem.job.precision]
    return recipe.operand_bytes if tensorwise else recipe.activation_bytes


def tensor_parallel_regions(layer: Layer) -> float:
    """Pairs of an all-gather and a reduce-scatter in one forward pass of a layer [1].

    Around attention or the state space, each of both, and around the MLP; one where attention and MLP run in parallel,
    none around routed experts alone.
    """
    if layer.parallel:
        return 1.0
    routed_alone = layer.moe is not None and not layer.moe.shared_ffn
    return float(layer.sublayers + layer.mixes_twice - routed_alone)


def key_value_bytes(
    a: Attention, tokens: Quantity, t: Quantity, kv_split: Quantity, width: float
) -> Quantity:
    """Keys and values of a rank's own tokens: n k (d_k + d_v) w, over t [bytes].

    Latent attention passes on the expanded keys and values of all heads; behind an indexer its one latent key, which is
    the value too, and that of the indexer, to every tensor-parallel rank. An indexer that chooses blocks adds its key.
    """
    own = 0 if a.indexer is None or a.indexer.shared else a.indexer.head_dim
    if a.sparse and not a.chooses_blocks:
        return width * tokens * (a.latent_dim * (not a.borrows_kv) + own)
    if a.kind is AttentionKind.MLA:
        return width * tokens * a.heads * (a.head_dim + a.v_head_dim) / t
    return width * tokens * (a.kv_heads * (a.head_dim + a.v_head_dim) / kv_split + own)


def whole_qkv_bytes(problem: Problem, layer: Layer, tokens: Quantity, t: Quantity, width: float) -> Quantity:
    """Queries, keys and values of all heads that tensor-parallel ranks gather where they outnumber the key/value heads,
    and whose gradients they scatter: n (a d_q + k (d_k + d_v)) w, 0 elsewhere [bytes].

    Megatron-LM from core_v0.16 on deals the columns of the product evenly, gathers its outputs and takes a rank's own
    out of them (d98e8a6 core/transformer/attention.py, get_query_key_value_tensors).
    """
    a = layer.attention
    if a is None or a.kind is AttentionKind.MLA or not problem.stack.communication.gathers_qkv:
        return 0.0 * tokens
    return np.where(
        np.asarray(t) > a.kv_heads, tokens * (a.heads * a.head_dim + a.gate_width + a.kv_width) * width, 0.0
    )


def indexer_bytes(a: Attention, hidden: float, tokens: Quantity, width: float) -> tuple[Quantity, Quantity]:
    """What the indexer's work adds to tensor parallelism, forward and backward [bytes].

    Sequence-parallel ranks gather the hidden state and compressed queries, n (h + r_q) w, for which no gradient comes
    back; and sum the weights of their heads over the chosen keys in fp32, 4 n k, the target of the loss. Source:
    Megatron-LM core/transformer/experimental_attention_variant/dsa.py, dsa_cudnn_kernels.py. One that chooses blocks
    reads what queries and keys do, and its heads learn from those of their own rank.
    """
    x = a.indexer
    if x is None or x.shared or x.block:
        return 0.0 * tokens, 0.0 * tokens
    return width * tokens * (hidden + a.q_lora_rank), 4.0 * tokens * x.top_k * x.trained


def query_output_bytes(a: Attention, tokens: Quantity, t: Quantity, width: float) -> Quantity:
    """Queries and attention's output of a rank's own tokens: n a (d_q + d_v) w / t [bytes]."""
    return width * tokens * a.heads * (a.head_dim + a.v_head_dim) / t

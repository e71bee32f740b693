"""Of how many tensors does a rank hold a part that its optimizer updates?

The host handles them one by one: Megatron-Core's distributed optimizer keeps an fp32 shard of every tensor that reaches
into the rank's part of a bucket, sets its gradient, lists it for the update and copies it back (d98e8a6
core/optimizer/distrib_optimizer.py `_copy_model_grads_to_main_grads`, `_copy_main_params_to_model_params`; Transformer
Engine's FusedAdam.step). Left out: loops over all of a rank's parameters that launch nothing; which tensors the stages
of an uneven split hold (the mean counts); that experts and the rest have buckets of their own where both are few.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.operations.lists import layer_gemms
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.job import Job
from planner.spec.layer import Layer
from planner.spec.model import ModelSpec

Array = NDArray[np.float64]

# Parameters of a bucket: 40 million, or a million times the data-parallel degree where that is more (core/distributed/
# distributed_data_parallel.py).
BUCKET: Final = 40e6
BUCKET_PER_RANK: Final = 1e6
OUTER_TENSORS: Final = 3  # embedding, the norm before the head, the head
MLA_TENSORS: Final = 5  # down to the compressed keys and values, their norm, up, queries, out
INDEXER_TENSORS: Final = 5
BLOCK_INDEXER_TENSORS: Final = 4  # queries, the key, a norm of each
SHARED_KEY_TENSORS: Final = 8  # of DeepSeek-V4: queries down, norm, up, key, norm, sinks, out twice
COMPRESSOR_TENSORS: Final = 4
STREAM_TENSORS: Final = 5  # of a branch: projection, biases, three scales
STATE_SPACE_TENSORS: Final = 8  # in, convolution and its bias, time step's bias, decay, skip, norm, out


def attention_tensors(a: Attention) -> int:
    """Projections, their norms and biases, queries, keys and values being one product [1]."""
    if a.kind is AttentionKind.MLA:
        indexer = INDEXER_TENSORS * (a.indexer is not None and not a.indexer.shared)
        scales = 2 * a.scaled + 4 * (a.indexer is not None and a.indexer.scaled and not a.indexer.shared)
        beside = 2 * (a.q_lora_rank > 0) + (a.gate_width > 0) + a.sinks + a.rotated_norm
        return MLA_TENSORS - 2 * a.borrows_kv + beside + indexer + scales
    if a.compression is not None:
        compressor = COMPRESSOR_TENSORS * (a.compression.rate > 0)
        return SHARED_KEY_TENSORS + compressor + (INDEXER_TENSORS + 1) * (a.indexer is not None)
    indexer = BLOCK_INDEXER_TENSORS * a.chooses_blocks
    return 2 + a.qkv_bias + a.out_bias + 2 * (a.qk_norm is not QkNorm.NONE) + a.sinks + indexer


def layer_tensors(layer: Layer) -> tuple[int, int]:
    """Trained tensors of one layer, as Megatron-Core's modules hold them: of all experts, and the rest [1]."""
    dense = layer.norms * (1 + layer.norm_bias) * layer.norm_weight
    dense += 0 if layer.attention is None else attention_tensors(layer.attention)
    dense += (STREAM_TENSORS - layer.streams_apart) * layer.sublayers * (layer.streams > 1)
    dense += 2 * len(layer.earlier)
    dense += STATE_SPACE_TENSORS * (layer.state_space is not None)
    dense += 0 if layer.mlp is None else 2 * (1 + layer.mlp.bias)
    if layer.moe is None:
        return 0, dense
    shared = 2 * (layer.moe.shared_ffn > 0) + layer.moe.shared_gate
    return 2 * (1 + layer.moe.expert_bias) * layer.moe.experts, dense + 1 + layer.moe.router_bias + shared


def trained_tensors(model: ModelSpec, job: Job) -> tuple[int, int]:
    """Trained tensors of the model: of experts, and the rest; of adapters two a linear layer [1]."""
    kinds = model.layer_kinds
    if job.lora_rank is not None:
        adapted = [
            sum(2 for gemm in layer_gemms(kind, model.hidden) if not gemm.expert and job.adapts(gemm.name))
            for kind in kinds
        ]
        return 0, sum(adapted[kind] for kind in model.layer_kind_of)
    each = [layer_tensors(kind) for kind in kinds]
    counts = [*((kind, 1) for kind in model.layer_kind_of), *model.mtp_kinds]
    outer = OUTER_TENSORS + (model.rotary_scales > 0)
    return sum(n * each[kind][0] for kind, n in counts), outer + sum(n * each[kind][1] for kind, n in counts)


def pieces(tensors: Array, ranks: Array, buckets: Array) -> Array:
    """Tensors, or parts of one, that a rank updates where `ranks` share each of so many buckets of them [1].

    n/r + min(B, n) (1 - 1/r): every r-th tensor, and at either end of its part of a bucket half a tensor that it shares
    with a neighbour. All n alone (r = 1) and where every tensor has its own bucket (B = n).
    """
    return tensors / ranks + np.minimum(buckets, tensors) * (1.0 - 1.0 / ranks)


def buckets_of(parameters: Array, dp: Array, chunks: Array, overlapped: bool) -> Array:
    """Buckets of so many parameters of a first stage [1]: its first chunk is cut where reductions start under the
    backward pass, every other chunk is one (DistributedDataParallel, disable_bucketing)."""
    size = np.maximum(BUCKET, BUCKET_PER_RANK * dp)
    first = np.maximum(parameters / chunks / size, 1.0) if overlapped else np.ones_like(parameters)
    return first + chunks - 1.0

"""What do the embedding, the head and the loss multiply by, keep, need and move, per micro-batch?

Single operations of PyTorch are counted in transformers (loss/loss_utils.py ForCausalLMLoss) as those of norms are
(`norms.py`). Left out: their time (`edges.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.cost.cut import LayerShape
from planner.cost.operations.lists import residual_of
from planner.cost.operations.norms import (
    NORM_WORKING,
    STATISTIC_BYTES,
    eager_norm_bytes,
    norm_bytes,
    wide_norm_bytes,
)
from planner.cost.operations.operation import (
    Array,
    Gemm,
    Operation,
    Run,
    Shard,
    Weights,
    product,
    with_something,
)
from planner.cost.operations.residual import MULTIPLIED_PASSES, SUM_PASSES
from planner.spec.layer import NormKind
from planner.spec.model import ModelSpec
from planner.spec.precision import PrecisionRecipe
from planner.spec.stack.kinds import AttentionKernel
from planner.spec.stack.losses import FP32, Chunked, Linear, Logits
from planner.spec.stack.time import Kernels

# over logits that pass a tanh between two constants, forward and backward, in single operations
CAP_PASSES = 13.0


@lru_cache(maxsize=64)
def operations(model: ModelSpec) -> tuple[Operation, ...]:
    """What stands outside the layers, without those that have neither products nor parameters.

    The embedding with tables of layers' own inputs, their projection, a widening one (OPT-350m); positions, and factors
    of the frequencies with which pairs of channels turn, one set for all layers, which later stages hold once more
    (transformers 5.24 models/mistral_large4/modeling_mistral_large4.py MistralLarge4TextRotaryEmbedding.alpha); norms
    after the embedding, before the head and of layers' own inputs; what sums up the residual streams, or the stretches
    of layers; the head, whose weight is 0 where it is tied. Of every multi-token-prediction module without its layers:
    a projection of the embedding and every residual stream, three norms (of the previous hidden state, of the next
    token's embedding, before the head; Liu et al. 2024, arXiv 2412.19437, section 2.2), what sums up its streams
    (Megatron-Bridge models/deepseek/deepseek_v4_bridge.py: hc_head of a prediction layer), and the head again.
    """
    h, width, n, side = model.hidden, model.embedding_width, model.streams, model.side_width
    scale = h * (1 + model.norm_bias) * model.norm_weight
    norms = scale * (model.final_norm + model.embedding_norm) + max(layer.side for layer in model.layer_kinds)
    narrow = width if width != h else 0
    head, residual = Gemm("head", width, model.vocab, Shard.COLUMN), model.residual
    summed = () if residual is None else residual_of(residual).outer(residual, h)
    logits = width * model.vocab * (not model.tied_embeddings) + model.vocab * model.head_bias

    def table(kind: str, parameters: int) -> Operation:
        return Operation(kind, kind, weights=Weights(replicated=parameters))

    ahead = (
        table("embedding", model.vocab * width + model.side_vocab * side),
        product(Gemm("project_in", narrow, h, Shard.NONE), "embedding"),
        product(Gemm("side_inputs", h, side, Shard.NONE), "embedding"),
        table("position", model.position_rows * h + model.rotary_scales),
        table("final_norm", norms),
        *summed,
        product(Gemm("project_out", h, narrow, Shard.NONE), "head"),
        Operation("head", "head", head, Weights(column_row=logits)),
    )
    projection = Gemm("mtp_projection", (1 + n) * h, h, Shard.NONE)
    predicting = (
        Operation("mtp_projection", "mtp", projection, Weights(replicated=2 * h**2)),
        table("mtp", 3 * scale),
        *(replace(op, kind="mtp") for op in summed if n > 1),
        Operation("head", "mtp", head),
    )
    return with_something((*ahead, *predicting * model.mtp_layers))


@dataclass(frozen=True)
class HeadActivations:
    """Final norm, head and loss, per micro-batch [bytes]. `inputs`: kept of the norm and the head. `logits`: what the
    model returns. `kept`: what the loss keeps. `transient`: above `kept` at the loss's peak. `gradient`: of the
    logits, when the head's own backward starts. `forward`: alive when the head's forward ends, its input and the
    logits, or while the final norm's runs. `norm_gradient`: alive while the head's gradient is there, in the head's
    backward or the norm's."""

    inputs: Array
    logits: Array
    kept: Array
    transient: Array
    gradient: Array
    forward: Array
    norm_gradient: Array


def head_activations(
    vocabulary: Array, model: ModelSpec, x: LayerShape, kernels: Kernels, recipe: PrecisionRecipe,
    trained: bool = True,
) -> HeadActivations:  # fmt: skip
    """What head and loss keep and need, per micro-batch [bytes].

    Inputs: 4 s b h and the norm's statistics; a head that is not `trained` keeps no input of its own. Of logits see
    `spec.stack.losses`; V is divided by t unless every rank holds them whole. Those are a copy of what tp ranks gather
    of their parts, all three alive for a moment, beside the norm's output before it is gathered (torch
    distributed/_functional_collectives.py all_gather_tensor: torch.cat of what came of every rank).
    """
    run = Run.of_model(model, kernels, recipe)
    act, stream, gathered = run.act, run.stream(x), run.gathered(x)
    inputs = act * (stream + gathered * trained) + STATISTIC_BYTES * x.tokens / x.sequence_split
    inputs = inputs + act * x.tokens * model.side_width  # the norm of layers' own inputs
    if (residual := model.residual) is not None:
        inputs = inputs + residual_of(residual).kept_behind(residual, run, x)
    norm = eager_norm_bytes(run)
    inputs = inputs + norm * (stream + x.tokens * model.side_width)
    loss, split = kernels.loss, np.where(kernels.loss.whole, 1.0, x.t)
    values = x.tokens * vocabulary / split
    logits, whole = act * values, loss.kept_logits * x.tokens * vocabulary
    parted = np.where((x.t > 1) & (split == 1.0), logits * (1.0 + 1.0 / x.t), 0.0)
    forward = inputs + logits + parted + np.where(x.sequence_split > 1, act * stream, 0.0)
    wide_norm = wide_norm_bytes(run) * stream
    if norm:  # upcast and normed in fp32, both as they were and as they are multiplied
        forward = np.maximum(forward + act * stream, 2.0 * wide_norm + 3.0 * act * stream)
    statistics = STATISTIC_BYTES * x.tokens / x.sequence_split
    behind = np.where(wide_norm > 0, (1.0 + NORM_WORKING) * wide_norm + statistics, 0.0)
    part = 1.0 / loss.parts(x.tokens, vocabulary / split, model.hidden)
    at_once, weights = logits * part, trained * vocabulary / split * model.hidden
    beside = whole + _idle_scores(model, x, kernels, recipe, FP32 * values)
    kept, transient, gradient = loss.held(
        Logits(at_once, values * part, act * stream, beside, weights, split, act)
    )
    # what a tanh made of them, of which a loss in parts keeps none
    capped = logits * (model.capped_logits and not isinstance(loss, Chunked | Linear))
    return HeadActivations(
        inputs, at_once, kept + capped, transient, gradient, forward + capped - (logits - at_once),
        np.maximum(inputs + at_once, behind),
    )  # fmt: skip


def _idle_scores(
    model: ModelSpec, x: LayerShape, kernels: Kernels, recipe: PrecisionRecipe, logits: Array
) -> Array:
    """Blocks in which an unfused softmax had its scores, idle at the loss [bytes].

    They hold no `logits`, which are larger, and short of memory the allocator keeps those that a small tensor has split
    (torch c10/cuda/CUDACachingAllocator.cpp, release_blocks). In fp32, a fused softmax's in the width of activations.
    """
    unfused = [k.attention for k in model.layer_kinds if k.attention is not None]
    heads = max((a.heads for a in unfused if not kernels.attention_of(a).tiled), default=0)
    width = 4.0 if kernels.attention is AttentionKernel.EAGER else recipe.activation_bytes
    scores = width * heads / x.t * x.tokens * x.seq_kv
    return np.where(scores < logits, kernels.code.idle_scores * scores, 0.0)


def side_bytes(width: float) -> float:
    """Bytes per value that making layers' own inputs moves beside its product, forward and backward.

    The table's rows scaled; the projection scaled and normed; their sum, and it scaled (models/gemma4/
    modeling_gemma4.py project_per_layer_inputs); gradients of the slices that layers read laid into zeros and summed.
    """
    norm = norm_bytes(NormKind.RMS, width, True, wide=True)
    return sum(norm) + width * (2 * 3 * MULTIPLIED_PASSES + SUM_PASSES)


def loss_bytes(width: float, multiplied: bool = False, capped: bool = False) -> float:
    """Bytes per logit that an eager loss moves, forward and backward; 36 in 16 bits, and those of a constant's product;
    `capped`: of a quotient, a tanh and a product before it, 6 passes and 7 backward.

    Logarithm of the softmax in fp32 (read, write), its gradient into zeros (write), back through the softmax (read,
    read, write), between a cast to fp32 and one back. Transformers before 4.45 also copies shifted logits of several
    sequences: 20 more.
    """
    product = 2.0 * MULTIPLIED_PASSES * width * multiplied
    return 24.0 + (2.0 * (width + 4.0) if width < 4.0 else 0.0) + product + CAP_PASSES * width * capped

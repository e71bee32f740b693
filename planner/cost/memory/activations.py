"""Which tensors does a layer keep for its backward pass, and how large are they on one rank?

Op by op as autograd saves them (torch eager, checked against saved tensors of real blocks); sizes in bytes
for one micro-batch on one rank. Parts carry the name of the module whose recomputation frees them. Left out:
allocator rounding and tensors of a few bytes per layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.chunked_loss import gradient_temporaries, is_chunked, loss_parts
from planner.cost.mixers import block_attention, sparse_attention
from planner.cost.mixers.kinds import kept_parts
from planner.cost.mixers.state_space import cut_of
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.job import ATTENTION_INPUTS, Job
from planner.spec.layer import Layer, NormKind
from planner.spec.model import ModelSpec
from planner.spec.precision import PrecisionRecipe
from planner.spec.stack.kinds import AttentionKernel, CrossEntropy, SparseKernel
from planner.spec.stack.time import Kernels

Array = NDArray[np.float64]

MASK_BYTES = 1.0
STATISTIC_BYTES = 4.0
# Of every value of the sums that a branch attends to by attention residuals: itself and normed, in fp32; and alive
# backward: gradients of both, of their product and of their sum (Megatron-Bridge models/kimi/kimi_k3_ops.py).
RESIDUAL_KEPT = 8.0
RESIDUAL_WORKING = 16.0
# Tensors as wide as experts that a clamped gate of single operations keeps, its input and output left out: the clamped
# gate, its sigmoid, their product and the clamped up (torchtitan 0.3.0 models/gpt_oss/moe.py swiglu).
CLAMPED_KEPT = 4.0
# Copies of the fp32 stream alive in the backward pass of an RMS norm of single operations, beside the one it kept: the
# gradient of the normed stream, its part through the product, and of the square the factor, the gradient and their sum.
NORM_WORKING = 5.0
# copies of fp32 logits at the peak of Megatron-LM's native fusion, as of PyTorch's loss: of two peaks of NeMo (logs of
# NVIDIA/dgxc-benchmarking, llama3 8B), what is left for the loss is 10 and 14 bytes a logit, 12 counted
COMPILED_PEAK = 3.0


@dataclass(frozen=True)
class LayerShape:
    """How one micro-batch of a layer is cut, one value per key; all float arrays of one length.

    `tokens`: b s / c, tokens of the micro-batch on a context-parallel rank. `t`, `kv_split`: ranks that divide
    query heads and key/value heads. `sequence_split`: t with sequence parallelism, else 1. `expert_tokens`:
    tokens that enter the router per rank, before choosing K experts. `e`, `et`: expert and expert-tensor
    parallel ranks. `seq_kv`: keys a query can see, s.
    `imbalance`: tokens of the busiest expert-parallel rank over the mean; where experts are padded to one capacity,
    its factor on every rank (Megatron-LM d98e8a6 moe/moe_utils.py get_capacity, less its rounding up to a whole row).
    """

    tokens: Array
    t: Array
    kv_split: Array
    sequence_split: Array
    expert_tokens: Array
    e: Array
    et: Array
    c: Array
    seq_kv: Array
    imbalance: Array | float = 1.0

    @property
    def routed_tokens(self) -> Array:
        """Tokens whose copies the busiest expert-parallel rank works on, before choosing K experts."""
        return self.expert_tokens * self.imbalance

    def rows_for_experts(self, mean_k: float, capacity: float) -> Array:
        """Rows of which memory is taken, of `mean_k` experts a token: those of the busiest rank, or the buffer's; a
        rank of `et` that share its experts holds `et` times as many, as it does without a buffer.

        `capacity`: rows of a buffer of one size over those that a rank's own tokens make, 0 where it is made as rows
        come; a rank alone in its group gets none (Megatron-LM d98e8a6 moe/token_dispatcher.py
        _HybridEPManager.setup_metadata).
        """
        if not capacity:
            return self.routed_tokens * mean_k
        held = np.where(self.e * self.et > 1, capacity / self.et * self.expert_tokens, self.routed_tokens)
        return np.asarray(held * mean_k)

    def take(self, rows: NDArray[np.intp]) -> LayerShape:
        """The cut of the chosen keys."""
        columns = {name: column[rows] for name, column in vars(self).items() if np.ndim(column)}
        return replace(self, **columns)


def linear_input_bytes(recipe: PrecisionRecipe, kernels: Kernels) -> float:
    """Bytes per value of what a linear layer keeps of its input [bytes].

    Transformer Engine keeps one narrow copy, along the columns where scales go by block, with its scales
    (pytorch/module/linear.py _linear_forward_impl: update_usage of inputmat); padding of scales to 128 x 4 left out.
    """
    return recipe.operand_bytes if kernels.keeps_narrow_inputs else recipe.activation_bytes


def sparse_sight(a: Attention, x: LayerShape) -> sparse_attention.Sight | None:
    """What a rank's queries see of whole sequences by kernels that gather keys; None by others."""
    if not a.sparse:
        return None
    return sparse_attention.sight_of(a, x.tokens * x.c / x.seq_kv, x.seq_kv, x.t, x.c, packed=False)


def eager_norm_bytes(model: ModelSpec, kernels: Kernels, recipe: PrecisionRecipe) -> float:
    """Bytes per value that an RMS norm keeps beside its input, 0 where it is one kernel or keeps no more.

    transformers' keeps an fp32 copy, and what it multiplies by its weight, which stands for its input: in the width of
    activations, or in fp32.
    """
    if kernels.fused_norm or model.norm_kind is not NormKind.RMS:
        return 0.0
    wide = 4.0 - recipe.activation_bytes if model.wide_norms and kernels.single_operations else 0.0
    return kernels.eager_norm_bytes + wide


def wide_norm_bytes(model: ModelSpec, kernels: Kernels, recipe: PrecisionRecipe) -> float:
    """Bytes per value of the fp32 stream in which an RMS norm of single operations works, 0 where it is one kernel."""
    return 4.0 if eager_norm_bytes(model, kernels, recipe) > 0 else 0.0


def _attention_parts(
    a: Attention, h: float, x: LayerShape, kernels: Kernels, recipe: PrecisionRecipe, norm: float
) -> dict[str, Array]:
    """q, k, v, output and what attention itself keeps. Liu 2024 (arXiv 2405.04434) for MLA's streams.

    `norm`: see `eager_norm_bytes`; of values, whose norm has no weight, the stack's own.
    """
    act = recipe.activation_bytes
    width, kernel = kernels.attention_output_bytes, kernels.attention_of(a)
    out = (width or act) * a.heads * a.v_head_dim * x.tokens / x.t
    saved = linear_input_bytes(recipe, kernels)
    extra = np.where((saved < act) & (width == 0), saved / act * out, 0.0)
    gate = act * x.tokens * a.gate_width / x.t
    if a.gate_width:  # the output before its gate
        extra = extra + act * x.tokens * a.heads * a.v_head_dim / x.t
    see, sparse = sparse_sight(a, x), kernels.sparse_attention or SparseKernel.NONE
    if see is not None and not a.chooses_blocks:
        gathered = np.where(x.sequence_split > 1, x.tokens * (h + a.q_lora_rank), 0.0)
        parts = sparse_attention.kept_parts(a, see, sparse, act, gathered)
        grouped = saved * x.tokens * a.out_groups * a.out_rank / x.t
        streams = _narrow_streams(a, x, act) + gate
        return {"mla_streams": streams, **parts, "attention_out": out + extra + grouped}
    if a.kind is AttentionKind.MLA:
        compressed = _narrow_streams(a, x, act)
        widths = a.heads * (2 * a.head_dim + a.qk_nope_dim + a.v_head_dim)
        parts = {"mla_streams": compressed + gate, "mla_up_proj": act * x.tokens * widths / x.t}
    else:
        q = act * x.tokens * a.heads * a.head_dim / x.t
        k = act * x.tokens * a.rotated_kv_heads * a.head_dim / x.kv_split
        kv = k + act * x.tokens * a.own_kv_heads * a.v_head_dim / x.kv_split
        if kernel is AttentionKernel.MEMORY_EFFICIENT:  # one key and value for every query head
            kv = act * x.tokens * a.heads * (a.head_dim + a.v_head_dim) / x.t
        copies = 2.0 if a.qk_norm is not QkNorm.NONE else 1.0
        pinned = kv if kernels.pins_fused_qkv and a.kv_heads == a.heads else 0.0
        # what the norm of values reads; tied ones are the keys before theirs
        raw = (
            act * x.tokens * a.own_kv_heads * a.v_head_dim / x.kv_split * (a.value_norm and not a.tied_values)
        )
        parts = {"qkv": q * copies + kv + (copies - 1) * k + raw + pinned + gate}
        if not kernels.fused_norm:
            values = a.own_kv_heads * a.v_head_dim / x.kv_split * a.value_norm
            normed = (copies - 1) * (q + k) / act * max(norm, kernels.eager_norm_bytes)
            parts["qkv"] = parts["qkv"] + normed + values * x.tokens * kernels.eager_norm_bytes
    heads = a.heads / x.t
    if see is not None:
        inputs, core = block_attention.kept_bytes(a, see, sparse, act, x.kv_split)
        parts["qkv"] = parts["qkv"] + inputs
    elif kernel.tiled:
        core = STATISTIC_BYTES * heads * x.tokens
    else:
        square = heads * x.tokens * x.seq_kv
        dropped = (MASK_BYTES + act) if kernels.dropout else 0.0
        core = (kernels.score_bytes or act + dropped) * square
    return {**parts, "core_attn": core, "attention_out": out + extra}


def _narrow_streams(a: Attention, x: LayerShape, act: float) -> Array:
    """Compressed queries, keys and values before and after their norms; of compressed keys what enters them, too."""
    if a.compression is None:
        keys = 2 * a.kv_lora_rank + (1 + a.rotated_norm) * a.qk_rope_dim
        return act * x.tokens * (2 * a.q_lora_rank + keys * (not a.borrows_kv))
    width = a.head_dim + (0 if a.indexer is None else a.indexer.head_dim)
    entering = 2 * a.compression.series * width
    return act * x.tokens * (2 * (a.q_lora_rank + a.head_dim) + entering)


def _mlp_parts(
    ffn: float, gated: bool, tokens: Array, split: Array, kernels: Kernels, recipe: PrecisionRecipe
) -> Array:
    """fc1's output, the activation's output (input of fc2): 2f + 2f, gated 4f + 2f, eager SiLU 2f more."""
    act = recipe.activation_bytes
    wide = (2 if gated else 1) * (kernels.activation_input_bytes or act) + linear_input_bytes(recipe, kernels)
    if gated and not kernels.fused_activation:
        wide += act
    return tokens * ffn * wide / split


def _moe_parts(
    layer: Layer, h: float, x: LayerShape, kernels: Kernels, recipe: PrecisionRecipe
) -> dict[str, Array]:
    """Router probabilities, permuted inputs, expert activations and outputs; K copies of every token.

    Expert parallelism exchanges tokens and does not remove them: balanced routing leaves K n rows per rank,
    times etp, which gathers them (Megatron-LM issue 6782); the busiest rank gets `imbalance` times as many.
    """
    moe = layer.moe
    if moe is None:
        return {}
    act, width = recipe.activation_bytes, moe.width(int(h))
    rows = x.rows_for_experts(moe.mean_k, kernels.expert_stash or kernels.expert_capacity)
    router = x.expert_tokens * (STATISTIC_BYTES * moe.choices + 32.0 * moe.top_k)
    permuted = rows * x.et * width * linear_input_bytes(recipe, kernels)
    weighed = 4.0 if kernels.weighs_outputs_apart else act
    outputs = rows * x.et * width * (0.0 if kernels.probs_in_activation else weighed)
    combined = (
        x.expert_tokens * moe.latent * linear_input_bytes(recipe, kernels)
    )  # read by the projection back
    fc1 = rows * moe.expert_ffn * (2 if moe.gated else 1) * (kernels.activation_input_bytes or act)
    eager = (CLAMPED_KEPT if moe.clamped else 1.0) if moe.gated and not kernels.fused_activation else 0.0
    silu = rows * moe.expert_ffn * act * eager
    product = rows * moe.expert_ffn * linear_input_bytes(recipe, kernels)
    parts = {"moe": router + permuted + outputs + fc1 + combined, "moe_act": silu + product}
    if moe.shared_ffn:
        parts["shared_experts"] = _mlp_parts(moe.shared_ffn, moe.gated, x.tokens, x.t, kernels, recipe)
    return parts


def frozen_inputs(
    layer: Layer, model: ModelSpec, x: LayerShape, kernels: Kernels, recipe: PrecisionRecipe, job: Job
) -> dict[str, Array]:
    """Bytes that a layer does not keep because the weight that reads them is frozen and has no adapter, by part.

    A product keeps its input for its weight's gradient alone; what else reads a tensor (attention its output, the
    activation fc1's output) keeps it all the same. Experts carry no adapters. Checked: 8B with adapters on q, k, v, all
    else equal, peaks 4.5 GiB below one with adapters everywhere as predicted (DGXC 25.02: 33.0 GiB, predicted 33.9).
    """
    saved = linear_input_bytes(recipe, kernels)
    stream = x.tokens * model.hidden / x.sequence_split
    gathered = x.tokens * model.hidden if kernels.saves_gathered_input else stream
    attention = layer.attention is None or any(job.adapts(name) for name in ATTENTION_INPUTS)
    shared = layer.moe is not None and layer.moe.shared_ffn > 0
    second = job.adapts("mlp_fc1") if layer.mlp is not None else shared and job.adapts("shared_fc1")
    second = second or (layer.mlp is None and layer.moe is None)  # nothing there to read
    unread = float(not (attention or second)) if layer.parallel else float(not attention) + float(not second)
    parts = {"layernorm": unread * saved * gathered}
    copied = saved < recipe.activation_bytes and not kernels.attention_output_bytes
    a = layer.attention
    if a is not None and copied and not job.adapts("attention_out"):
        parts["attention_out"] = saved * a.heads * a.v_head_dim * x.tokens / x.t
    if layer.mlp is not None and not job.adapts("mlp_fc2"):
        parts["mlp"] = saved * x.tokens * layer.mlp.ffn / x.t
    if layer.moe is not None:
        rows = x.rows_for_experts(layer.moe.mean_k, kernels.expert_stash or kernels.expert_capacity)
        latent = 0.0 if job.adapts("latent_up") else saved * x.expert_tokens * layer.moe.latent
        parts["moe"] = saved * rows * x.et * layer.moe.width(model.hidden) + latent
        parts["moe_act"] = saved * rows * layer.moe.expert_ffn
        if shared and not job.adapts("shared_fc2"):
            parts["shared_experts"] = saved * x.tokens * layer.moe.shared_ffn / x.t
    return parts


def layer_activations(
    layer: Layer, model: ModelSpec, x: LayerShape, kernels: Kernels, recipe: PrecisionRecipe
) -> dict[str, Array]:
    """Bytes one layer keeps for its backward pass, by part [bytes], one value per key.

    Dense Llama block, bf16: 8h + 4ad + 4kd + 8f + 4a + 8 bytes per token (6f with a fused activation);
    GPT block with dropout and eager attention: 34 s b h + 5 a s^2 b (Korthikanti 2022, arXiv 2205.05198,
    eq. 1-2). Checked against saved tensors in tests/cost/test_activations.py.
    """
    h, act = float(model.hidden), recipe.activation_bytes
    stream = x.tokens * h / x.sequence_split
    gathered = x.tokens * h if kernels.saves_gathered_input else stream
    norm_inputs = max(layer.norms, 1)
    statistics = STATISTIC_BYTES * (1 if model.norm_kind is NormKind.RMS else 2)
    # multiplied by different constants, the input of attention is not that of the state space
    normed_inputs = 1 if layer.parallel else layer.sublayers + (layer.mixes_twice and layer.multiplied)
    n = layer.streams
    # of several streams all, what each branch reads of them, and what it returns, for the weights it is added with
    beside = 2.0 * layer.sublayers if n > 1 else 0.0
    parts = {
        "input": act * stream * n,
        "residual": act * stream * (n * (norm_inputs - 1) + beside) + statistics * norm_inputs * stream / h,
        "layernorm": linear_input_bytes(recipe, kernels) * gathered * normed_inputs,
    }
    parts["residual"] = parts["residual"] + RESIDUAL_KEPT * stream * sum(layer.sources)
    if layer.state_space is not None:  # no module that recomputation of norms reaches
        parts["state_in"] = parts["layernorm"] / normed_inputs
        parts["layernorm"] = parts["layernorm"] - parts["state_in"]
    norm = eager_norm_bytes(model, kernels, recipe)
    parts["layernorm"] = parts["layernorm"] + norm * stream * norm_inputs
    if kernels.stream_extra:
        parts["residual"] = parts["residual"] + kernels.stream_extra * stream
    if layer.attention is not None:
        parts.update(_attention_parts(layer.attention, h, x, kernels, recipe, norm))
    if layer.state_space is not None:
        cut, saved = cut_of(layer.state_space, x.tokens, x.t, x.c), linear_input_bytes(recipe, kernels)
        parts.update(kept_parts(layer.state_space, cut, act, saved, not kernels.single_operations))
    if kernels.dropout:
        parts["dropout"] = 2 * MASK_BYTES * stream
    if layer.mlp is not None:
        parts["mlp"] = _mlp_parts(layer.mlp.ffn, layer.mlp.gated, x.tokens, x.t, kernels, recipe)
    parts.update(_moe_parts(layer, h, x, kernels, recipe))
    if layer.side:
        parts["side"] = _side_parts(layer.side, stream, x.tokens, kernels, recipe)
    return _outlasting(layer, x, parts, act)


def _side_parts(
    side: float, stream: Array, tokens: Array, kernels: Kernels, recipe: PrecisionRecipe
) -> Array:
    """Around the product with a layer's own input: the gate's input, its output, the product; activated, if eager."""
    act, saved = recipe.activation_bytes, linear_input_bytes(recipe, kernels)
    eager = 0.0 if kernels.fused_activation else act
    return saved * stream + tokens * side * (act + eager + saved)


def _outlasting(layer: Layer, x: LayerShape, parts: dict[str, Array], act: float) -> dict[str, Array]:
    """The parts with those that recomputing a whole layer leaves counted as its input: its own input, a slice of all
    layers' that the model makes once, keys and values that it lends to later layers, and the sums of earlier ones that
    it puts side by side for them."""
    a = layer.attention
    lent = act * x.tokens * layer.side + parts["input"] * layer.starts_stretch
    if a is not None and a.lends_kv and a.kind is AttentionKind.MLA:
        latents = act * x.tokens * a.kv_streams
        parts["mla_streams"], lent = parts["mla_streams"] - latents, lent + latents
    elif a is not None and a.lends_kv:
        pairs = act * x.tokens * a.kv_heads * (a.head_dim + a.v_head_dim) / x.kv_split
        parts["qkv"], lent = parts["qkv"] - pairs, lent + pairs  # raw keys in place of as many rotated ones
    return {**parts, "input": parts["input"] + lent}


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

    Inputs: 4 s b h and the norm's statistics; a head that is not `trained` keeps no input of its own. Unfused loss in q
    bytes (4: fp32): keeps q s b V of log-probabilities, peaks at 3 q s b V in the backward pass (measured: 12 s b V).
    On logits that tp ranks split, PyTorch's peaks at 4: log-probabilities, the gradient at the labels, exponents and
    their sum (distributed/tensor/parallel/loss.py _nll_loss_and_log_softmax_backward). Megatron-LM's works in place
    since 2024: 1.5. Fused on bf16 logits: those and their gradient. Chunked: 3 q s b V over the chunks, and the head
    input's gradient. Linear: a part of the logits, worked on in place, that gradient, and the head's of a part, twice,
    beside their sum.
    V is divided by t only where the loss is vocabulary-parallel; `whole_logit_bytes` never is. Whole logits are a copy
    of what tp ranks gather of their parts, all three alive for a moment, beside the norm's output before it is gathered
    (torch distributed/_functional_collectives.py all_gather_tensor: torch.cat of what came of every rank).
    """
    act = recipe.activation_bytes
    stream = x.tokens * model.hidden / x.sequence_split
    gathered = x.tokens * model.hidden if kernels.saves_gathered_input else stream
    inputs = act * (stream + gathered * trained) + STATISTIC_BYTES * x.tokens / x.sequence_split
    inputs = inputs + act * x.tokens * model.side_width  # the norm of layers' own inputs
    inputs = inputs + act * stream * model.streams * (model.streams > 1)
    inputs = inputs + RESIDUAL_KEPT * stream * max(model.layers[-1].sources, default=0)
    norm = eager_norm_bytes(model, kernels, recipe)
    inputs = inputs + norm * (stream + x.tokens * model.side_width)
    split = np.where(kernels.cross_entropy is CrossEntropy.EAGER, 1.0, x.t)
    values = x.tokens * vocabulary / split
    logits, whole = act * values, kernels.whole_logit_bytes * x.tokens * vocabulary
    parted = np.where((x.t > 1) & (split == 1.0), logits * (1.0 + 1.0 / x.t), 0.0)
    forward = inputs + logits + parted + np.where(x.sequence_split > 1, act * stream, 0.0)
    wide_norm = wide_norm_bytes(model, kernels, recipe) * stream
    if norm:  # upcast and normed in fp32, both as they were and as they are multiplied
        forward = np.maximum(forward + act * stream, 2.0 * wide_norm + 3.0 * act * stream)
    statistics = STATISTIC_BYTES * x.tokens / x.sequence_split
    behind = np.where(wide_norm > 0, (1.0 + NORM_WORKING) * wide_norm + statistics, 0.0)
    if kernels.cross_entropy is CrossEntropy.FUSED:
        return HeadActivations(
            inputs, logits, logits, logits + whole, 2 * logits, forward, np.maximum(inputs + logits, behind)
        )
    wide = kernels.loss_bytes * values
    if is_chunked(kernels):
        part, rest = 1.0 / loss_parts(kernels, x.tokens, vocabulary / split, model.hidden), act * stream
        linear = kernels.cross_entropy is CrossEntropy.LINEAR
        weights = trained * gradient_temporaries(kernels, act) * vocabulary / split * model.hidden
        peak = logits * part + weights if linear else kernels.loss_peak * wide * part + whole
        return HeadActivations(
            inputs, logits * part, rest, peak, rest if linear else logits * part,
            forward - logits * (1.0 - part), np.maximum(inputs + logits * part, behind),
        )  # fmt: skip
    alone = COMPILED_PEAK if kernels.cross_entropy is CrossEntropy.COMPILED else kernels.loss_peak
    peak = np.where(split > 1, kernels.split_loss_peak or alone, alone)
    idle = _idle_scores(model, x, kernels, recipe, wide)
    return HeadActivations(
        inputs,
        logits,
        wide,
        (peak - 1) * wide + whole + idle,
        logits,
        forward,
        np.maximum(inputs + logits, behind),
    )


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
    return np.where(scores < logits, kernels.idle_scores * scores, 0.0)

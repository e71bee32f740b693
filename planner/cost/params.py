"""How many parameters has the model, by kind, by layer, and by how parallelism divides them?

Exact to the last parameter. Left out: buffers (balance-correction biases, rotary tables), and padding of the
vocabulary, which is a choice of the framework.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.indexer import Compression
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.mixers import DeltaNet, ShortConvolution, StateSpace
from planner.spec.model import ModelSpec

KINDS = (
    "embedding",
    "position",
    "attention",
    "indexer",
    "state_space",
    "delta_net",
    "lightning_attention",
    "short_convolution",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "layer_inputs",
    "residual_streams",
    "attention_residuals",
    "norms",
    "final_norm",
    "head",
    "mtp",
)


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer, in buckets by how they are divided over ranks.

    `column_row`: divided by tp. `kv`: k and v projections, divided by tp too: where tp exceeds the key/value heads,
    Megatron-Core (transformer/attention.py) keeps a part of a head and gathers the product. `replicated`: on every
    tensor-parallel rank (norms, biases of row-parallel layers, MLA down-projections, shared gate).
    `router`: replicated too. `expert`: all experts, divided by ep x etp. `expert_replicated`: biases of the
    experts' row-parallel layers, divided by ep only. `shared`: shared experts, divided by tp.
    """

    column_row: int = 0
    kv: int = 0
    replicated: int = 0
    router: int = 0
    expert: int = 0
    expert_replicated: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        dense = self.column_row + self.kv + self.replicated + self.router + self.shared
        return dense + self.expert + self.expert_replicated


@dataclass(frozen=True)
class ModelParameters:
    """`total`: trained parameters, tied ones once. `active`: met by one token. `by_kind`: keys `KINDS`."""

    total: int
    active: int
    by_kind: dict[str, int] = field(hash=False)


def _qk_norm_parameters(a: Attention) -> int:
    """Learned norms inside attention: of q and k, or of MLA's compressed streams [parameters]."""
    if a.kind is AttentionKind.MLA:
        return a.q_lora_rank + (0 if a.borrows_kv else a.kv_lora_rank + a.qk_rope_dim * a.rotated_norm)
    if a.compression is not None:  # of compressed queries, the key, and its compressed ones
        return a.q_lora_rank + a.head_dim * (1 + (a.compression.rate > 0))
    width = {
        QkNorm.NONE: 0,
        QkNorm.KEY: a.head_dim,
        QkNorm.HEAD: (2 if a.rotated_kv_heads else 1) * a.head_dim,
        QkNorm.FULL: (a.heads + a.rotated_kv_heads) * a.head_dim,
    }[a.qk_norm]
    return width * (1 + a.qk_norm_bias)


def _attention_buckets(a: Attention, hidden: int) -> LayerParameters:
    """Projections of attention without its norms, bucketed.

    MLA: DeepSeek-V2, arXiv 2405.04434, section 2.1: down-projections are replicated, up-projections divided.
    """
    q_width, out_width = a.heads * a.head_dim, a.heads * a.v_head_dim
    out = out_width * hidden
    sinks = a.heads * (a.sinks + 2 * a.scaled)
    out_bias = hidden if a.out_bias else 0
    if a.compression is not None:
        return _compressed_buckets(a, a.compression, hidden)
    if a.kind is AttentionKind.MLA:
        kv_down = a.kv_streams
        down = hidden * (a.q_lora_rank + kv_down) + (a.q_lora_rank + kv_down if a.qkv_bias else 0)
        q_up = (a.q_lora_rank or hidden) * q_width
        kv_up = a.kv_lora_rank * a.heads * (a.qk_nope_dim + a.v_head_dim)
        replicated = down + out_bias + _indexer_parameters(a, hidden)
        gate = hidden * a.gate_width
        return LayerParameters(column_row=q_up + kv_up + gate + out + sinks, replicated=replicated)
    rows = hidden + (1 if a.qkv_bias else 0)
    columns = rows * q_width + (rows if a.output_gate else hidden) * a.gate_width
    x = a.indexer
    queries = 0 if x is None else hidden * x.heads * x.head_dim  # dealt like the keys they choose among
    replicated = out_bias + _indexer_parameters(a, hidden) - queries
    return LayerParameters(
        column_row=columns + out + sinks, kv=rows * a.kv_width + queries, replicated=replicated
    )


def _compressed_buckets(a: Attention, c: Compression, hidden: int) -> LayerParameters:
    """Compressed attention without its norms: queries and outputs of heads divided, the one key and what compresses it
    whole (transformers 5.23 models/deepseek_v4/modeling_deepseek_v4.py)."""
    grouped = a.out_groups * a.out_rank
    heads = a.q_lora_rank * a.heads * a.head_dim + a.heads * a.v_head_dim * a.out_rank + a.heads * a.sinks
    compressor = c.series * a.head_dim * (2 * hidden + c.rate)
    whole = hidden * (a.q_lora_rank + a.head_dim) + compressor + _indexer_parameters(a, hidden)
    return LayerParameters(column_row=heads + grouped * hidden, replicated=whole)


def _stream_parameters(layer: Layer, hidden: int) -> int:
    """What weighs and mixes residual streams at every branch: a projection, its biases, a scale of the input's weights,
    of the output's and of the mixture's [parameters]."""
    n = layer.streams
    scales = 3 - layer.streams_apart
    return layer.sublayers * (layer.stream_weights * (n * hidden + 1) + scales) if n > 1 else 0


def _residual_parameters(layer: Layer, hidden: int) -> int:
    """Of attention residuals a query and a norm of the keys for every branch [parameters]."""
    return 2 * hidden * len(layer.earlier)


def _indexer_parameters(a: Attention, hidden: int) -> int:
    """Projections to queries, the key and a weight for every head, and the key's norm, a layer norm; of compressed keys
    the projections twice, their gates and biases of these, and a norm without a bias. One that chooses blocks has no
    weights for its heads, and norms of its queries and of the key without a bias (transformers 5.23
    models/minimax_m3_vl/modeling_minimax_m3_vl.py MiniMaxM3VLIndexer) [parameters].

    Whole on every tensor-parallel rank (Megatron-Core, experimental_attention_variant/dsa.py DSAIndexer).
    """
    x = a.indexer
    if x is None or x.shared:
        return 0
    if x.block:
        return x.head_dim * (hidden * (x.heads + 1) + 2)
    heads = (a.q_lora_rank or hidden) * x.heads * x.head_dim + hidden * x.heads
    if (c := a.compression) is not None:
        return heads + x.head_dim * (c.series * (2 * hidden + c.rate) + 1)
    return heads + hidden * x.head_dim + 2 * x.head_dim + 2 * (hidden + x.heads) * x.scaled


def _state_space_buckets(s: StateSpace, hidden: int) -> LayerParameters:
    """Projections, convolution, decay, skip and time-step bias of every head, and the norm before the output, bucketed.

    All but the output's bias are divided by heads (Megatron-Core, ssm/mamba_mixer.py). A gated delta net has no skip,
    and one norm that its heads share (ssm/gated_delta_net/common.py); projections down to a low rank are whole.
    Lightning attention has a norm alone, a short convolution nothing more (transformers, models/minimax, models/lfm2).
    """
    convolution = s.conv_width * (s.conv + s.conv_bias)
    projections = hidden * (s.in_width - s.ranked_width + s.inner) + s.in_width * s.bias
    if isinstance(s, DeltaNet):
        projections += s.gate_rank * s.ranked_width
        divided, replicated = s.scalars * s.heads, s.head_dim + s.ranks * hidden
    else:
        norm = 0 if isinstance(s, ShortConvolution) else s.inner * s.norm
        divided, replicated = 3 * s.scalars * s.heads + norm, 0
    return LayerParameters(
        column_row=projections + convolution + divided, replicated=hidden * s.bias + replicated
    )


def _mixer_buckets(layer: Layer, hidden: int) -> LayerParameters:
    """Attention and a state space without hidden-wide norms, bucketed."""
    a, s = layer.attention, layer.state_space
    of_attention = LayerParameters() if a is None else _attention_buckets(a, hidden)
    of_scan = LayerParameters() if s is None else _state_space_buckets(s, hidden)
    return LayerParameters(
        column_row=of_attention.column_row + of_scan.column_row,
        kv=of_attention.kv,
        replicated=of_attention.replicated + of_scan.replicated,
    )


def _mlp_buckets(mlp: Mlp, hidden: int) -> LayerParameters:
    fc1 = (2 if mlp.gated else 1) * mlp.ffn
    weights = (fc1 + mlp.ffn) * hidden
    scalars = 2 if mlp.activation is Activation.XIELU else 0
    return LayerParameters(
        column_row=weights + (fc1 if mlp.bias else 0), replicated=(hidden if mlp.bias else 0) + scalars
    )


def _moe_buckets(moe: Moe, hidden: int) -> LayerParameters:
    matrices, width = 3 if moe.gated else 2, moe.width(hidden)
    fc1_bias = (matrices - 1) * moe.expert_ffn if moe.expert_bias else 0
    shared_bias = bool(moe.shared_ffn) and moe.shared_bias
    return LayerParameters(
        router=moe.choices * (hidden + (1 if moe.router_bias else 0))
        + (hidden + moe.experts) * moe.router_scale,
        expert=moe.experts * (matrices * width * moe.expert_ffn + fc1_bias),
        expert_replicated=moe.experts * width if moe.expert_bias else 0,
        shared=matrices * hidden * moe.shared_ffn + ((matrices - 1) * moe.shared_ffn if shared_bias else 0),
        replicated=_latent_parameters(moe, hidden) + hidden * (moe.shared_gate + shared_bias),
    )


def _latent_parameters(moe: Moe, hidden: int) -> int:
    """Projections into the width of the experts and back, whole on every rank (Megatron-Core moe/moe_layer.py)."""
    biases = (hidden + moe.latent) * (moe.expert_bias or moe.shared_bias)
    return 2 * hidden * moe.latent + biases + moe.latent * moe.latent_norm if moe.latent else 0


def norm_parameters(layer: Layer, hidden: int) -> int:
    """All norms of a layer of one block, those inside attention included [parameters]."""
    scales = layer.norms * hidden * (1 + layer.norm_bias) if layer.norm_weight else 0
    return scales + (0 if layer.attention is None else _qk_norm_parameters(layer.attention))


def layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    """Parameters of one layer by how tensor and expert parallelism divide them [parameters].

    Norms as wide as all heads (QkNorm.FULL) are counted as replicated.
    """
    if layer.then is not None:
        each = [vars(layer_parameters(block, hidden)) for block in layer.blocks]
        return LayerParameters(**{name: sum(bucket[name] for bucket in each) for name in each[0]})
    mixer = _mixer_buckets(layer, hidden)
    block = _mlp_buckets(layer.mlp, hidden) if layer.mlp else LayerParameters()
    moe = _moe_buckets(layer.moe, hidden) if layer.moe else LayerParameters()
    norms = norm_parameters(layer, hidden)
    return LayerParameters(
        column_row=mixer.column_row + block.column_row,
        kv=mixer.kv,
        replicated=mixer.replicated
        + block.replicated
        + moe.replicated
        + norms
        + _side_parameters(layer, hidden)
        + _stream_parameters(layer, hidden)
        + _residual_parameters(layer, hidden),
        router=moe.router,
        expert=moe.expert,
        expert_replicated=moe.expert_replicated,
        shared=moe.shared,
    )


def _side_parameters(layer: Layer, hidden: int) -> int:
    """Projections to and from a layer's own input, whole on every rank [parameters]."""
    return 2 * hidden * layer.side


def embedding_parameters(model: ModelSpec) -> int:
    """Token embedding, the widening projection of OPT-350m and tables of layers' own inputs included [parameters]."""
    projected = model.embedding_width != model.hidden
    own = (model.side_vocab + model.hidden) * model.side_width
    return (
        model.vocab * model.embedding_width + (model.embedding_width * model.hidden if projected else 0) + own
    )


def position_parameters(model: ModelSpec) -> int:
    """Learned position table [parameters]."""
    return model.position_rows * model.hidden


def rotation_parameters(model: ModelSpec) -> int:
    """Factors of the frequencies with which pairs of channels turn, one set for all layers (transformers 5.24
    models/mistral_large4/modeling_mistral_large4.py MistralLarge4TextRotaryEmbedding.alpha) [parameters].

    Counted on the first stage; every later one holds them once more, 32 numbers of Mistral Large 4.
    """
    return model.rotary_scales


def head_parameters(model: ModelSpec) -> int:
    """Output projection [parameters]; its weight is 0 where it is tied to the embedding."""
    projected = model.embedding_width != model.hidden
    weight = 0 if model.tied_embeddings else model.vocab * model.embedding_width
    narrowing = model.hidden * model.embedding_width if projected else 0
    return weight + narrowing + (model.vocab if model.head_bias else 0)


def outer_norm_parameters(model: ModelSpec) -> int:
    """The norm before the head, the one after the embedding and that of layers' own inputs, where they exist
    [parameters]."""
    scale = model.hidden * (1 + model.norm_bias) if model.norm_weight else 0
    return scale * (model.final_norm + model.embedding_norm) + max(layer.side for layer in model.layer_kinds)


def last_stream_parameters(model: ModelSpec) -> int:
    """What sums the residual streams up before the head: a projection, its biases, a scale [parameters]."""
    n = model.streams
    return n * (n * model.hidden + 1) + 1 if n > 1 else 0


def last_residual_parameters(model: ModelSpec) -> int:
    """The query and the norm of keys with which attention residuals make what the head reads [parameters]."""
    return 2 * model.hidden * model.attends_to_residuals


def mtp_parameters(model: ModelSpec) -> int:
    """Multi-token-prediction modules without the shared embedding and head [parameters].

    Each: its layers, a projection 2 hidden -> hidden, three norms (of the previous hidden state, of the next token's
    embedding, before the head). Liu et al. 2024, arXiv 2412.19437, section 2.2. Of residual streams each also has what
    sums them up (Megatron-Bridge models/deepseek/deepseek_v4_bridge.py: hc_head of a prediction layer).
    """
    scale = model.hidden * (1 + model.norm_bias) if model.norm_weight else 0
    layers = sum(n * layer_parameters(model.layer_kinds[k], model.hidden).total for k, n in model.mtp_kinds)
    return layers + model.mtp_layers * (2 * model.hidden**2 + 3 * scale + last_stream_parameters(model))


def inactive_parameters(layer: Layer, hidden: int) -> int:
    """Routed-expert parameters that one token does not meet, a mean with experts that compute nothing [parameters]."""
    if layer.then is not None:
        return sum(inactive_parameters(block, hidden) for block in layer.blocks)
    if layer.moe is None:
        return 0
    buckets = _moe_buckets(layer.moe, hidden)
    one = (buckets.expert + buckets.expert_replicated) // layer.moe.experts
    return round(one * (layer.moe.experts - layer.moe.mean_k))


def _block_kinds(layer: Layer, hidden: int) -> dict[str, int]:
    kinds = {"norms": norm_parameters(layer, hidden)}
    if layer.attention is not None:
        kinds["indexer"] = _indexer_parameters(layer.attention, hidden)
        kinds["attention"] = _attention_buckets(layer.attention, hidden).total - kinds["indexer"]
    if layer.state_space is not None:
        kinds[layer.state_space.kind] = _state_space_buckets(layer.state_space, hidden).total
    if layer.mlp is not None:
        kinds["mlp"] = _mlp_buckets(layer.mlp, hidden).total
    kinds["residual_streams"] = _stream_parameters(layer, hidden)
    kinds["attention_residuals"] = _residual_parameters(layer, hidden)
    if layer.side:
        kinds["layer_inputs"] = _side_parameters(layer, hidden)
    if layer.moe is not None:
        buckets = _moe_buckets(layer.moe, hidden)
        latent = _latent_parameters(layer.moe, hidden)
        kinds["experts"] = buckets.expert + buckets.expert_replicated + latent
        kinds["shared_experts"] = buckets.shared + buckets.replicated - latent
        kinds["router"] = buckets.router
    return kinds


def model_parameters(model: ModelSpec) -> ModelParameters:
    """All parameters of the model: total, active per token, by kind [parameters]."""
    by_kind = dict.fromkeys(KINDS, 0)
    by_kind["embedding"] = embedding_parameters(model)
    by_kind["position"] = position_parameters(model) + rotation_parameters(model)
    by_kind["final_norm"] = outer_norm_parameters(model)
    by_kind["head"] = head_parameters(model)
    by_kind["mtp"] = mtp_parameters(model)
    by_kind["residual_streams"] = last_stream_parameters(model)
    by_kind["attention_residuals"] = last_residual_parameters(model)
    inactive = 0
    for index, count in Counter(model.layer_kind_of).items():
        for block in model.layer_kinds[index].blocks:
            inactive += count * inactive_parameters(block, model.hidden)
            for kind, parameters in _block_kinds(block, model.hidden).items():
                by_kind[kind] += count * parameters
    inactive += sum(n * inactive_parameters(model.layer_kinds[k], model.hidden) for k, n in model.mtp_kinds)
    total = sum(by_kind.values())
    return ModelParameters(total=total, active=total - inactive, by_kind=by_kind)

"""What is the model made of? The dimensions on which every cost equation rests, one `Layer` per block.

Left out: everything that changes neither parameters, FLOPs, bytes nor launch files (dropout, rotary base,
logit scaling, initialisation), and architectures that are neither decoder-only transformers nor hybrids of Mamba-2 or
gated delta nets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from planner.spec.dimensions import (
    MOST_LAYERS,
    require,
    require_not_negative,
    require_not_too_large,
    require_positive,
)
from planner.spec.indexer import Compression, Indexer
from planner.spec.mixers import DeltaNet, StateSpace


class AttentionKind(StrEnum):
    """How keys and values relate to queries. Multi-query attention is GQA with one kv head."""

    MHA = "mha"
    GQA = "gqa"
    MLA = "mla"


class QkNorm(StrEnum):
    """Which learned normalisation queries and keys pass through."""

    NONE = "none"
    HEAD = "head"  # one weight vector of head_dim for q, one for k, shared by the heads (Qwen3, Gemma 3)
    KEY = "key"  # one weight vector for k; queries are normed without weights (DeepSeek-V4)
    FULL = "full"  # weights as wide as all q heads and all k heads (OLMo 2, OLMoE, Command R+)


class NormKind(StrEnum):
    """What the hidden-wide norms compute."""

    RMS = "rms"
    LAYER = "layer"


class Activation(StrEnum):
    """The nonlinearity of an MLP; gated ones multiply it by a second projection."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"
    SILU = "silu"
    RELU = "relu"
    RELU2 = "relu2"  # squared ReLU
    XIELU = "xielu"  # has two trained scalars (Apertus)


@dataclass(frozen=True)
class Attention:
    """Self-attention of one layer.

    `head_dim`: width of one query or key head; with MLA the sum of its unrotated and rotated parts.
    `v_head_dim`: width of one value head. `window`: tokens a query sees at most (sliding or chunked
    attention), None for all. `qkv_bias`: with MLA the bias of the down-projections alone. `sinks`: one
    learned logit per head. `qk_norm_bias`: the norms of q and k also have a bias.
    `chunked`: the window is a fixed chunk (Llama 4) instead of sliding along. `output_gate`: a projection of the input,
    as wide as the output, multiplies it after a sigmoid (Qiu et al. 2025, arXiv 2505.06708); `head_gate`: one value a
    head does. `tied_values`: the keys' projection makes the values too. `value_norm`: they pass a norm without weights.
    `indexer`: chooses the keys that a query sees (DeepSeek Sparse Attention), with MLA or compressed keys alone.
    `borrows_kv`: keys and values are those of an earlier layer, which `lends_kv` (Gemma 4 E2B and E4B). `compression`:
    one key, the value too, of every token of a window, and compressed ones (DeepSeek-V4); `out_groups` groups of heads
    are projected to `out_rank` values each, and these to the hidden state.
    """

    kind: AttentionKind
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_dim: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    sinks: bool = False
    window: int | None = None
    qk_norm_bias: bool = False
    chunked: bool = False
    output_gate: bool = False
    head_gate: bool = False
    tied_values: bool = False
    value_norm: bool = False
    indexer: Indexer | None = None
    borrows_kv: bool = False
    lends_kv: bool = False
    compression: Compression | None = None
    out_groups: int = 0
    out_rank: int = 0

    def __post_init__(self) -> None:
        require_positive(
            "attention",
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
        )
        require_not_negative(
            "attention",
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_dim=self.qk_rope_dim,
        )
        require_not_too_large("attention.heads x head_dim", self.heads * max(self.head_dim, self.v_head_dim))
        given = f"heads={self.heads}, kv_heads={self.kv_heads}"
        require(self.heads % self.kv_heads == 0, "attention.kv_heads must divide attention.heads", given)
        gates = self.output_gate and self.head_gate
        require(not gates, "attention must have one gate of its output at most", "output_gate and head_gate")
        tied = not self.tied_values or self.head_dim == self.v_head_dim
        widths = f"{self.head_dim} and {self.v_head_dim}"
        require(tied, "attention.tied_values must have values as wide as keys", widths)
        if self.window is not None:
            require_positive("attention", window=self.window)
        if (index := self.indexer) is not None:
            require_positive("indexer", heads=index.heads, head_dim=index.head_dim, top_k=index.top_k)
            able = self.kind is AttentionKind.MLA or (
                self.compression is not None and self.compression.rate > 0
            )
            require(able, "attention.indexer needs kind=mla or compressed keys", self.kind)
        if self.compression is not None:
            self._check_compressed(self.compression)
        elif self.kind is AttentionKind.MLA:
            self._check_mla()
        else:
            lora = f"kind={self.kind}, q_lora_rank={self.q_lora_rank}, kv_lora_rank={self.kv_lora_rank}"
            require(
                self.q_lora_rank == 0 and self.kv_lora_rank == 0,
                "attention.kv_lora_rank is for kind=mla only",
                lora,
            )
            if self.kind is AttentionKind.MHA:
                require(
                    self.heads == self.kv_heads, "attention.kv_heads must equal heads with kind=mha", given
                )

    def _check_mla(self) -> None:
        must = "attention must have no gate with kind=mla but one a head"
        require(not self.output_gate, must, f"{self.gate_width} outputs")
        require(
            self.kv_lora_rank > 0, "attention.kv_lora_rank must be above 0 with kind=mla", self.kv_lora_rank
        )
        require(
            self.qk_rope_dim < self.head_dim,
            "attention.qk_rope_dim must be below head_dim, the sum of both parts",
            f"qk_rope_dim={self.qk_rope_dim}, head_dim={self.head_dim}",
        )
        require(
            self.heads == self.kv_heads,
            "attention.kv_heads must equal heads with kind=mla",
            f"heads={self.heads}, kv_heads={self.kv_heads}",
        )

    def _check_compressed(self, compression: Compression) -> None:
        require_not_negative("compression", rate=compression.rate)
        sizes = {"q_lora_rank": self.q_lora_rank, "out_rank": self.out_rank, "out_groups": self.out_groups}
        require_positive("attention", **sizes)
        one = self.kind is not AttentionKind.MLA and self.kv_heads == 1 and self.tied_values
        require(
            one and self.window is not None,
            "compressed attention must have one key, its value, and a window",
            self,
        )
        groups = f"heads={self.heads}, out_groups={self.out_groups}"
        require(self.heads % self.out_groups == 0, "attention.out_groups must divide attention.heads", groups)

    @property
    def sparse(self) -> bool:
        """Do kernels that gather keys compute it, over one key for all heads?"""
        return self.indexer is not None or self.compression is not None

    @property
    def gate_width(self) -> int:
        """Outputs of the gate's projection; 0 without one."""
        return self.heads * self.v_head_dim if self.output_gate else self.heads if self.head_gate else 0

    @property
    def own_kv_heads(self) -> int:
        """Heads of keys and values that the layer makes."""
        return 0 if self.borrows_kv else self.kv_heads

    @property
    def kv_width(self) -> int:
        """Outputs of the projections of keys and values, outside MLA."""
        return self.own_kv_heads * (self.head_dim + (0 if self.tied_values else self.v_head_dim))

    @property
    def latent_dim(self) -> int:
        """Width of the one key of all heads: MLA's where the up-projection is absorbed into queries."""
        return self.kv_lora_rank + self.qk_rope_dim if self.kind is AttentionKind.MLA else self.head_dim

    @property
    def latent_value(self) -> int:
        """How many of its values, the first, are the value."""
        return self.kv_lora_rank if self.kind is AttentionKind.MLA else self.v_head_dim

    @property
    def qk_nope_dim(self) -> int:
        """Width of the unrotated part of a query or key head; all of it outside MLA."""
        return self.head_dim - self.qk_rope_dim


@dataclass(frozen=True)
class Mlp:
    """A dense feed-forward block; `gated` ones have two input projections."""

    ffn: int
    gated: bool
    bias: bool
    activation: Activation

    def __post_init__(self) -> None:
        require_positive("mlp", ffn=self.ffn)


@dataclass(frozen=True)
class Moe:
    """A mixture of experts.

    `shared_ffn`: total width of the experts that every token visits (0: none). `shared_gate`: a learned
    scalar gate on them. `router_bias`: a trained bias of the router (balance-correction buffers are none).
    `groups`, `top_groups`: experts are chosen within the best `top_groups` of `groups` groups (0: no groups).
    `router_scale`: the router's input and every expert's probability have trained scales (Gemma 4).
    `latent`: width that the routed experts read and write, between two projections from and to the hidden state
    (LatentMoE of Nemotron 3, arXiv 2604.12374); 0: the hidden width itself. `zero_experts`: more experts that compute
    nothing, among which the router chooses its `top_k` too (LongCat-Flash, arXiv 2509.01322, section 2.1).
    """

    experts: int
    top_k: int
    expert_ffn: int
    gated: bool
    expert_bias: bool
    shared_ffn: int
    shared_gate: bool
    router_bias: bool
    groups: int = 0
    top_groups: int = 0
    shared_bias: bool = False
    activation: Activation = Activation.SILU
    latent: int = 0
    router_scale: bool = False
    zero_experts: int = 0

    def __post_init__(self) -> None:
        require_positive("moe", experts=self.experts, top_k=self.top_k, expert_ffn=self.expert_ffn)
        require_not_negative(
            "moe", shared_ffn=self.shared_ffn, groups=self.groups, top_groups=self.top_groups
        )
        require_not_negative("moe", latent=self.latent, zero_experts=self.zero_experts)
        given = f"experts={self.experts}, top_k={self.top_k}"
        require(self.top_k <= self.experts, "moe.top_k must be at most moe.experts", given)
        if self.groups:
            require(
                self.experts % self.groups == 0,
                "moe.groups must divide moe.experts",
                f"groups={self.groups}, experts={self.experts}",
            )
            require(
                self.top_groups <= self.groups,
                "moe.top_groups must be at most moe.groups",
                f"top_groups={self.top_groups}, groups={self.groups}",
            )

    @property
    def choices(self) -> int:
        """Outputs of the router."""
        return self.experts + self.zero_experts

    @property
    def mean_k(self) -> float:
        """Experts that compute for a token, of its `top_k`, where all are chosen alike [1]."""
        whole, rest = divmod(self.top_k * self.experts, self.choices)
        return whole + rest / self.choices if rest else whole

    def width(self, hidden: int) -> int:
        """What a routed expert reads and writes of a token [values]."""
        return self.latent or hidden


@dataclass(frozen=True)
class Layer:
    """One block: attention or a state space (Mamba-2 or a gated delta net), an MLP or a mixture of experts; of either
    pair, one may be all there is. Attention and a state space that are both there read the same normed input and are
    added together (Falcon-H1, arXiv 2507.22448, section 2.1).

    `norms`: how many hidden-wide norms it applies; `norm_weight`: whether they have a learned scale.
    `parallel`: attention and MLP read the same normed input and are added together. `wide`: its linear layers stay in
    16 bits where a recipe computes others in 8 or 4. `multiplied`: constants multiply what attention, state space and
    MLP read and write, and keys, projections and gates between (Falcon-H1's muP). `then`: a second block that follows
    in the same layer, so that no stage, gathering or recomputation divides both (LongCat-Flash). `side`: width of an
    input of the layer's own, made from the token alone, that multiplies a narrow projection behind the MLP (Gemma 4).
    `streams`: residual streams, which every branch sums up for its input and mixes as it adds its output, by weights
    that a projection of all of them gives (manifold-constrained hyper-connections, Xie et al. 2025, arXiv 2512.24880).
    """

    attention: Attention | None
    mlp: Mlp | None
    moe: Moe | None
    norms: int = 2
    norm_bias: bool = False
    parallel: bool = False
    norm_weight: bool = True
    wide: bool = False
    state_space: StateSpace | None = None
    multiplied: bool = False
    then: Layer | None = None
    side: int = 0
    streams: int = 1

    def __post_init__(self) -> None:
        require_not_negative("layer", norms=self.norms, side=self.side)
        require_positive("layer", streams=self.streams)
        chained = self.then is not None and self.then.then is not None
        require(not chained, "a layer must have at most two blocks", "three")
        require(
            self.mlp is None or self.moe is None,
            "a layer must have at most one of mlp and moe",
            f"mlp={self.mlp}, moe={self.moe}",
        )
        require(self.sublayers > 0, "a layer must have something to compute", "nothing")

    @property
    def blocks(self) -> tuple[Layer, ...]:
        """The layer itself, or its two blocks as layers of their own."""
        return (self,) if self.then is None else (replace(self, then=None), self.then)

    def in_format(self, wide: bool) -> Layer:
        """The same layer, `wide` or not."""
        if self.wide == wide:
            return self
        return replace(self, wide=wide, then=None if self.then is None else replace(self.then, wide=wide))

    @property
    def mixes(self) -> bool:
        """Is there attention or a state space, so that tokens see one another?"""
        return self.attention is not None or self.state_space is not None

    @property
    def mixes_twice(self) -> bool:
        """Do attention and a state space stand side by side?"""
        return self.attention is not None and self.state_space is not None

    @property
    def sublayers(self) -> int:
        """Residual branches: 1 or 2."""
        return int(self.mixes) + int(self.mlp is not None or self.moe is not None)


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model.

    `position_rows`: rows of a learned position table (0: rotary or ALiBi). `embedding_width`: width of the
    token embedding where a projection brings it to `hidden` (OPT-350m); 0 in the constructor means `hidden`.
    `mtp_layers`: multi-token-prediction modules that are trained along; each is the layers `mtp_block` (none stated:
    one of the last kind), a 2 hidden x hidden projection and three norms (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    `wide_norms`: where norms run operation by operation they multiply by their weights in fp32 (Gemma).
    `side_vocab`: rows of the table in which layers' `side` inputs are looked up; a normed projection of the token's
    embedding is added to them. `source`: where the dimensions come from. `assumed`: what the source left out and was
    filled in. `described`: the fields of a user's own file, from which `described_model` makes the model again.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool
    position_rows: int = 0
    embedding_width: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    norm_kind: NormKind = NormKind.RMS
    norm_bias: bool = False
    head_bias: bool = False
    max_position: int = 0
    mtp_layers: int = 0
    source: str = ""
    assumed: tuple[str, ...] = ()
    norm_weight: bool = True
    mtp_block: tuple[Layer, ...] = ()
    side_vocab: int = 0
    wide_norms: bool = False
    described: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_positive("model", hidden=self.hidden, vocab=self.vocab)
        object.__setattr__(self, "embedding_width", self.embedding_width or self.hidden)
        require_not_negative(
            "model",
            position_rows=self.position_rows,
            embedding_width=self.embedding_width,
            max_position=self.max_position,
            mtp_layers=self.mtp_layers,
            side_vocab=self.side_vocab,
        )
        require(len(self.layers) > 0, "model.layers must hold at least one layer", "none")
        must = f"model.layers and mtp_layers must be at most {MOST_LAYERS:,} in all"
        require(len(self.layers) + self.mtp_layers <= MOST_LAYERS, must, len(self.layers) + self.mtp_layers)
        kinds: dict[Layer, Layer] = {}
        object.__setattr__(self, "layers", tuple(kinds.setdefault(layer, layer) for layer in self.layers))
        object.__setattr__(self, "_kinds", tuple(kinds))
        blocks = dict.fromkeys(block for layer in kinds for block in layer.blocks)
        object.__setattr__(self, "_blocks", tuple(blocks))
        index = {id(layer): i for i, layer in enumerate(kinds)}
        object.__setattr__(self, "_kind_of", tuple(index[id(layer)] for layer in self.layers))
        missing = [layer for layer in self.mtp_block if layer.in_format(wide=False) not in self._narrow()]
        require(not missing, "model.mtp_block must be made of layers that the model has", missing)

    def __hash__(self) -> int:
        """Cheaper than over all fields, and the same in every process; equality decides."""
        return hash((self.hidden, self.vocab, self.layer_kind_of, self.mtp_layers))

    @property
    def side_width(self) -> int:
        """Width of all layers' `side` inputs together."""
        return sum(layer.side for layer in self.layers)

    @property
    def streams(self) -> int:
        """Residual streams between layers."""
        return max(layer.streams for layer in self.layer_kinds)

    @property
    def gathers_keys(self) -> bool:
        """Does attention see chosen or compressed keys?"""
        return any(attention.sparse for attention in self.attentions)

    @property
    def compresses_keys(self) -> bool:
        """Is attention that of DeepSeek-V4?"""
        return any(attention.compression is not None for attention in self.attentions)

    @property
    def shares_between_layers(self) -> bool:
        """Do layers read what others, or the embedding, made beside the residual stream?"""
        return self.side_width > 0 or any(attention.borrows_kv for attention in self.attentions)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def layer_kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance."""
        kinds: tuple[Layer, ...] = self._kinds  # type: ignore[attr-defined]
        return kinds

    @property
    def layer_kind_of(self) -> tuple[int, ...]:
        """For each layer, its index into `layer_kinds`."""
        kind_of: tuple[int, ...] = self._kind_of  # type: ignore[attr-defined]
        return kind_of

    def _narrow(self) -> tuple[Layer, ...]:
        """The kinds of layers, whatever number format their products are in."""
        return tuple(layer.in_format(wide=False) for layer in self.layer_kinds)

    @property
    def mtp_kinds(self) -> tuple[tuple[int, int], ...]:
        """Kinds of layers of all multi-token-prediction modules, and how many of each: the last ones of their kind."""
        if not self.mtp_layers:
            return ()
        narrow, found = self._narrow(), Counter[int]()
        for layer in self.mtp_block or self.layers[-1:]:
            alike = {i for i, kind in enumerate(narrow) if kind == layer.in_format(wide=False)}
            found[next(kind for kind in reversed(self.layer_kind_of) if kind in alike)] += self.mtp_layers
        return tuple(sorted(found.items()))

    @property
    def last_stage_layers(self) -> tuple[int, ...]:
        """Layers of each kind that multi-token prediction adds to the last stage."""
        of_kind = dict(self.mtp_kinds)
        return tuple(of_kind.get(kind, 0) for kind in range(len(self.layer_kinds)))

    def with_wide_ends(self, first: int, last: int) -> ModelSpec:
        """The model with so many layers at its start and its end `wide`, and no other."""
        if not (first or last or any(layer.wide for layer in self.layer_kinds)):
            return self
        end = self.num_layers - last
        layers = (layer.in_format(i < first or i >= end) for i, layer in enumerate(self.layers))
        return replace(self, layers=tuple(layers))

    @property
    def is_moe(self) -> bool:
        return any(block.moe is not None for block in self.blocks)

    @property
    def blocks(self) -> tuple[Layer, ...]:
        """The distinct blocks of the layers, most of which are one."""
        blocks: tuple[Layer, ...] = self._blocks  # type: ignore[attr-defined]
        return blocks

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Attention of each kind of block that has any."""
        return tuple(block.attention for block in self.blocks if block.attention is not None)

    @property
    def state_spaces(self) -> tuple[StateSpace, ...]:
        """State space of each kind of block that has one."""
        return tuple(block.state_space for block in self.blocks if block.state_space is not None)

    @property
    def mixer_titles(self) -> tuple[str, ...]:
        """What `state_spaces` are called, each once."""
        return tuple(dict.fromkeys(state.title for state in self.state_spaces))

    @property
    def delta_nets(self) -> tuple[DeltaNet, ...]:
        """Those of `state_spaces` that are gated delta nets."""
        return tuple(state for state in self.state_spaces if isinstance(state, DeltaNet))

    @property
    def mambas(self) -> tuple[StateSpace, ...]:
        """Those of `state_spaces` that are Mamba-2 mixers."""
        return tuple(state for state in self.state_spaces if type(state) is StateSpace)

    @property
    def gates_attention(self) -> bool:
        return any(attention.gate_width for attention in self.attentions)

    @property
    def indexers(self) -> tuple[Indexer, ...]:
        """Indexer of each kind of attention that has one, or takes another layer's choice."""
        return tuple(a.indexer for a in self.attentions if a.indexer is not None)

    @property
    def expands_queries(self) -> bool:
        """Has attention projections up from a low rank, which Megatron-Core recomputes as mla_up_proj?"""
        return self.has_latent_attention or self.compresses_keys

    @property
    def has_latent_attention(self) -> bool:
        return any(attention.kind is AttentionKind.MLA for attention in self.attentions)

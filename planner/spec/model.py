"""What is the model made of? The dimensions on which every cost equation rests, one `Layer` per block.

Left out: everything that changes neither parameters, FLOPs, bytes nor launch files (dropout, rotary base,
logit scaling, initialisation), and architectures without a decoder-only transformer at their core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from planner.errors import InputError

LARGEST: Final = 2**30  # no dimension comes near, and columns hold 32 bits; above it the input is damaged
MOST_LAYERS: Final = 1_000  # as the deepest published (DeepNet, arXiv 2203.00555); times grow with the square


class AttentionKind(StrEnum):
    """How keys and values relate to queries. Multi-query attention is GQA with one kv head."""

    MHA = "mha"
    GQA = "gqa"
    MLA = "mla"


class QkNorm(StrEnum):
    """Which learned normalisation queries and keys pass through."""

    NONE = "none"
    HEAD = "head"  # one weight vector of head_dim for q, one for k, shared by the heads (Qwen3, Gemma 3)
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


def _require(holds: bool, must: str, given: object, hint: str = "check the model's dimensions") -> None:
    if not holds:
        raise InputError(must, str(given), hint)


def _positive(owner: str, **sizes: int) -> None:
    for field, value in sizes.items():
        _require(_is_int(value) and value > 0, f"{owner}.{field} must be an integer above 0", repr(value))
        _not_too_large(f"{owner}.{field}", value)


def _not_negative(owner: str, **sizes: int) -> None:
    for field, value in sizes.items():
        _require(_is_int(value) and value >= 0, f"{owner}.{field} must be an integer, 0 or more", repr(value))
        _not_too_large(f"{owner}.{field}", value)


def _not_too_large(what: str, size: int) -> None:
    _require(size <= LARGEST, f"{what} must be at most {LARGEST:,}", repr(size))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Attention:
    """Self-attention of one layer.

    `head_dim`: width of one query or key head; with MLA the sum of its unrotated and rotated parts.
    `v_head_dim`: width of one value head. `window`: tokens a query sees at most (sliding or chunked
    attention), None for all. `qkv_bias`: with MLA the bias of the down-projections alone. `sinks`: one
    learned logit per head. `qk_norm_bias`: the norms of q and k also have a bias.
    `chunked`: the window is a fixed chunk (Llama 4) instead of sliding along.
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

    def __post_init__(self) -> None:
        _positive(
            "attention",
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
        )
        _not_negative(
            "attention",
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_dim=self.qk_rope_dim,
        )
        _not_too_large("attention.heads x head_dim", self.heads * max(self.head_dim, self.v_head_dim))
        given = f"heads={self.heads}, kv_heads={self.kv_heads}"
        _require(self.heads % self.kv_heads == 0, "attention.kv_heads must divide attention.heads", given)
        if self.window is not None:
            _positive("attention", window=self.window)
        if self.kind is AttentionKind.MLA:
            self._check_mla()
        else:
            lora = f"kind={self.kind}, q_lora_rank={self.q_lora_rank}, kv_lora_rank={self.kv_lora_rank}"
            _require(
                self.q_lora_rank == 0 and self.kv_lora_rank == 0,
                "attention.kv_lora_rank is for kind=mla only",
                lora,
            )
            if self.kind is AttentionKind.MHA:
                _require(
                    self.heads == self.kv_heads, "attention.kv_heads must equal heads with kind=mha", given
                )

    def _check_mla(self) -> None:
        _require(
            self.kv_lora_rank > 0, "attention.kv_lora_rank must be above 0 with kind=mla", self.kv_lora_rank
        )
        _require(
            self.qk_rope_dim < self.head_dim,
            "attention.qk_rope_dim must be below head_dim, the sum of both parts",
            f"qk_rope_dim={self.qk_rope_dim}, head_dim={self.head_dim}",
        )
        _require(
            self.heads == self.kv_heads,
            "attention.kv_heads must equal heads with kind=mla",
            f"heads={self.heads}, kv_heads={self.kv_heads}",
        )

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
        _positive("mlp", ffn=self.ffn)


@dataclass(frozen=True)
class Moe:
    """A mixture of experts.

    `shared_ffn`: total width of the experts that every token visits (0: none). `shared_gate`: a learned
    scalar gate on them. `router_bias`: a trained bias of the router (balance-correction buffers are none).
    `groups`, `top_groups`: experts are chosen within the best `top_groups` of `groups` groups (0: no groups).
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

    def __post_init__(self) -> None:
        _positive("moe", experts=self.experts, top_k=self.top_k, expert_ffn=self.expert_ffn)
        _not_negative("moe", shared_ffn=self.shared_ffn, groups=self.groups, top_groups=self.top_groups)
        given = f"experts={self.experts}, top_k={self.top_k}"
        _require(self.top_k <= self.experts, "moe.top_k must be at most moe.experts", given)
        if self.groups:
            _require(
                self.experts % self.groups == 0,
                "moe.groups must divide moe.experts",
                f"groups={self.groups}, experts={self.experts}",
            )
            _require(
                self.top_groups <= self.groups,
                "moe.top_groups must be at most moe.groups",
                f"top_groups={self.top_groups}, groups={self.groups}",
            )


@dataclass(frozen=True)
class Layer:
    """One transformer block: attention, then an MLP or a mixture of experts.

    `norms`: how many hidden-wide norms it applies; `norm_weight`: whether they have a learned scale.
    `parallel`: attention and MLP read the same normed input and are added together. `wide`: its linear layers stay in
    16 bits where a recipe computes others in 8 or 4.
    """

    attention: Attention
    mlp: Mlp | None
    moe: Moe | None
    norms: int = 2
    norm_bias: bool = False
    parallel: bool = False
    norm_weight: bool = True
    wide: bool = False

    def __post_init__(self) -> None:
        _not_negative("layer", norms=self.norms)
        _require(
            (self.mlp is None) != (self.moe is None),
            "a layer must have exactly one of mlp and moe",
            f"mlp={self.mlp}, moe={self.moe}",
        )


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer.

    `position_rows`: rows of a learned position table (0: rotary or ALiBi). `embedding_width`: width of the
    token embedding where a projection brings it to `hidden` (OPT-350m); 0 in the constructor means `hidden`.
    `mtp_layers`: multi-token-prediction modules that are trained along; each is a last-kind layer, a
    2 hidden x hidden projection and three norms (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    `source`: where the dimensions come from. `assumed`: what the source left out and was filled in.
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

    def __post_init__(self) -> None:
        _positive("model", hidden=self.hidden, vocab=self.vocab)
        object.__setattr__(self, "embedding_width", self.embedding_width or self.hidden)
        _not_negative(
            "model",
            position_rows=self.position_rows,
            embedding_width=self.embedding_width,
            max_position=self.max_position,
            mtp_layers=self.mtp_layers,
        )
        _require(len(self.layers) > 0, "model.layers must hold at least one layer", "none")
        must = f"model.layers and mtp_layers must be at most {MOST_LAYERS:,} in all"
        _require(len(self.layers) + self.mtp_layers <= MOST_LAYERS, must, len(self.layers) + self.mtp_layers)
        kinds: dict[Layer, Layer] = {}
        object.__setattr__(self, "layers", tuple(kinds.setdefault(layer, layer) for layer in self.layers))
        object.__setattr__(self, "_kinds", tuple(kinds))
        index = {id(layer): i for i, layer in enumerate(kinds)}
        object.__setattr__(self, "_kind_of", tuple(index[id(layer)] for layer in self.layers))

    def __hash__(self) -> int:
        """Cheaper than over all fields, and the same in every process; equality decides."""
        return hash((self.hidden, self.vocab, self.layer_kind_of, self.mtp_layers))

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

    def with_wide_ends(self, first: int, last: int) -> ModelSpec:
        """The model with so many layers at its start and its end `wide`, and no other."""
        if not (first or last or any(layer.wide for layer in self.layer_kinds)):
            return self
        end = self.num_layers - last
        layers = (
            replace(layer, wide=i < first or i >= end) if layer.wide != (i < first or i >= end) else layer
            for i, layer in enumerate(self.layers)
        )
        return replace(self, layers=tuple(layers))

    @property
    def is_moe(self) -> bool:
        return any(layer.moe is not None for layer in self.layer_kinds)

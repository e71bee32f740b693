"""What is the model made of? The dimensions on which every cost equation rests, one `Layer` per block.

Left out: everything that changes neither parameters, FLOPs, bytes nor launch files (dropout, rotary base,
logit scaling, initialisation), and architectures that are neither decoder-only transformers nor hybrids of Mamba-2 or
gated delta nets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.spec.attention import Attention, AttentionKind
from planner.spec.config import ContextKind
from planner.spec.dimensions import (
    MOST_LAYERS,
    require,
    require_not_negative,
    require_positive,
)
from planner.spec.findings import Finding
from planner.spec.indexer import Indexer
from planner.spec.layer import Activation, Layer, NormKind
from planner.spec.mixers import DeltaNet, StateSpace
from planner.spec.residual import AttentionResiduals, Residual


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model.

    `position_rows`: rows of a learned position table (0: rotary or ALiBi). `embedding_width`: width of the token
    embedding where a projection brings it to `hidden` (OPT-350m); 0 in the constructor means `hidden`. `mtp_layers`:
    multi-token-prediction modules that are trained along; each is the layers `mtp_block` (none stated: one of the last
    kind), a 2 hidden x hidden projection and three norms (DeepSeek-V3, arXiv 2412.19437, section 2.2); several residual
    streams it sums up by weights of its own. Its layers need be no layers of the model. `wide_norms`: where norms run
    operation by operation they multiply by their weights in fp32 (Gemma). `side_vocab`: rows of the table in which
    layers' `side` inputs are looked up; a normed projection of the token's embedding is added to them. `rotary_scales`:
    trained factors of the frequencies of rotation, the same in all layers (Mistral Large 4). `capped_logits`: logits
    pass a tanh between two constants (Gemma 2). `source`: where the dimensions come from. `assumed`: what the source
    left out and was filled in. `described`: the fields of a user's own file, from which `described_model` makes the
    model again.
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
    assumed: tuple[Finding, ...] = ()
    norm_weight: bool = True
    mtp_block: tuple[Layer, ...] = ()
    side_vocab: int = 0
    wide_norms: bool = False
    rotary_scales: int = 0
    capped_logits: bool = False
    described: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_positive("model", hidden=self.hidden, vocab=self.vocab)
        object.__setattr__(self, "embedding_width", self.embedding_width or self.hidden)
        require_not_negative(
            "model",
            position_rows=self.position_rows,
            rotary_scales=self.rotary_scales,
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
        narrow = {layer.in_format(wide=False) for layer in kinds}
        for layer in self.mtp_block if self.mtp_layers else ():
            if layer.in_format(wide=False) not in narrow:
                kinds.setdefault(layer, layer)
        object.__setattr__(self, "_kinds", tuple(kinds))
        blocks = dict.fromkeys(block for layer in kinds for block in layer.blocks)
        object.__setattr__(self, "_blocks", tuple(blocks))
        index = {id(layer): i for i, layer in enumerate(kinds)}
        object.__setattr__(self, "_kind_of", tuple(index[id(layer)] for layer in self.layers))

    def __hash__(self) -> int:
        """Cheaper than over all fields, and the same in every process; equality decides."""
        return hash((self.hidden, self.vocab, self.layer_kind_of, self.mtp_layers))

    @property
    def side_width(self) -> int:
        """Width of all layers' `side` inputs together."""
        return sum(layer.side for layer in self.layers)

    @property
    def residual(self) -> Residual | None:
        """How the last layer adds to the residual stream, where that is not one sum; all have the same kind."""
        return self.layers[-1].residual

    @property
    def streams(self) -> int:
        """Residual streams between layers."""
        return 1 if self.residual is None else self.residual.streams

    @property
    def attends_to_residuals(self) -> bool:
        """Do branches read sums of earlier layers by attention residuals?"""
        return isinstance(self.residual, AttentionResiduals)

    @property
    def passed_streams(self) -> float:
        """Tensors as wide as the hidden state from stage to stage, the mean over all layers."""
        passed = (1 if layer.residual is None else layer.residual.passed for layer in self.layers)
        return sum(passed) / self.num_layers

    @property
    def gathers_keys(self) -> bool:
        """Does attention see chosen or compressed keys?"""
        return any(attention.sparse for attention in self.attentions)

    @property
    def compresses_keys(self) -> bool:
        """Is attention that of DeepSeek-V4?"""
        return any(attention.compression is not None for attention in self.attentions)

    @property
    def chooses_blocks(self) -> bool:
        """Is attention to chosen blocks of keys (MiniMax Sparse Attention)?"""
        return any(attention.chooses_blocks for attention in self.attentions)

    @property
    def shares_between_layers(self) -> bool:
        """Do layers read what others, or the embedding, made beside the residual stream?"""
        return self.side_width > 0 or any(attention.borrows_kv for attention in self.attentions)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def layer_kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance; those that prediction modules alone have come last."""
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
            in_model = (kind for kind in reversed(self.layer_kind_of) if kind in alike)
            found[next(in_model, max(alike))] += self.mtp_layers
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
    def fusable_experts(self) -> bool:
        """Have experts an activation that grouped products can apply to what they write: SiLU or quick GELU, gated?"""
        experts = [block.moe for block in self.blocks if block.moe is not None]
        fusable = (Activation.SILU, Activation.QUICK_GELU)
        return bool(experts) and all(moe.gated and moe.activation in fusable for moe in experts)

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
    def context_kinds(self) -> tuple[ContextKind, ...]:
        """What Transformer Engine's context parallelism can exchange by, all layers alike, what is taken unasked first.

        Its ring takes neither windows nor sinks, and sinks leave the all-to-all alone (NVIDIA/TransformerEngine@d0067d0
        pytorch/attention/dot_product_attention/context_parallel.py attn_forward_func_with_cp); Megatron-Core gathers
        behind indexers (transformer/transformer_config.py).
        """
        if any(a.sinks and not a.sparse for a in self.attentions):
            return (ContextKind.A2A,)
        if any(a.sparse for a in self.attentions):
            return (ContextKind.ALL_GATHER,)
        if any(a.window is not None for a in self.attentions):
            return (ContextKind.ALL_GATHER, ContextKind.A2A)
        return tuple(ContextKind)

    def context_kind(self, asked: ContextKind) -> ContextKind:
        """How it exchanges where `asked`."""
        return asked if asked in self.context_kinds else self.context_kinds[0]

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

"""What does a layer's attention look like? Heads, widths, latents, windows and what it takes from other layers.

Left out: rotary base and scaling, which change neither parameters, FLOPs nor bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.spec.dimensions import (
    require,
    require_not_negative,
    require_not_too_large,
    require_positive,
)
from planner.spec.indexer import Compression, Indexer


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


@dataclass(frozen=True)
class Attention:
    """Self-attention of one layer.

    `head_dim`: width of one query or key head; with MLA the sum of its unrotated and rotated parts. `v_head_dim`: width
    of one value head. `window`: tokens a query sees at most (sliding or chunked attention), None for all. `qkv_bias`:
    with MLA the bias of the down-projections alone. `sinks`: one learned logit per head. `qk_norm_bias`: the norms of q
    and k also have a bias. `chunked`: the window is a fixed chunk (Llama 4) instead of sliding along. `output_gate`: a
    projection of the input, as wide as the output, multiplies it after a sigmoid (Qiu et al. 2025, arXiv 2505.06708);
    `head_gate`: one value a head does; `gate_bias`: every head has a bias of its gate (Beam). `tied_values`: the keys'
    projection makes the values too. `value_norm`: they pass a norm without weights. `indexer`: chooses the keys that a
    query sees: single ones with MLA or compressed keys (DeepSeek Sparse Attention), blocks of them with grouped queries
    (MiniMax Sparse Attention). `borrows_kv`: keys and values are those of an earlier layer, which `lends_kv` (Gemma 4
    E2B and E4B), with MLA before their projection up; `raw_keys`: as projected, so that a layer which borrows them
    rotates and norms them anew (cross-layer attention of Hunyuan-Large, arXiv 2411.02265). `compression`: one key, the
    value too, of every token of a window, and compressed ones (DeepSeek-V4); `out_groups` groups of heads are projected
    to `out_rank` values each, and these to the hidden state. `scaled`: queries are multiplied by a trained function of
    their position, two numbers a head (Mistral Large 4). `rotated_norm`: the rotated part of MLA's key passes a norm of
    its own (dots 3).
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
    raw_keys: bool = False
    compression: Compression | None = None
    out_groups: int = 0
    out_rank: int = 0
    scaled: bool = False
    rotated_norm: bool = False
    gate_bias: bool = False

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
            self._check_indexer(index)
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

    def _check_indexer(self, index: Indexer) -> None:
        require_positive("indexer", heads=index.heads, head_dim=index.head_dim, top_k=index.top_k)
        compressed = self.compression is not None and self.compression.rate > 0
        if not index.block:
            able = self.kind is AttentionKind.MLA or compressed
            require(able, "attention.indexer needs kind=mla or compressed keys, or blocks of keys", self.kind)
            return
        require_positive("indexer", block=index.block)
        plain = self.kind is not AttentionKind.MLA and self.compression is None and self.window is None
        require(
            plain, "attention.indexer that chooses blocks needs kind=gqa or mha without a window", self.kind
        )
        require(not index.shared, "indexer.block is for layers that choose themselves", "shared=true")
        blocks = f"top_k={index.top_k}, block={index.block}"
        require(index.top_k % index.block == 0, "indexer.block must divide indexer.top_k", blocks)
        heads = f"indexer.heads={index.heads}, kv_heads={self.kv_heads}"
        require(self.kv_heads % index.heads == 0, "indexer.heads must divide attention.kv_heads", heads)

    def _check_mla(self) -> None:
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
    def block(self) -> str:
        """Its module in `cost/operations`."""
        if self.compression is not None:
            return "compressed"
        return "latent" if self.kind is AttentionKind.MLA else "attention"

    @property
    def sparse(self) -> bool:
        """Do kernels that gather keys compute it?"""
        return self.indexer is not None or self.compression is not None

    @property
    def chooses_blocks(self) -> bool:
        """Is it to blocks of keys, which every key/value head has its own of?"""
        return self.indexer is not None and self.indexer.block > 0

    @property
    def gate_width(self) -> int:
        """Outputs of the gate's projection; 0 without one."""
        return self.heads * self.v_head_dim if self.output_gate else self.heads if self.head_gate else 0

    @property
    def kv_streams(self) -> int:
        """Values that MLA's projection down to keys and values makes."""
        return 0 if self.borrows_kv else self.kv_lora_rank + self.qk_rope_dim

    @property
    def own_kv_heads(self) -> int:
        """Heads of keys and values that the layer makes."""
        return 0 if self.borrows_kv else self.kv_heads

    @property
    def rotated_kv_heads(self) -> int:
        """Heads of keys that the layer rotates and norms."""
        return self.kv_heads if self.raw_keys else self.own_kv_heads

    @property
    def kv_width(self) -> int:
        """Outputs of the projections of keys and values, outside MLA."""
        return self.own_kv_heads * (self.head_dim + (0 if self.tied_values else self.v_head_dim))

    @property
    def latent_dim(self) -> int:
        """Width of a key as attention reads it: MLA's one where the up-projection is absorbed into queries."""
        return self.kv_lora_rank + self.qk_rope_dim if self.kind is AttentionKind.MLA else self.head_dim

    @property
    def latent_value(self) -> int:
        """How many of its values, the first, are the value."""
        return self.kv_lora_rank if self.kind is AttentionKind.MLA else self.v_head_dim

    @property
    def qk_nope_dim(self) -> int:
        """Width of the unrotated part of a query or key head; all of it outside MLA."""
        return self.head_dim - self.qk_rope_dim

"""Which keys does sparse attention choose for every query, and how is the choice trained?

Left out: first keys that are always seen, and values of the indexer's own (off in MiniMax-M3 as published).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IndexerLoss(StrEnum):
    """What an indexer learns from: nothing, or the divergence of its scores from attention's weights.

    SPARSE: over the keys that it chose; DENSE: over all keys before a query (DeepSeek-AI 2025, arXiv 2512.02556,
    section 2.1.1: the stage of sparse training, and the warm-up before it).
    """

    NONE = "none"
    SPARSE = "sparse"
    DENSE = "dense"


@dataclass(frozen=True)
class Indexer:
    """The lightning indexer of DeepSeek Sparse Attention: arXiv 2512.02556, section 2.1, equation 1; or of MiniMax
    Sparse Attention: arXiv 2606.13392.

    `heads` of queries, `head_dim` wide, and one key, score every key before a query; attention sees the best `top_k`.
    `block`: each head chooses by itself, for the key/value heads that it stands for, the blocks of so many keys that
    hold the best ones, `top_k` keys together, of which the query's own block is always one; 0: single keys.
    `shared`: the layer has no indexer and takes what the last one before it chose (Z.ai 2026, arXiv 2603.12201).
    `scaled`: its queries come from a layer norm of their own and are multiplied by a trained function of their
    position, two numbers a head (Mistral Large 4). Nothing says how a published model is trained on: the stage that it
    was published after is taken.
    """

    heads: int
    head_dim: int
    top_k: int
    shared: bool = False
    loss: IndexerLoss = IndexerLoss.SPARSE
    block: int = 0
    scaled: bool = False

    @property
    def trained(self) -> bool:
        """Has it weights of its own, and gradients for them?"""
        return not self.shared and self.loss is not IndexerLoss.NONE


@dataclass(frozen=True)
class Compression:
    """What a query of DeepSeek-V4 sees beside a window of single tokens (transformers 5.23 models/deepseek_v4).

    One key, which is the value too, stands for every `rate` tokens: their projections, weighed by a softmax of gates
    over these tokens, or with `overlap` over the `rate` before them, too, for which every token is projected twice. An
    indexer, whose keys are compressed alike, chooses among them; without one all are seen. `rate` 0: the window is all.
    """

    rate: int
    overlap: bool = False

    @property
    def series(self) -> int:
        """Compressed keys that a token enters."""
        return (1 + self.overlap) * (self.rate > 0)

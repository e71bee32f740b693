"""How is one micro-batch of a layer cut over ranks?

What expressions of operations are evaluated on. Left out: the pipeline and data parallelism, which cut layers and
micro-batches, not operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LayerShape:
    """How one micro-batch of a layer is cut, one value per key; all float arrays of one length.

    `tokens`: b s / c, tokens of the micro-batch on a context-parallel rank. `t`, `kv_split`: ranks that divide
    query heads and key/value heads. `sequence_split`: t with sequence parallelism, else 1. `expert_tokens`:
    tokens that enter the router per rank, before choosing K experts. `e`, `et`: expert and expert-tensor
    parallel ranks. `seq_kv`: keys a query can see, s.
    `imbalance`: tokens of the busiest expert-parallel rank over the mean; where experts are padded to one capacity,
    its factor on every rank (Megatron-LM d98e8a6 moe/moe_utils.py get_capacity, less its rounding up to a whole row).
    `context`: kind of context parallelism, of `ContextKind`, as the stack runs it.
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
    context: NDArray[np.int32] | int = 0

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

"""Which layers does every chunk hold, and how many of them does every rank recompute? What a split solver decides.

Left out: how it is found (`splits/split.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.cost.model import CostModel
from planner.spec.config import ParallelConfig, Recompute

Chunks = tuple[int, ...]


@dataclass(frozen=True)
class Dealt:
    """Layers of every chunk, and how many of them every rank recomputes: one number, or one per rank."""

    chunks: Chunks
    recomputed: tuple[int, ...]

    def config(self, stem: ParallelConfig) -> ParallelConfig:
        """The configuration that recomputes so many layers, the largest number where ranks differ."""
        return with_recomputed(stem, max(self.recomputed))

    def of_model(self, model: CostModel) -> CostModel:
        """The cost model with layers dealt and recomputed in this way."""
        return model.with_split(self.chunks, self.recomputed if len(self.recomputed) > 1 else ())


def with_recomputed(config: ParallelConfig, layers: int) -> ParallelConfig:
    """The configuration with so many layers of every rank recomputed in full."""
    if not layers and config.recompute != Recompute.FULL:
        return config
    full = int(Recompute.FULL if layers else Recompute.NONE)
    return replace(config, recompute=full, recompute_layers=layers)

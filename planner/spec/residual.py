"""How do layers add to the residual stream, where it is not one sum? Several streams, attention to earlier sums.

A new way is a dataclass here, named in `RESIDUALS`. Left out: time and memory (`cost/operations/`, a module named as
`block`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from planner.spec.dimensions import require, require_positive


@dataclass(frozen=True)
class Residual:
    """Any of them. `kind`: of its parameters; `block`: its module."""

    kind: ClassVar[str]
    block: ClassVar[str]

    @property
    def streams(self) -> int:
        """Residual streams between layers."""
        return 1

    @property
    def passed(self) -> int:
        """Tensors as wide as the hidden state that come from the layer before."""
        return self.streams

    def check(self, sublayers: int) -> None:
        """Raise `InputError` where it is none of a layer of so many branches."""


@dataclass(frozen=True)
class HyperConnections(Residual):
    """Streams that every branch sums up for its input and mixes as it adds its output, by weights that a projection of
    all of them gives (manifold-constrained hyper-connections, Xie et al. 2025, arXiv 2512.24880); not `mixed`: it adds
    its output to each (Hunyuan 4's independent hyper-connections)."""

    count: int
    mixed: bool = True
    kind: ClassVar[str] = "residual_streams"
    block: ClassVar[str] = "hyper_connections"

    def __post_init__(self) -> None:
        require_positive("residual", count=self.count)

    @property
    def streams(self) -> int:
        return self.count

    @property
    def weights(self) -> int:
        """Numbers a token that weigh the streams at a branch: n of its input, n of its output, n^2 of the mixture."""
        n = self.count
        return (2 + n) * n if self.mixed else 2 * n


@dataclass(frozen=True)
class AttentionResiduals(Residual):
    """For every branch how many sums of `earlier` stretches of layers it attends to beside the running one, by a
    trained query and normed keys (Kimi Team 2026, arXiv 2603.15031). A layer whose second branch has one more starts a
    stretch."""

    earlier: tuple[int, ...]
    kind: ClassVar[str] = "attention_residuals"
    block: ClassVar[str] = "attention_residuals"

    @property
    def passed(self) -> int:
        return 1 + self.earlier[0]

    @property
    def sources(self) -> tuple[int, ...]:
        """Sums that each branch attends to, where there are several."""
        return tuple(count + 1 for count in self.earlier if count)

    @property
    def starts_stretch(self) -> int:
        """Sums that the layers from this one on attend to; 0 where it starts no stretch of them."""
        return self.earlier[-1] if self.earlier[-1] > self.earlier[0] else 0

    def check(self, sublayers: int) -> None:
        able = len(self.earlier) == sublayers
        require(able, "residual.earlier must have a number for every branch", self.earlier)


@dataclass(frozen=True)
class AltUp(Residual):
    """Streams of which a layer computes on one: it predicts all of them from all, by a small product a token, and
    corrects them by what the branches made of that one (alternating updates, Baykal et al. 2023, arXiv 2301.13310);
    beside attention a product of low `rank` of its input is added (LAuReL, Menghani et al. 2024, arXiv 2411.07501)."""

    count: int
    rank: int
    kind: ClassVar[str] = "residual_streams"
    block: ClassVar[str] = "altup"

    def __post_init__(self) -> None:
        require_positive("residual", count=self.count, rank=self.rank)

    @property
    def streams(self) -> int:
        return self.count


RESIDUALS: Final[tuple[type[Residual], ...]] = (HyperConnections, AttentionResiduals, AltUp)

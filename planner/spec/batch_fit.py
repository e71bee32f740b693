"""What is a published fit of the critical or the best batch? Its form and numbers as a catalog states them.

Left out: the numbers (`catalog/campaign.yaml`), and what is made of them (`campaign/batch.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from pydantic import ConfigDict

from planner.errors import InputError


class FitOf(StrEnum):
    """Which batch: the one beyond which larger ones cost more than they save, one that this is not below, or that of
    the least loss."""

    CRITICAL = "critical"
    AT_LEAST = "at_least"
    BEST = "best"


class FitInput(StrEnum):
    """What a power law is in: tokens of the run, the loss that they reach [nats/token], or FLOP, 6 a parameter and
    token."""

    TOKENS = "tokens"
    LOSS = "loss"
    COMPUTE = "compute"


@dataclass(frozen=True)
class BatchFit:
    """One of them. A power law, `coefficient` x `input`^`exponent` [tokens], or `points` of (tokens of the run, batch).

    `overhead`: the share of the fewest tokens that a batch which its authors call critical takes beside them: 1 where
    that is twice as many. `tokens`, `parameters`: least and most tokens of its runs, and the most parameters.
    `levels_off`: does the batch stay behind the last point?
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    of: FitOf
    source: str
    tokens: tuple[float, float]
    parameters: float
    input: FitInput = FitInput.TOKENS
    coefficient: float = 0.0
    exponent: float = 0.0
    points: tuple[tuple[float, float], ...] = ()
    levels_off: bool = False
    overhead: float = 1.0
    unverified: bool = False

    def __post_init__(self) -> None:
        tokens = [known for known, _ in self.points]
        law = self.coefficient > 0 if not self.points else len(tokens) > 1 and tokens == sorted(set(tokens))
        if not (law and 0 < self.tokens[0] < self.tokens[1] and self.overhead > 0 and self.parameters > 0):
            must = "a fit of batches needs a coefficient above 0 or points in order of tokens, and a range"
            raise InputError(must, self.name)

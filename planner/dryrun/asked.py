"""What does a question for a dry run ask of every framework: one configuration, and the files that would launch it.

Left out: what each framework runs of it (`recipe.py` of each).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from planner.ask.question import Question
from planner.catalog.stack_options import SEPARATOR
from planner.frameworks.framework import Launch, launch_in
from planner.spec.config import ParallelConfig
from planner.spec.planfile import Plan
from planner.spec.rule import Problem


@dataclass(frozen=True)
class Asked:
    """One configuration of a problem. `name`, `fields`: of the model's `config.json`.

    `estimate`: of the same, none where planner has no reader for the model or the question says what no estimate knows.
    """

    question: Question
    problem: Problem
    config: ParallelConfig
    estimate: Plan | None
    name: str
    fields: Mapping[str, Any]

    @property
    def options(self) -> frozenset[str]:
        """Of the stack, by name."""
        return frozenset(self.problem.stack.name.split(SEPARATOR)[1:])

    def launch(self) -> Launch:
        """What the framework's files would be written from; layers as the estimate has dealt them to stages."""
        choice = None if self.estimate is None else self.estimate.choices[0]
        return launch_in(self.problem, self.config, choice=choice)


class AnyRecipe(Protocol):
    """What one rank of a framework runs."""

    @property
    def micro_batch(self) -> int:
        """Sequences that run at once."""
        ...

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        ...

    @property
    def num_microbatches(self) -> int:
        """Of a step."""
        ...

    def sized(self, micro_batch: int, seq_len: int) -> Self:
        """The same with other micro-batches and sequences."""
        ...

    def roles(self) -> tuple[tuple[int, Self], ...]:
        """Ranks that differ, by number."""
        ...

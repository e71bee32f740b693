"""Is the longest sequence that runs no shorter than one that does?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from planner.cost.captured.operation import Phase
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.question import _Runs
from planner.dryrun.recording import Recording
from tests.dryrun.test_dryrun_outcome import MIB, Written


@dataclass(frozen=True)
class Lengths:
    """A step that takes 20 MiB a token of a sequence."""

    seq_len: int
    micro_batch: int = 1
    num_microbatches: int = 1

    def sized(self, micro_batch: int, seq_len: int) -> Lengths:
        return replace(self, micro_batch=micro_batch, seq_len=seq_len)

    def roles(self) -> tuple[tuple[int, Lengths], ...]:
        return ((0, self),)


def step_of(recipe: Any, capability: tuple[int, int]) -> Recording:
    written = Written()
    written.run("aten.mm.default", "", Phase.FORWARD, 20 * MIB * recipe.seq_len)
    return written.ended()


@pytest.mark.parametrize(
    ("asked", "tokens", "positions", "expected"),
    [
        (100, 120, 0, 100), (100, 300, 0, 256), (300, 310, 0, 300), (300, 1000, 0, 768), (512, 200, 0, 192),
        (100, 30, 0, 28), (100, 0, 0, 0), (100, 1000, 100, 100), (1000, 1000, 1000, 1000),
    ],
)  # fmt: skip
def test_no_length_that_runs_is_longer(asked: int, tokens: int, positions: int, expected: int) -> None:
    limit = tokens * 20 * MIB
    runs = _Runs(step_of, (9, 0), AllocatorSettings(), limit, limit, positions)
    assert runs.longest_sequence(Lengths(asked), asked <= tokens) == expected

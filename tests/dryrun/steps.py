"""A small model's step, run on fake tensors: what tests of it share."""

from __future__ import annotations

from typing import Any

from planner.cost.captured.operation import Phase
from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import RankMemory, memory_of
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.timeline import HeldBlocks, blocks_after
from planner.dryrun.transformers.recipe import Recipe

HOPPER = (9, 0)
LIMIT = 2**40
TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "vocab_size": 1000,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
PLAIN = Recipe(TINY, "tiny", micro_batch=2, seq_len=512)
TOKENS = 2 * 512
# two layers of attention, MLP and norms, embedding, head and the last norm
PARAMETERS = 2 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 640 + 2 * 256) + 2 * 1000 * 256 + 256


def recorded(recipe: Recipe) -> Recording:
    from planner.dryrun.transformers.step import record_step

    return record_step(recipe, HOPPER)


def memory(recipe: Recipe) -> RankMemory:
    found = memory_of(recorded(recipe), AllocatorSettings(), LIMIT)
    assert sum(one.size for one in found.alive) == found.allocated_peak, "what is held adds up to the peak"
    return found


def held(found: RankMemory, holds: Holds) -> int:
    """What tensors of a kind ask for at the peak [bytes]."""
    return sum(one.size * one.number for one in found.blocks if one.holds is holds)


def at_end_of_forward(recording: Recording) -> tuple[HeldBlocks, ...]:
    """What is held when the second step's backward pass begins."""
    starts = [one.first for one in recording.operations if one.phase is Phase.BACKWARD]
    event = next(start for start in starts if start > recording.second_step) - 1
    return blocks_after(recording, event, replay(recording.trace, AllocatorSettings()).allocated_timeline)


def names(recipe: Recipe) -> list[str]:
    return [one.name for one in recorded(recipe).operations]

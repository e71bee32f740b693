"""Does no rank of a real split need less memory than what its capacity was told by?"""

from __future__ import annotations

import pytest

from planner.cost.least_chunks import ChunkSizes
from planner.cost.probe import rank_memory
from planner.solve.dealt import Dealt
from planner.solve.split import cost_of_split
from planner.solve.split_bound import fewest_layers
from planner.spec.config import ParallelConfig
from planner.spec.model import Activation, Layer, Mlp, ModelSpec, Moe
from tests.problems import attention, costs, problem
from tests.solve.test_split import every_split

LAYERS = {  # "A" frees much memory by recomputation, "B" keeps little
    "A": Layer(attention(16, 16), Mlp(8192, True, False, Activation.SILU), None),
    "B": Layer(attention(16, 1), None, Moe(16, 1, 1024, True, False, 0, False, False)),
    "C": Layer(attention(16, 8), Mlp(14336, True, False, Activation.SILU), None),
}


@pytest.mark.parametrize("kinds", ["AAAAAABBBBBA", "AAAAAABBBBBC"])
def test_a_rank_of_several_kinds_needs_no_less_than_the_least(kinds: str) -> None:
    layers = tuple(LAYERS[kind] for kind in kinds)
    spec = ModelSpec("mixed", "qwen3_moe", 2048, 32000, layers, False, max_position=131072)
    model = costs(problem(spec, "1x8 h100", seq_len=8192, global_batch=16))
    config = ParallelConfig(tp=2, etp=2, sp=1, pp=4, num_microbatches=16)
    choices = (1, 2)
    least = rank_memory(model, config, choices, 12, ChunkSizes(fewest_layers(12, config), 12))
    for chunks in list(every_split(12, 4, 1))[::3]:
        for i, count in enumerate(choices):
            detail = cost_of_split(model, config, Dealt(chunks, (count,))).detail
            assert detail is not None
            held = detail.by_class[0] + detail.outside[0]
            for j, ranks in enumerate(detail.classes.members[int(detail.class_row[0])]):
                assert least[i, ranks[0], sum(chunks[ranks[0] :: 4])] <= held[j] * (1 + 1e-9)

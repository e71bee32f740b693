"""Does no rank of a real split need less memory than what its capacity was told by?"""

from __future__ import annotations

import pytest

from planner.cost.pipeline.least_chunks import ChunkSizes
from planner.cost.probe import _least_kinds, fewest_of_kinds, rank_memory
from planner.solve.splits.bound import fewest_layers
from planner.solve.splits.dealt import Dealt
from planner.solve.splits.split import cost_of_split
from planner.spec.config import ParallelConfig, default_schedule
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from tests.problems import attention, costs, problem
from tests.solve.splits.test_split import every_split

LAYERS = {  # "A" frees much memory by recomputation, "B" keeps little
    "A": Layer(attention(16, 16), Mlp(8192, True, False, Activation.SILU), None),
    "B": Layer(attention(16, 1), None, Moe(16, 1, 1024, True, False, 0, False, False)),
    "C": Layer(attention(16, 8), Mlp(14336, True, False, Activation.SILU), None),
    "D": Layer(None, Mlp(4096, True, False, Activation.SILU), None, norms=1),  # within "A" and "C"
    "E": Layer(attention(16, 16), Mlp(2048, True, False, Activation.SILU), None),  # within "A"
}


@pytest.mark.parametrize("kinds", ["AAAAAABBBBBA", "AAAAAABBBBBC", "ABCABACABBCA", "AEDACEDDEAEC"])
@pytest.mark.parametrize("vpp", [1, 2])
def test_a_rank_of_several_kinds_needs_no_less_than_the_least(kinds: str, vpp: int) -> None:
    layers = tuple(LAYERS[kind] for kind in kinds)
    spec = ModelSpec("mixed", "qwen3_moe", 2048, 32000, layers, False, max_position=131072)
    model = costs(problem(spec, "1x8 h100", seq_len=8192, global_batch=16))
    pp, schedule = 4 // vpp, int(default_schedule(vpp))
    config = ParallelConfig(tp=2, etp=2, sp=1, pp=pp, dp=vpp, vpp=vpp, num_microbatches=8, schedule=schedule)
    choices = (0, 2, 4)
    least = rank_memory(model, config, choices, 12, ChunkSizes(fewest_layers(12, config), 12))
    for chunks in list(every_split(12, pp, vpp))[::3]:
        for i, count in enumerate(choices):
            detail = cost_of_split(model, config, Dealt(chunks, (count,))).detail
            assert detail is not None
            held = detail.by_class[0] + detail.outside[0]
            for j, ranks in enumerate(detail.classes.members[int(detail.class_row[0])]):
                assert least[i, ranks[0], sum(chunks[ranks[0] :: pp])] <= held[j] * (1 + 1e-9)


def test_layers_that_contain_another_are_never_the_least() -> None:
    kinds = [LAYERS[name] for name in "ABCDE"]
    assert _least_kinds(kinds) == [1, 3, 4]
    scans = load_model("nemotron-h-8b").layer_kinds
    assert _least_kinds(scans) == list(range(len(scans)))


def test_the_fewest_of_every_kind_are_those_of_the_worst_runs() -> None:
    kind_of = [0, 1, 0, 2, 1, 0, 0, 2]
    one, two = fewest_of_kinds(kind_of, 3, 1), fewest_of_kinds(kind_of, 3, 2)
    runs = [kind_of[i:j] for i in range(9) for j in range(i, 9)]
    for n in range(9):
        for kind in range(3):
            alone = min(run.count(kind) for run in runs if len(run) == n)
            both = min(a.count(kind) + b.count(kind) for a in runs for b in runs if len(a) + len(b) == n)
            assert (one[n, kind], two[n, kind]) == (alone, both)

"""Which layers does every stage hold? Hand-worked splits, brute force, stage classes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.pipeline.stages import stage_classes
from planner.space.split import deal_layers, split_balanced, split_evenly, split_greedily
from planner.spec.load_model import load_model
from planner.spec.stack.kinds import PipelineSplit

HEADS = st.sampled_from([0.0, 0.3, 1.0, 1.7, 4.3])


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def rank_loads(chunks: list[int], pp: int, embedding: float, head: float) -> list[float]:
    loads = [float(sum(chunks[rank::pp])) for rank in range(pp)]
    loads[0] += embedding
    loads[-1] += head
    return loads


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 40), HEADS)
def test_balanced_deals_every_layer_and_leaves_no_chunk_empty(
    pp: int, vpp: int, extra: int, head: float
) -> None:
    layers = pp * vpp + extra
    chunks = split_balanced(layers, pp, vpp, 0.05, head)
    assert sum(chunks) == layers
    assert len(chunks) == pp * vpp
    assert min(chunks) >= 0
    assert vpp > 1 or min(chunks) >= 1
    assert min(chunks[1:-1], default=1) >= 1


def test_interleaved_chunks_are_equal_but_for_the_ends() -> None:
    # Llama 3.1 405B as published (arXiv 2407.21783, section 3.3.2): one layer less in the first and the last stage
    assert split_balanced(126, 16, 8, 0.05, 0.66) == [0, *[1] * 126, 0]
    assert split_balanced(126, 16, 4, 0.05, 0.66) == [1, *[2] * 62, 1]
    assert split_balanced(61, 16, 2, 0.05, 1.2) == [1, *[2] * 30, 0]


def test_further_layers_go_to_late_virtual_stages_which_hold_fewer_micro_batches() -> None:
    assert split_balanced(10, 2, 4, 0.0, 0.0) == [1, 1, 1, 1, 2, 2, 1, 1]
    assert split_balanced(80, 4, 20, 0.05, 1.2) == [0, *[1] * 72, 2, 2, 1, 1, 1, 1, 0]


@given(st.integers(2, 4), st.integers(0, 7), HEADS, st.sampled_from([0.0, 0.05, 1.2]))
def test_balanced_minimises_the_heaviest_rank(pp: int, extra: int, head: float, embedding: float) -> None:
    layers = pp + extra
    splits = [s for s in product(range(1, layers + 1), repeat=pp) if sum(s) == layers]
    best = min(max(rank_loads(list(s), pp, embedding, head)) for s in splits)
    found = max(rank_loads(split_balanced(layers, pp, 1, embedding, head), pp, embedding, head))
    assert found == pytest.approx(best)


def test_balanced_by_hand() -> None:
    # 10 layers on 4 stages, a head as heavy as 2 layers: 12 over 4 is 3 each
    assert split_balanced(10, 4, 1, 0.0, 2.0) == [3, 3, 3, 1]
    # Llama 3.1 405B: 126 layers on 16 stages, first and last one layer less (arXiv 2407.21783, section 3.3.2)
    assert split_balanced(126, 16, 1, 1.0, 1.0) == [7, *[8] * 14, 7]


def test_a_layer_left_over_goes_to_a_late_rank() -> None:
    assert split_balanced(9, 4, 1, 0.0, 0.0) == [2, 2, 2, 3]


def test_interleaved_chunks_lie_on_rank_i_mod_pp() -> None:
    chunks = split_balanced(10, 2, 2, 0.0, 0.0)
    assert [sum(chunks[rank::2]) for rank in range(2)] == [5, 5]
    assert sorted(chunks) == [2, 2, 3, 3]


def test_even_split() -> None:
    assert split_evenly(24, 6) == [4] * 6


@pytest.mark.parametrize(
    ("layers", "pp", "head", "split"),
    [
        (4, 2, 0.0, [2, 2]),  # share 2: the second layer reaches it
        (16, 2, 4.0, [10, 6]),  # nanotron's 1B: published peaks of rank 0 are those of 10 layers
        (32, 4, 2.0, [9, 8, 9, 6]),  # shares end at 8.5, 17, 25.5
        (8, 8, 4.0, [2, 1, 2, 1, 2, 0, 0, 0]),  # 1.5, 3, 4.5, 6, 7.5: trailing ranks stay empty
    ],
)
def test_nanotron_by_hand(layers: int, pp: int, head: float, split: list[int]) -> None:
    assert split_greedily(layers, pp, head) == split


@given(st.integers(1, 64), st.integers(1, 16), HEADS)
def test_nanotron_deals_every_layer(layers: int, pp: int, head: float) -> None:
    split = split_greedily(layers, pp, head)
    assert sum(split) == layers
    assert len(split) == pp


def test_one_stage_holds_everything() -> None:
    for split in PipelineSplit:
        assert deal_layers(13, 1, 1, split, 0.05, 1.0) == [13]


def test_deepseek_v3_classes_tell_dense_from_expert_layers() -> None:
    # 3 dense leading layers of 61; even without a head, stage 0 of 4 holds them and nobody else
    kinds = load_model("deepseek-v3").layer_kind_of
    assert kinds == (0, 0, 0, *[1] * 58)
    classes = stage_classes(column(4), column(1), column(0), kinds, PipelineSplit.BALANCED, 0.0, 0.0)
    layers = {
        rank: classes.layers[0, j].tolist() for j, ranks in enumerate(classes.members[0]) for rank in ranks
    }
    assert layers[0] == [3, 12]
    assert [layers[rank] for rank in (1, 2, 3)] == [[0, 15], [0, 15], [0, 16]]
    # recomputing two layers of stage 0 takes dense ones, the fourth is an expert layer
    first = int(np.flatnonzero(classes.first[0])[0])
    assert classes.leading[0, first, [0, 2, 4]].tolist() == [[0, 0], [2, 0], [3, 1]]


def test_all_layers_of_a_deep_stage_are_recomputed() -> None:
    # a head as heavy as 4 layers leaves 5, 5, 5, 1 of 16 layers; ceil(16 / 4) = 4 stands for all of a stage
    classes = stage_classes(column(4), column(1), column(0), (0,) * 16, PipelineSplit.BALANCED, 0.05, 4.0)
    assert sorted(classes.layers[0, :, 0].tolist())[-1] == 5
    deep = classes.layers[0, :, 0] == 5
    assert (classes.leading[0, deep, 4, 0] == 5).all()
    assert (classes.leading[0, deep, 3, 0] == 3).all()


@given(st.integers(1, 8), st.integers(1, 3), st.integers(0, 20), st.integers(0, 3))
def test_classes_partition_stages_and_layers(pp: int, vpp: int, extra: int, dense: int) -> None:
    vpp = vpp if pp > 1 else 1
    layers = pp * vpp + extra
    kinds = tuple(int(i >= min(dense, layers - 1)) for i in range(layers))
    classes = stage_classes(
        column(pp), column(vpp), column(int(vpp > 1)), kinds, PipelineSplit.BALANCED, 0.05, 1.0
    )
    assert sorted(rank for ranks in classes.members[0] for rank in ranks) == list(range(pp))
    assert float(classes.count.sum()) == pp
    total = (classes.count[:, :, None] * classes.layers).sum(axis=(0, 1))
    assert total.tolist() == [kinds.count(k) for k in range(max(kinds) + 1)]
    assert float((classes.count * classes.first).sum()) == float((classes.count * classes.last).sum()) == 1
    # the deepest leading count is the whole stage
    assert np.array_equal(classes.leading[:, :, -1, :], classes.layers)
    assert all(classes.stage[0, j] == min(ranks) for j, ranks in enumerate(classes.members[0]))


def test_pipelines_of_a_table_do_not_mix() -> None:
    kinds = (0,) * 12
    pp, vpp = column(4, 1, 2, 4), column(1, 1, 3, 1)
    together = stage_classes(pp, vpp, vpp * 0, kinds, PipelineSplit.BALANCED, 0.05, 1.0)
    for row in range(4):
        one = slice(row, row + 1)
        alone = stage_classes(pp[one], vpp[one], vpp[one] * 0, kinds, PipelineSplit.BALANCED, 0.05, 1.0)
        here = together.of_row[row]
        assert together.members[here] == alone.members[0]
        width = len(alone.members[0])
        assert np.array_equal(together.layers[here, :width], alone.layers[0, :width])
        depth = alone.leading.shape[2]
        assert np.array_equal(together.leading[here, :width, :depth], alone.leading[0, :width])
        deeper = together.leading[here, :width, depth:]
        assert np.array_equal(deeper, np.broadcast_to(alone.leading[0, :width, -1:], deeper.shape))
        assert not together.count[here, width:].any()

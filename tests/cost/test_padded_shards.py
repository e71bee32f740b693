"""Tensors that ranks divide by rows, worked by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.padded_shards import padding
from planner.cost.params import layer_parameters
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from tests.problems import costs, moe_model, problem

EXPERTS = 16
MODEL = moe_model(4, experts=EXPERTS)
OF_EXPERTS = sum(
    layer_parameters(MODEL.layer_kinds[kind], MODEL.hidden).expert for kind in MODEL.layer_kind_of
)


def on(stack: str) -> Problem:
    return problem(MODEL, "16x8 h100 400G-ib", global_batch=128, stack=stack)


def held(subject: Problem, dp: int, term: str = "weights", **axes: int) -> float:
    config = ParallelConfig(dp=dp, zero=3, num_microbatches=128 // dp, **axes)
    detail = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    return float(detail.memory["optimizer"][term][0, 0])


@given(rows=st.integers(1, 300), ranks=st.integers(1, 600))
def test_the_busiest_rank_holds_the_rows_of_a_piece_rounded_up(rows: int, ranks: int) -> None:
    found = float(padding(np.array([float(rows)]), np.array([float(ranks)]))[0])
    assert found * rows / ranks == pytest.approx(-(-rows // ranks))
    assert found >= 1.0


@pytest.mark.parametrize("term", ["weights", "gradients", "optimizer"])
def test_a_rank_holds_a_whole_expert_of_every_layer_where_ranks_outnumber_them(term: str) -> None:
    by_ranks = [held(on("transformers-2026"), dp, term) for dp in (16, 32, 64, 128)]
    width = {"weights": 2, "gradients": 2, "optimizer": 4}[term]
    for dp, found in zip((16, 32, 64, 128), by_ranks, strict=True):
        assert found >= width * OF_EXPERTS / EXPERTS
        others = held(on("transformers-2026"), 8, term) * 8 - width * OF_EXPERTS
        assert found == pytest.approx(width * OF_EXPERTS / EXPERTS + others / dp, rel=0.02)
    assert all(more > less for more, less in pairwise(by_ranks))


def test_all_send_the_padding_too() -> None:
    def sent(dp: int) -> dict[str, float]:
        config = ParallelConfig(dp=dp, zero=3, num_microbatches=128 // dp)
        messages = step_messages(costs(on("transformers-2026")), config, 0)
        return {e.what: e.sent for e in messages if e.axis == "edp"}

    few, many = sent(16), sent(64)
    for what in ("weights", "gradients"):  # (N - 1)/N of it, to others
        assert many[what] / few[what] == pytest.approx(64 / EXPERTS * (63 / 64) / (15 / 16))


def test_few_experts_can_be_divided_each_within_itself() -> None:
    one, four = (held(on("torchtitan-2026"), dp) for dp in (32, 128))
    assert one == pytest.approx(4 * four, rel=0.02)

"""Is it said how far a configuration's shapes lie from measured ones?"""

from __future__ import annotations

import math
import re

import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.cost.shapes import shape_distance_of
from planner.report.words import texts
from planner.spec.config import ParallelConfig
from tests.problems import costs, dense_model, moe_model, problem


def config(**degrees: int) -> ParallelConfig:
    return ParallelConfig(**{"tp": 1, "pp": 1, "dp": 16, "micro_batch": 1, **degrees})


def test_measured_extents_are_at_no_distance() -> None:
    # hidden 2048, ffn 7168, 16 heads of 128, 8 of keys and values, 32,000 words; 4,096 tokens
    layers = costs(problem(dense_model())).layers
    far = shape_distance_of(config(), layers)
    assert far.most == pytest.approx(math.log2(51200 / 32000))  # the head: nothing was measured nearer
    assert far.mean < 0.25
    assert far.outside == 0
    assert far.attention == 0


def test_cut_ever_finer_the_shapes_leave_what_was_measured() -> None:
    layers = costs(problem(moe_model())).layers
    whole, cut = (shape_distance_of(config(tp=t, dp=16 // t), layers) for t in (1, 16))
    assert cut.outside > whole.outside
    assert cut.most > whole.most
    assert 0 <= cut.mean <= cut.most


def test_the_answer_says_it() -> None:
    plan = make_estimate(Request("llama-3.1-8b", "dgx-h100", gpus=8, set={"tp": (1,), "pp": (1,)}))
    (line,) = (text for text in texts(plan.choices[0].why) if "nearest measured shape" in text)
    # half of the work is a product of 28,672 outputs, 1.75 times the nearest measured 16,384
    assert float(re.search(r"are ([\d.]+)x from", line)[1]) == pytest.approx(1.75**0.6, rel=0.1)

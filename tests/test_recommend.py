"""Is the configuration that is recommended as fast as a prediction can tell, roomier, and nearer to practice?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.answer.recommend import (
    CHARGE,
    TOLD_APART,
    USUAL_SHARE,
    Setting,
    Weighed,
    best_weighed,
    concerns,
    is_even,
    recommend,
    weigh,
)
from planner.ask.request import Request, resolve
from planner.report.words import texts, worded
from planner.space.restriction import parse_restriction
from planner.spec.config import ParallelConfig
from planner.spec.planfile import CLOSED_GAP, Choice, Concern, Plan
from planner.spec.verdict import MemoryVerdict

Make = Callable[..., Choice]
SETTING = Setting(seq_len=8192, domain=8)


def weighed(slower: float, held: float, kinds: float = 2.0, fits: bool = True) -> Weighed:
    return Weighed(10 * (1 + slower), held, {Concern.KINDS: kinds}, fits)


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ([], 0),
        ([weighed(0.008, 0.79)], 1),  # 12 GiB of 79
        ([weighed(0.008, 0.94)], 0),  # no more room: no reason
        ([weighed(0.021, 0.50)], 0),  # told apart
        ([weighed(0.002, 0.79), weighed(0.008, 0.50)], 1),  # beyond the usual share room counts for nothing
        ([weighed(0.004, 0.95, kinds=1)], 0),  # simpler, and holds more
        ([weighed(0.004, 0.94, kinds=1)], 1),
        ([weighed(0.004, 0.80, kinds=3)], 0),  # roomier, and further from practice
        ([weighed(0.0001, 0.935)], 0),  # not worth a line
        ([weighed(0.001, 0.80, fits=False)], 0),
    ],
)
def test_which_is_taken(others: list[Weighed], taken: int) -> None:
    assert best_weighed([weighed(0.0, 0.945), *others]) == taken


def test_holding_more_is_no_matter_within_the_usual_share() -> None:
    assert best_weighed([weighed(0.0, 0.5), weighed(0.003, USUAL_SHARE, kinds=1)]) == 1


def test_of_equals_the_faster_is_taken() -> None:
    one, two = weighed(0.001, 0.7), weighed(0.001, 0.7)
    assert best_weighed([weighed(0.0, 0.9), one, two]) == 1


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        ({}, {}),
        ({"tp": 8, "pp": 4, "ep": 8}, {Concern.KINDS: 3}),
        ({"tp": 16}, {Concern.KINDS: 1, Concern.WIDE_TENSOR: 1}),
        ({"cp": 2}, {Concern.KINDS: 1}),
        ({"cp": 4}, {Concern.KINDS: 1, Concern.SHORT_CONTEXT: 1}),
        ({"tp": 6, "ep": 12}, {Concern.KINDS: 2, Concern.ODD_DEGREE: 2}),
        ({"pp": 3, "schedule": 2}, {Concern.KINDS: 1, Concern.SCHEDULE: 1}),
        ({"pp": 3, "schedule": 1}, {Concern.KINDS: 1}),
        ({"offload": 1}, {Concern.OFFLOAD: 1}),
        ({"cuda_graph_impl": 3}, {Concern.GRAPHS: 1}),
    ],
)
def test_concerns(axes: dict[str, int], found: Mapping[Concern, float]) -> None:
    assert concerns(ParallelConfig(**axes), SETTING, chunks=(4, 4)) == found


@pytest.mark.parametrize(
    ("chunks", "even"),
    [
        ((32,), True),
        ((16, 16), True),
        ((20, 20, 20, 20), True),
        ((1, 2, 2, 1), True),  # embedding and loss count as a layer
        ((21, 20, 20, 19), False),
        ((2, 2, 1, 2), False),
    ],
)
def test_stages_of_equal_depth(chunks: tuple[int, ...], even: bool) -> None:
    assert is_even(chunks) is even


@pytest.fixture
def like(choice_of: Make) -> Callable[..., Choice]:
    """A choice whose step is slower and whose peak leaves more of 80 GiB free [bytes]."""
    config = ParallelConfig(tp=8, pp=16, dp=128, vpp=8, schedule=1, num_microbatches=16, sp=1, zero=1)

    def make(slower: float = 0.0, freed: float = 0.0, **axes: int) -> Choice:
        choice = choice_of(replace(config, **axes))
        memory = choice.memory.model_copy(
            update={"peak": 76 * 2.0**30 - freed, "verdict": MemoryVerdict.FITS}
        )
        return choice.model_copy(update={"step_time": choice.step_time * (1 + slower), "memory": memory})

    return make


def test_one_that_is_not_listed_takes_the_last_place(like: Callable[..., Choice]) -> None:
    listed = [like(), like(0.004, 0.0), like(0.03, 0.0)]
    other = like(0.008, 12e9)
    pick = recommend(SETTING, listed, [other])
    assert pick.choices == (listed[0], listed[1], other)
    assert pick.index == 2
    assert pick.trade is not None
    assert pick.trade.slower == pytest.approx(0.008)
    assert pick.trade.more_free == pytest.approx(12e9)
    assert pick.trade.reasons == ()
    alone = recommend(SETTING, listed[:1], [other])
    assert (len(alone.choices), alone.index) == (2, 1)


def test_what_is_nearer_to_practice_is_said(like: Callable[..., Choice]) -> None:
    pick = recommend(SETTING, [like(tp=16, dp=64), like(0.002)])
    assert pick.index == 1
    assert pick.trade is not None
    ((concern, before, after),) = [(r.concern, r.fastest, r.recommended) for r in pick.trade.reasons]
    assert (concern, before, after) == (Concern.WIDE_TENSOR, 1, 0)
    assert recommend(SETTING, [like(), like(0.0, 12e9, tp=16, dp=64)]).trade is None


def test_nothing_found_recommends_nothing() -> None:
    assert recommend(SETTING, []).choices == ()


ASKED = Request("llama-2-7b", "8x8 h100 400G-ib", seq_len=4096, seek_batch=False, top=4)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(ASKED)


def test_a_plan_names_it(plan: Plan) -> None:
    assert plan.recommended
    assert plan.trade is not None
    best, taken = plan.choices[0], plan.choices[plan.recommended]
    assert len(plan.choices) == ASKED.top
    times = [choice.step_time for choice in plan.choices]
    assert all(later >= earlier * (1 - CLOSED_GAP) for earlier, later in pairwise(times))
    assert 1 < taken.step_time / best.step_time <= 1 + TOLD_APART
    assert taken.memory.free - best.memory.free == plan.trade.more_free > 0
    before, after = (weigh(choice, Setting.of(resolve(ASKED)[0])) for choice in (best, taken))
    assert after.charges <= before.charges
    assert after.charged < before.charged - CHARGE / 4 * best.step_time
    first, second = texts(plan.headline)
    assert first.startswith(best.config.text)
    assert second.startswith(f"recommended: #{plan.recommended + 1} {taken.config.text}, ")
    assert " more free" in second
    assert str(worded(plan)) == f"{first}\n{second}"
    assert first in repr(worded(plan))


def test_its_place_has_a_name(plan: Plan) -> None:
    assert plan.index("recommended") == plan.recommended
    assert plan.index("0") == 0


def test_other_answers_recommend_what_they_have() -> None:
    named = replace(ASKED, set=parse_restriction(["tp=1", "pp=1"]))
    fits, too_large = make_estimate(named), make_estimate(replace(named, headroom=0.9))
    assert (fits.recommended, too_large.recommended) == (0, None)
    assert make_plan(replace(named, headroom=0.99)).recommended is None
    roomiest = make_plan(replace(ASKED, objective="headroom"))
    assert (roomiest.recommended, roomiest.trade) == (0, None)


def test_what_is_recommended_is_what_was_asked_for() -> None:
    """Graphs that gain next to nothing are left out, but where they are asked for."""
    few = replace(ASKED, cluster="2x8 h100 400G-ib", global_batch="64", top=6)
    free = make_plan(few)
    assert free.recommended is not None
    assert free.choices[free.recommended].config.cuda_graphs.by == "none"
    pinned = replace(few, set=parse_restriction(["cuda_graph_impl=full_iteration"]))
    kept = make_plan(pinned)
    assert {choice.config.cuda_graphs.by for choice in kept.choices} == {"full_iteration"}

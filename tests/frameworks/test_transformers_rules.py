"""Is what transformers cannot run illegal for its stack, and not only refused by a dry run of what was planned?"""

import pytest

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.question import Question, Request

SMALL = {"seq_len": 1024, "global_batch": "8", "stack": "transformers-2026"}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"tp": (2,), "zero": (0,)}, "tp-sharded"),
        ({"recompute": ("selective",)}, "recompute-selective"),
        ({"recompute": ("full",), "recompute_layers": (4,)}, "recompute-partial"),
    ],
)
def test_what_it_cannot_run_is_illegal(settings: dict[str, tuple[int | str, ...]], rule: str) -> None:
    found = make_estimate(Question("llama-3.2-1b", "1x8 h100", set=settings, **SMALL))
    assert [one.rule for one in found.violations] == [rule]


def test_layers_divided_over_ranks_are_sharded_where_they_are_proposed() -> None:
    found = make_plan(Request("llama-3.2-1b", "1x8 h100", set={"tp": (2,)}, top=5, **SMALL))
    assert found.choices
    assert all(one.config.zero in (2, 3) for one in found.choices)


def test_a_loss_part_by_part_takes_no_head_that_ranks_divide() -> None:
    asked = {**SMALL, "stack": "transformers-2026+use-liger-kernel"}
    found = make_estimate(Question("llama-3.2-1b", "1x8 h100", set={"tp": (2,), "zero": (3,)}, **asked))
    assert [one.rule for one in found.violations] == ["tp-whole-loss"]


def test_norms_work_on_whole_sequences() -> None:
    found = make_estimate(
        Question("llama-3.2-1b", "1x8 h100", set={"tp": (2,), "zero": (3,), "sp": (1,)}, **SMALL)
    )
    assert not found.choices

"""A plan says which modules, recomputed in every layer, would make its step shorter."""

from __future__ import annotations

import re
from dataclasses import replace

from planner.chosen_modules import module_sets
from planner.plan import make_plan
from planner.report import facts
from planner.request import Request
from planner.space.restriction import parse_restriction
from planner.spec.config import recomputed_modules

LONG = Request("llama-3.1-8b", "dgx-a100", 8, 16384, "64")


def test_sets_of_modules_hold_none_twice() -> None:
    sets = [set(recomputed_modules(mask)) for mask in module_sets(("moe_act", "layernorm", "moe"))]
    assert sets == [{"moe_act"}, {"layernorm"}, {"moe"}, {"moe_act", "layernorm"}, {"layernorm", "moe"}]


def test_what_would_help_is_what_a_plan_with_the_modules_finds() -> None:
    plan = make_plan(LONG)
    said = re.search(r"recomputing .* would take (\d+)% off this step: --set (\S+)", plan.smallest_change)
    assert said, plan.smallest_change
    other = make_plan(replace(LONG, restrict=parse_restriction([said[2]])))
    assert said[0] in facts.helps(plan)
    saved = 1 - other.choices[0].step_time / plan.choices[0].step_time
    assert saved >= int(said[1]) / 100 - 0.005


def test_who_says_what_is_recomputed_is_told_nothing_of_it() -> None:
    plan = make_plan(replace(LONG, restrict=parse_restriction(["recompute=none"])))
    assert plan.choices
    assert "recomputing" not in (plan.smallest_change or "")

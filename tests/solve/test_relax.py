"""What would help where nothing is legal: values are named as `--set` takes them."""

from __future__ import annotations

import pytest

from planner.catalog.load_stacks import load_stack
from planner.solve.relax import legal_changes
from planner.space.framework_rules import rules_for
from planner.space.restriction import parse_restriction
from tests.problems import problem


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("schedule=zb-h1", "schedule=1f1b or interleaved instead of zb-h1"),
        ("offload=optimizer+params", "offload=none instead of optimizer+params"),
        ("zero=3", "zero=0 or 1 instead of 3"),
    ],
)
def test_values_are_named_as_they_are_set(asked: str, said: str) -> None:
    subject = problem(stack=load_stack("megatron-2025"))
    assert said in legal_changes(subject, rules_for(subject.stack), parse_restriction([asked]))

"""What would help where nothing is legal: values are named as `--set` takes them."""

from __future__ import annotations

import pytest

from planner.catalog.load_stacks import load_stack
from planner.report.words import texts
from planner.solve.relax import _more_devices, legal_changes
from planner.space.framework_rules import rules_for
from planner.space.restriction import parse_restriction
from planner.spec.machine.load_cluster import load_cluster
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
    assert said in texts(legal_changes(subject, rules_for(subject.stack), parse_restriction([asked])))


def test_sizes_between_are_round_and_begin_with_the_next_node() -> None:
    """From 184 to 368 GPUs lie 22 nodes between, more than are all tried: the next one, then multiples of 16."""
    tried: list[int] = []

    def fits(devices: int) -> bool:
        tried.append(devices)
        return devices in (208, 224, 368)

    said = _more_devices(load_cluster("dgx-h100", 184), [368], fits)
    assert said == (208, 16)
    assert list(dict.fromkeys(tried)) == [368, 192, 208]
    assert _more_devices(load_cluster("dgx-h100", 200), [400], lambda n: n > 200) == (208, None)

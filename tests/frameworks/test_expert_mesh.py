"""torchtitan deals experts over a shard group and tp: replicas alone have no ranks to deal them over."""

from __future__ import annotations

import pytest

from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig
from tests.frameworks.launches import problem


@pytest.mark.parametrize(
    ("zero", "hsdp", "ep", "legal"),
    [(0, 0, 16, False), (0, 0, 1, True), (3, 0, 16, True), (3, 8, 16, False), (3, 16, 16, True)],
)
def test_groups_of_experts(zero: int, hsdp: int, ep: int, legal: bool) -> None:
    config = ParallelConfig(dp=128, ep=ep, zero=zero, hsdp=hsdp, num_microbatches=2)
    found = explain_config(config, problem("qwen3-30b-a3b", "torchtitan-2026"), all_rules_for("torchtitan"))
    assert ("expert-mesh" in {violation.rule for violation in found}) is not legal

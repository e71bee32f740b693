"""Megatron-DeepSpeed's stack, fitted on pipelines, as it runs ZeRO 3."""

from __future__ import annotations

from planner.calibrate.published.sharded_stacks import with_stage
from planner.catalog.load_stacks import load_stack
from planner.spec.stack.kinds import StateEngine


def test_megatron_deepspeed_runs_stage_3_as_deepspeed_does_and_not_as_fitted() -> None:
    fitted = load_stack("megatron-deepspeed-2022")
    stack, said = with_stage(fitted, 3)
    assert stack.states.engine is StateEngine.DEEPSPEED
    assert (stack.states.live_parameters, stack.communication.gradient_bytes) == (3e9, 2.0)
    assert stack.compute == fitted.compute
    assert stack.band >= 1.5 * fitted.band
    assert not stack.fitted
    assert "no run" in said[0]


def test_stages_that_a_stack_ran_and_other_stacks_stay() -> None:
    for name, zero in (("megatron-deepspeed-2022", 1), ("torchtitan-2026", 3), ("deepspeed-2025", 3)):
        stack = load_stack(name)
        assert with_stage(stack, zero) == (stack, ())

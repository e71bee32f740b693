"""Full bf16 training: 2 bytes a parameter for weights, gradients and each moment, no fp32 masters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ask.request import Request, resolve
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import idle_options
from planner.errors import InputError
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.precision import Precision
from tests.problems import costs, dense_model, problem

STACKS = ("torchtitan-2026+pure-bf16", "fsdp1-2023+pure-bf16", "deepspeed-2025+pure-bf16")


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [(Optimizer.ADAMW, 4.0), (Optimizer.ADAMW_BF16, 4.0), (Optimizer.ADAMW_8BIT, 2.03)],
)
def test_a_parameter_costs_8_bytes(stack: str, optimizer: Optimizer, moments: float) -> None:
    subject = problem(dense_model(4), "1x8 h100", global_batch=8, stack=stack)
    subject = replace(subject, job=replace(subject.job, optimizer=optimizer))
    config = ParallelConfig(dp=8, zero=1 if stack.startswith("deepspeed") else 3)
    detail = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    parts = {name: float(term[0, 0]) for name, term in detail.memory["optimizer"].items()}
    parameters = parts["optimizer"] / (moments / 8)
    shared = 1 if config.zero == 1 else 8
    assert parts["weights"] == pytest.approx(2 * parameters / shared)
    assert parts["gradients"] == pytest.approx(2 * parameters / shared)
    if stack.startswith("deepspeed"):  # no fp32 copy of gradients at the update
        assert parts["optimizer_temporaries"] == 0
    assert parameters == pytest.approx(
        4 * (3 * 2048 * 7168 + 2048 * 6144 + 2 * 2048) + 2 * 32000 * 2048, rel=1e-3
    )


def test_an_update_moves_bf16_alone() -> None:
    narrow, wide = (load_stack(name).engine for name in ("torchtitan-2026+pure-bf16", "torchtitan-2026"))
    # gradient read, weight and two moments read and written, 2 bytes each
    assert narrow.step_bytes(Optimizer.ADAMW) == 2 * (1 + 3 * 2)
    assert wide.step_bytes(Optimizer.ADAMW) == 30


def test_other_recipes_and_stacks_are_refused() -> None:
    with pytest.raises(InputError, match=r"\+pure-bf16 needs one of bf16"):
        idle_options(load_stack("torchtitan-2026+pure-bf16"), Precision.FP16, dense_model())
    request = Request("llama-3.1-8b", "1x8 h100", stack="deepspeed-2025+pure-bf16", precision="fp32")
    with pytest.raises(InputError, match="needs one of bf16"):
        resolve(request)
    with pytest.raises(InputError, match="option of stack megatron-2026"):
        load_stack("megatron-2026+pure-bf16")

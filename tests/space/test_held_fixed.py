"""Does what is said to be held fixed follow from what a search tries and what an estimate takes?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.request import Request, resolve
from planner.report.words import text_of
from planner.space.axes import Axes, divisors, modules_tried
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.held_fixed import held, with_gains
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, CudaGraphs, Recompute, module_mask
from planner.spec.planfile import Verdict
from planner.spec.rule import Problem
from planner.spec.tried import HeldBy

CASES = {
    "mixture": ("qwen3-30b-a3b", "2x8 h100 400G-ib", "megatron-2026"),
    "dense": ("llama-3.1-8b", "2x8 h100 400G-ib", "megatron-2026"),
    "sharded": ("qwen3-30b-a3b", "2x8 h100 400G-ib", "megatron-fsdp-2026"),
    "torchtitan": ("qwen3-30b-a3b", "2x8 h100 400G-ib", "torchtitan-2026"),
    "deepspeed": ("llama-3.1-8b", "2x8 h100 400G-ib", "deepspeed-2025"),
    "one device": ("llama-3.2-1b", "1x1 h100", "megatron-2026"),
    "compiled": ("llama-3.1-8b", "16x4 tpu-v5p", "maxtext-2024"),
}


def posed(name: str) -> Problem:
    model, cluster, stack = CASES[name]
    return resolve(Request(model, cluster, seq_len=4096, global_batch="256", stack=stack))[0]


def _taken(problem: Problem, axis: str, values: list[int]) -> bool:
    """Does an estimate take one of these values, in some configuration that is legal without it?"""
    space = enumerate_configs(problem, rules_for(problem.stack))
    rows = np.unique(np.linspace(0, len(space.stems) - 1, 3000).astype(np.intp))
    table, rules = space.part(rows).table(), all_rules_for(problem.stack.framework)
    nothing = np.zeros(len(table), dtype=np.int32)
    bare = {"recompute": nothing, "recompute_layers": nothing, "recompute_modules": nothing}
    # what an axis needs of others: modules to recompute, attention alone to capture, nothing done again beside the host
    beside = {
        "recompute_modules": [{**bare, "recompute": nothing + int(Recompute.SELECTIVE)}],
        "cuda_graph_impl": [bare, {**bare, "cuda_graph_modules": nothing + module_mask(["attn"])}],
        "offload": [bare],
    }
    for value, others in product(values, beside.get(axis, [{}])):
        changed = {**others, axis: nothing + value}
        other = ConfigTable({**table.columns, **changed})
        if np.logical_and.reduce([rule.legal(other.columns, problem) for rule in rules]).any():
            return True
    return False


@pytest.mark.parametrize("name", CASES)
def test_an_axis_is_held_where_an_estimate_takes_what_no_search_tries(name: str) -> None:
    problem = posed(name)
    axes, devices = Axes(problem, {}), problem.cluster.num_devices
    lists = [mask for mask in range(1, 2 ** len(RECOMPUTE_MODULES)) if mask not in modules_tried(problem)]
    untried = {
        "offload": [bits for bits in range(8) if (bits,) not in axes.offload(1)],
        "cuda_graph_impl": [
            kind for kind in range(len(CudaGraphs)) if (kind,) not in axes.cuda_graph_impl(1)
        ],
        "hsdp": [
            group for group in divisors(devices)[1:] if group < devices and (group,) not in axes.hsdp(devices)
        ],
        "recompute_modules": lists,
    }
    found = {one.axis for one in held(problem, {}) if one.why is HeldBy.UNTRIED}
    for axis, values in untried.items():
        assert (axis in found) is _taken(problem, axis, values), axis
    assert "pp" not in found


def test_what_the_user_fixed_or_left_out_is_no_choice_of_the_program() -> None:
    problem = posed("mixture")
    every = {one.axis: one for one in held(problem, {})}
    assert {"precision", "etp", "schedule", "recompute_layers", "grad-reduce-in-bf16"} <= set(every)
    assert every["schedule"].why is HeldBy.STACK
    assert "deepep" not in every
    fixed = {
        one.axis for one in held(problem, {"offload": (0,), "pp": (1,), "etp": (1,)}, (), ("precision",))
    }
    assert fixed.isdisjoint({"precision", "offload", "etp", "schedule", "recompute_layers"})
    left = {one.axis: one.why for one in held(problem, {}, ("deepep", "offload"))}
    assert left["deepep"] is left["offload"] is HeldBy.LEFT_OUT
    own = replace(problem, stack=problem.stack.model_copy(update={"name": "ours"}))
    assert {one.axis: one.why for one in held(own, {})}["deepep"] is HeldBy.UNTRIED


def test_of_full_recomputation_all_layers_are_tried_where_nobody_names_a_number() -> None:
    problem, pinned = posed("dense"), {"recompute": (int(Recompute.FULL),), "pp": (1,)}
    assert "recompute_layers" in {one.axis for one in held(problem, pinned)}
    assert "recompute_layers" not in {one.axis for one in held(problem, {**pinned, "recompute_layers": (1,)})}


def test_gains_are_those_of_their_axis() -> None:
    found = with_gains(held(posed("dense"), {}), {"precision": 0.25})
    assert [one.axis for one in found if one.gain is not None] == ["precision"]


@pytest.mark.parametrize(
    ("stack", "pins", "kept"),
    [
        ("megatron-2026", {"pp": (4,), "vpp": (1, 2)}, False),  # 16 layers fill 4 and 8 chunks
        ("megatron-2026", {"pp": (4,), "vpp": (1, 3)}, True),  # and not 12, which a layout may
        ("megatron-2026", {"pp": (1,)}, False),
        ("deepspeed-2025", {"pp": (4,)}, False),
    ],
)
def test_numbers_of_chunks_are_held_that_a_layout_alone_fills(
    stack: str, pins: dict[str, tuple[int, ...]], kept: bool
) -> None:
    asked = Request("llama-3.2-1b", "1x8 h100 400G-ib", seq_len=4096, global_batch="256", stack=stack)
    assert ("chunks" in {one.axis for one in held(resolve(asked)[0], pins)}) is kept


def test_nothing_is_called_illegal_that_a_layout_makes_legal() -> None:
    pins: dict[str, tuple[int, ...]] = {"pp": (4,), "vpp": (3,)}
    asked = Request("llama-3.2-1b", "1x8 h100 400G-ib", seq_len=4096, global_batch="256", set=pins)
    plan = make_plan(replace(asked, seek_batch=False, front=False))
    assert plan.verdict is Verdict.NOTHING_LEGAL
    assert "under the stack's own split" in text_of(plan.headline[0])
    layout = "2,1,1,1,1,1,1,1,1,1,1,4"
    told = make_estimate(
        replace(asked, set={**pins, "tp": 2, "dp": 1, "schedule": "interleaved", "layout": layout})
    )
    assert told.found

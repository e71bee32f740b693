"""Are the options that change speed alone tried, each where it can change something, and no others?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.catalog.load_options import OPTIONS, OptionKind
from planner.catalog.load_stacks import load_stack, stack_names, stacks_to_plan
from planner.catalog.stack_options import (
    ALL_GATHERED,
    DOUBLE_BUFFER,
    EXPERTS_OVERLAPPED,
    FLASH_ATTENTION_3,
    FUSED_EXPERTS,
    LIGER,
    NO_SYNC,
    PAGED_STASH,
    UPDATE_GRAPH,
    with_options,
)
from planner.errors import InputError, PlannerError, UnknownNameError
from planner.space.axes import Restriction
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config
from planner.space.members import SEARCHED, active_stack, members, turned_on, unnamed_options
from planner.space.without import ALL, OpenedAxis, check_named, known_names, names_left_out
from planner.spec.config import OFFLOAD_OPTIMIZER, ConfigTable, CudaGraphs, ParallelConfig
from planner.spec.precision import Precision
from planner.spec.rule import Problem

MIXTURE, DENSE = "qwen3-30b-a3b", "llama-3.1-8b"


def posed(
    model: str, cluster: str = "dgx-h100", gpus: int = 16, stack: str | None = None, precision: str = "bf16"
) -> Problem:
    request = Request(
        model, cluster, gpus, seq_len=4096, global_batch="256", stack=stack, precision=precision
    )
    return resolve(request)[0]


def options_of(
    problem: Problem, restrict: Restriction | None = None, without: tuple[str, ...] = ()
) -> list[str]:
    """What each member turns on, the last names first."""
    pins = {"cuda_graph_impl": (0,)} | dict(
        restrict or {}
    )  # graphs of the full iteration bring buffers for experts
    found = members(problem, pins, without)
    return ["+".join(turned_on(member.stack.name, problem.stack.name)) for member in found]


def test_every_option_of_speed_is_searched_and_no_other() -> None:
    assert set(SEARCHED) == {option.name for option in OPTIONS if option.kind is OptionKind.SPEED}


def test_a_mixture_on_hopper_tries_every_dispatcher_with_and_without_overlap() -> None:
    beside = [f"{name}{EXPERTS_OVERLAPPED}" for name in ("", "deepep+", "hybridep+")]
    assert options_of(posed(MIXTURE)) == [
        f"{UPDATE_GRAPH}{more and '+'}{more}" for more in ("", "deepep", "hybridep", ALL_GATHERED, *beside)
    ]  # the all-gather runs beside nothing


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        ({"model": DENSE}, [UPDATE_GRAPH]),
        ({"model": DENSE, "precision": "fp16"}, [""]),  # a scaled loss stops the graph
        ({"model": DENSE, "stack": "torchtitan-2026"}, [""]),
        ({"model": DENSE, "stack": "deepspeed-2025"}, [FLASH_ATTENTION_3, f"{LIGER}+{FLASH_ATTENTION_3}"]),
        ({"model": DENSE, "stack": "deepspeed-2025", "cluster": "dgx-a100"}, ["", LIGER]),
        ({"model": "falcon-7b", "stack": "deepspeed-2025", "cluster": "dgx-a100"}, [""]),
        ({"model": DENSE, "stack": "fsdp1-2023"}, ["", LIGER, NO_SYNC, f"{LIGER}+{NO_SYNC}"]),
        ({"model": DENSE, "stack": "fsdp1-2023", "gpus": 1, "cluster": "1x1 h100"}, ["", LIGER]),
        ({"model": DENSE, "stack": "megatron-fsdp-2026"}, ["", DOUBLE_BUFFER]),
        ({"model": MIXTURE, "gpus": 1, "cluster": "1x1 h100"}, [UPDATE_GRAPH]),
        ({"model": MIXTURE, "stack": "megatron-2025"}, ["", "deepep", ALL_GATHERED]),
        ({"model": MIXTURE, "stack": "megatron-2025+deepep"}, [""]),
        # no NVLink between the cards
        ({"model": MIXTURE, "cluster": "1x8 rtx4090 100G-ib", "gpus": 8, "stack": "megatron-2025"}, ["", ALL_GATHERED]),
        # DeepEP joins 8 devices by NVLink, not 72
        (
            {"model": MIXTURE, "cluster": "gb200-nvl72", "stack": f"megatron-fsdp-2026+{DOUBLE_BUFFER}"},
            ["", "hybridep", ALL_GATHERED],
        ),
    ],
)  # fmt: skip
def test_what_is_tried(given: dict[str, object], tried: list[str]) -> None:
    assert options_of(posed(**given)) == tried  # type: ignore[arg-type]


def test_fused_experts_are_tried_where_their_kernels_run() -> None:
    for cluster, fused in (("dgx-b200", True), ("dgx-h100", False)):
        if cluster == "dgx-h100":
            names = options_of(posed(MIXTURE, cluster))
        else:
            names = options_of(posed(MIXTURE, cluster, precision="fp8_mx"))
            assert not any(FUSED_EXPERTS in name for name in options_of(posed(MIXTURE, cluster)))
        assert any(FUSED_EXPERTS in name for name in names) is fused


def test_a_restriction_leaves_out_what_it_makes_idle() -> None:
    problem = posed(MIXTURE)
    assert options_of(problem, {"ep": (1,), "etp": (1,)}) == [UPDATE_GRAPH]
    recomputed = options_of(problem, {"recompute": (2,)})
    assert recomputed == [name for name in options_of(problem) if EXPERTS_OVERLAPPED not in name]
    graphs = options_of(problem, {"cuda_graph_impl": (0, int(CudaGraphs.FULL_ITERATION))})
    stashed = [name for name in graphs if PAGED_STASH in name]
    assert stashed == [name for name in graphs if PAGED_STASH in name and "hybridep" in name]
    assert stashed
    assert not any(PAGED_STASH in name for name in options_of(problem))


def test_named_options_are_in_every_member() -> None:
    problem = posed(MIXTURE, stack="megatron-2026+hybridep+grad-reduce-in-bf16")
    for member in members(problem, {}):
        assert member.stack.name.startswith("megatron-2026+hybridep+grad-reduce-in-bf16")
        assert member.stack.engine.gradient == 2.0
    assert options_of(problem) == [UPDATE_GRAPH, f"{UPDATE_GRAPH}+{EXPERTS_OVERLAPPED}"]


def test_what_is_left_out_is_in_no_member() -> None:
    problem = posed(MIXTURE)
    for name in ("deepep", UPDATE_GRAPH, EXPERTS_OVERLAPPED):
        assert any(name in found.split("+") for found in options_of(problem))
        assert not any(name in found.split("+") for found in options_of(problem, without=(name,)))
    assert members(problem, {}, (ALL,)) == (problem,)


def test_names_that_can_be_left_out() -> None:
    assert names_left_out(["DeepEP,offload", "+deepep"]) == ("deepep", "offload")
    assert set(known_names()) >= {ALL, *OpenedAxis, *SEARCHED}
    with pytest.raises(UnknownNameError, match="did you mean: deepep"):
        names_left_out(["deep-ep"])
    with pytest.raises(InputError, match="changes numerics"):
        names_left_out(["grad-reduce-in-bf16"])
    with pytest.raises(InputError, match="not both"):
        check_named("megatron-2026+deepep", ("deepep",))
    check_named("megatron-2026+deepep", ("hybridep",))


@pytest.mark.parametrize(
    ("model", "cluster", "stack", "precision"),
    [
        (MIXTURE, "dgx-h100", "megatron-2026", "bf16"), (MIXTURE, "dgx-b200", "megatron-fsdp-2026", "fp8_mx"),
        ("gemma-2-9b", "dgx-h100", "deepspeed-2025", "bf16"), (DENSE, "1x8 v100 100G-ib", "deepspeed-2025", "fp16"),
    ],
)  # fmt: skip
def test_a_member_is_what_its_name_asks_for(model: str, cluster: str, stack: str, precision: str) -> None:
    """Reading the name again gives the same problem, so that files and verbs speak of what was searched."""
    for member in members(posed(model, cluster, 8, stack, precision), {}):
        assert member == posed(model, cluster, 8, member.stack.name, precision)


def test_a_file_of_the_users_own_is_taken_as_it_is() -> None:
    problem = posed(MIXTURE)
    own = replace(problem, stack=problem.stack.model_copy(update={"name": "ours"}))
    assert members(own, {}) == (own,)


def _some(problem: Problem, number: int = 400) -> ConfigTable:
    space = enumerate_configs(problem, rules_for(problem.stack))
    rows = np.unique(np.linspace(0, len(space.stems) - 1, number).astype(np.intp))
    return space.part(rows).table()


@pytest.mark.parametrize("stack", ["megatron-2026", "deepspeed-2025"])
def test_what_is_always_on_makes_nothing_slower_larger_or_illegal(stack: str) -> None:
    problem = posed(MIXTURE if stack == "megatron-2026" else DENSE, stack=stack)
    names = [o.name for o in unnamed_options(problem, OptionKind.SPEED) if SEARCHED[o.name].always]
    assert names
    (member,) = members(problem, {}, tuple(n for n in SEARCHED if n not in names))
    assert turned_on(member.stack.name, problem.stack.name) == tuple(names)
    table = _some(problem)
    before, after = cost_model(problem).evaluate(table), cost_model(member).evaluate(table)
    assert (after.step_time <= before.step_time).all()
    assert (after.step_time < before.step_time).any()
    assert (after.device_memory == before.device_memory).all()
    rules = rules_for(member.stack)
    assert all(rule.legal(table.columns, member).all() for rule in rules)


CONFIGS = (
    ParallelConfig(dp=16, micro_batch=1, num_microbatches=16, zero=1),
    ParallelConfig(dp=16, micro_batch=16, num_microbatches=1, zero=3),
    ParallelConfig(dp=16, micro_batch=1, num_microbatches=16, zero=1, offload=OFFLOAD_OPTIMIZER),
    ParallelConfig(dp=16, ep=8, micro_batch=1, num_microbatches=16, zero=1),
    ParallelConfig(tp=2, sp=1, etp=2, dp=8, micro_batch=1, num_microbatches=32, zero=1),
    ParallelConfig(dp=16, micro_batch=1, num_microbatches=16, zero=3),
)  # fmt: skip


@pytest.mark.parametrize("stack", stacks_to_plan())
def test_an_idle_option_changes_nothing_and_is_not_launched(stack: str) -> None:
    """Of a configuration, what its stack is called without idle options costs and keeps as much; of the others some
    change something."""
    if load_stack(stack).framework not in ("megatron", "fsdp", "deepspeed"):
        return
    problem, rules = posed(MIXTURE, stack=stack), all_rules_for(load_stack(stack).framework)
    for member in members(problem, {}):
        model = cost_model(member)
        for config in CONFIGS:
            if explain_config(config, member, rules):
                continue
            name = active_stack(member, problem.stack, config)
            left = turned_on(name, problem.stack.name)
            bare = replace(problem, stack=with_options(problem.stack, list(left)))
            one = ConfigTable.of([config])
            mine, active = model.evaluate(one), cost_model(bare).evaluate(one)
            assert mine.step_time[0] == active.step_time[0], (name, config)
            assert mine.device_memory[0] == active.device_memory[0], (name, config)


@pytest.mark.parametrize("stack", stack_names())
def test_options_of_every_kind_are_told_at_every_precision(stack: str) -> None:
    """Also where a stack leaves a list of recipes unstated, as megatron-2024 does with fp8."""
    asked = Request("qwen3-30b-a3b", "1x8 h100", 8, seq_len=2048, global_batch="64", stack=stack)
    for precision in Precision:
        try:
            problem, _ = resolve(replace(asked, precision=str(precision)))
        except PlannerError:
            continue
        found = [option for kind in OptionKind for option in unnamed_options(problem, kind)]
        assert all(not option.precisions or precision in option.precisions for option in found)

"""The optimizer's step as a CUDA graph: an option of the stack, written, read back, and refused where none can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.published.switches import apply_switches
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import UPDATE_GRAPH
from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.spec.config import OFFLOAD_OPTIMIZER, ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem
from tests.problems import costs

MODEL, STACK = "gpt-oss-20b", f"megatron-2026+{UPDATE_GRAPH}"
CONFIG = ParallelConfig(dp=8, micro_batch=1, num_microbatches=4, zero=1)


def on_blackwell(stack: str) -> Problem:
    return problem(MODEL, stack, gpus=8, cluster="gb300-nvl72")


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_written_and_read_as_costed(name: str) -> None:
    meant = framework(name)
    for stack, asked in ((STACK, True), ("megatron-2026", False)):
        files = meant.render(launch(MODEL, CONFIG, on_blackwell(stack)), meant.default_version)
        read = meant.parse({"launch.sh": files["launch.sh"]})
        assert (UPDATE_GRAPH in read.stack_options) is asked


def test_saves_the_launches_of_every_tensor() -> None:
    """A rank's eighth of 24 layers with two products for each of 32 experts."""
    table = ConfigTable.of([CONFIG])
    captured, plain = (
        costs(on_blackwell(stack)).evaluate(table).step_time[0] for stack in (STACK, "megatron-2026")
    )
    host = load_stack("megatron-2026").host
    assert plain - captured > 24 * 32 * 2 / 8 * host.tensor_update
    assert captured > host.step_overhead


def test_a_release_without_it_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"0\.18"):
        framework("megatron").render(launch(MODEL, CONFIG, on_blackwell(STACK)), "0.16.1")


@pytest.mark.parametrize(
    ("text", "captured"),
    [("optimizer_cuda_graph=True", True), ("optimizer_cuda_graph=False", False), ("cuda graphs", False)],
)
def test_rows_say_so(text: str, captured: bool) -> None:
    assert apply_switches(load_stack("megatron-2026"), text)[0].engine.captures_update is captured


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_an_update_by_the_host_has_no_graph(name: str) -> None:
    """The graph holds kernels: the files leave it out, and it saves nothing."""
    on_host = replace(CONFIG, offload=OFFLOAD_OPTIMIZER)
    meant, asked, plain = framework(name), on_blackwell(STACK), on_blackwell("megatron-2026")
    table = ConfigTable.of([on_host])
    assert costs(asked).evaluate(table).step_time[0] == costs(plain).evaluate(table).step_time[0]
    files = meant.render(launch(MODEL, on_host, asked), meant.default_version)
    assert UPDATE_GRAPH not in meant.parse({"launch.sh": files["launch.sh"]}).stack_options

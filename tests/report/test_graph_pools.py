"""What CUDA graphs add to the peak, as `estimate --memory` says it."""

from __future__ import annotations

from typing import Any

import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request, resolve
from planner.cli.memory import explain_memory
from planner.spec.config import ConfigTable, CudaGraphs, ParallelConfig, Schedule, module_mask
from tests.problems import costs, dense_model, problem

PLAIN = {"tp": 2, "pp": 2, "vpp": 1, "micro_batch": 1, "zero": 1, "sp": 1, "recompute": 0}
TE = int(CudaGraphs.TRANSFORMER_ENGINE)


def facts(stack: str = "megatron-2026", model: str = "llama-3.1-8b", **axes: int) -> dict[str, Any]:
    request = Request(
        model, "2x8 h100 400G-ib", seq_len=4096, global_batch="64", stack=stack,
        set={name: (value,) for name, value in axes.items()},
    )  # fmt: skip
    given, assumed = resolve(request)
    return explain_memory(given, assumed, make_estimate(request), None).facts


def test_captured_layers_are_in_the_peak_and_said() -> None:
    plain, graphed = facts(**PLAIN), facts(**PLAIN, cuda_graph_impl=TE)
    assert not plain["cuda_graphs"]["counted"]
    assert graphed["cuda_graphs"] == {
        "graphs": "transformer_engine", "counted": True, "raised": pytest.approx(graphed["peak"] - plain["peak"]),
    }  # fmt: skip
    # the widest that could be captured is what was captured then
    assert plain["cuda_graphs"]["raised"] == pytest.approx(graphed["cuda_graphs"]["raised"])
    # 17 layers x 2 micro-batches on rank 0, and two gradients: 36 inputs of 4096 x 4096 x 2 bytes over tp 2
    first = graphed["stages"][0]
    inputs = 2 * (first["layers"] + 1) * 4096 * 4096 * 2 / 2
    assert first["moments"]["backward"]["cuda_graph_buffers"] == pytest.approx(inputs)


def test_experts_name_what_has_fixed_shapes() -> None:
    widest = facts(model="qwen3-30b-a3b", tp=1, pp=1, ep=8, micro_batch=1)["cuda_graphs"]
    assert widest["graphs"] == "transformer_engine+attn+moe_router+moe_preprocess"
    own = facts(
        model="qwen3-30b-a3b", tp=1, pp=1, ep=8, micro_batch=1, cuda_graph_impl=TE,
        cuda_graph_modules=module_mask(("moe_router",)),
    )["cuda_graphs"]  # fmt: skip
    assert own["counted"]
    assert 0 < own["raised"] < widest["raised"]


def test_stacks_without_graphs_say_nothing() -> None:
    assert facts("torchtitan-2026", tp=2, pp=2, micro_batch=1)["cuda_graphs"] is None
    assert facts("deepspeed-2025", tp=1, pp=1, micro_batch=1, zero=3)["cuda_graphs"] is None
    alone = facts("torchtitan-2026", tp=2, pp=1, micro_batch=1)["cuda_graphs"]
    assert alone["graphs"] == "full_iteration"


def test_inputs_of_uneven_chunks() -> None:
    # rank 0: 3 and 1 layers of 3 and 2 or 4 and 1 micro-batches, 13; rank 1: 1 and 3 of 2 and 1 or 3 and 0, 5
    model = costs(problem(dense_model(8), "1x8 h100", global_batch=16)).with_split((3, 1, 1, 3))
    config = ParallelConfig(
        pp=2, vpp=2, dp=4, num_microbatches=4, schedule=int(Schedule.INTERLEAVED), cuda_graph_impl=TE
    )
    detail = model.evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    each = 2048 * 4096 * 2
    found = detail.memory["backward"]["cuda_graph_buffers"][0]
    assert found.tolist() == pytest.approx([(13 + 2) * each, (5 + 2) * each])

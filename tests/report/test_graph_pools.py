"""The bound on memory pools of CUDA graphs, by hand and through the product."""

from __future__ import annotations

import pytest

from planner.cli_memory import _inputs_of_layers, explain_memory
from planner.estimate import make_estimate
from planner.report.memory import StageTerms, graph_pool_bound
from planner.request import Request, resolve
from planner.spec.config import ConfigTable, ParallelConfig, Schedule
from tests.problems import costs, dense_model, problem

GIB = 2.0**30


def stage(rank: int, forward: float, logits: float, working: float) -> StageTerms:
    """20 GB of states; a loss with logits, a backward pass with a working set, an update with 1 GB of temporaries."""
    terms = {
        "loss": {"weights": 20.0, "activations": forward, "logits": logits},
        "backward": {"weights": 20.0, "activations": forward, "working_set": working},
        "optimizer": {"weights": 20.0, "optimizer_temporaries": 1.0},
    }
    return StageTerms((rank,), 4, terms, {"cuda_context": 1.0}, 0.0)


def test_what_is_pooled_is_held_beside_the_largest_rest() -> None:
    # alone 20 + 30 + 8 + 1 = 59 at the loss; pooled, a layer's working set of 5 is held there too, and 2 of inputs
    assert graph_pool_bound([stage(0, 30.0, 8.0, 5.0)], [2.0]) == pytest.approx(5 + 2)
    # without logits the peak is in the backward pass; the update's temporaries lie beside the whole pool
    assert graph_pool_bound([stage(0, 30.0, 0.0, 5.0)], [2.0]) == pytest.approx(1 + 2)
    # a stage that did not bind may come to: 20 + 30 + 8 + 1 + 5 + 2 against 61 of the other
    binding = stage(1, 35.0, 0.0, 5.0)
    assert graph_pool_bound([stage(0, 30.0, 8.0, 5.0), binding], [2.0, 0.0]) == pytest.approx(66 - 61)


def bound(stack: str, **axes: int) -> float | None:
    request = Request(
        "llama-3.1-8b", "2x8 h100 400G-ib", seq_len=4096, global_batch="64", stack=stack,
        restrict={name: (value,) for name, value in axes.items()},
    )  # fmt: skip
    given, assumed = resolve(request)
    facts = explain_memory(given, assumed, make_estimate(request), None).facts
    found = facts["cuda_graph_pools_at_most"]
    return found if found is None else float(found)


def test_inputs_of_the_layers_in_flight() -> None:
    # 16 layers x 2 micro-batches on rank 0, and two gradients: 34 inputs of 4096 x 4096 x 2 bytes over tp 2
    found = bound("megatron-2026", tp=2, pp=2, vpp=1, micro_batch=1, zero=1, sp=1, recompute=0)
    assert found is not None
    inputs = 34 * 4096 * 4096 * 2 / 2
    assert inputs <= found < inputs + 2 * GIB
    assert bound("torchtitan-2026", tp=2, pp=2, micro_batch=1) is None


def test_inputs_of_uneven_chunks() -> None:
    # rank 0: 3 and 1 layers of 3 and 2 or 4 and 1 micro-batches, 13; rank 1: 1 and 3 of 2 and 1 or 3 and 0, 5
    model = costs(problem(dense_model(8), "1x8 h100", global_batch=16)).with_split((3, 1, 1, 3))
    config = ParallelConfig(pp=2, vpp=2, dp=4, num_microbatches=4, schedule=int(Schedule.INTERLEAVED))
    detail = model.evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    each = 2048 * 4096 * 2
    found = _inputs_of_layers(model.problem, config, detail.classes, 0)
    assert found == [(13 + 2) * each, (5 + 2) * each]

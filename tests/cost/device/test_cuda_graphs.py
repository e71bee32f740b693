"""CUDA graphs: launches counted by hand, memory that pools hold, and what must never happen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.answer.plan import cost_model
from planner.cost.device.graphs import HostFloor, capture_of, relaunched
from planner.cost.host import RELAUNCHED
from planner.cost.model import CostModel
from planner.cost.operations.lists import model_operations
from planner.spec.config import ConfigTable, CudaGraphs, ParallelConfig, Recompute, module_mask
from planner.spec.rule import Problem
from tests.problems import dense_model, moe_model, problem

NONE, LOCAL, TE, WHOLE = CudaGraphs
DENSE, MOE = problem(dense_model()), problem(moe_model())
CONFIG = ParallelConfig(tp=2, pp=2, dp=4, micro_batch=2, num_microbatches=8, sp=1, zero=1)
ROUTED = ("attn", "moe_router", "moe_preprocess")


def graphed(graphs: CudaGraphs, *modules: str, config: ParallelConfig = CONFIG) -> ParallelConfig:
    return replace(config, cuda_graph_impl=int(graphs), cuda_graph_modules=module_mask(modules))


def left(given: Problem, config: ParallelConfig, floor: HostFloor) -> tuple[float, float]:
    layer = given.model.layer_kinds[-1]
    forward, backward = floor.captured(capture_of(model_operations(layer, 2048), ConfigTable.of([config])))
    return float(forward[0]), float(backward[0])


def floor(dense: float, routed: float = 0.0, experts: float = 0.0, pipeline: float = 0.0) -> HostFloor:
    return HostFloor(*(np.array([value]) for value in (dense, routed, experts, pipeline)))


def test_launches_of_a_dense_layer() -> None:
    # 12 launches of 1 s: norm, qkv, rotary x 2, attention, projection, add are 7; a replay copies its input first
    assert left(DENSE, CONFIG, floor(12.0)) == (12.0, 12.0)
    assert left(DENSE, graphed(TE, "attn"), floor(12.0)) == pytest.approx((5 + 2, 5 + 1))
    assert left(DENSE, graphed(TE, "mlp"), floor(12.0)) == pytest.approx((7 + 2, 7 + 1))
    assert left(DENSE, graphed(TE), floor(12.0)) == pytest.approx((2, 1))
    assert left(DENSE, graphed(LOCAL, "attn", "mlp"), floor(12.0)) == pytest.approx((2, 1))
    assert left(DENSE, graphed(WHOLE), floor(12.0, pipeline=5.0)) == (0.0, 0.0)
    assert left(DENSE, graphed(TE), floor(12.0, pipeline=5.0)) == pytest.approx((5 + 2, 5 + 1))


def test_launches_of_an_expert_layer() -> None:
    # of the 12 that experts add the router's graph holds 2, what prepares dispatch 2; the second norm is the router's
    given = floor(12.0, routed=120.0, experts=30.0)
    assert left(MOE, graphed(TE, "moe_router"), given) == pytest.approx(
        (11 + 100 + 30 + 2, 11 + 100 + 30 + 1)
    )
    assert left(MOE, graphed(TE, *ROUTED), given) == pytest.approx((4 + 80 + 30 + 2, 4 + 80 + 30 + 1))
    # Megatron-Core's own: one for attention, two around the experts
    assert left(MOE, graphed(LOCAL, *ROUTED), given) == pytest.approx((4 + 80 + 30 + 6, 4 + 80 + 30 + 3))
    assert left(MOE, graphed(LOCAL), given) == pytest.approx((2, 1))
    assert left(MOE, graphed(WHOLE), given) == (0.0, 0.0)


def test_recomputation_in_a_graph_launches_nothing() -> None:
    modules = 1 << 0 | 1 << 2  # core_attn and both norms
    keys = ConfigTable.of(
        [
            replace(config, recompute=int(Recompute.SELECTIVE), recompute_modules=modules)
            for config in (CONFIG, graphed(TE, "attn"), graphed(TE))
        ]
    )
    layer = DENSE.model.layer_kinds[0]
    found = relaunched(keys, capture_of(model_operations(layer, 2048), keys), RELAUNCHED)
    assert found == pytest.approx([3 / 12, 1 / 12, 0.0])


def evaluated(given: Problem, *configs: ParallelConfig, terms: bool = False):  # type: ignore[no-untyped-def]
    return cost_model(given).evaluate(ConfigTable.of(list(configs)), keep_terms=terms)


def test_pool_and_buffers_by_hand() -> None:
    """8 layers on 2 stages: rank 0 holds 2 micro-batches of 4 or 5 layers in flight, and two gradients."""
    plain = evaluated(DENSE, CONFIG, graphed(TE), terms=True)
    assert plain.detail is not None
    memory = plain.detail.memory
    stream = 2 * 2 * 4096 * DENSE.model.hidden / 2  # bf16, 2 sequences, over tp
    layers = plain.detail.classes.layers[plain.detail.class_row[1]].sum(axis=1)
    in_flight = np.array([2.0, 1.0])
    chained = memory["backward"]["cuda_graph_buffers"][1]
    assert chained == pytest.approx(stream * (layers * in_flight + 2))
    # at the update the pool keeps all activations in flight and the widest backward pass of a layer
    kept = memory["backward"]["activations"][1] + memory["backward"]["fragmentation"][1]
    assert memory["optimizer"]["cuda_graph_pool"][1] == pytest.approx(
        kept + memory["backward"]["working_set"][1]
    )
    assert memory["backward"]["cuda_graph_pool"][1] == pytest.approx(0.0, abs=1.0)
    assert memory["loss"]["cuda_graph_pool"][1] == pytest.approx(memory["backward"]["working_set"][1])
    assert not any(memory[phase]["cuda_graph_pool"][0].any() for phase in memory)
    assert not memory["after_init"]["cuda_graph_buffers"].any()


def test_a_full_iteration_needs_no_buffers_and_pools_logits() -> None:
    found = evaluated(DENSE, CONFIG, graphed(WHOLE), terms=True)
    assert found.detail is not None
    memory, last = found.detail.memory, 1
    assert not memory["backward"]["cuda_graph_buffers"].any()
    loss = {name: value[1, last] for name, value in memory["loss"].items()}
    pool = loss["activations"] + loss["fragmentation"] + loss["logits"]
    assert memory["optimizer"]["cuda_graph_pool"][1, last] == pytest.approx(pool)
    assert found.device_memory[1] == pytest.approx(found.device_memory[0], rel=0.05)
    assert found.device_memory[1] >= found.device_memory[0]


OF_DENSE = ((NONE, ()), (TE, ("attn",)), (TE, ("mlp",)), (TE, ()), (WHOLE, ()))
OF_EXPERTS = ((NONE, ()), (TE, ("moe_router",)), (TE, ROUTED), (LOCAL, ROUTED), (WHOLE, ()))
VARIANTS = {
    "dense": (DENSE, [graphed(graphs, *modules) for graphs, modules in OF_DENSE]),
    "moe": (MOE, [graphed(graphs, *modules) for graphs, modules in OF_EXPERTS]),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_alone_and_together_with_and_without_terms(name: str) -> None:
    given, configs = VARIANTS[name]
    together, detailed = evaluated(given, *configs), evaluated(given, *configs, terms=True)
    assert detailed.detail is not None
    assert detailed.device_memory == pytest.approx(together.device_memory)
    for row, config in enumerate(configs):
        alone = evaluated(given, config)
        assert alone.step_time[0] == pytest.approx(together.step_time[row])
        assert alone.device_memory[0] == pytest.approx(together.device_memory[row])
        totals = [sum(term[row] for term in terms.values()) for terms in detailed.detail.memory.values()]
        peak = np.max(totals) + detailed.detail.outside[row]
        assert peak == pytest.approx(together.device_memory[row])


def launch_bound(given: Problem) -> Problem:
    """The same where launches decide."""
    floors = {"layer_floor": 0.02, "layer_floor_tp": 0.02, "moe_layer_floor": 0.05}
    host = given.stack.host.model_copy(update=floors)
    return replace(given, stack=given.stack.model_copy(update={"host": host}))


@pytest.mark.parametrize("name", VARIANTS)
def test_graphs_never_slow_a_step_nor_free_memory(name: str) -> None:
    given, configs = VARIANTS[name]
    given = launch_bound(given)
    found = evaluated(given, *configs, terms=True)
    assert (found.step_time[1:] < found.step_time[0]).all()
    assert found.step_time[-1] == found.step_time.min()
    assert (found.device_memory[1:] >= found.device_memory[0]).all()
    assert found.detail is not None
    assert found.detail.time["host_bound"][-1] == pytest.approx(0.0, abs=1e-9)


def test_bounds_stay_below_what_graphs_cost() -> None:
    given, configs = VARIANTS["dense"]
    model, table = cost_model(launch_bound(given)), ConfigTable.of(configs)
    assert isinstance(model, CostModel)
    found = model.evaluate(table)
    assert (model.lower_bound(table) <= found.step_time).all()
    assert (model.least_memory(table) <= found.device_memory).all()

"""An interleaved pipeline recomputes the first layers of every chunk: times, memory and classes worked by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.model import CostModel
from planner.cost.pipeline.stages import recomputed_of_chunk
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.schedule.actions import ActionTable, Pass
from planner.schedule.generate import action_table
from planner.schedule.simulate import simulate
from planner.spec.config import ConfigTable, ParallelConfig, Recompute, Schedule
from planner.spec.model import ModelSpec
from tests.problems import costs, dense_model, moe_model, problem

PLAIN = ParallelConfig(pp=2, vpp=2, dp=4, num_microbatches=4, schedule=int(Schedule.INTERLEAVED))


def recomputing(layers: int) -> ParallelConfig:
    return replace(PLAIN, recompute=int(Recompute.FULL), recompute_layers=layers)


def dealt(model: ModelSpec, chunks: tuple[int, ...]) -> CostModel:
    return costs(problem(model, "1x8 h100", global_batch=16)).with_split(chunks)


def most_held(table: ActionTable, rank: int) -> Counter[int]:
    """Micro-batches by chunk that a rank holds when it holds most, from the order of its passes."""
    held, most = Counter[int](), Counter[int]()
    for kind, stage in zip(table.kind[rank].tolist(), table.stage[rank].tolist(), strict=True):
        held[stage] += 1 if kind == Pass.FORWARD else 0
        most = Counter(held) if held.total() > most.total() else most
        held[stage] -= 1 if kind == Pass.BACKWARD else 0
    return most


def kept_by_layer(model: CostModel, config: ParallelConfig) -> tuple[list[float], list[float]]:
    """Bytes of a micro-batch that a layer of each kind keeps, and keeps where it is recomputed."""
    table = ConfigTable.of([config])
    layers = [model.layers.layer(kind, table) for kind in model.problem.model.layer_kinds]
    return [float(one.kept[0]) for one in layers], [float(one.kept_full[0]) for one in layers]


def test_the_share_of_a_chunk() -> None:
    # 12 layers on 2 ranks: 6 or more are all; chunks of 4 at most
    assert recomputed_of_chunk(np.array([0, 2, 4, 6, 9]), 2, 6, 4).tolist() == [0, 1, 2, 4, 4]
    assert recomputed_of_chunk(np.array([0, 1, 5, 6]), 1, 6, 7).tolist() == [0, 1, 5, 7]


@pytest.mark.parametrize(
    ("chunks", "layers", "again"),
    [
        ((2, 2, 2, 2), 2, (1, 1, 1, 1)),
        ((2, 2, 2, 2), 4, (2, 2, 2, 2)),
        ((3, 3, 3, 1), 2, (1, 1, 1, 1)),
        ((3, 3, 3, 1), 4, (2, 2, 2, 1)),  # the last chunk has one to recompute
        ((3, 3, 3, 1), 5, (3, 3, 3, 1)),  # all of a rank's, however they divide
    ],
)
def test_every_chunk_recomputes_its_first_layers(
    chunks: tuple[int, ...], layers: int, again: tuple[int, ...]
) -> None:
    model = dealt(dense_model(sum(chunks)), chunks)
    simulator = simulator_of(model)
    plain, made = simulator.chunk_times(PLAIN), simulator.chunk_times(recomputing(layers))
    layer = model.layers.layer(model.problem.model.layers[0], ConfigTable.of([recomputing(layers)]))
    slower, kept = float(layer.time_full[0] - layer.time[0]), kept_by_layer(model, PLAIN)
    assert slower > 0
    assert made.forward == pytest.approx(plain.forward)
    assert made.backward == pytest.approx(plain.backward + slower * np.array(again))
    assert made.recompute == pytest.approx(
        plain.recompute + float(layer.again_full[0] - layer.again[0]) * np.array(again)
    )
    cost = model.evaluate(ConfigTable.of([recomputing(layers)]), keep_terms=True)
    assert cost.detail is not None
    full, little = kept[0][0], kept[1][0]
    for j, ranks in enumerate(cost.detail.classes.members[0]):
        for rank in ranks:
            some, held = sum(again[rank::2]), sum(chunks[rank::2])
            assert cost.detail.kept[0, j] == pytest.approx((held - some) * full + some * little)


def test_equal_chunks_hold_and_take_what_the_interleaved_order_says() -> None:
    """Two ranks, two chunks of two layers each, one of them recomputed; four micro-batches."""
    model, config = dealt(dense_model(8, vocab=128), (2, 2, 2, 2)), recomputing(2)
    order = action_table(Schedule.INTERLEAVED, 2, 4, 2)
    # rank 0: (v - 1) p + 2 (p - 1) + 1 = 5 chunks, of which 3 of its first; rank 1: 3
    assert most_held(order, 0) == {0: 3, 2: 2}
    assert most_held(order, 1).total() == 3
    (full,), (little,) = kept_by_layer(model, config)
    cost = model.evaluate(ConfigTable.of([config]), keep_terms=True)
    assert cost.detail is not None
    backward = cost.detail.memory["backward"]["activations"][0]
    for j, ranks in enumerate(cost.detail.classes.members[0]):
        held = most_held(order, ranks[0]).total()
        assert backward[j] == pytest.approx(held * (full + little))
    # m v chunks one after another on the last rank, behind and before one on the first
    layer = model.layers.layer(model.problem.model.layers[0], ConfigTable.of([config]))
    chunk = float(layer.time[0] + layer.time_full[0])
    times = simulator_of(model).chunk_times(config)
    made = simulate(order, times.stage_times((0.0,))).makespan
    ends = float((times.forward + times.backward - chunk).sum())
    assert 9 * chunk < made < 9 * chunk + 4 * ends
    inner = [1] * 4  # without embedding and head all chunks are alike
    equal = replace(
        times,
        forward=times.forward[inner],
        input_gradient=times.input_gradient[inner],
        weight_gradient=times.weight_gradient[inner],
    )
    assert simulate(order, equal.stage_times((0.0,))).makespan == pytest.approx(9 * chunk)


def test_dense_layers_of_the_first_chunk_leave_the_second_its_share() -> None:
    """Two leading dense layers: rank 0 recomputes one of them and one of the experts' of its second chunk."""
    model, config = dealt(moe_model(8, leading_dense=2), (2, 2, 2, 2)), recomputing(2)
    (dense, sparse), (dense_little, sparse_little) = kept_by_layer(model, config)
    cost = model.evaluate(ConfigTable.of([config]), keep_terms=True)
    assert cost.detail is not None
    first = next(j for j, ranks in enumerate(cost.detail.classes.members[0]) if 0 in ranks)
    assert dense_little < dense != sparse
    assert cost.detail.kept[0, first] == pytest.approx(dense + dense_little + sparse + sparse_little)


def test_ranks_whose_chunks_differ_are_told_apart() -> None:
    """Four layers on each of three inner ranks, as 2 + 2, 3 + 1 and 1 + 3, of which four are recomputed: 4, 3 and 3;
    the first chunk of a rank has more micro-batches in flight than the second."""
    model = dealt(dense_model(21), (3, 2, 3, 1, 2, 2, 2, 1, 3, 2))
    config = replace(recomputing(4), pp=5, dp=1, num_microbatches=5)
    cost = evaluate_exactly(model, ConfigTable.of([config]))
    assert cost.detail is not None
    members = cost.detail.classes.members[0]
    assert members == ((0,), (1,), (2,), (3,), (4,))
    (full,), (little,) = kept_by_layer(model, config)
    kept = {rank: cost.detail.kept[0, j] for j, ranks in enumerate(members) for rank in ranks}
    assert kept[1] == pytest.approx(4 * little)
    assert kept[2] == pytest.approx(full + 3 * little)
    assert kept[3] == pytest.approx(full + 3 * little)

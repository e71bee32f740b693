"""What would make a configuration fit: moves, the largest micro-batch, the longest sequence, host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.model import CostModel
from planner.solve.moves import host_memory, largest_micro_batch, longest_sequence, memory_moves
from planner.space.rules import RULES
from planner.spec.config import ConfigTable, ParallelConfig
from tests.problems import costs, dense_model, problem

SUBJECT = problem(dense_model(8), "2x8 h100 400G-ib", global_batch=64)
CONFIG = ParallelConfig(tp=2, pp=2, dp=4, sp=1, zero=1, micro_batch=4, num_microbatches=4)


def used(model: CostModel, config: ParallelConfig) -> float:
    return float(model.evaluate(ConfigTable.of([config])).device_memory[0])


def test_a_move_saves_what_the_cost_model_says() -> None:
    model = costs(SUBJECT)
    moves = memory_moves(model, CONFIG, RULES, 80 * 2.0**30)
    assert {"recompute all 4 layers", "micro-batch 2", "optimizer states on the host"} <= {
        m.text for m in moves
    }
    for move in moves:
        assert move.saved == pytest.approx(used(model, CONFIG) - used(model, move.config))
        assert move.saved > 0
        assert move.slower > -1


def test_moves_that_fit_come_first() -> None:
    model = costs(SUBJECT)
    limit = used(model, CONFIG) - 1e9
    fits = [move.fits for move in memory_moves(model, CONFIG, RULES, limit)]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)


def test_largest_micro_batch_is_the_last_that_fits() -> None:
    model = costs(SUBJECT)

    def with_batch(size: int) -> ParallelConfig:
        return replace(CONFIG, micro_batch=size, num_microbatches=16 // size)

    assert largest_micro_batch(model, CONFIG, used(model, with_batch(2))) == 2
    assert largest_micro_batch(model, CONFIG, used(model, with_batch(1)) - 1) == 0


def test_longest_sequence_is_the_last_that_fits() -> None:
    model = costs(SUBJECT)
    limit = used(model, CONFIG)

    def of(asked: object) -> CostModel:
        return CostModel(asked, model.kernels, model.links)  # type: ignore[arg-type]

    assert longest_sequence(SUBJECT, CONFIG, limit, of) == 4096
    assert longest_sequence(SUBJECT, CONFIG, 1.0, of) == 0


def test_states_moved_to_the_host_take_as_much_there() -> None:
    model = costs(SUBJECT)
    assert host_memory(model, CONFIG) == 0
    moved = replace(CONFIG, offload=1)
    assert host_memory(model, moved) == pytest.approx(used(model, CONFIG) - used(model, moved))

"""What would make a configuration fit: moves, the largest micro-batch, the longest sequence, host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.model import CostModel
from planner.cost.params import model_parameters
from planner.solve.moves import host_memory, largest_micro_batch, longest_sequence, memory_moves
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.space.rules import RULES
from planner.spec.config import ConfigTable, ParallelConfig, Schedule
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

    assert largest_micro_batch(model, CONFIG, RULES, used(model, with_batch(2))) == 2
    assert largest_micro_batch(model, CONFIG, RULES, used(model, with_batch(1)) - 1) == 0


def test_longest_sequence_is_the_last_that_fits() -> None:
    model = costs(SUBJECT)
    limit = used(model, CONFIG)

    def of(asked: object) -> CostModel:
        return CostModel(asked, model.kernels, model.links)  # type: ignore[arg-type]

    assert longest_sequence(SUBJECT, CONFIG, limit, of) == 4096
    assert longest_sequence(SUBJECT, CONFIG, 1.0, of) == 0


def test_states_moved_to_the_host_take_their_gradient_along() -> None:
    model = costs(SUBJECT)
    assert host_memory(model, CONFIG) == 0
    moved = replace(CONFIG, offload=1)
    # master and moments, 12 bytes, leave the device; a gradient of 4 joins them on the host
    assert host_memory(model, moved) == pytest.approx(16 / 12 * (used(model, CONFIG) - used(model, moved)))


@pytest.mark.parametrize(
    ("stack", "zero", "offload", "each"),
    # DeepSpeed's own estimates: 16 bytes a parameter on the host, 18 with the 16-bit parameters
    [("deepspeed-2025", 2, 1, 16.0), ("deepspeed-2025", 3, 1, 16.0), ("deepspeed-2025", 3, 3, 18.0)],
)
def test_bytes_of_a_parameter_on_the_host(stack: str, zero: int, offload: int, each: float) -> None:
    model = dense_model(8)
    subject = problem(model, "1x8 h100", global_batch=64, stack=stack)
    config = ParallelConfig(dp=8, zero=zero, num_microbatches=8, offload=offload)
    shard = model_parameters(model).total / 8
    assert host_memory(costs(subject), config) == pytest.approx(each * shard, rel=1e-6)


def test_a_micro_batch_leaves_what_interleaving_needs() -> None:
    subject = problem(dense_model(8), "1x8 h100", global_batch=8)
    interleaved = ParallelConfig(
        tp=2, pp=2, vpp=2, dp=2, sp=1, zero=1, num_microbatches=4, schedule=int(Schedule.INTERLEAVED)
    )
    # of 4 sequences a rank, micro-batches of 4 would leave 1 to a pipeline of 2 stages, though they fit
    model = costs(subject)
    assert used(model, replace(interleaved, micro_batch=4, num_microbatches=1)) < 80 * 2.0**30
    assert largest_micro_batch(model, interleaved, all_rules_for("megatron"), 80 * 2.0**30) == 2


@pytest.mark.parametrize("stack", ["torchtitan-2026", "deepspeed-2025", "nanotron-2024", "megatron-2026"])
def test_no_move_is_one_that_the_framework_refuses(stack: str) -> None:
    subject = problem(dense_model(8), "1x8 h100", global_batch=64, stack=stack)
    config = ParallelConfig(dp=8, zero=1, micro_batch=4, num_microbatches=2)
    rules = all_rules_for(subject.stack.framework)
    moves = memory_moves(costs(subject), config, rules, 80 * 2.0**30)
    assert moves
    for move in moves:
        assert not explain_config(move.config, subject, rules), move.text


def test_moves_of_a_planned_split_are_measured_from_it() -> None:
    model = costs(SUBJECT)
    dealt = model.with_split((6, 2))
    assert used(dealt, CONFIG) > used(model, CONFIG)
    for move in memory_moves(model, CONFIG, RULES, 80 * 2.0**30, dealt):
        held = (move.config.pp, move.config.vpp) == (2, 1)
        after = used(dealt if held else model, move.config)
        assert move.saved == pytest.approx(used(dealt, CONFIG) - after)

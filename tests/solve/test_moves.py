"""What would make a configuration fit: moves, the largest micro-batch, the longest sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.host_memory import host_need
from planner.cost.model import CostModel
from planner.report.words import text_of
from planner.solve.moves import largest_micro_batch, longest_sequence, memory_moves, sequence_step
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
    assert {"recompute all 3 to 5 layers", "micro-batch 2", "optimizer states in CPU memory"} <= {
        text_of(m.change) for m in moves
    }
    for move in moves:
        if move.config != CONFIG:  # but the allocator's setting
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
        assert move.config == config or not explain_config(move.config, subject, rules), text_of(move.change)


def test_moves_of_a_planned_split_are_measured_from_it() -> None:
    model = costs(SUBJECT)
    dealt = model.with_split((6, 2))
    assert used(dealt, CONFIG) > used(model, CONFIG)
    for move in memory_moves(model, CONFIG, RULES, 80 * 2.0**30, dealt):
        if move.config == CONFIG:
            continue
        held = (move.config.pp, move.config.vpp) == (2, 1)
        after = used(dealt if held else model, move.config)
        assert move.saved == pytest.approx(used(dealt, CONFIG) - after)


def test_segments_that_grow_save_what_the_stack_wastes() -> None:
    subject = problem(dense_model(8), "1x8 h100", global_batch=64, stack="nanotron-2024")
    config, model = ParallelConfig(tp=2, dp=4, zero=1, micro_batch=8, num_microbatches=2), costs(subject)
    limit = used(model, config) - 1
    (move,) = (
        m for m in memory_moves(model, config, RULES, limit) if "expandable_segments" in text_of(m.change)
    )
    overhead = subject.stack.overhead
    tight = replace(
        subject,
        stack=subject.stack.model_copy(
            update={"overhead": overhead.model_copy(update={"fragmentation": 0.0})}
        ),
    )
    assert move.saved == pytest.approx(used(model, config) - used(costs(tight), config))
    assert move.saved > 0
    assert move.fits
    assert not any(
        "expandable" in text_of(m.change) for m in memory_moves(costs(tight), config, RULES, limit)
    )


def test_what_the_hosts_have_no_room_for_does_not_fit() -> None:
    roomy, config = costs(SUBJECT), replace(CONFIG, micro_batch=16, num_microbatches=1)
    move = next(
        m
        for m in memory_moves(roomy, config, RULES, 80e9)
        if text_of(m.change).startswith("optimizer states in")
    )
    need = float(host_need(roomy, move.config).total[0])
    for room, fits in ((need * 1.01, move.fits), (need * 0.99, False)):
        model = costs(replace(SUBJECT, cluster=replace(SUBJECT.cluster, host_memory=room)))
        same = next(m for m in memory_moves(model, config, RULES, 80e9) if m.config == move.config)
        assert same.fits is fits
    assert move.fits


@pytest.mark.parametrize(
    ("chunks", "vpp", "texts"),
    [
        ((4, 4), 1, {"recompute all 4 layers", "recompute 2 of 4 layers"}),
        ((6, 2), 1, {"recompute all 2 to 6 layers", "recompute 2 of 2 to 6 layers"}),
        # with virtual stages a rank recomputes a multiple of their number
        ((1, 2, 2, 2, 2, 1), 3, {"recompute all 5 layers", "recompute 3 of 5 layers"}),
        ((3, 1, 3, 1, 1, 1), 3, {"recompute all 3 to 7 layers", "recompute 3 of 3 to 7 layers"}),
    ],
)
def test_layers_to_recompute_are_those_that_stages_hold(
    chunks: tuple[int, ...], vpp: int, texts: set[str]
) -> None:
    subject = problem(dense_model(sum(chunks)), "1x8 h100", global_batch=64)
    config = ParallelConfig(pp=2, vpp=vpp, dp=4, zero=1, num_microbatches=16, schedule=int(vpp > 1))
    dealt = costs(subject).with_split(chunks)
    moves = memory_moves(costs(subject), config, RULES, 80e9, dealt)
    assert texts <= {text_of(move.change) for move in moves}
    every = next(move for move in moves if text_of(move.change).startswith("recompute all"))
    detail = dealt.evaluate(ConfigTable.of([every.config]), keep_terms=True).detail
    assert detail is not None
    (layer,) = (
        float(dealt.layers.layer(k, ConfigTable.of([config])).kept_full[0]) for k in subject.model.layer_kinds
    )
    held = [sum(chunks[rank::2]) for rank in range(2)]
    for j, ranks in enumerate(detail.classes.members[0]):
        assert detail.kept[0, j] == pytest.approx(held[ranks[0]] * layer)


def test_longer_sequences_are_tried_in_parts_that_ranks_share() -> None:
    assert sequence_step(replace(CONFIG, cp=16)) == 128
    assert sequence_step(replace(CONFIG, tp=3)) == 384
    assert sequence_step(replace(CONFIG, tp=8, cp=64)) == 512

"""Chunks of a rank that differ: activations in flight against a walk through the passes of the interleaved order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.model import CostModel
from planner.cost.pipeline.stages import recomputed_of_chunk
from planner.schedule.actions import Pass
from planner.schedule.generate import action_table
from planner.solve.splits.dealt import Dealt, with_recomputed
from planner.spec.config import OFFLOAD_ACTIVATIONS, ConfigTable, ParallelConfig, Schedule
from planner.spec.model import ModelSpec
from tests.problems import costs, dense_model, moe_model, problem

INTERLEAVED = ParallelConfig(schedule=int(Schedule.INTERLEAVED))


def kept_by_chunk(model: CostModel, config: ParallelConfig, dealt: Dealt) -> list[float]:
    """Bytes that one micro-batch leaves in every chunk, prediction modules in the last."""
    spec, chunks = model.problem.model, dealt.chunks
    table = ConfigTable.of([config])
    layers = [model.layers.layer(kind, table) for kind in spec.layer_kinds]
    full, little = ([float(getattr(one, name)[0]) for one in layers] for name in ("kept", "kept_full"))
    whole, kept, first = -(-spec.num_layers // config.pp), [], 0
    for chunk, count in enumerate(chunks):
        own = dealt.recomputed[chunk % config.pp % len(dealt.recomputed)]
        again = int(recomputed_of_chunk(np.array(own), config.vpp, whole, spec.num_layers))
        kinds = spec.layer_kind_of[first : first + count]
        kept.append(sum(little[k] if i < again else full[k] for i, k in enumerate(kinds)))
        first += count
    kept[-1] += spec.mtp_layers * full[spec.layer_kind_of[-1]]
    return kept


def walk(config: ParallelConfig, kept: list[float], rank: int) -> tuple[float, float]:
    """The most bytes that a rank holds, at any time and while the last chunk runs backward."""
    order = action_table(Schedule.INTERLEAVED, config.pp, config.num_microbatches, config.vpp)
    held = peak = at_loss = 0.0
    for kind, stage in zip(order.kind[rank].tolist(), order.stage[rank].tolist(), strict=True):
        held += kept[stage] if kind == Pass.FORWARD else 0.0
        peak = max(peak, held)
        if kind == Pass.BACKWARD:
            at_loss = max(at_loss, held) if stage == order.stages - 1 else at_loss
            held -= kept[stage]
    return peak, at_loss


def check(spec: ModelSpec, config: ParallelConfig, dealt: Dealt) -> None:
    gpus = config.pp * config.dp
    plain = costs(
        problem(spec, f"{max(gpus // 8, 1)}x{min(gpus, 8)} h100", global_batch=config.num_microbatches)
    )
    model, asked = dealt.of_model(plain), dealt.config(config)
    detail = model.evaluate(ConfigTable.of([asked]), keep_terms=True).detail
    assert detail is not None
    kept = kept_by_chunk(model, config, dealt)
    for j, ranks in enumerate(detail.classes.members[0]):
        peak, at_loss = walk(config, kept, ranks[0])
        assert detail.memory["backward"]["activations"][0, j] == pytest.approx(peak)
        assert detail.kept[0, j] == pytest.approx(sum(kept[ranks[0] :: config.pp]))
        assert all(walk(config, kept, rank)[0] <= peak * (1 + 1e-9) for rank in ranks)
        if config.pp - 1 in ranks:
            for phase in ("loss", "head_backward"):
                assert detail.memory[phase]["activations"][0, j] == pytest.approx(at_loss)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_a_rank_holds_is_what_its_passes_hold(data: st.DataObject) -> None:
    p, v, rounds = (data.draw(st.integers(*ends)) for ends in ((2, 4), (2, 4), (1, 4)))
    chunks = data.draw(st.lists(st.integers(0, 4), min_size=p * v, max_size=p * v).filter(sum))
    recomputed = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=1) | st.just([1] + [3] * (p - 1)))
    of_experts, mtp = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    layers = sum(chunks)
    spec = moe_model(layers, leading_dense=layers // 3) if of_experts else dense_model(layers)
    config = replace(INTERLEAVED, pp=p, vpp=v, num_microbatches=rounds * p)
    check(replace(spec, mtp_layers=mtp), config, Dealt(tuple(chunks), tuple(recomputed)))


def test_layers_of_the_first_chunk_count_twice_those_of_the_second() -> None:
    """Rank 0 of four, two chunks: 7 + 4 or 8 + 3 micro-batches, since Megatron-LM warms up with 4 + 2 * 3 forwards."""
    spec, config = dense_model(16), replace(INTERLEAVED, pp=4, vpp=2, num_microbatches=8)
    check(spec, config, Dealt((3, 2, 2, 2, 1, 2, 2, 2), (0,)))
    model = costs(problem(spec, "1x8 h100", global_batch=8))
    (layer,) = {float(model.layers.layer(k, ConfigTable.of([config])).kept[0]) for k in spec.layer_kinds}
    for chunks, held in (((3, 2, 2, 2, 1, 2, 2, 2), 8 * 3 + 3), ((1, 2, 2, 2, 3, 2, 2, 2), 7 + 4 * 3)):
        detail = model.with_split(chunks).evaluate(ConfigTable.of([config]), keep_terms=True).detail
        assert detail is not None
        assert detail.memory["backward"]["activations"][0, 0] == pytest.approx(held * layer)


def test_a_row_alone_costs_what_it_does_among_even_and_uneven_ones() -> None:
    spec = dense_model(14)
    model = costs(problem(spec, "1x8 h100", global_batch=16))
    shapes = [(2, 1), (2, 2), (2, 3), (4, 2), (2, 7), (4, 3)]
    rows = [
        with_recomputed(
            replace(
                INTERLEAVED, pp=p, vpp=v, dp=8 // p, num_microbatches=2 * p, schedule=int(v > 1), offload=offload
            ),
            again,
        )
        for p, v in shapes
        for again in (0, v, 14)
        for offload in (0, OFFLOAD_ACTIVATIONS)
    ]  # fmt: skip
    table = ConfigTable.of(rows)
    together = model.evaluate(table)
    for row, config in enumerate(rows):
        alone = model.evaluate(ConfigTable.of([config]))
        assert alone.device_memory[0] == together.device_memory[row]
        assert alone.peak_memory[0] == together.peak_memory[row]

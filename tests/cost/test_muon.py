"""Muon's update: iterations by hand, matrices dealt whole, what it holds beside the states of its parameters."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.muon import (
    GATHERED_BYTES,
    MuonModel,
    WholeMatrices,
    largest_part,
    matrices_of,
)
from planner.cost.operations.lists import layer_gemms
from planner.cost.table import CostDetail
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.model import ModelSpec
from tests.problems import costs, dense_model, legal_table, moe_model, problem, random_rows

MODEL = dense_model()


def muon_of(machine: str = "2x8 h100 400G-ib") -> MuonModel:
    found = costs(problem(machine=machine, optimizer=Optimizer.MUON)).layers.muon
    assert found is not None
    return found


def detail(optimizer: Optimizer, stack: str = "megatron-2026", **axes: int) -> CostDetail:
    config = ParallelConfig(**{"dp": 16, "num_microbatches": 4, "zero": 1, **axes})
    subject = problem(optimizer=optimizer, stack=stack)
    found = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert found is not None
    return found


def optimizer_seconds(optimizer: Optimizer, **axes: int) -> float:
    return float(detail(optimizer, **axes).time["optimizer"][0])


def newton_schulz_flops(rows: float, columns: float) -> float:
    """FLOP of the five iterations that orthogonalise a matrix: X X^T, its square, and their sum by X."""
    short, long = min(rows, columns), max(rows, columns)
    return 5 * (4.0 * short**2 * long + 2.0 * short**3)


@pytest.mark.parametrize("model", [dense_model(), moe_model(2, leading_dense=0, experts=8)])
def test_matrices_are_all_weights_of_products(model: ModelSpec) -> None:
    layer = model.layers[0]
    hidden = model.hidden
    gemms = layer_gemms(layer, hidden)
    weights = sum(g.groups * g.in_features * (g.out_features + g.kv_out_features) for g in gemms)
    found = matrices_of(layer, hidden)
    assert sum(m.count * m.elements for m in found) == weights
    assert len(found) == len(gemms)
    assert next(len(m.rows) for m in found) == 3  # queries, keys and values apart


def test_largest_part_is_no_more_than_any_deal() -> None:
    """Three kinds dealt to three ranks in every way."""
    kinds, number = [5.0, 3.0, 2.0], [2, 1, 4]
    items = [size for size, count in zip(kinds, number, strict=True) for _ in range(count)]
    best = min(
        max(sum(w for w, r in zip(items, deal, strict=True) if r == rank) for rank in range(3))
        for deal in product(range(3), repeat=len(items))
    )
    parts = largest_part(
        np.array(number, dtype=float)[:, None, None], np.array(kinds)[:, None], np.array([3.0])
    )
    assert parts.item() <= best <= 4 / 3 * parts.item()


def dealt(ranks: float, vpp: int = 1, layers: float = 1.0) -> WholeMatrices:
    keys, one = ConfigTable.of([ParallelConfig(dp=8, vpp=vpp, num_microbatches=8)]), np.ones(1)
    return muon_of().update(keys, np.array([[[layers]]]), (ranks * one, one), np.array([True]))


def test_ranks_beyond_the_matrices_bring_nothing() -> None:
    """One layer's matrices on more and more ranks: the largest one remains, and buffers grow by ranks."""
    assert dealt(1).padding[0] == 0.0
    matrices = muon_of().kinds[0]
    largest, whole = max(m.elements for m in matrices), sum(m.elements for m in matrices)
    assert dealt(2).seconds < dealt(1).seconds
    assert dealt(64).seconds == dealt(128).seconds == max(muon_of().seconds.values())
    assert dealt(128).padding[0] == pytest.approx(128 * largest - whole)


def test_virtual_stages_are_dealt_apart() -> None:
    """Each has a buffer of its own, in which every rank's part is as long as the longest."""
    assert dealt(128, vpp=4, layers=4.0).padding[0] == pytest.approx(4 * dealt(128).padding[0])
    assert dealt(128, vpp=4, layers=4.0).seconds == pytest.approx(4 * dealt(128).seconds)
    assert dealt(1, vpp=4, layers=4.0).seconds == pytest.approx(dealt(1, layers=4.0).seconds)


def test_seconds_follow_the_work_and_its_owners() -> None:
    """Whole matrices under tensor parallelism: the same work on every rank of it, and their momentum is gathered."""
    adam, muon = (optimizer_seconds(o, dp=4, tp=4, sp=1) for o in (Optimizer.ADAMW, Optimizer.MUON))
    assert muon > adam
    alone = optimizer_seconds(Optimizer.MUON, dp=4, tp=4, sp=1, zero=0)
    assert 2.0 < alone / muon < 4.5  # of four replicas each does a quarter with the layer-wise optimizer
    spread = optimizer_seconds(Optimizer.MUON, dp=16)
    assert spread < muon
    model = muon_of()
    blocks = [(rows, m.columns) for m in model.kinds[0] for rows in m.rows]
    work = sum(newton_schulz_flops(*block) for block in blocks) * MODEL.num_layers
    assert alone > work / 989e12


def test_second_moments_of_the_embedding() -> None:
    """Without replicas and sharding: 8 bytes less a matrix element's 4, none less for the embedding and the head."""
    axes = {"dp": 1, "tp": 1, "zero": 0, "num_microbatches": 16}
    both = [detail(o, **axes).memory["optimizer"] for o in (Optimizer.ADAMW, Optimizer.MUON)]
    adam, muon = (float(of["optimizer"].max()) for of in both)
    inside = sum(m.count * m.elements for m in muon_of().kinds[0]) * MODEL.num_layers
    assert adam - muon == pytest.approx(4.0 * inside, rel=1e-3)
    extra = both[1]["optimizer_temporaries"] - both[0]["optimizer_temporaries"]
    assert float(extra.max()) == pytest.approx(8.0 * max(m.elements for m in muon_of().kinds[0]))


@pytest.mark.parametrize("model", [dense_model(8), moe_model(8)])
def test_rows_do_not_depend_on_others(model: ModelSpec) -> None:
    subject = problem(model, optimizer=Optimizer.MUON)
    table, costed = random_rows(legal_table(subject), 12, 1), costs(subject)
    assert len(set(table["vpp"])) > 1
    together = costed.evaluate(table)
    for row in range(len(table)):
        alone = costed.evaluate(table.take(np.array([row])))
        assert alone.step_time[0] == pytest.approx(together.step_time[row], rel=1e-12)
        assert alone.device_memory[0] == pytest.approx(together.device_memory[row], rel=1e-12)


def test_other_frameworks_are_not_costed() -> None:
    assert costs(problem(optimizer=Optimizer.MUON, stack="deepspeed-2025")).layers.muon is None
    assert costs(problem()).layers.muon is None


def test_sharded_momentum_is_no_longer_than_adams_states() -> None:
    """As Moonlight shards it: no part is padded, so that a rank holds less than with Adam, but for one matrix."""
    dealt = load_stack("megatron-2026")
    engine = dealt.engine.model_copy(update={"shards_matrices": True})
    flat = dealt.model_copy(update={"engine": engine})
    rows = ConfigTable.of([ParallelConfig(dp=128, num_microbatches=2, zero=zero) for zero in (0, 1)])
    peaks = {}
    for name, stack, optimizer in (
        ("adam", dealt, Optimizer.ADAMW), ("dealt", dealt, Optimizer.MUON), ("flat", flat, Optimizer.MUON),
    ):  # fmt: skip
        subject = replace(problem(machine="16x8 h100 400G-ib", optimizer=optimizer), stack=stack)
        peaks[name] = costs(subject).evaluate(rows).peak_memory
    assert peaks["flat"][0] == peaks["dealt"][0]  # nothing is sharded
    assert peaks["flat"][1] < peaks["flat"][0]
    assert peaks["flat"][1] < peaks["dealt"][1]
    largest = max(m.elements for m in matrices_of(MODEL.layers[0], MODEL.hidden))
    assert peaks["flat"][1] < peaks["adam"][1] + GATHERED_BYTES * largest


@pytest.mark.parametrize("tp", [1, 4])
def test_momentum_is_gathered_where_ranks_divide_it(tp: int) -> None:
    """In fp32, of every matrix of 8 layers once, by one of the 16 / tp ranks that hold it alike; under nothing."""
    config = ParallelConfig(tp=tp, sp=int(tp > 1), dp=16 // tp, num_microbatches=tp, zero=1)
    model = costs(problem(optimizer=Optimizer.MUON))
    sent = [one for one in step_messages(model, config, 0) if one.what == "momentum_of_matrices"]
    every = sum(one.count * one.elements for one in matrices_of(MODEL.layers[0], MODEL.hidden))
    assert sum(one.calls * one.size for one in sent) == pytest.approx((tp > 1) * 8 * 4.0 * every * tp / 16)
    found = model.evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert found is not None
    assert sum(one.busy for one in sent) <= float(found.time["optimizer"][0])

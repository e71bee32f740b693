"""What DeepSpeed's ZeRO-3 gathers module by module: by hand from its rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.engines.zero3_gathers import (
    Module,
    computed_meanwhile,
    modules_of,
    prefetch_blocked,
    reductions,
    released,
    turning_share,
)
from planner.cost.messages import data_parallel
from planner.cost.messages.data_parallel import exposed_data_parallel
from planner.cost.network.collectives import all_gather_time
from planner.cost.network.traffic import GroupLinks
from planner.cost.params import model_parameters
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig, Recompute
from planner.spec.load_model import load_model
from tests.cost.messages.test_data_parallel import row_of
from tests.problems import costs, problem

ONE = np.ones(1)


def gpt_layer(hidden: int) -> list[Module]:
    return [Module(parts * hidden**2 * ONE, 1, False) for parts in (3.0, 1.0, 4.0, 4.0)]


def numbers(values: list[np.ndarray]) -> list[float]:
    return [float(value[0]) for value in values]


def test_recomputation_frees_what_comes_back_beyond_the_reuse_distance() -> None:
    layer = gpt_layer(12288)  # 151e6 x (3, 1, 4, 4); 18, 16, 8 and 0 of them lie between two uses
    assert numbers(released(layer, 1e9)) == [1, 1, 1, 0]
    assert numbers(released(layer, 2.5e9)) == [1, 0, 0, 0]
    assert numbers(released(layer, 3e9)) == [0, 0, 0, 0]
    assert numbers(released(gpt_layer(4096), 1e9)) == [0, 0, 0, 0]


def test_nothing_is_prefetched_under_a_module_that_fills_what_may_live() -> None:
    layer = gpt_layer(20480)  # 419e6 x (3, 1, 4, 4)
    assert numbers(prefetch_blocked(layer, 1e9)) == [1, 1, 0, 1]
    assert numbers(prefetch_blocked(layer, 3e9)) == [0, 0, 0, 0]
    assert prefetch_blocked([], 1e9) == []


def test_a_module_is_fetched_under_the_one_before_it() -> None:
    layer, unit = gpt_layer(20480), 20480.0**2
    under = computed_meanwhile(layer, prefetch_blocked(layer, 3e9))
    assert numbers(under) == [4 * unit, 3 * unit, unit, 4 * unit]
    assert numbers(computed_meanwhile(layer, prefetch_blocked(layer, 1e9))) == [0, 0, unit, 0]


def test_products_hide_no_more_than_the_gather_that_runs_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "OVERLAP_SLOWDOWN", 0.0)
    # a gather of 1 s, a forward of 1 s
    row, under = row_of(3, 0.0, 1.0, microbatches=1.0, hidden=1.0), (np.array([3.0]), np.array([100.0]))
    alone = exposed_data_parallel(row, *under)
    shares = np.array([[[0.75, 0.25]], [[0.25, 0.75]]])
    # forward 0.75 - 0.25; backward, of 2 s, 0.75 - 0.5
    ahead = exposed_data_parallel(replace(row, shares=shares), *under)
    assert float(alone[0]) == pytest.approx(0.01)
    assert float(ahead[0]) == pytest.approx(0.5 + 0.25)


def test_the_last_weights_of_a_forward_pass_are_still_there() -> None:
    assert turning_share(np.array([8e9, 1e8]), 1e9, False) == pytest.approx([0.0625, 1.0])
    assert turning_share(np.array([8e9]), 1e9, True) == pytest.approx([1 / 24])


def test_gradients_are_scattered_in_full_buckets_or_by_modules_larger_than_one() -> None:
    sizes, modules = np.array([8e9, 175e9, 1e8]), np.array([224.0, 384.0, 20.0])
    assert reductions(sizes, modules, 5e8) == pytest.approx([16, 350, 1])
    assert reductions(sizes, modules, 9e7) == pytest.approx([8e9 / 9e7, 384, 1e8 / 9e7])


def test_every_linear_layer_is_a_message() -> None:
    subject = problem(load_model("llama-3-8b"), "4x8 h100 400G-ib", global_batch=32, stack="deepspeed-2025")
    model = costs(subject)
    table = ConfigTable.of([ParallelConfig(dp=32, zero=3)])
    fetches = model.prepare(table).shards.fetches
    assert fetches is not None
    h, kv, ffn = 4096.0, 1024.0, 14336.0
    layer = [h * h, h * kv, h * kv, h * h, h * ffn, h * ffn, h * ffn]
    sizes = [float(one.size[0]) for one in modules_of(subject.model.layers[0], subject, ONE)]
    assert sizes == layer
    where = (GroupLinks(32.0, 8.0, subject.cluster.tiers[0].bandwidth, 50e9, 50e9), model.links)
    by_hand = sum(32 * float(all_gather_time(2 * n, *where)) for n in layer)
    by_hand += 2 * float(all_gather_time(2 * 128256 * h, *where))
    assert float(fetches.gather[0]) == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.parametrize("recompute", [0, 32])
def test_messages_add_up_to_the_weights_of_every_pass(recompute: int) -> None:
    subject = problem(load_model("llama-3-8b"), "1x8 h100", global_batch=32, stack="deepspeed-2025")
    kind = Recompute.FULL if recompute else Recompute.NONE
    config = ParallelConfig(dp=8, zero=3, num_microbatches=4, recompute=kind, recompute_layers=recompute)
    weights = [e for e in step_messages(costs(subject), config, 0) if e.what == "weights"]
    total = float(model_parameters(subject.model).total)
    kept = 1e9 / (3 if recompute else 2) / total
    assert sum(e.size * e.calls for e in weights) == pytest.approx(4 * (2 - kept) * 2 * total, rel=1e-3)
    assert max(e.size for e in weights) < 2 * 1.01 * 128256 * 4096


def test_a_third_gather_costs_time_where_layers_are_wide() -> None:
    subject = problem(load_model("llama-3-70b"), "8x8 h100 400G-ib", global_batch=64, stack="deepspeed-2025")
    fetches = costs(subject).prepare(ConfigTable.of([ParallelConfig(dp=64, zero=3)])).shards.fetches
    assert fetches is not None
    # of 856e6 weights a layer attention's 151e6 come back after twice 705e6, the gate's after twice 470e6; small
    # messages take longer than their bytes
    assert 151 / 856 < float(fetches.third[0]) < 0.35

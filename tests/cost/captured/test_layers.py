"""Are lists used where they hold, and nowhere else?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.catalog.load_operations import operations_of
from planner.cost.model import CostModel
from planner.errors import InputError
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig
from planner.spec.load_model import load_model
from planner.spec.rule import Problem

PLAIN = Request("llama-3.2-1b", "1x8 h100", 8, seq_len=2048, global_batch="32", stack="transformers-2026")


def problem(**changed: Any) -> Problem:
    return resolve(replace(PLAIN, **changed))[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"lora_rank": 16, "lora_targets": "attention"}, {"cluster": "1x8 v100"}, {"cluster": "1x8 mi300x"},
        {"packed": True, "mean_len": 512}, {"lora_rank": 16, "frozen_bits": 4}, {"stack": "transformers-2026+compile"},
        {"model": "mistral-nemo-12b"},
    ],
    ids=str,
)  # fmt: skip
def test_what_was_not_captured_is_costed_by_formulas(changed: dict[str, Any]) -> None:
    assert problem().lists() is not None
    found, said = resolve(replace(PLAIN, **changed))
    assert found.lists() is None
    assert cost_model(found).layers.listed is None
    assert "by_formulas" in [one.code for one in said]


def test_heads_that_no_flash_kernel_takes_have_no_lists() -> None:
    usual = problem()
    layer = usual.model.layers[0]
    assert layer.attention is not None
    narrow = replace(layer, attention=replace(layer.attention, head_dim=100, v_head_dim=100))
    model = replace(usual.model, layers=(narrow,) * usual.model.num_layers)
    assert replace(usual, model=model).lists() is None


def test_experts_and_routers_have_the_adapters_that_peft_gives_them() -> None:
    """olmoe-1b-7b: q, k, v and out of 2048; a router; of 64 experts of 1024 gate and up as one of twice the rank. A
    weight, its gradient and its copy in a bucket, and two moments, each in fp32."""
    model = cost_model(problem(model="olmoe-1b-7b", lora_rank=16))
    detail = model.evaluate(configs(1), keep_terms=True).detail
    assert detail is not None
    layer = 16 * (4 * 2 * 2048 + 2048 + 64 + 64 * (2 * (2048 + 2 * 1024) + 1024 + 2048))
    assert float(detail.memory["optimizer"]["adapters"][0, 0]) == 5 * 4 * 16 * layer


def configs(tp: int) -> ConfigTable:
    return ConfigTable.of([
        ParallelConfig(tp=tp, dp=8 // tp, micro_batch=2, num_microbatches=32 // (8 // tp) // 2, recompute_layers=0)
    ])  # fmt: skip


def test_what_tensor_parallelism_cuts_is_in_proportion_to_the_whole() -> None:
    listed = cost_model(problem())
    formulas = CostModel(replace(listed.problem, listed=None), listed.kernels, listed.links)
    layer = listed.problem.model.layers[0]
    (one, other), (half, plain) = (
        [model.layers.layer(layer, configs(tp)) for model in (listed, formulas)] for tp in (1, 2)
    )
    assert half.kept / plain.kept == pytest.approx(one.kept / other.kept)
    sent = sum(of["tp_comm"] for of in (plain.forward, plain.backward))
    assert (half.time - sent) / (plain.time - sent) == pytest.approx(one.time / other.time)
    assert half.forward["tp_comm"] == plain.forward["tp_comm"]


def test_the_nearest_keys_are_those_that_lists_are_of() -> None:
    model = cost_model(problem())
    assert model.layers.listed is not None
    assert not model.layers.listed.applies(configs(2)).any()
    assert model.layers.listed.applies(model.layers.listed.nearest(configs(2))).all()


def test_what_torchtitan_divides_and_does_again_is_listed() -> None:
    """Its selective checkpointing keeps less than none of it and more than the whole; inputs that tensor parallelism
    gathers are kept whole, so that half a layer keeps more than half."""
    model = cost_model(problem(stack="torchtitan-2026-eager"))
    one, two, op = configs(1), configs(2), 1 << RECOMPUTE_MODULES.index("op")
    again = ConfigTable({**one.columns, "recompute_modules": np.full(1, op, dtype=np.int32)})
    layers, layer = model.layers, model.problem.model.layers[0]
    assert layers.listed is not None
    assert all(layers.listed.applies(keys).all() for keys in (one, two, again))
    plain, divided, selective = (layers.layer(layer, keys) for keys in (one, two, again))
    assert plain.kept_full < selective.kept < plain.kept
    assert plain.time < selective.time < plain.time_full
    assert plain.kept / 2 < divided.kept < plain.kept
    assert divided.forward["tp_comm"] > 0 == plain.forward["tp_comm"]
    bare = divided.forward_time - divided.forward["tp_comm"]
    assert plain.forward_time / 2 < bare < plain.forward_time
    assert divided.time_full - divided.time > divided.forward["tp_comm"]  # gathered again in part


@pytest.mark.parametrize("stack", ["transformers-2026", "transformers-2026+amp", "torchtitan-2026-eager"])
def test_bounds_hold_with_lists(stack: str) -> None:
    model = cost_model(problem(stack=stack))
    cut = ConfigTable.joined([configs(tp) for tp in (1, 2, 4)])
    sharded = ConfigTable({**cut.columns, "zero": np.full(len(cut), 3, dtype=np.int32)})
    table = ConfigTable.joined([cut, sharded])  # autocast copies weights that are not sharded alone
    cost = model.evaluate(table)
    assert np.all(model.lower_bound(table) <= cost.step_time)
    assert np.all(model.least_memory(table) <= cost.device_memory)


@pytest.mark.parametrize("text", ["", "{}", '{"forms": {}', "[]"])
def test_a_broken_file_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "llama.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr("planner.catalog.load_operations.FOLDER", tmp_path)
    with pytest.raises(InputError, match=r"llama\.json"):
        operations_of("broken", load_model("llama-3.2-1b"), 2048)

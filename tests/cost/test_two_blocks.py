"""LongCat-Flash: layers of two blocks, experts beside both, and experts that compute nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.flops import model_flops
from planner.cost.operations.lists import layer_gemms
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks.megatron.architecture import _check
from planner.solve.step_messages import step_messages
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from tests.problems import costs, problem

FLASH = read_hf_config({"model_type": "longcat_flash", "num_layers": 28}, "config.json", "longcat-flash")
ONE = ParallelConfig(dp=16, ep=8)


def test_published_size() -> None:
    """560B, of which 18.6B to 31.3B and 27B in the mean are active (arXiv 2509.01322, abstract)."""
    found = model_parameters(FLASH)
    assert found.by_kind["experts"] == 28 * 512 * 3 * 6144 * 2048
    assert found.by_kind["mlp"] == found.by_kind["shared_experts"] == 28 * 3 * 6144 * 12288
    assert found.by_kind["router"] == 28 * 768 * 6144
    assert found.total == 560_664_958_976
    assert found.active / 1e9 == pytest.approx(28.0, abs=0.1)
    assert sum(layer_parameters(b, 6144).total for b in FLASH.layers[0].blocks) == layer_parameters(
        FLASH.layers[0], 6144
    ).total  # fmt: skip


def test_a_third_of_the_choices_computes_nothing() -> None:
    moe = FLASH.layers[0].moe
    assert moe is not None
    assert (moe.top_k, moe.choices, moe.mean_k) == (12, 768, 8)
    rows = {g.name: g.rows_per_token for g in layer_gemms(FLASH.layers[0], 6144)}
    assert rows["expert_fc1"] == rows["expert_fc2"] == 8
    assert replace(moe, zero_experts=0).mean_k == 12
    assert replace(moe, zero_experts=100).mean_k == pytest.approx(12 * 512 / 612)


def test_a_layer_is_its_two_blocks() -> None:
    layer = FLASH.layers[0]
    apart = replace(FLASH, layers=layer.blocks * 28)
    assert model_flops(apart, 1, 4096) == model_flops(FLASH, 1, 4096)
    models = [costs(problem(model, global_batch=64)) for model in (FLASH, apart)]
    keys = ConfigTable.of([ONE])
    both, first, then = (
        model.layers.layer(kind, keys)
        for model, kind in zip((models[0], models[1], models[1]), (layer, *layer.blocks), strict=True)
    )
    for name in ("time", "forward_time", "host", "kept", "weight_gradient"):
        assert getattr(both, name) == pytest.approx(getattr(first, name) + getattr(then, name))
    # recomputed, it keeps one input, and both blocks' tensors are there when the second runs backward
    assert both.kept_full == first.kept_full
    held = first.kept + then.kept - first.kept_full
    assert float(both.working_full[0]) == pytest.approx(float((held + then.working)[0]))
    assert float(both.working[0]) >= float(then.working[0])
    sent = [sum(e.sent * e.calls for e in step_messages(model, ONE, 0) if e.axis == "ep") for model in models]
    assert sent[0] == pytest.approx(sent[1]) != 0


def test_who_runs_it() -> None:
    for stack in ("deepspeed-2025", "fsdp1-2023"):
        subject = problem(FLASH, stack=load_stack(stack))
        found = {
            b.rule: b.reason for b in explain_config(ParallelConfig(dp=16), subject, rules_for(subject.stack))
        }
        assert "180,388,626,432 parameters more" in found["experts-compute"]
    with pytest.raises(UnsupportedError, match="longcat_flash"):
        _check(FLASH)


def test_both_spellings_and_limits() -> None:
    fields = {"model_type": "longcat_flash", "num_hidden_layers": 4, "n_routed_experts": 8}
    assert read_hf_config({**fields, "moe_topk": 2}, "config.json", "small").num_layers == 2
    with pytest.raises(InputError, match="at most the number of experts"):
        read_hf_config({**fields, "moe_topk": 9}, "config.json", "small")
    with pytest.raises(InputError, match="two blocks"):
        replace(FLASH.layers[0], then=FLASH.layers[0])

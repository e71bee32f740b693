"""Is what a question asks for what is run, and what is not run refused by name?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.answer.estimate import asked_config
from planner.ask.question import Request
from planner.ask.request import resolve
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.question import _known, allocator_limit, make_dryrun, recipe_of
from planner.dryrun.recipe import Adapters, Checkpointing, Recipe, Update, Weights
from planner.errors import InputError, UnsupportedError
from planner.spec.load_model import hf_fields
from planner.units import GIB


def asked(**other: Any) -> Request:
    said = {"seq_len": 2048, "global_batch": "8", "stack": "transformers-2026", "set": {"micro_batch": (2,)}}
    return Request("llama-3.2-1b", "1x1 h100", 1, **(said | other))


def recipe(**other: Any) -> Recipe:
    question = asked(**other)
    problem, _ = resolve(question, {"tp": (1,), "cp": (1,), "pp": (1,), **question.restrict})
    return recipe_of(problem, asked_config(question, problem)[0], *hf_fields(question.model))


def test_what_is_plain() -> None:
    found = recipe()
    assert (found.micro_batch, found.seq_len, found.num_microbatches) == (2, 2048, 4)
    assert (found.weights, found.attention, found.experts) == (Weights.BF16, "sdpa", None)
    assert (found.update, found.checkpointing) == (Update.ADAMW_FUSED, Checkpointing.NONE)
    assert found.adapters is None
    assert found.config["model_type"] == "llama"


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        ({"stack": "transformers-2026+amp"}, {"weights": Weights.AMP_BF16}),
        ({"stack": "transformers-2026+amp", "precision": "fp16"}, {"weights": Weights.AMP_FP16}),
        ({"precision": "fp16"}, {"weights": Weights.FP16}),
        ({"stack": "transformers-2026+eager-attention"}, {"attention": "eager"}),
        ({"stack": "transformers-2026+adamw-foreach"}, {"update": Update.ADAMW_FOREACH}),
        ({"stack": "transformers-2026+compile"}, {"compiled": True}),
        ({"set": {"micro_batch": (2,), "recompute": (2,)}}, {"checkpointing": Checkpointing.NON_REENTRANT}),
        ({"lora_rank": 16}, {"adapters": Adapters(16, "all-linear")}),
        ({"lora_rank": 8, "lora_targets": "qkv"}, {"adapters": Adapters(8, ("q_proj", "k_proj", "v_proj"))}),
    ],
)
def test_what_changes_with_an_option(other: dict[str, Any], changed: dict[str, Any]) -> None:
    found = recipe(**other)
    assert {name: getattr(found, name) for name in changed} == changed


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"stack": "deepspeed-2025"}, "deepspeed-2025"),
        ({"optimizer": "muon"}, "muon"),
        ({"lora_rank": 16, "frozen_bits": 4}, "4 bits"),
        ({"packed": True, "mean_len": 512}, "packed"),
    ],
)
def test_what_is_not_run_is_refused_by_name(other: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        recipe(**other)


def test_more_devices_are_refused() -> None:
    question = Request(
        "llama-3.2-1b", "1x8 h100", 8, seq_len=2048, global_batch="8", stack="transformers-2026"
    )
    problem, _ = resolve(question, {"tp": (1,), "cp": (1,), "pp": (1,)})
    with pytest.raises(UnsupportedError, match="8 devices"):
        recipe_of(problem, asked_config(question, problem)[0], *hf_fields(question.model))


def test_the_allocator_has_what_the_driver_and_the_question_leave() -> None:
    problem, _ = resolve(asked())
    memory = problem.cluster.accelerator.memory
    assert allocator_limit(problem, asked()) == int(memory - problem.stack.overhead.context)
    kept = allocator_limit(problem, asked(min_free="4GiB"))
    assert allocator_limit(problem, asked()) - kept == pytest.approx(4 * GIB, abs=1)
    assert allocator_limit(problem, asked(headroom=0.5)) == int(memory / 2 - problem.stack.overhead.context)


def test_a_missing_package_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "planner.dryrun.transformers_step", raising=False)
    with pytest.raises(InputError, match=r"llm-training-planner\[dryrun\]"):
        make_dryrun(asked(), AllocatorSettings())


def test_an_illegal_configuration_says_which_rule_it_breaks() -> None:
    with pytest.raises(InputError, match="micro"):
        make_dryrun(asked(set={"micro_batch": (3,)}), AllocatorSettings())


def test_a_model_without_a_reader_is_asked_about_all_the_same(tmp_path: Path) -> None:
    fields = {"model_type": "not-known-yet", "hidden_size": 64, "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    question = Request(str(tmp_path), "1x1 h100", 1, global_batch="4", stack="transformers-2026")
    read, peak, _ = _known(question, fields)
    assert (read.seq_len, peak) == (1024, None)
    assert hf_fields(str(tmp_path)) == (tmp_path.name, fields)
    assert _known(asked(), hf_fields("llama-3.2-1b")[1])[1] > 5 * GIB


def test_a_model_described_by_hand_has_nothing_to_run(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("layers: 2\nhidden: 64\nheads: 4\nvocab: 100\nffn: 128\n")
    with pytest.raises(InputError, match=r"config\.json"):
        hf_fields(str(tmp_path / "ours.yaml"))

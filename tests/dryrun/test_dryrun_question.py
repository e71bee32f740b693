"""Is what a question asks for what is run, and what is not run refused by name?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.answer.estimate import asked_config, make_estimate
from planner.ask.question import DryrunQuestion, Request
from planner.ask.request import resolve
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.asked import Asked
from planner.dryrun.question import _known, allocator_limit, make_dryrun
from planner.dryrun.transformers.asked import recipe_of
from planner.dryrun.transformers.methods import alone_known, trained_as
from planner.dryrun.transformers.recipe import (
    Adapters,
    Checkpointing,
    Method,
    Objective,
    Recipe,
    Sharding,
    Texts,
    Update,
    Weights,
)  # fmt: skip
from planner.errors import InputError, UnsupportedError
from planner.spec.job import AdapterTargets
from planner.spec.load_model import hf_fields
from planner.units import GIB


def asked(**other: Any) -> Request:
    said = {"seq_len": 2048, "global_batch": "8", "stack": "transformers-2026", "set": {"micro_batch": (2,)}}
    return Request("llama-3.2-1b", "1x1 h100", 1, **(said | other))


def posed(question: Request) -> Asked:
    problem, _ = resolve(question, {"tp": (1,), "cp": (1,), "pp": (1,), **question.restrict})
    config = asked_config(question, problem)[0]
    return Asked(question, problem, config, None, *hf_fields(question.model))


def recipe(**other: Any) -> Recipe:
    return recipe_of(posed(asked(**other)))


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
        ({"stack": "transformers-2026+use-liger-kernel"}, {"liger": True}),
        ({"stack": "transformers-2026+eager-attention"}, {"attention": "eager"}),
        ({"stack": "transformers-2026+adamw-foreach"}, {"update": Update.ADAMW_FOREACH}),
        ({"stack": "transformers-2026+compile"}, {"compiled": True}),
        ({"set": {"micro_batch": (2,), "recompute": (2,)}}, {"checkpointing": Checkpointing.NON_REENTRANT}),
        ({"optimizer": "adamw-8bit"}, {"update": Update.ADAMW_8BIT}),
        ({"optimizer": "adamw-bf16"}, {"update": Update.ADAMW_FUSED}),
        ({"optimizer": "adafactor", "stack": "transformers-2026+amp"}, {"update": Update.ADAFACTOR}),
        ({"mean_len": 512}, {"texts": Texts(512, packed=False), "attention": "sdpa"}),
        (
            {"mean_len": 512, "packed": True},
            {"texts": Texts(512, packed=True), "attention": "flash_attention_2"},
        ),
        (
            {"mean_len": 512, "packed": True, "stack": "transformers-2026+sdpa-mask"},
            {"texts": Texts(512, packed=True), "attention": "sdpa"},
        ),
        ({"lora_rank": 16}, {"adapters": Adapters(16, AdapterTargets.ALL_LINEAR)}),
        (
            {"lora_rank": 16, "frozen_bits": 4},
            {"adapters": Adapters(16, AdapterTargets.ALL_LINEAR, frozen_bits=4)},
        ),
        ({"lora_rank": 8, "lora_targets": "qkv"}, {"adapters": Adapters(8, AdapterTargets.QKV)}),
    ],
)
def test_what_changes_with_an_option(other: dict[str, Any], changed: dict[str, Any]) -> None:
    found = recipe(**other)
    assert {name: getattr(found, name) for name in changed} == changed


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"stack": "transformers-2026+use-liger-kernel-0.6.1"}, "use-liger-kernel-0.6.1"),
        ({"optimizer": "adamw-bf16", "stack": "transformers-2026+amp"}, "adamw-bf16"),
        ({"optimizer": "sgd", "stack": "transformers-2026+adamw-foreach"}, "adamw-foreach with sgd"),
        ({"lora_rank": 16, "frozen_bits": 32}, "32 bits"),
    ],
)
def test_what_is_not_run_is_refused_by_name(other: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        recipe(**other)


def alone(**other: Any) -> DryrunQuestion:
    said = {"seq_len": 2048, "global_batch": "8", "stack": "transformers-2026"}
    return DryrunQuestion("llama-3.2-1b", "1x1 h100", 1, **(said | other))


def test_what_a_dry_run_alone_knows() -> None:
    found = trained_as(alone(use_dora=True, lora_dropout="5%"), recipe(lora_rank=8))
    assert found.adapters == Adapters(8, AdapterTargets.ALL_LINEAR, 0.05, dora=True)
    again = trained_as(alone(use_reentrant=True), recipe(set={"recompute": (2,)}))
    assert again.checkpointing is Checkpointing.REENTRANT
    assert trained_as(asked(lora_rank=8), recipe(lora_rank=8)) == recipe(lora_rank=8)
    assert alone_known(alone(use_dora=True, lora_rank=8)) == ("use_dora",)
    assert alone_known(asked(lora_rank=8)) == ()


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"method": "dpo"}, Objective(Method.DPO, 0.1)),
        ({"method": "grpo"}, Objective(Method.GRPO, 0.0)),
        (
            {"method": "grpo", "beta": 0.04, "num_iterations": 2, "completion_len": "1k"},
            Objective(Method.GRPO, 0.04, 2, 1024),
        ),
    ],
)
def test_methods_have_the_settings_of_trl(other: dict[str, Any], found: Objective) -> None:
    assert trained_as(alone(**other), recipe()).objective == found
    assert found.completed(2048) == (found.completion or 2047)


@pytest.mark.parametrize(
    ("other", "of_all", "named"),
    [
        ({"method": "ppo"}, {}, "ppo"),
        ({"beta": 0.1}, {}, "beta needs"),
        ({"method": "dpo", "num_iterations": 2}, {}, "needs grpo"),
        ({"method": "dpo", "completion_len": 2048}, {}, "1 to 2,047"),
        ({"method": "dpo"}, {"mean_len": 512, "packed": True}, "packed"),
        ({"method": "grpo"}, {"mean_len": 512}, "padded"),
    ],
)
def test_methods_are_refused_what_they_have_not(
    other: dict[str, Any], of_all: dict[str, Any], named: str
) -> None:
    with pytest.raises((InputError, UnsupportedError), match=named):
        trained_as(alone(**other), recipe(**of_all))


@pytest.mark.parametrize(
    ("other", "needed"),
    [({"use_dora": True}, "lora-rank"), ({"lora_dropout": 0.1}, "lora-rank"), ({"use_reentrant": True}, "recompute")],
)  # fmt: skip
def test_what_lacks_its_other_half_is_refused(other: dict[str, Any], needed: str) -> None:
    with pytest.raises(InputError, match=needed):
        trained_as(alone(**other), recipe())


def test_no_estimate_stands_beside_what_it_does_not_know() -> None:
    fields = hf_fields("llama-3.2-1b")[1]
    assert _known(alone(lora_rank=8, use_dora=True), fields)[1] is None
    assert _known(alone(lora_rank=8), fields)[1] is not None


def ways(gpus: int, stack: str = "transformers-2026", **axes: int) -> Recipe:
    question = Request(
        "llama-3.2-1b", f"{gpus // 8}x8 h100", gpus, seq_len=2048, global_batch=str(2 * gpus), stack=stack,
        set={name: (value,) for name, value in axes.items()},
    )  # fmt: skip
    return recipe_of(posed(question))


def test_ranks_hold_copies_and_shards() -> None:
    ddp, sharded, hybrid = ways(8, zero=0), ways(8, zero=3), ways(16, zero=2, hsdp=8)
    assert (ddp.replicas, ddp.shards, ddp.sharding) == (8, 1, Sharding.NONE)
    assert (sharded.replicas, sharded.shards, sharded.sharding) == (1, 8, Sharding.WEIGHTS)
    assert (hybrid.replicas, hybrid.shards, hybrid.sharding) == (2, 8, Sharding.GRADIENTS)
    assert ways(8, zero=3, tp=2).tensor == 2
    assert not sharded.accumulates_whole
    assert ways(8, "transformers-2026+no-sync", zero=3).accumulates_whole


def test_the_allocator_has_what_the_driver_and_the_question_leave() -> None:
    one = posed(asked())
    problem, memory = one.problem, one.problem.cluster.accelerator.memory
    plain = allocator_limit(problem, one.config, asked())
    assert plain == int(memory - problem.stack.overhead.context)
    kept = allocator_limit(problem, one.config, asked(min_free="4GiB"))
    assert plain - kept == pytest.approx(4 * GIB, abs=1)
    halved = allocator_limit(problem, one.config, asked(headroom=0.5))
    assert halved == int(memory / 2 - problem.stack.overhead.context)


def test_what_was_kept_back_is_what_was_said() -> None:
    """Also where a plan keeps as much unasked."""
    limits = [make_limit(alone(headroom=share)) for share in (0.0, 0.04, 0.05, 0.06)]
    assert limits == sorted(limits, reverse=True)
    assert len(set(limits)) == 4
    assert make_limit(alone()) == limits[0]


def make_limit(question: DryrunQuestion) -> int:
    one = posed(question)
    return allocator_limit(one.problem, one.config, question)


@pytest.mark.parametrize(
    "stack", ["transformers-2026", "deepspeed-2025", "torchtitan-2026-eager", "megatron-2026"]
)
@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_the_same_lies_outside_the_allocator_as_an_estimate_says(stack: str, gpus: int) -> None:
    zero = {"transformers-2026": 3, "torchtitan-2026-eager": 3}.get(stack, 1) if gpus > 1 else 0
    question = Request(
        "llama-3.2-1b", f"{-(-gpus // 8)}x{min(gpus, 8)} h100", gpus, seq_len=2048, global_batch="16", stack=stack,
        set={"zero": (zero,), "micro_batch": (1,)},
    )  # fmt: skip
    one = posed(question)
    outside = make_estimate(question).choices[0].memory.terms["outside_allocator"]
    left = one.problem.cluster.accelerator.memory - allocator_limit(one.problem, one.config, question)
    assert left == pytest.approx(outside, abs=1)


def test_a_framework_that_is_not_run_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="nanotron-2024"):
        make_dryrun(asked(stack="nanotron-2024"), AllocatorSettings())


def test_a_missing_package_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "planner.dryrun.transformers.step", raising=False)
    with pytest.raises(InputError, match=r"llm-training-planner\[dryrun\]"):
        make_dryrun(asked(), AllocatorSettings())


def test_an_illegal_configuration_says_which_rule_it_breaks() -> None:
    with pytest.raises(InputError, match="micro"):
        make_dryrun(asked(set={"micro_batch": (3,)}), AllocatorSettings())


def test_a_model_without_a_reader_is_asked_about_all_the_same(tmp_path: Path) -> None:
    fields = {"model_type": "not-known-yet", "hidden_size": 64, "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    question = Request(str(tmp_path), "1x1 h100", 1, global_batch="4", stack="transformers-2026")
    read, estimate, _ = _known(question, fields)
    assert (read.seq_len, estimate) == (1024, None)
    assert hf_fields(str(tmp_path)) == (tmp_path.name, fields)
    estimate = _known(asked(), hf_fields("llama-3.2-1b")[1])[1]
    assert estimate is not None
    assert estimate.choices[0].memory.peak > 5 * GIB


def test_a_model_described_by_hand_has_nothing_to_run(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("layers: 2\nhidden: 64\nheads: 4\nvocab: 100\nffn: 128\n")
    with pytest.raises(InputError, match=r"config\.json"):
        hf_fields(str(tmp_path / "ours.yaml"))

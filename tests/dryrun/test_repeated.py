"""Is the record of few layers, with those in the middle repeated, that of all of them? Needs PyTorch, transformers,
accelerate, peft and trl."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.folding import UnequalPartsError
from planner.dryrun.outcome import memory_of
from planner.dryrun.periods import Links
from planner.dryrun.recording import Recording
from planner.dryrun.repeated import repeated
from planner.dryrun.short_record import same_record
from planner.dryrun.transformers.recipe import (
    Adapters,
    Checkpointing,
    Method,
    Objective,
    Recipe,
    Sharding,
    Update,
    Weights,
)
from tests.dryrun.steps import HOPPER, LIMIT, TINY

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "accelerate", "peft", "trl")
LAYERS = 14
LLAMA: dict[str, Any] = TINY | {"num_hidden_layers": LAYERS, "hidden_size": 64, "intermediate_size": 160}
DEEP = Recipe(LLAMA, "deep", micro_batch=1, seq_len=128)
MODELS: dict[str, dict[str, Any]] = {
    "windows": {**LLAMA, "model_type": "gemma2", "num_hidden_layers": 28, "head_dim": 16, "sliding_window": 32},
    "dense layers first": {
        **LLAMA, "model_type": "deepseek_v3", "num_hidden_layers": 22, "first_k_dense_replace": 2,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
        "num_key_value_heads": 4,
    },
}  # fmt: skip
RECIPES: dict[str, Recipe] = {
    "plain": DEEP,
    **{name: replace(DEEP, config=config) for name, config in MODELS.items()},
    "recomputed": replace(DEEP, checkpointing=Checkpointing.REENTRANT, num_microbatches=2),
    "autocast": replace(DEEP, weights=Weights.AMP_BF16, checkpointing=Checkpointing.NON_REENTRANT),
    "adapters": replace(DEEP, adapters=Adapters(4, dropout=0.1), update=Update.ADAFACTOR),
    "preferences": replace(DEEP, objective=Objective(Method.DPO, 0.1)),
    "shards": replace(DEEP, sharding=Sharding.WEIGHTS, shards=4, replicas=2),
    "tensors": replace(DEEP, sharding=Sharding.GRADIENTS, shards=2, tensor=2),
}


def peaks(recording: Recording) -> tuple[int, int, int]:
    found = memory_of(recording, AllocatorSettings(), LIMIT)
    return found.allocated_peak, found.reserved_peak, found.first_step_allocated_peak


@pytest.mark.parametrize("name", RECIPES)
def test_the_record_of_few_layers_is_that_of_all(name: str) -> None:
    from planner.dryrun.transformers.model import config_of
    from planner.dryrun.transformers.shortened import shortened
    from planner.dryrun.transformers.step import by_few, whole_step

    recipe = RECIPES[name]
    few = shortened(recipe, config_of(recipe))
    assert few is not None
    found = by_few(recipe, few, HOPPER)
    assert found is not None
    whole = whole_step(recipe, config_of(recipe), HOPPER)
    assert same_record(found, whole)
    assert peaks(found) == peaks(whole)


def is_shortened(recipe: Recipe) -> bool:
    from planner.dryrun.transformers.model import config_of
    from planner.dryrun.transformers.shortened import shortened

    return shortened(recipe, config_of(recipe)) is not None


def test_layers_that_differ_are_run() -> None:
    kinds = ["sliding_attention", "full_attention"] * 14
    windows = MODELS["windows"] | {"layer_types": kinds}
    assert is_shortened(replace(DEEP, config=windows))
    assert not is_shortened(
        replace(DEEP, config=windows | {"layer_types": [*kinds[:12], kinds[1], *kinds[13:]]})
    )
    assert not is_shortened(replace(DEEP, config=LLAMA | {"num_hidden_layers": 13}))
    # of which no module knows
    bases = LLAMA | {"num_hidden_layers": 16, "bases": [1e4] * 16}
    assert is_shortened(replace(DEEP, config=bases))
    assert not is_shortened(replace(DEEP, config=bases | {"bases": [1e4] * 8 + [0.0] * 8}))
    for numbers in ([3, 7], [7, 3], {"3": 1e4}):
        assert not is_shortened(replace(DEEP, config=LLAMA | {"full_layers": numbers}))


def test_what_is_done_for_all_layers_or_some_is_run() -> None:
    for changes in (
        {"sharding": Sharding.NONE, "replicas": 2}, {"compiled": True}, {"update": Update.ADAMW_FOREACH},
        {"adapters": Adapters(4, ("q_proj", "layers.9.mlp.up_proj"))},
    ):  # fmt: skip
        assert not is_shortened(replace(DEEP, **changes))
    assert is_shortened(replace(DEEP, adapters=Adapters(4, ("q_proj", "mlp.up_proj"))))


def test_text_as_long_as_there_are_layers_is_left() -> None:
    kind = "single_label_classification"
    assert is_shortened(replace(DEEP, config=LLAMA | {"num_hidden_layers": len(kind), "problem_type": kind}))


def test_a_shorter_model_that_does_otherwise_is_found_out() -> None:
    from planner.dryrun.transformers.model import config_of
    from planner.dryrun.transformers.shortened import shortened
    from planner.dryrun.transformers.step import whole_step

    few, links = shortened(DEEP, config_of(DEEP)), Links()
    assert few is not None
    short = whole_step(DEEP, few.config, HOPPER, links)
    shorter = whole_step(DEEP, few.shorter, HOPPER)
    assert repeated(short, links, few.stretch, shorter, few.periods).end > short.end
    other = whole_step(replace(DEEP, update=Update.SGD), few.shorter, HOPPER)
    with pytest.raises(UnequalPartsError, match="otherwise"):
        repeated(short, links, few.stretch, other, few.periods)

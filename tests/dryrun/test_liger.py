"""Do Liger's kernels hold what their sources say, layer by layer? Needs PyTorch and transformers."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from planner.dryrun.recording import Holds, Recording
from planner.dryrun.transformers.recipe import Checkpointing, Recipe, Weights
from planner.errors import UnsupportedError
from tests.dryrun.steps import TINY, at_end_of_forward, recorded

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers")
TOKENS, HIDDEN, FFN, HEADS, KEYS, VOCABULARY, LAYERS = 1024, 256, 640, 4, 128, 1000, 2
LIGER = Recipe(TINY, "tiny", 2, 512, liger=True)


def kept(recording: Recording) -> int:
    """Activations at the end of the second step's forward pass [bytes]."""
    alive = at_end_of_forward(recording)
    return sum(one.size * one.number for one in alive if one.holds is Holds.ACTIVATIONS)


def count(recording: Recording, name: str) -> int:
    return sum(one.name == f"planner.liger_{name}.default" for one in recording.operations)


def test_a_layer_keeps_what_its_kernels_read_again() -> None:
    """In bf16: of each norm its input and result; queries, keys, values and the result of attention; gate, up and their
    product. In fp32: a number a row of each norm, and of each head."""
    layer = TOKENS * (2 * (4 * HIDDEN + 2 * HIDDEN + 2 * KEYS + 3 * FFN) + 4 * (2 + HEADS))
    last = TOKENS * (2 * HIDDEN + 4)  # the last norm's input, and a number a row
    loss = 2 * TOKENS * HIDDEN + 2 * VOCABULARY * HIDDEN  # gradients, which are there already
    assert kept(recorded(LIGER)) == pytest.approx(LAYERS * layer + last + loss, rel=0.03)


def test_logits_are_made_in_parts_as_large_as_the_input() -> None:
    """1,000 words over a width of 256 are 4 parts, and 1,024 tokens 256 at once; of the weight one sum in bf16."""
    found = recorded(LIGER)
    assert count(found, "cross_entropy") == 2 * 4
    logits = [one for one in found.operations if one.name == "planner.liger_cross_entropy.default"]
    assert {one.taken[0] for one in logits} == {((256, VOCABULARY), "bfloat16")}
    assert not [one for one in found.operations for shape, _ in one.given if shape == (TOKENS, VOCABULARY)]


def test_under_autocast_the_head_is_cast_for_each_part_and_summed_in_fp32() -> None:
    found = recorded(replace(LIGER, weights=Weights.AMP_BF16))
    sums = [one for one in found.operations if one.name == "planner.liger_addmm.default"]
    assert {one.taken for one in sums} == {
        (((VOCABULARY, HIDDEN), "float32"), ((VOCABULARY, 256), "bfloat16"), ((256, HIDDEN), "bfloat16"))
    }


def test_every_norm_activation_and_rotation_is_a_kernel() -> None:
    found = recorded(LIGER)
    assert count(found, "rms_norm") == count(found, "rms_norm_backward") == 2 * (2 * LAYERS + 1)
    assert count(found, "gated") == count(found, "gated_backward") == 2 * LAYERS
    assert count(found, "rope") == 2 * 2 * LAYERS
    assert not [one for one in found.operations if one.name.startswith(("aten.silu", "aten.rsqrt"))]


def test_checkpointing_runs_kernels_again() -> None:
    found = recorded(replace(LIGER, checkpointing=Checkpointing.NON_REENTRANT))
    assert count(found, "gated") == 2 * 2 * LAYERS


def test_the_rotation_of_the_model_is_its_own_again() -> None:
    module = "transformers.models.llama.modeling_llama"
    recorded(LIGER)
    assert sys.modules[module].apply_rotary_pos_emb.__module__ == module


@pytest.mark.parametrize(
    ("family", "other"),
    [
        ("qwen3", {"head_dim": 64}), ("phi3", {"pad_token_id": 0}), ("gemma2", {"head_dim": 64}),
        ("olmo2", {}), ("glm4", {"head_dim": 64, "pad_token_id": 0}),
    ],
)  # fmt: skip
def test_families_have_layers_of_their_own(family: str, other: dict[str, Any]) -> None:
    found = recorded(replace(LIGER, config=TINY | other | {"model_type": family}))
    assert count(found, "gated") == 2 * LAYERS


def test_families_that_are_not_known_are_refused_and_those_without_layers_run_as_they_are() -> None:
    with pytest.raises(UnsupportedError, match="granite"):
        recorded(replace(LIGER, config=TINY | {"model_type": "granite"}))
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 512,
        "vocab_size": 99,
    }
    assert count(recorded(replace(LIGER, config=gpt2)), "rms_norm") == 0

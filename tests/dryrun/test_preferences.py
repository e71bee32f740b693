"""Does a step of DPO and of GRPO run the passes that trl runs? Needs PyTorch, transformers, peft and trl."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.captured.operation import Phase
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.transformers.recipe import Adapters, Checkpointing, Method, Objective, Recipe, Weights
from planner.spec.job import AdapterTargets
from tests.dryrun.steps import PARAMETERS, TINY, at_end_of_forward, held, memory, recorded

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "peft", "trl")
LENGTH, LAYERS, VOCABULARY, HIDDEN = 256, 2, 1000, 256
DPO = Recipe(TINY, "tiny", 2, LENGTH, objective=Objective(Method.DPO, 0.1, completion=100))
GRPO = replace(DPO, objective=Objective(Method.GRPO, 0.0, completion=100))


def passes(recording: Recording) -> float:
    """Forward passes of a model in a step."""
    name = "aten._scaled_dot_product_flash_attention.default"
    return sum(one.name == name for one in recording.operations) / (2 * LAYERS)


def test_dpo_has_a_second_model_without_states() -> None:
    found = memory(DPO)
    assert held(found, Holds.WEIGHTS) == pytest.approx(2 * 2 * PARAMETERS, abs=8192)
    assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(2 * 2 * PARAMETERS, abs=4096)


def test_dpo_runs_pairs_by_both_models() -> None:
    found = recorded(DPO)
    embedded = [one for one in found.operations if one.name == "aten.embedding.default"]
    assert {one.given[0][0] for one in embedded} == {(2 * 2, LENGTH, HIDDEN)}
    assert passes(found) == 2
    of_reference = [one for one in found.operations if one.module.startswith("reference.")]
    assert of_reference
    assert {one.phase for one in of_reference} == {Phase.FORWARD}


def test_logits_are_made_tile_by_tile_of_completions_alone() -> None:
    """Tiles of 32,768 words for each of 4 x 100 tokens, twice forward and once back; gradients of the head in fp32."""
    found = recorded(DPO)
    tokens = 4 * 100
    tiles = [one for one in found.operations if one.name.startswith("planner.trl_chunked")]
    assert {one.taken[0][0] for one in tiles} == {(tokens, VOCABULARY)}
    assert len(tiles) == 2 * 3
    rooms = [one for one in found.operations if one.given and one.given[0][0] == (tokens, 32_768)]
    assert len(rooms) == 2 * 3
    head = [one for one in found.operations if one.given == (((VOCABULARY, HIDDEN), "float32"),)]
    assert {one.phase for one in head} == {Phase.BACKWARD}


def test_adapters_are_taken_off_for_the_reference() -> None:
    adapted = replace(DPO, adapters=Adapters(8, AdapterTargets.ALL_LINEAR))
    assert passes(recorded(adapted)) == 2
    assert held(memory(adapted), Holds.WEIGHTS) < 2.5 * PARAMETERS
    quantised = replace(DPO, adapters=Adapters(8, AdapterTargets.ALL_LINEAR, frozen_bits=4))
    assert held(memory(quantised), Holds.OPTIMIZER_STATES) == held(memory(adapted), Holds.OPTIMIZER_STATES)


def test_casts_of_the_reference_are_gone_when_its_pass_ends() -> None:
    """Under autocast of each model by itself: no more than the trained one's 16-bit weights, which its graph holds."""
    found = recorded(replace(DPO, weights=Weights.AMP_BF16))
    assert not [one for one in at_end_of_forward(found) if one.module.startswith("reference.")]


def test_checkpointing_is_off_for_the_reference() -> None:
    found = recorded(replace(DPO, checkpointing=Checkpointing.NON_REENTRANT))
    assert passes(found) == 3  # of the trained one twice


@pytest.mark.parametrize(
    ("objective", "ran"),
    [
        (Objective(Method.GRPO, 0.0, completion=100), 1), (Objective(Method.GRPO, 0.04, completion=100), 2),
        (Objective(Method.GRPO, 0.04, num_iterations=2, completion=100), 3),
    ],
    ids=["plain", "reference", "old policy too"],
)  # fmt: skip
def test_grpo_scores_completions_by_the_reference_and_the_old_policy(objective: Objective, ran: int) -> None:
    recipe = replace(GRPO, objective=objective)
    assert passes(recorded(recipe)) == ran
    models = 2 if objective.beta else 1
    assert held(memory(recipe), Holds.WEIGHTS) == pytest.approx(models * 2 * PARAMETERS, abs=8192)


def test_functions_of_trl_are_its_own_again() -> None:
    from trl.kernels import chunked_logprob

    before = chunked_logprob._forward_tile
    recorded(GRPO)
    assert chunked_logprob._forward_tile is before

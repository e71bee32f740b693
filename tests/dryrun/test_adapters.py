"""Do adapters ask for what PEFT's layers take? Needs PyTorch, transformers and peft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.dryrun.recording import Holds
from planner.dryrun.transformers.recipe import Adapters, Recipe
from planner.spec.job import AdapterTargets
from planner.spec.load_model import hf_fields, load_model
from tests.dryrun.steps import TINY, held, memory

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "peft")
RANK, TOKENS = 8, 512
PLAIN = Recipe(TINY, "tiny", 1, TOKENS, adapters=Adapters(RANK, AdapterTargets.ALL_LINEAR))
# (outputs, inputs) of the linear layers of one of two layers
LINEAR = [(256, 256), (128, 256), (128, 256), (256, 256), (640, 256), (640, 256), (256, 640)]


def adapted(**changed: object) -> Recipe:
    assert PLAIN.adapters is not None
    return replace(PLAIN, adapters=replace(PLAIN.adapters, **changed))


def test_adapters_have_states_of_two_matrices_in_fp32() -> None:
    """Two layers of them; PEFT holds adapters in fp32, and so AdamW its two moments."""
    elements = 2 * sum(RANK * (rows + columns) for rows, columns in LINEAR)
    counts = 2 * 2 * len(LINEAR)
    assert held(memory(PLAIN), Holds.OPTIMIZER_STATES) == 2 * 4 * elements + 4 * counts


def test_dora_trains_a_magnitude_of_each_output_too() -> None:
    elements = 2 * sum(RANK * (rows + columns) + rows for rows, columns in LINEAR)
    counts = 3 * 2 * len(LINEAR)
    assert held(memory(adapted(dora=True)), Holds.OPTIMIZER_STATES) == 2 * 4 * elements + 4 * counts


def test_dropout_keeps_a_byte_of_each_number_that_enters_an_adapter() -> None:
    """But for queries, keys and values of the first layer, whose input needs no gradient."""
    more = held(memory(adapted(dropout=0.1)), Holds.ACTIVATIONS) - held(memory(PLAIN), Holds.ACTIVATIONS)
    assert more == TOKENS * (2 * sum(columns for _, columns in LINEAR) - 3 * 256)


def test_dora_keeps_what_its_magnitudes_scale() -> None:
    """Of each output the base layer's in bf16 and the adapter's in fp32."""
    more = held(memory(adapted(dora=True)), Holds.ACTIVATIONS) - held(memory(PLAIN), Holds.ACTIVATIONS)
    outputs = 2 * TOKENS * sum(rows for rows, _ in LINEAR)
    assert more == pytest.approx((2 + 4) * outputs, rel=0.02)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("llama-3.2-1b", 3),
        ("phi-3-mini", 1),
        ("gpt2", 1),
        ("falcon-7b", 1),
        ("pythia-6.9b", 1),
        ("deepseek-v2-lite", 3),
    ],
)
def test_attention_is_known_whatever_its_layers_are_called(name: str, inputs: int) -> None:
    """In every layer what makes queries, keys and values, together or apart, and what the result goes through."""
    import torch
    import transformers

    from planner.dryrun.transformers.adapters import _of_attention

    fields = dict(hf_fields(name)[1])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields))
    layers = load_model(name).num_layers
    assert len(_of_attention(model, with_output=True)) == layers * (inputs + 1)
    assert len(_of_attention(model, with_output=False)) == layers * inputs

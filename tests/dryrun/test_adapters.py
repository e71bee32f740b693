"""Do adapters ask for what PEFT's layers take? Needs PyTorch, transformers and peft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.dryrun.recording import Holds
from planner.dryrun.transformers.recipe import Adapters, Recipe
from tests.dryrun.steps import TINY, held, memory

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "peft")
RANK, TOKENS = 8, 512
PLAIN = Recipe(TINY, "tiny", 1, TOKENS, adapters=Adapters(RANK, "all-linear"))
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

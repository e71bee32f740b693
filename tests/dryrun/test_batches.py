"""Do padded and packed batches ask for what their masks and kernels take? Needs PyTorch and transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.captured.operation import Phase
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.transformers.recipe import Recipe, Texts
from planner.errors import UnsupportedError
from tests.dryrun.steps import TINY, held, memory, recorded

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers")
ROWS, LENGTH, LAYERS, HEADS, KEY_HEADS, WIDTH = 2, 512, 2, 4, 2, 64
PLAIN = Recipe(TINY, "tiny", ROWS, LENGTH)
PADDED = replace(PLAIN, texts=Texts(200, packed=False))
PACKED = replace(PLAIN, texts=Texts(200, packed=True), attention="flash_attention_2")


def count(recording: Recording, name: str) -> int:
    return sum(one.name == f"aten.{name}.default" for one in recording.operations)


def test_padding_has_a_mask_and_heads_repeated_in_every_layer() -> None:
    """Of a layer: the mask added to scores in bf16, and keys and values as wide as queries instead of half."""
    more = held(memory(PADDED), Holds.ACTIVATIONS) - held(memory(PLAIN), Holds.ACTIVATIONS)
    mask = 2 * ROWS * LENGTH * LENGTH
    repeated = 2 * 2 * ROWS * LENGTH * (HEADS - KEY_HEADS) * WIDTH
    assert more == pytest.approx(LAYERS * (mask + repeated), rel=0.001)


def test_a_text_alone_is_not_padded() -> None:
    found = recorded(replace(PADDED, micro_batch=1))
    assert count(found, "_scaled_dot_product_flash_attention") == 2 * LAYERS
    assert count(found, "_scaled_dot_product_efficient_attention") == 0


def test_efficient_attention_sums_gradients_of_queries_in_fp32() -> None:
    """Tiles of 64 x 64, each with 16 bytes, and a sum of each row; nothing of keys: tiles are as wide as heads."""
    found = recorded(PADDED)
    trace = found.trace
    backward = [
        number for number, one in enumerate(found.operations)
        if one.name == "aten._scaled_dot_product_efficient_attention_backward.default"
    ]  # fmt: skip
    assert len(backward) == 2 * LAYERS
    sizes = [
        int(size) for block, size in zip(trace.blocks, trace.what, strict=True)
        if size >= 0 and found.made_by[block] == backward[0]
    ]  # fmt: skip
    tiles = ROWS * HEADS * (LENGTH // 64) * (16 + 4 * 64 * 64)
    assert tiles in sizes
    assert 4 * ROWS * HEADS * LENGTH in sizes


def test_packed_texts_are_one_row_without_a_mask() -> None:
    found = recorded(PACKED)
    attended = [one for one in found.operations if one.name == "aten._flash_attention_forward.default"]
    assert len(attended) == 2 * LAYERS
    assert attended[0].taken[0][0] == (ROWS * LENGTH, HEADS, WIDTH)
    assert attended[0].taken[3] == ((-(-ROWS * LENGTH // 200) + 1,), "int32")
    assert not [one for one in found.operations for shape, _ in one.given if shape[-2:] == (1024, 1024)]
    assert count(found, "_flash_attention_backward") == 2 * LAYERS


def test_packed_texts_have_places_of_their_own_in_the_backward_kernel() -> None:
    """128 rows more a text, of sums and of gradients in fp32; keys' gradients head by head, as queries share them."""
    found = recorded(PACKED)
    at = next(
        n for n, one in enumerate(found.operations) if one.name.startswith("aten._flash_attention_backward")
    )
    made = [
        int(size) for block, size in zip(found.trace.blocks, found.trace.what, strict=True)
        if size >= 0 and found.made_by[block] == at
    ]  # fmt: skip
    rows = ROWS * LENGTH + 128 * 6
    assert made[-4:] == [4 * HEADS * rows, 4 * HEADS * rows * WIDTH] + 2 * [2 * ROWS * LENGTH * HEADS * WIDTH]


def test_packed_texts_under_a_mask_have_one_of_the_whole_row() -> None:
    found = recorded(replace(PACKED, attention="sdpa"))
    row = ROWS * LENGTH
    masks = [one for one in found.operations if ((1, 1, row, row), "bfloat16") in one.given]
    assert {one.phase for one in masks} == {Phase.FORWARD}
    assert count(found, "_scaled_dot_product_efficient_attention") == 2 * LAYERS


def test_padding_is_left_out_of_flash_attention() -> None:
    """A text of 512 tokens and one of 200."""
    found = recorded(replace(PADDED, attention="flash_attention_2"))
    attended = next(one for one in found.operations if one.name == "aten._flash_attention_forward.default")
    assert attended.taken[0][0] == (LENGTH + 200, HEADS, WIDTH)


def test_a_model_without_flash_attention_is_refused() -> None:
    without = {
        "model_type": "openai-gpt",
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 512,
        "vocab_size": 99,
    }
    with pytest.raises(UnsupportedError, match="FlashAttention"):
        recorded(replace(PACKED, config=without))

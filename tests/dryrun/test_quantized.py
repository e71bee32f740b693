"""Do bases of 4 and 8 bits hold and ask for what bitsandbytes keeps? Needs PyTorch, transformers and peft."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.captured.operation import Phase
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.transformers.recipe import Adapters, Checkpointing, Recipe, Weights
from planner.spec.job import AdapterTargets
from tests.dryrun.steps import HOPPER, TINY, held, memory

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "peft")
RANK, TOKENS, LAYERS = 8, 512, 2
LINEAR = [(256, 256), (128, 256), (128, 256), (256, 256), (640, 256), (640, 256), (256, 640)]
OUTER = 2 * 1000 * 256 + (2 * LAYERS + 1) * 256  # embedding, head and norms
ADAPTERS = LAYERS * sum(RANK * (rows + columns) for rows, columns in LINEAR)


def recipe(bits: int, **changed: Any) -> Recipe:
    adapters = Adapters(RANK, AdapterTargets.ALL_LINEAR, frozen_bits=bits)
    base = Recipe(TINY, "tiny", 1, TOKENS, weights=Weights.AMP_BF16, adapters=adapters)
    return replace(base, **changed)


def recorded(found: Recipe) -> Recording:
    from planner.dryrun.transformers.step import record_step

    return record_step(found, HOPPER)


def count(recording: Recording, name: str) -> int:
    return sum(one.name == f"planner.bitsandbytes_{name}.default" for one in recording.operations)


def test_weights_of_4_bits_have_scales_of_a_byte() -> None:
    """Half a byte a weight; a byte for 64 of them; 4 for 256 of these; two tables and an offset in fp32 a layer."""
    bytes_ = 0
    for rows, columns in LAYERS * LINEAR:
        blocks = -(-rows * columns // 64)
        bytes_ += rows * columns // 2 + blocks + 4 * -(-blocks // 256) + 4 * (16 + 256 + 1)
    expected = bytes_ + 4 * OUTER + 4 * ADAPTERS
    assert held(memory(recipe(4)), Holds.WEIGHTS) == pytest.approx(
        expected, abs=1024
    )  # and rotary frequencies


def test_weights_of_8_bits_have_a_scale_of_each_row() -> None:
    bytes_ = sum(rows * columns + 4 * rows for rows, columns in LAYERS * LINEAR)
    expected = bytes_ + 4 * OUTER + 4 * ADAPTERS
    assert held(memory(recipe(8)), Holds.WEIGHTS) == pytest.approx(expected, abs=1024)


def test_weights_are_dequantised_in_both_passes() -> None:
    """But not for the first layer's input, which needs no gradient, of queries, keys and values."""
    found = recorded(recipe(4))
    assert count(found, "dequantize_4bit") == 2 * (2 * LAYERS * len(LINEAR) - 3)
    backward = [
        one for one in found.operations if one.phase is Phase.BACKWARD and one.name.endswith("4bit.default")
    ]
    made = {one.given[0] for one in backward}
    assert made == {(shape, "bfloat16") for shape in LINEAR}


def test_checkpointing_dequantises_again() -> None:
    found = recorded(recipe(4, checkpointing=Checkpointing.NON_REENTRANT))
    assert count(found, "dequantize_4bit") == 2 * 3 * LAYERS * len(LINEAR)


def test_products_of_8_bits_keep_their_inputs_where_checkpointing_drops_them() -> None:
    """They are attributes of the graph (`MatMul8bitLt`), which saves them from checkpointing: normalised ones in fp32,
    as autocast leaves them, and the results of attention and of the gate in bf16."""
    checkpointed = {"checkpointing": Checkpointing.NON_REENTRANT}
    four, eight = memory(recipe(4, **checkpointed)), memory(recipe(8, **checkpointed))
    more = held(eight, Holds.ACTIVATIONS) - held(four, Holds.ACTIVATIONS)
    assert more == LAYERS * TOKENS * (2 * 4 * 256 + 2 * 256 + 4 * 640)


def test_the_rest_is_held_in_fp32_also_without_autocast() -> None:
    found = recorded(recipe(4, weights=Weights.BF16))
    logits = [
        one for one in found.operations if one.given and one.given[0][0][-1:] == (1000,) and ".mm" in one.name
    ]
    assert {one.given[0][1] for one in logits} == {"float32"}


def _of(names: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (math.prod(one.shape), one.dtype) for name, one in names.items()}


def test_a_layer_of_4_bits_is_that_of_bitsandbytes() -> None:
    """The package's own, where it is there: tensors of the same bytes, and the same kept for the backward pass."""
    import torch

    library = pytest.importorskip("bitsandbytes")
    from planner.dryrun.transformers.quantized import Linear4

    plain = torch.nn.Linear(256, 192, bias=False, dtype=torch.bfloat16)
    own = library.nn.Linear4bit(256, 192, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    own.weight = library.nn.Params4bit(plain.weight.data, requires_grad=False, quant_type="nf4", module=own)
    own = own.to("cpu")
    state = own.weight.quant_state
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        ours = Linear4(plain, torch.bfloat16)
    assert _of({"weight": ours.weight, **dict(ours.named_buffers())}) == _of({
        "weight": own.weight, "scales": state.absmax, "table": state.code, "offset": state.offset,
        "scales_of_scales": state.state2.absmax, "table_of_scales": state.state2.code,
    })  # fmt: skip


def test_a_layer_of_8_bits_is_that_of_bitsandbytes() -> None:
    import torch

    library = pytest.importorskip("bitsandbytes")
    from planner.dryrun.transformers.quantized import Linear8

    plain = torch.nn.Linear(256, 192, bias=False, dtype=torch.bfloat16)
    own = library.nn.Linear8bitLt(256, 192, bias=False, has_fp16_weights=False, threshold=6.0)
    own.weight = library.nn.Int8Params(plain.weight.data, requires_grad=False, has_fp16_weights=False)
    own = own.to("cpu")
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        ours = Linear8(plain)
    assert _of({"weight": ours.weight, "scales": ours.scales}) == _of(
        {"weight": own.weight, "scales": own.weight.SCB}
    )


def test_an_adapter_keeps_what_that_of_peft_keeps_beside_4_bits() -> None:
    """Tensors saved for the backward pass, by PEFT's own layer on bitsandbytes' own."""
    import peft
    import torch

    library = pytest.importorskip("bitsandbytes")
    from peft.tuners.lora.bnb import Linear4bit

    from planner.dryrun.on_cuda import cuda_branches
    from planner.dryrun.transformers.adapters import _Adapted4
    from planner.dryrun.transformers.quantized import Linear4

    plain = torch.nn.Linear(256, 192, bias=False, dtype=torch.bfloat16)
    config = peft.LoraConfig(r=8, lora_alpha=16)
    own = library.nn.Linear4bit(256, 192, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    own.weight = library.nn.Params4bit(plain.weight.data, requires_grad=False, quant_type="nf4", module=own)
    real = Linear4bit(own.to("cpu"), "default", config=config, r=8, lora_alpha=16)
    x = torch.randn(64, 256, dtype=torch.bfloat16, requires_grad=True)
    kept = _saved(real, x)
    with cuda_branches(HOPPER), torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        ours = _Adapted4(Linear4(plain, torch.bfloat16), "default", config=config, r=8, lora_alpha=16)
        assert _saved(ours, torch.empty(64, 256, dtype=torch.bfloat16, requires_grad=True)) == kept


def _saved(layer: Any, x: Any) -> list[tuple[Any, Any]]:
    import torch

    saved: list[tuple[Any, Any]] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: saved.append((tuple(one.shape), one.dtype)) or one, lambda one: one
    ):
        layer(x)
    return sorted(saved, key=str)

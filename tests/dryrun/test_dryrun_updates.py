"""Has a dry run the states that each optimizer's own formula gives? Needs PyTorch and transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from planner.cost.captured.operation import Phase
from planner.dryrun.recording import Holds
from planner.dryrun.transformers.recipe import Recipe, Update, Weights
from tests.dryrun.steps import HOPPER, TINY, held, memory

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers")
# (rows, columns) of every matrix and the length of every vector of two layers, embedding, head and last norm
LAYER = [(256, 256), (128, 256), (128, 256), (256, 256), (640, 256), (640, 256), (256, 640)]
OUTER = [(1000, 256), (1000, 256)]
NORMS = [(256,)] * 5
ALL = 2 * LAYER + OUTER + NORMS


def states(update: Update, weights: Weights = Weights.BF16) -> int:
    """Bytes that the allocator is asked for and that hold states, at the end of the second step."""
    return held(memory(Recipe(TINY, "tiny", 1, 64, weights=weights, update=update)), Holds.OPTIMIZER_STATES)


def total(shapes: list[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


@pytest.mark.parametrize(
    ("weights", "width"), [(Weights.BF16, 2), (Weights.AMP_BF16, 4)], ids=["bf16", "autocast"]
)
def test_momentum_is_as_wide_as_gradients_and_plain_descent_has_none(weights: Weights, width: int) -> None:
    assert states(Update.SGD, weights) == 0
    assert states(Update.SGD_MOMENTUM, weights) == width * total(ALL)


def test_states_of_8_bits_have_scales_and_two_tables_of_codes() -> None:
    """Embeddings and what has fewer than 4,096 elements are kept in 32 bits; 256 values share a scale."""
    narrow = 2 * LAYER + OUTER[:1]
    blocks = sum(-(-math.prod(shape) // 256) for shape in narrow)
    wide = total(OUTER[1:] + NORMS)
    assert states(Update.ADAMW_8BIT) == 2 * total(narrow) + 2 * 4 * blocks + 2 * 4 * 256 + 2 * 4 * wide


def test_ademamix_has_three_moments_of_32_bits() -> None:
    assert states(Update.ADEMAMIX) == 3 * 4 * total(ALL)


def test_adafactor_has_a_row_and_a_column_of_each_matrix() -> None:
    """In fp32 beside weights of 16 bits; of a vector the whole; and one number of each, its root mean square."""
    matrices = 2 * LAYER + OUTER
    factors = sum(sum(shape) for shape in matrices) + total(NORMS)
    assert states(Update.ADAFACTOR) == 4 * (factors + len(ALL))


def test_muon_has_one_moment_of_the_matrices_of_layers() -> None:
    """Embedding, head and norms have AdamW's two, and of each tensor a count of steps in fp32."""
    others = OUTER + NORMS
    assert states(Update.MUON) == 2 * total(2 * LAYER) + 2 * 2 * total(others) + 4 * len(others)


def test_muon_multiplies_matrices_five_times_in_16_bits() -> None:
    """Of each matrix: its square, the square of that, and the product with it, in every iteration."""
    from planner.dryrun.transformers.step import record_step

    recording = record_step(Recipe(TINY, "tiny", 1, 64, update=Update.MUON, weights=Weights.AMP_BF16), HOPPER)
    mine = [one for one in recording.operations if one.phase is Phase.OPTIMIZER]
    products = [one for one in mine if one.name in ("aten.mm.default", "aten.addmm.default")]
    assert len(products) == 2 * 5 * 3 * 2 * len(LAYER)  # in both steps
    assert {shape[1] for one in products for shape in one.given} == {"bfloat16"}


def _held(optimizer: Any, weights: list[Any]) -> list[dict[str, tuple[Any, Any]]]:
    return [
        {name: (tuple(one.shape), one.dtype) for name, one in optimizer.state[weight].items() if hasattr(one, "shape")}
        for weight in weights
    ]  # fmt: skip


@pytest.mark.parametrize(("bits", "slow"), [(8, False), (32, True)], ids=["adamw-8bit", "ademamix"])
def test_states_are_those_of_bitsandbytes(bits: int, slow: bool) -> None:
    """The package's own class, where it is there; its kernels run on a CPU as well."""
    import torch

    library = pytest.importorskip("bitsandbytes")
    from planner.dryrun.transformers.bitsandbytes_updates import BlockwiseAdam

    weights = [torch.nn.Parameter(torch.ones(shape)) for shape in ((64, 100), (300,), (64, 64))]
    for one in weights:
        one.grad = torch.ones_like(one)
    own = library.optim.AdEMAMix(weights) if slow else library.optim.AdamW8bit(weights)
    for number, weight in enumerate(weights):
        own.init_state(own.param_groups[0], weight, 0, number)
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
        ours = BlockwiseAdam(weights, bits, slow)
        ours.step()
    assert _held(ours, weights) == _held(own, weights)

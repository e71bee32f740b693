"""Recipes by their other names, and the devices that have them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from planner.catalog.load_stacks import load_stack
from planner.errors import UnsupportedError
from planner.spec.machine.device_kernels import require_recipe
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.precision import Precision


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("mxfp8", Precision.FP8_MX), ("MXFP8", Precision.FP8_MX), ("fp8-tensorwise", Precision.FP8_CS)],
)
def test_recipes_go_by_other_names(name: str, recipe: Precision) -> None:
    assert Precision(name) is recipe


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match="bf17"):
        Precision("bf17")


@pytest.mark.parametrize(
    ("device", "precision", "runs"),
    [
        ("h100-sxm-80g", Precision.FP8_MX, False),
        ("mi300x", Precision.FP8_MX, False),
        ("b200", Precision.FP8_MX, True),
        ("mi355x", Precision.FP8_MX, True),
        ("l40s", Precision.FP8_BLOCKWISE, False),
        ("h100-sxm-80g", Precision.FP8_BLOCKWISE, True),
        ("l40s", Precision.FP8, True),
        ("a100-sxm-80g", Precision.FP8, False),
    ],
)
def test_devices_without_the_scales_of_a_recipe(device: str, precision: Precision, runs: bool) -> None:
    """TransformerEngine quantization.py: MXFP8 from Blackwell on, scales of blocks from Hopper on."""
    with (
        nullcontext()
        if runs
        else pytest.raises(UnsupportedError, match=r"must (multiply with scales|compute in)")
    ):
        load_accelerator(device).require(precision)


@pytest.mark.parametrize(
    ("stack", "capability", "precision", "refused"),
    [
        ("megatron-2026", "12.0", Precision.FP8_MX, True), ("megatron-2026", "12.1", Precision.FP8_MX, True),
        ("megatron-2026", "10.3", Precision.FP8_MX, False), ("megatron-2026", "12.0", Precision.FP8_CS, False),
        ("torchtitan-2026", "12.0", Precision.FP8_MX, False),
    ],
)  # fmt: skip
def test_transformer_engine_has_no_mxfp8_on_workstation_blackwell(
    stack: str, capability: str, precision: Precision, refused: bool
) -> None:
    """A device of one's own, with 8-bit products: those of compute capability 12 that planner ships state none."""
    chip = replace(load_accelerator("b200"), name="own", compute_capability=capability)
    if not refused:
        require_recipe(load_stack(stack), chip, precision)
        return
    with pytest.raises(UnsupportedError, match="compute capability 12"):
        require_recipe(load_stack(stack), chip, precision)
    with pytest.raises(UnsupportedError, match="Transformer Engine"):
        require_recipe(load_stack(stack), load_accelerator("rtx-pro-6000"), precision)

"""Recipes by their other names, and the devices that have them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.catalog.load_stacks import load_stack
from planner.errors import UnsupportedError
from planner.report.words import texts
from planner.spec.load_model import load_model
from planner.spec.machine.device_kernels import missing_kernels, require_recipe
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.precision import Dtype, Precision


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
        ("mi355x", Precision.NVFP4, False),
        ("b200", Precision.NVFP4, True),
        ("rtx-pro-6000-server", Precision.FP8, True),
        ("rtx4090", Precision.FP8_CS, True),
        ("rtx4090", Precision.FP8_MX, False),
        ("l40s", Precision.NVFP4, False),
    ],
)
def test_devices_without_the_scales_of_a_recipe(device: str, precision: Precision, runs: bool) -> None:
    """TransformerEngine quantization.py: MXFP8 from Blackwell on, scales of blocks from Hopper on. MI355X has MXFP4."""
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
        ("megatron-2026", "12.0", Precision.NVFP4, True), ("megatron-2026", "10.0", Precision.NVFP4, False),
        ("torchtitan-2026", "12.0", Precision.FP8_MX, False),
    ],
)  # fmt: skip
def test_transformer_engine_lacks_recipes_on_workstation_blackwell(
    stack: str, capability: str, precision: Precision, refused: bool
) -> None:
    """A device of one's own and the one that planner ships."""
    chip = replace(load_accelerator("b200"), name="own", compute_capability=capability)
    if not refused:
        require_recipe(load_stack(stack), chip, precision)
        return
    with pytest.raises(UnsupportedError, match="compute capability 12"):
        require_recipe(load_stack(stack), chip, precision)
    with pytest.raises(UnsupportedError, match="Transformer Engine"):
        require_recipe(load_stack(stack), load_accelerator("rtx-pro-6000-server"), precision)


def test_a_peak_that_the_catalog_lacks_is_not_said_to_be_the_devices() -> None:
    chip = replace(load_accelerator("rtx-pro-6000-server"), peak=((Dtype.BF16, 5e14),))
    with pytest.raises(UnsupportedError, match="its peak in fp8 is not known; known are bf16"):
        chip.require(Precision.FP8)


def test_blocks_are_not_advised_away_to_mxfp8_where_it_is_refused() -> None:
    stack, model, blocks = load_stack("megatron-2026"), load_model("llama-3.1-8b"), Precision.FP8_BLOCKWISE
    for chip, advised in (("b200", True), ("rtx-pro-6000-server", False)):
        (said,) = texts(missing_kernels(stack, model, load_accelerator(chip), blocks))
        assert ("prefers fp8_mx" in said) is advised


def test_workstation_blackwell_is_faster_in_8_bits() -> None:
    """Its kernels were timed in 8 bits: 0.73 of twice the peak, where bf16 reaches 0.80."""
    asked = Request(
        "llama-3.1-8b", "1x8 rtx-pro-6000-server", seq_len=4096, global_batch="64", set={"pp": (2,)}
    )
    wide, narrow = (make_estimate(replace(asked, precision=name)).choices[0] for name in ("bf16", "fp8_cs"))
    assert narrow.time["gemm"] < 0.75 * wide.time["gemm"]

"""Which kernels run on a device: no flash attention before Ampere, nothing at all where no stack runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.catalog.load_stacks import load_stack
from planner.report.words import texts
from planner.spec.load_model import load_model
from planner.spec.machine.device_kernels import missing_kernels, with_device_kernels
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.planfile import Verdict
from planner.spec.precision import Precision
from planner.spec.stack.kinds import AttentionKernel

LLAMA = load_model("llama-3.1-8b")


@pytest.mark.parametrize("name", ["megatron-2026", "nanotron-2024"])
@pytest.mark.parametrize("device", ["v100-sxm2-32g", "t4"])
def test_volta_and_turing_have_no_flash_attention(name: str, device: str) -> None:
    stack, volta = load_stack(name), load_cluster(f"1x4 {device}", None).accelerator
    assert (
        with_device_kernels(stack, LLAMA, volta, Precision.BF16).kernels.attention
        is AttentionKernel.FUSED_SOFTMAX
    )
    (said,) = texts(missing_kernels(stack, LLAMA, volta, Precision.BF16))
    assert "8.0" in said
    ampere = load_cluster("a100-sxm-80g", 8).accelerator
    assert with_device_kernels(stack, LLAMA, ampere, Precision.BF16) is stack
    assert missing_kernels(stack, LLAMA, ampere, Precision.BF16) == ()


def test_a_stack_without_flash_attention_misses_nothing_on_volta() -> None:
    stack, volta = load_stack("megatron-2021"), load_cluster("v100-sxm2-32g", 8).accelerator
    assert with_device_kernels(stack, LLAMA, volta, Precision.BF16) is stack
    assert missing_kernels(stack, LLAMA, volta, Precision.BF16) == ()


def test_fp16_jobs_of_deepspeeds_engine_reduce_gradients_in_16_bits() -> None:
    stack, ampere = load_stack("megatron-deepspeed-2022"), load_cluster("a100-sxm-80g", 8).accelerator
    half = with_device_kernels(stack, LLAMA, ampere, Precision.FP16)
    assert half.engine.sent_gradient == 2.0
    assert (half.engine.gradient, half.engine.optimizer_transient) == (2.0, 4.0)
    wide = with_device_kernels(stack, LLAMA, ampere, Precision.BF16)
    assert (wide.engine.sent_gradient, wide.engine.gradient) == (4.0, 4.0)


def test_scores_are_kept_and_context_is_not_split_on_volta() -> None:
    """32 heads x 4096^2 scores over tp 8: far more memory than with flash attention, and one rank per sequence."""
    request = Request("llama-3.1-8b", "v100-sxm2-32g", 8, seq_len=4096, global_batch="64", set={"tp": (8,)})
    plan = make_estimate(request)
    assert any("8.0" in line for line in texts(plan.assumptions))
    scores = 32 / 8 * 4096**2 * 2 * LLAMA.num_layers
    activations = plan.choices[0].memory.terms["activations"]
    assert activations > scores
    split = make_estimate(
        Request("llama-3.1-8b", "v100-sxm2-32g", 8, seq_len=4096, global_batch="64", set={"cp": (8,)})
    )
    assert split.verdict is Verdict.ILLEGAL
    assert [broken.rule for broken in split.violations] == ["cp-attention"]


def test_transformer_engine_keeps_scores_in_fp32() -> None:
    """32 heads x 2,048^2 scores of 4 bytes over tp 8, of 32 layers: 2 GiB; torch's own kernel, torchtitan's, keeps
    none. No ranks share a sequence."""
    asked = Request(
        "llama-3.1-8b", "1x8 h200", 8, seq_len=2048, global_batch="64", precision="fp32", set={"tp": (8,)}
    )
    plan = make_estimate(asked)
    assert any("16 and 8 bits, not fp32" in line for line in texts(plan.assumptions))
    assert plan.choices[0].memory.terms["activations"] > 32 / 8 * 2048**2 * 4 * 32 == 2 * 2**30
    torch = make_estimate(replace(asked, stack="torchtitan-2026"))
    assert not any("not fp32" in line for line in texts(torch.assumptions))
    products = [line for made in (plan, torch) for line in texts(made.assumptions) if "fp32 GEMMs" in line]
    assert ["Transformer Engine always" in line for line in products] == [True, False]
    split = make_estimate(replace(asked, set={"cp": (8,)}))
    assert [broken.rule for broken in split.violations] == ["cp-attention"]


@pytest.mark.parametrize("name", ["gaudi2", "cpu"])
def test_a_device_that_the_release_was_not_written_for_is_said(name: str) -> None:
    chip = load_cluster(name, 1).accelerator
    (said,) = texts(missing_kernels(load_stack("megatron-2026"), LLAMA, chip, Precision.BF16))
    assert "as on a GPU" in said


def test_transformer_engine_multiplies_blocks_as_mxfp8_on_blackwell() -> None:
    stack, blocks = load_stack("megatron-2026"), Precision.FP8_BLOCKWISE
    blackwell, hopper = (load_cluster(name, 8).accelerator for name in ("dgx-b200", "dgx-h100"))
    (said,) = texts(missing_kernels(stack, LLAMA, blackwell, blocks))
    assert "fp8_mx" in said
    assert missing_kernels(stack, LLAMA, hopper, blocks) == ()
    assert missing_kernels(load_stack("torchtitan-2026"), LLAMA, blackwell, blocks) == ()


def test_scales_by_block_gain_nothing_over_mxfp8_on_blackwell() -> None:
    asked = Request("llama-3.1-8b", "dgx-b200", gpus=8, set={"tp": (1,)})
    blocks, native = (
        make_estimate(replace(asked, precision=name)).choices[0].step_time
        for name in ("fp8_blockwise", "fp8_mx")
    )
    assert blocks == pytest.approx(native, rel=0.01)

"""Kernels that texts of published rows name."""

from __future__ import annotations

import pytest

from benchmarks.published.switches import apply_switches
from planner.catalog.load_stacks import load_stack
from planner.spec.stack.kinds import AttentionKernel, CrossEntropy


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("flash-attention-2", AttentionKernel.FLASH_2),
        ("SFT with FA2; whole logits", AttentionKernel.FLASH_2),
        ("flash-attention-3", AttentionKernel.FLASH),
        ("kernel=FlashAttention-2 of a sweep", AttentionKernel.FLASH),
        ("", AttentionKernel.FLASH),
    ],
)
def test_flash_attention_2_is_not_the_devices_fastest(text: str, kernel: AttentionKernel) -> None:
    assert apply_switches(load_stack("torchtitan-2026"), text)[0].kernels.attention is kernel


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("whole logits in fp32", CrossEntropy.VOCAB_PARALLEL),
        ("unfused cross entropy", CrossEntropy.VOCAB_PARALLEL),
        ("cross-entropy fusion", CrossEntropy.FUSED),
    ],
)
def test_loss_of_a_row(text: str, loss: CrossEntropy) -> None:
    assert apply_switches(load_stack("megatron-2026"), text)[0].kernels.loss.kind is loss

"""What texts ask for, deny and do not name."""

from __future__ import annotations

import pytest

from benchmarks.published.recipes import ADAPTERS
from benchmarks.published.words import Word

FLASH = Word(r"flash[ _-]?att")


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", None),
        ("unpacked; recompute=none", None),
        ("flash-attn", True),
        ("use_flash_attn=True", True),
        ("FlashAttention-2.5, not recomputed", True),
        ("no recomputation, flash attention", True),
        ("flash attention; EP overlap off", True),
        ("flash attention, CUDA graphs: none", True),
        ("flash-attn=2.0", True),
        ("flash attention: on", True),
        ("flash attention off/on per run", True),
        ("use_flash_attn=False", False),
        ("use_flash_attn false", False),
        ("use-flash-attn: off", False),
        ("flash_attention = 0", False),
        ("flash attention off", False),
        ("Flash Attention (disabled)", False),
        ("flash-attn is not used", False),
        ("flash attention kernels disabled", False),
        ("no flash attention", False),
        ("--no-flash-attn", False),
        ("no_use_flash_attn", False),
        ("non-flash attention", False),
        ("w/o flash attention", False),
        ("without CUDA graphs or flash attention", False),
        ("without CUDA graphs and flash attention", False),
        ("no recomputation and flash attention", True),
        ("no LoRA/FlashAttention", False),
        ("without using the flash attention", False),
        ("disable_flash_attention", False),
        ("eager instead of flash attention", False),
        ("flash-attn 2.5 installed; use_flash_attn=False", False),
    ],
)
def test_a_word_is_asked_for_denied_or_not_named(text: str, asked: bool | None) -> None:
    assert FLASH.asked(text) is asked
    assert (FLASH.search(text) is not None) is bool(asked)
    assert FLASH.denied(text) is (asked is False)


@pytest.mark.parametrize(
    "text", ["no LoRA", "full fine-tuning (not LoRA)", "LoRA: none", "LoRA=False", "without LoRA"]
)
def test_adapters_that_are_denied_are_none(text: str) -> None:
    assert ADAPTERS.denied(text)
    assert ADAPTERS.asked("LoRA (frozen base weights, rank not in table)")

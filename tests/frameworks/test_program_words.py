"""Which attention the programs of transformers are asked for."""

from __future__ import annotations

import pytest

from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import FLASH_ATTENTION_3
from planner.frameworks import framework
from planner.frameworks.programs import attention_of
from tests.frameworks.launches import CONFIGS, launch, problem


@pytest.mark.parametrize(
    ("stack", "accelerator", "asked"),
    [
        ("deepspeed-2025", "h100-sxm-80g", "flash_attention_2"),
        ("deepspeed-2025+flash-attention-3", "h100-sxm-80g", "flash_attention_3"),
        ("deepspeed-2025+flash-attention-3", "gh200", "flash_attention_3"),
        ("deepspeed-2025+flash-attention-3", "b200", "flash_attention_4"),
        ("deepspeed-2025+flash-attention-3", "gb300", "flash_attention_4"),
        ("deepspeed-2025+flash-attention-3", "a100-sxm-80g", "flash_attention_2"),
        ("deepspeed-2025+flash-attention-3", "mi300x", "flash_attention_2"),
        ("deepspeed-2025+sdpa-mask", "h100-sxm-80g", "sdpa"),
    ],
)
def test_flash_attention_is_the_release_that_the_device_has(stack: str, accelerator: str, asked: str) -> None:
    assert attention_of(load_stack(stack), accelerator) == asked


@pytest.mark.parametrize(("stack", "options"), [("", ()), (f"+{FLASH_ATTENTION_3}", (FLASH_ATTENTION_3,))])
def test_deepspeed_reads_back_which_one_was_asked_for(stack: str, options: tuple[str, ...]) -> None:
    given = problem("llama-3.1-8b", f"deepspeed-2025{stack}")
    deepspeed = framework("deepspeed")
    files = deepspeed.render(launch("llama-3.1-8b", CONFIGS["deepspeed"], given), deepspeed.default_version)
    assert deepspeed.parse(files).stack_options == options

"""--fp8-param-gather: written where the plan's memory counts on it, read back, refused where Megatron-LM refuses it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InputError
from planner.frameworks import framework
from tests.frameworks.launches import CONFIGS, launch, problem

WORDS = (
    "pretrain_gpt.py --num-layers 32 --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16 "
    "--use-distributed-optimizer --fp8-format hybrid --fp8-recipe"
)


def exported(precision: str, stack: str = "megatron-2026", **changes: int) -> tuple[str, bool | None]:
    """The launch script of a plan, and whether it reads back as gathering in 8 bits."""
    given = problem("llama-3.1-8b", stack, precision=precision)
    files = framework("megatron").render(
        launch("llama-3.1-8b", replace(CONFIGS["megatron"], **changes), given), "main-2026-08"
    )
    return files["launch.sh"], framework("megatron").parse({"launch.sh": files["launch.sh"]}).fp8_param_gather


@pytest.mark.parametrize(
    ("precision", "stack", "gathers"),
    [
        ("fp8_cs", "megatron-2026", True),
        ("fp8", "megatron-2025", True),
        ("fp8_mx", "megatron-2026", True),
        ("fp8_mx", "megatron-2025", False),
        ("fp8_blockwise", "megatron-2026", False),
        ("fp8_cs", "megatron-2026+no-fp8-param-gather", False),
    ],
)
def test_written_and_read(precision: str, stack: str, gathers: bool) -> None:
    text, read = exported(precision, stack)
    assert ("--fp8-param-gather" in text) is gathers
    assert ("--reuse-grad-buf-for-mxfp8-param-ag" in text) is (gathers and precision == "fp8_mx")
    assert read is gathers


def test_not_without_masters_to_cast_from() -> None:
    assert "--fp8-param-gather" not in exported("fp8_cs", zero=0)[0]
    assert "--fp8-param-gather" not in exported("fp8_cs", offload=1)[0]
    assert "--fp8-param-gather" in exported("fp8", offload=1)[0]
    assert exported("bf16")[1] is None


@pytest.mark.parametrize(
    ("words", "must"),
    [
        (
            WORDS.replace(" --use-distributed-optimizer", "") + " delayed --fp8-param-gather",
            "distributed optimizer",
        ),
        (WORDS + " mxfp8 --fp8-param-gather", "gradient buffer"),
        (WORDS + " tensorwise --fp8-param-gather --optimizer-cpu-offload", "recipe delayed"),
        (WORDS.replace("--fp8-format hybrid --fp8-recipe", "") + " --fp8-param-gather", "fp8 mode"),
    ],
)
def test_refused_as_by_megatron(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        framework("megatron").parse({"run.sh": words})
    assert (
        framework("megatron").parse({"run.sh": WORDS + " delayed --fp8-param-gather"}).fp8_param_gather
        is True
    )


def test_bridge_recipes_that_differ_are_said() -> None:
    given = problem("llama-3.1-8b", "megatron-2026+no-fp8-param-gather", precision="fp8_cs")
    found = framework("megatron-bridge")
    files = found.render(launch("llama-3.1-8b", CONFIGS["megatron"], given), found.default_version)
    assert any("keeps them in 8 bits" in text for text in files.values())
    assert found.parse({"launch.sh": files["launch.sh"]}).fp8_param_gather is True

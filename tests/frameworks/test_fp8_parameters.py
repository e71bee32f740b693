"""--fp8-param-gather, --fp4-param-gather: written where the plan's memory counts on them, read back, refused where
Megatron-LM refuses them."""

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
    return files["launch.sh"], framework("megatron").parse({"launch.sh": files["launch.sh"]}).param_gather


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
    ("stack", "changes", "gathers"),
    [
        ("megatron-2026", {}, True),
        ("megatron-2026+no-fp4-param-gather", {}, False),
        ("megatron-2026", {"zero": 0}, False),
        ("megatron-2026", {"offload": 1}, False),
    ],
)
def test_fp4_parameters_are_written_and_read(stack: str, changes: dict[str, int], gathers: bool) -> None:
    given = problem("llama-3.1-8b", stack, precision="nvfp4", cluster="16x8 b200 400G-ib")
    files = framework("megatron").render(
        launch("llama-3.1-8b", replace(CONFIGS["megatron"], **changes), given), "main-2026-08"
    )
    assert ("--fp4-param-gather" in files["launch.sh"]) is gathers
    assert framework("megatron").parse({"launch.sh": files["launch.sh"]}).param_gather is gathers


@pytest.mark.parametrize(("precision", "under"), [("fp8_cs", True), ("nvfp4", False)])
def test_tensor_parallel_collectives_run_beside_products_in_4_bits(precision: str, under: bool) -> None:
    given = problem("llama-3.1-8b", "megatron-2026", precision=precision, cluster="16x8 b200 400G-ib")
    which = launch("llama-3.1-8b", CONFIGS["megatron"], given)
    files = framework("megatron").render(which, "main-2026-08")
    assert ("--tp-comm-overlap" in files["launch.sh"]) is under
    assert any("not asked for with GEMMs in 4 bits" in text for text in files.values()) is not under
    bridge = framework("megatron-bridge").render(which, framework("megatron-bridge").default_version)[
        "launch.sh"
    ]
    assert f"comm_overlap={str(under).lower()}" in bridge.replace("model.tp_comm_overlap", "comm_overlap")


FP4 = WORDS.replace("--fp8-format hybrid --fp8-recipe", "--fp4-format e2m1 --fp4-param-gather")


@pytest.mark.parametrize(
    ("words", "must"),
    [
        (FP4.replace("--fp4-format e2m1 ", ""), "fp4 mode"),
        (FP4 + " --use-megatron-fsdp --ckpt-format fsdp_dtensor", "two values a byte"),
        (FP4 + " --use-precision-aware-optimizer --exp-avg-dtype bf16", "masters outside the optimizer"),
    ],
)
def test_fp4_parameters_are_refused_where_megatron_cannot_hold_them(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        framework("megatron").parse({"run.sh": words})
    assert framework("megatron").parse({"run.sh": FP4}).param_gather is True
    # masters stay outside a precision-aware optimizer under other recipes of fp8 (optimizer_config.py)
    outside = FP4 + " --use-precision-aware-optimizer --fp8-recipe tensorwise"
    assert framework("megatron").parse({"run.sh": outside}).param_gather is True


def test_fp4_parameters_without_shards_are_said_to_be_left_out() -> None:
    parsed = framework("megatron").parse({"run.sh": FP4.replace(" --use-distributed-optimizer", "")})
    assert parsed.param_gather is False
    assert any("--fp4-param-gather without" in note for note in parsed.notes)


@pytest.mark.parametrize(
    ("words", "must"),
    [
        (
            WORDS.replace(" --use-distributed-optimizer", "") + " delayed --fp8-param-gather",
            "distributed optimizer",
        ),
        (WORDS + " mxfp8 --fp8-param-gather", "gradient buffer"),
        (
            WORDS + " tensorwise --fp8-param-gather --optimizer-cpu-offload --use-precision-aware-optimizer",
            "recipe delayed",
        ),
        (WORDS.replace("--fp8-format hybrid --fp8-recipe", "") + " --fp8-param-gather", "fp8 mode"),
    ],
)
def test_refused_as_by_megatron(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        framework("megatron").parse({"run.sh": words})
    assert framework("megatron").parse({"run.sh": WORDS + " delayed --fp8-param-gather"}).param_gather is True


def test_bridge_is_told_where_its_recipes_differ() -> None:
    """Current scaling and nvfp4 gather narrow weights unless a configuration takes their place."""
    given = problem("llama-3.1-8b", "megatron-2026+no-fp8-param-gather", precision="fp8_cs")
    found = framework("megatron-bridge")
    files = found.render(launch("llama-3.1-8b", CONFIGS["megatron"], given), found.default_version)
    assert "fp8_param_gather:false" in files["launch.sh"]
    assert found.parse({"launch.sh": files["launch.sh"]}).param_gather is False
    given = problem(
        "llama-3.1-8b", "megatron-2026+no-fp4-param-gather", precision="nvfp4", cluster="16x8 b200 400G-ib"
    )
    files = found.render(launch("llama-3.1-8b", CONFIGS["megatron"], given), found.default_version)
    assert found.parse({"launch.sh": files["launch.sh"]}).param_gather is False

"""What Megatron-LM's arguments say of gradients and kernels: written, read back, costed, or said not to be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.ask.request import Request, resolve
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import (
    DP_SERIAL,
    DROPOUT,
    GATHER_SERIAL,
    GRADIENTS_16,
    GRADIENTS_32,
    UNFUSED_ATTENTION,
    UNFUSED_SWIGLU,
)
from planner.cli import app
from planner.errors import InputError
from planner.frameworks import framework
from planner.spec.config import RECOMPUTE_MODULES, Recompute
from tests.frameworks.launches import CONFIGS, launch, problem

OVERLAPPED = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"


def script(words: str, processes: int = 8) -> str:
    return (
        f"torchrun --nproc_per_node {processes} pretrain_gpt.py --num-layers 8 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --swiglu "
        f"--micro-batch-size 4 --global-batch-size 64 {words}"
    )


@pytest.mark.parametrize(
    ("words", "processes", "options"),
    [
        (f"--bf16 {OVERLAPPED}", 8, (GRADIENTS_32,)),
        (f"--bf16 --grad-reduce-in-bf16 {OVERLAPPED}", 8, (GRADIENTS_16,)),
        (f"--fp16 {OVERLAPPED}", 8, (GRADIENTS_16,)),  # arguments.py: only bf16 accumulates in fp32 unasked
        (f"--fp16 --accumulate-allreduce-grads-in-fp32 {OVERLAPPED}", 8, (GRADIENTS_32,)),
        (f"--grad-reduce-in-bf16 {OVERLAPPED}", 8, (GRADIENTS_32,)),  # fp32
        ("--bf16", 8, (DP_SERIAL, GRADIENTS_32)),
        ("--bf16 --use-distributed-optimizer --overlap-grad-reduce", 8, (GATHER_SERIAL, GRADIENTS_32)),
        ("--bf16 --overlap-grad-reduce", 8, (GRADIENTS_32,)),  # nothing is gathered
        ("--bf16", 1, (GRADIENTS_32,)),
    ],
)
def test_arguments_are_read(words: str, processes: int, options: tuple[str, ...]) -> None:
    assert (
        framework("megatron")
        .parse({"run.sh": script(f"--hidden-dropout 0 {words}", processes)})
        .stack_options
        == options
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stack", ["megatron-2026", "megatron-2025", "megatron-2026+grad-reduce-in-bf16"])
def test_what_is_written_is_read_as_it_was_costed(stack: str, precision: str) -> None:
    told = launch("llama-3.1-8b", CONFIGS["megatron"], problem("llama-3.1-8b", stack, precision=precision))
    meant = framework("megatron")
    text = meant.render(told, meant.default_version)["launch.sh"]
    wide = load_stack(stack).engine.gradient == 4.0
    assert meant.parse({"launch.sh": text}).stack_options == (GRADIENTS_32 if wide else GRADIENTS_16,)


@pytest.mark.parametrize(
    ("words", "unfused"),
    [
        ("--attention-backend flash", False),
        ("", False),
        ("--attention-backend unfused", True),
        ("--attention-backend local --spec local", True),
        ("--transformer-impl local", True),
        ("--transformer-impl local --use-flash-attn", False),
    ],
)
def test_attention_that_keeps_its_scores(words: str, unfused: bool) -> None:
    """A script that asks for it needs a square of the sequence per head and layer."""
    read = framework("megatron").parse({"run.sh": script(f"--bf16 {OVERLAPPED} {words}")})
    assert (UNFUSED_ATTENTION in read.stack_options) is unfused
    stack = load_stack(f"megatron-2026+{UNFUSED_ATTENTION}")
    told = launch("llama-3.1-8b", CONFIGS["megatron"], problem("llama-3.1-8b", stack.name))
    meant = framework("megatron")
    again = meant.parse({"launch.sh": meant.render(told, meant.default_version)["launch.sh"]})
    assert UNFUSED_ATTENTION in again.stack_options


@pytest.mark.parametrize("gated", [False, True])
def test_an_activation_that_is_not_fused(gated: bool) -> None:
    words = script(f"--bf16 {OVERLAPPED} --{UNFUSED_SWIGLU}")
    read = framework("megatron").parse({"run.sh": words if gated else words.replace("--swiglu ", "")})
    assert (UNFUSED_SWIGLU in read.stack_options) is gated
    stack = load_stack(f"megatron-2026+{UNFUSED_SWIGLU}")
    assert not stack.kernels.code.fused_activation
    told = launch("llama-3.1-8b", CONFIGS["megatron"], problem("llama-3.1-8b", stack.name))
    meant = framework("megatron")
    again = meant.parse({"launch.sh": meant.render(told, meant.default_version)["launch.sh"]})
    assert UNFUSED_SWIGLU in again.stack_options


@pytest.mark.parametrize(
    ("words", "costed", "said"),
    [
        ("", True, "--attention-dropout inside a fused kernel is not"),
        ("--attention-dropout 0", True, "its masks and passes are modelled"),
        ("--hidden-dropout 0.0", False, ""),
        ("--attention-backend unfused", True, "its masks and passes are modelled"),
        ("--attention-backend unfused --attention-dropout 0", False, "are not modelled"),
    ],
)
def test_dropout(words: str, costed: bool, said: str) -> None:
    """0.1 unless stated (megatron/training/arguments.py): two masks of a byte a value a layer."""
    read = framework("megatron").parse({"run.sh": script(f"--bf16 {OVERLAPPED} {words}")})
    assert (DROPOUT in read.stack_options) is costed
    assert (
        [note for note in read.notes if "dropout" in note] == [] if not said else said in "".join(read.notes)
    )
    stack = load_stack(f"megatron-2026+{DROPOUT}")
    told = launch("llama-3.1-8b", CONFIGS["megatron"], problem("llama-3.1-8b", stack.name))
    meant = framework("megatron")
    text = meant.render(told, meant.default_version)["launch.sh"]
    assert "--hidden-dropout 0.1" in text
    assert DROPOUT in meant.parse({"launch.sh": text}).stack_options


EXPERTS = (
    "--num-experts 8 --expert-model-parallel-size 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"
)


def test_the_older_name_of_recomputed_experts() -> None:
    read = framework("megatron").parse({"run.sh": script(f"--bf16 {EXPERTS} --moe-layer-recompute")})
    assert read.axes["recompute"] == Recompute.SELECTIVE
    named = {name for bit, name in enumerate(RECOMPUTE_MODULES) if read.axes["recompute_modules"] >> bit & 1}
    assert named == {"core_attn", "moe"}
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    with pytest.raises(InputError, match="moe-layer-recompute"):
        framework("megatron").parse({"run.sh": script(f"--bf16 {EXPERTS} --moe-layer-recompute {full}")})


def test_what_is_not_costed_is_said() -> None:
    def notes(words: str) -> str:
        return "\n".join(framework("megatron").parse({"run.sh": script(f"--bf16 {words}")}).notes)

    assert notes(f"--hidden-dropout 0 {EXPERTS}") == ""
    assert "dropout" in notes("")
    assert "one after the other" in notes("--num-experts 8")
    shared = "--moe-shared-expert-intermediate-size 512 --moe-shared-expert-overlap"
    assert "modelled before it" in notes(f"--hidden-dropout 0 {EXPERTS} {shared}")
    assert "0.25" in notes(
        "--optimizer-cpu-offload --optimizer-offload-fraction 0.25 --use-precision-aware-optimizer"
    )
    assert "counted in fp32" in notes("--use-precision-aware-optimizer --exp-avg-dtype fp8")
    for words in ("--hidden-dropout $DROP", "--optimizer sgd --sgd-momentum none", "--hidden-dropout nan"):
        with pytest.raises(InputError, match="must be a number"):
            notes(words)


def test_check_costs_them(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """16 bits less per gradient and update; hidden gradients are no slower than exposed ones."""

    def checked(words: str) -> dict[str, Any]:
        path = tmp_path / "run.sh"
        path.write_text(script(f"--bf16 {words}"))
        told = CliRunner().invoke(app, ["check", str(path), "--cluster", "dgx-h100", "--json"])
        assert told.exit_code == 0, told.output
        found: dict[str, Any] = json.loads(told.stdout)
        return found

    wide, narrow = checked(OVERLAPPED), checked(f"--grad-reduce-in-bf16 {OVERLAPPED}")
    late = checked("--use-distributed-optimizer --overlap-grad-reduce")
    alone = checked("--use-distributed-optimizer")
    weights = 8 * (4 * 4096**2 + 3 * 4096 * 10880) + (32000 + 2048) * 4096  # tied, learned positions
    saved = wide["peak_memory_bytes"] - narrow["peak_memory_bytes"]
    assert saved == pytest.approx(2 * weights, rel=1e-3)
    assert narrow["step_time_s"] < wide["step_time_s"] < late["step_time_s"] < alone["step_time_s"]
    for found in (late, alone):
        assert "+ --overlap-param-gather" in "\n".join(found["better"]["diff"])


def test_fp32_keeps_no_16_bit_gradients() -> None:
    """Nothing narrows them there: the option was costed, and said to change nothing."""
    request = Request("llama-3-8b", "dgx-h100", 64, precision="fp32", stack=f"megatron-2026+{GRADIENTS_16}")
    with pytest.raises(InputError, match="needs one of"):
        resolve(request)

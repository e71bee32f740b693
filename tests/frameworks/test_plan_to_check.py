"""A plan, its launch files and what `planner check` reads in them: the same words, step time and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.answer.estimate import make_estimate
from planner.ask.question import Question
from planner.ask.request import Request
from planner.cli.check import Judge, check_files
from planner.cli.export import render_plan
from planner.errors import UnsupportedError
from planner.space.restriction import parse_restriction
from planner.spec.planfile import Choice
from planner.spec.save import save_text

HOPPER, BLACKWELL = "4x8 h100 400G-ib", "4x8 b200 400G-ib"
UNREAD = ("README.md", "kubernetes.yaml", "train.py", "config.json")
Trip = Callable[..., tuple[Choice, dict[str, Any]]]


@pytest.fixture
def trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trip:
    """A configuration and what is read of its files: `trip(model, settings, stack, framework, cluster, **job)`."""
    monkeypatch.setattr(Judge, "best", lambda judge: None)  # what would be better is not asked

    def make(
        model: str,
        settings: str,
        stack: str,
        to: str,
        cluster: str = HOPPER,
        release: str | None = None,
        **job: Any,
    ) -> tuple[Choice, dict[str, Any]]:
        restrict = parse_restriction(["micro_batch=1", *settings.split()])
        asked = Request(model, cluster, seq_len=4096, global_batch="128", stack=stack, set=restrict, **job)
        plan, path = make_estimate(asked), tmp_path / "plan.json"
        assert plan.choices, plan.headline
        save_text(plan.model_dump_json(), path)
        files = render_plan(path, to, 0, release, cluster)
        (config := tmp_path / "config.json").write_text(files.get("config.json", "{}"))
        texts = {name: text for name, text in files.items() if name not in UNREAD}
        described = str(config) if "config.json" in files else None
        answer = check_files(texts, Question("", cluster, seq_len=4096, global_batch=128), described)
        return plan.choices[0], answer

    return make


def assert_same(choice: Choice, answer: dict[str, Any]) -> None:
    assert answer["violations"] == []
    assert answer["unknown_options"] == []
    assert answer["config"] == choice.config.text
    axes = {axis: choice.config.by_axis()[axis] for axis in answer["axes"]}
    assert answer["axes"] == axes
    assert answer["step_time_s"] == pytest.approx(choice.step_time, rel=1e-9)
    assert answer["peak_memory_bytes"] == pytest.approx(choice.memory.peak, rel=1e-9)


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    ("model", "settings", "exchange"),
    [
        ("gpt-oss-20b", "cp=2 ep=4", "cp:a2a"),
        ("llama-3.1-8b", "cp=2", ""),
        ("llama-3.1-8b", "cp=2 cp_kind=p2p", ""),
        ("llama-3.1-8b", "cp=2 cp_kind=all-gather", "cp:all-gather"),
        ("llama-3.1-8b", "cp=2 cp_kind=a2a", "cp:a2a"),
    ],
)
def test_exchanges_of_context_parallelism(
    trip: Trip, model: str, settings: str, exchange: str, to: str
) -> None:
    choice, answer = trip(model, settings, "megatron-2026", to)
    assert ("cp:" in choice.config.text) == bool(exchange)
    assert exchange in choice.config.text
    assert_same(choice, answer)


@pytest.mark.parametrize(
    ("settings", "stack", "to", "exchange"),
    [
        ("cp=2 zero=1", "deepspeed-2025", "deepspeed", "cp:a2a"),
        ("cp=2 zero=3", "torchtitan-2026-eager", "torchtitan", "cp:all-gather"),
    ],
)
def test_exchanges_that_no_file_names(trip: Trip, settings: str, stack: str, to: str, exchange: str) -> None:
    choice, answer = trip("llama-3.1-8b", settings, stack, to)
    assert exchange in choice.config.text
    assert_same(choice, answer)


def test_the_planned_exchange_goes_to_another_framework(trip: Trip) -> None:
    choice, answer = trip("llama-3.1-8b", "cp=2 zero=1", "deepspeed-2025", "megatron")
    assert answer["config"] == choice.config.text
    assert "cp:a2a" in answer["config"]
    choice, answer = trip("llama-3.1-8b", "cp=2 cp_kind=a2a zero=1", "megatron-2026", "deepspeed")
    assert answer["config"] == choice.config.text


@pytest.mark.parametrize(
    ("settings", "stack", "to", "must"),
    [
        ("cp=2 zero=1", "megatron-2026", "deepspeed", "as planned, by p2p; it does so by a2a"),
        ("cp=2 zero=3", "torchtitan-2026-eager", "deepspeed", "as planned, by all-gather"),
        ("cp=2 cp_kind=all-gather zero=1", "megatron-2026", "nanotron", "cp-kind-supported"),
        ("cp=2 zero=3", "deepspeed-2025", "accelerate", "cp-kind-supported"),
        ("zero=2 offload=optimizer", "deepspeed-2025", "megatron", "offload-supported"),
    ],
)
def test_what_another_framework_would_do_otherwise_is_refused(
    trip: Trip, settings: str, stack: str, to: str, must: str
) -> None:
    """Rather than written as something else: other exchanges, and Megatron-FSDP, which offloads no optimizer here."""
    with pytest.raises(UnsupportedError, match=must):
        trip("llama-3.1-8b", settings, stack, to)


def test_offloaded_weights_without_a_compiler(trip: Trip) -> None:
    pins = "zero=3 offload=optimizer+params"
    assert_same(*trip("llama-3.1-8b", pins, "torchtitan-2026-eager", "torchtitan"))


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    ("model", "settings", "stack", "word"),
    [
        ("llama-3.1-8b", "zero=1 hsdp=8", "megatron-2026", "hsdp8"),
        ("llama-3.1-8b", "zero=3 hsdp=8", "megatron-fsdp-2026", "hsdp8"),
        ("llama-3.1-8b", "offload=optimizer", "megatron-2026", "offload:optimizer"),
        ("llama-3.1-8b", "tp=2 offload=activations", "megatron-2026", "offload:activations"),
        (
            "llama-3.1-8b",
            "tp=2 offload=optimizer+activations",
            "megatron-2026",
            "offload:optimizer+activations",
        ),
        ("qwen3-30b-a3b", "ep=8 offload=optimizer", "megatron-2026", "offload:optimizer"),
        ("llama-3.1-8b", "tp=2", "megatron-2026+no-tp-comm-overlap", "tp2"),
        ("qwen3-30b-a3b", "ep=8", "megatron-2026+no-overlap-grad-reduce", "ep8"),
    ],
)
def test_states_activations_and_overlap(
    trip: Trip, model: str, settings: str, stack: str, word: str, to: str
) -> None:
    choice, answer = trip(model, settings, stack, to)
    assert word in choice.config.text
    assert_same(choice, answer)


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("option", ["", "+deepep", "+moe-token-dispatcher-type=allgather"])
@pytest.mark.parametrize("pins", ["ep=8", "ep=4 tp=2 etp=2"])
def test_dispatchers(trip: Trip, option: str, pins: str, to: str) -> None:
    assert_same(*trip("qwen3-30b-a3b", pins, f"megatron-2026{option}", to))


def test_the_default_dispatcher_is_costed_and_the_better_one_named() -> None:
    """Megatron-LM's arguments gather tokens unless told otherwise."""
    script = (
        "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --num-layers 16 "
        "--hidden-size 4096 --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --swiglu --bf16 "
        "--disable-bias-linear --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --expert-model-parallel-size 8 "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --micro-batch-size 1 "
        "--global-batch-size 128 --hidden-dropout 0 --attention-dropout 0 --moe-token-dispatcher-type "
    )
    gathered = check_files({"run.sh": script + "allgather"}, Question("", HOPPER))
    sent = check_files({"run.sh": script + "alltoall"}, Question("", HOPPER))
    assert any("moe-token-dispatcher-type=allgather" in note for note in gathered["notes"])
    assert gathered["step_time_s"] > 1.05 * sent["step_time_s"]
    diff = [line.split() for line in gathered["better"]["diff"]]
    assert ["-", "--moe-token-dispatcher-type", "allgather"] in diff
    assert ["+", "--moe-token-dispatcher-type", "alltoall"] in diff


def test_bridge_offloads_beside_wide_weights(trip: Trip) -> None:
    """An optimizer in CPU memory takes narrow weights with delayed scaling alone; of others it is told to keep none."""
    pins = "zero=1 offload=optimizer"
    assert_same(*trip("llama-3.1-8b", pins, "megatron-2026", "megatron-bridge", precision="fp8"))
    assert_same(*trip("llama-3.1-8b", pins, "megatron-2026", "megatron-bridge", precision="fp8_cs"))


@pytest.mark.parametrize(
    ("model", "settings", "job"),
    [
        ("nemotron-h-8b", "tp=2 sp=1", {}),
        ("nemotron-h-8b", "pp=4", {"precision": "fp8_cs"}),
        ("nemotron-nano-9b-v2", "tp=4 sp=1 cp=2", {}),
        ("nemotron-3-nano-30b-a3b", "ep=8 pp=2 vpp=1", {}),
        ("nemotron-3-nano-30b-a3b", "ep=8 recompute=selective recompute_modules=moe_act", {}),
        ("nemotron-3.5-lightning-30b-a3b", "ep=8 pp=2 vpp=1", {}),
        ("nemotron-3-super-120b-a12b", "ep=32", {"optimizer": "adamw-bf16"}),
    ],
)
def test_hybrids_of_bridge(trip: Trip, model: str, settings: str, job: dict[str, str]) -> None:
    assert_same(*trip(model, settings, "megatron-2026", "megatron-bridge", **job))


@pytest.mark.parametrize("precision", ["bf16", "fp8_cs"])
@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
def test_gradients_in_16_bits(trip: Trip, to: str, precision: str) -> None:
    for model in ("llama-3.1-8b", "llama-3.1-70b"):  # whose recipe names its precision, or spells it out
        pins = "tp=8 sp=1 pp=2" if model == "llama-3.1-70b" else "zero=1"
        stack = "megatron-2026+grad-reduce-in-bf16+no-overlap-param-gather"
        choice, answer = trip(model, pins, stack, to, precision=precision)
        assert_same(choice, answer)
        assert any("no-overlap-param-gather+grad-reduce-in-bf16" in note for note in answer["notes"])


def test_shared_experts_done_again_are_not_overlapped(trip: Trip) -> None:
    """Providers overlap shared experts, which Megatron-Core refuses to recompute then."""
    pins = "ep=8 pp=4 recompute=selective recompute_modules=shared_experts"
    assert_same(*trip("glm-4.5-air", pins, "megatron-2026", "megatron-bridge"))


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
def test_muon_of_whole_replicas(trip: Trip, to: str) -> None:
    choice, answer = trip("llama-3.2-1b", "tp=2 zero=0", "megatron-2026", to, optimizer="muon")
    assert_same(choice, answer)
    assert_same(*trip("moonlight-16b-a3b", "ep=8 zero=1", "megatron-2026", "megatron", optimizer="muon"))


def test_bridge_all_reduces_gradients_of_matrices(trip: Trip) -> None:
    with pytest.raises(UnsupportedError, match="it all-reduces them"):
        trip("llama-3.2-1b", "zero=1", "megatron-2026", "megatron-bridge", optimizer="muon")

"""Losses that never hold all logits: parts as their sources cut them, and times and bytes that were published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.cost.edges import EdgeCost
from planner.cost.model import CostModel
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.machine.device_kernels import missing_kernels
from planner.spec.rule import Problem
from planner.spec.stack.losses import (
    LOSSES,
    AnyLoss,
    Chunked,
    Compiled,
    Fused,
    InPlace,
    Linear,
    Logits,
    VocabParallel,
)

LINEAR, CHUNKED, OLDER = Linear(), Chunked(number=8), Linear(adds_in_product=True)
ONE = np.ones(1)


@pytest.mark.parametrize(
    ("loss", "tokens", "vocabulary", "parts"),
    [
        (LINEAR, 4 * 4096, 32000, 8),  # the example of Liger's own comment: factor 8, chunks of 2,048
        (LINEAR, 4096, 128256, 32),
        (LINEAR, 5000, 128256, 20),  # 157 rows, rounded up to 256
        (LINEAR, 100, 2000, 1),
        (CHUNKED, 4096, 128256, 8),
        (VocabParallel(), 4096, 128256, 1),
    ],
)
def test_parts(loss: AnyLoss, tokens: int, vocabulary: int, parts: int) -> None:
    assert loss.parts(np.array([float(tokens)]), float(vocabulary), 4096).tolist() == [parts]


@pytest.mark.parametrize("kind", LOSSES.values())
def test_every_loss_holds_no_less_of_more_logits(kind: type[AnyLoss]) -> None:
    """And is never narrower at its peak than in between; all of it rises with the logits of a part."""
    found = [
        kind().held(Logits(2 * n * ONE, n * ONE, 8 * ONE, 0 * ONE, 16 * ONE, 2 * ONE, 2.0))
        for n in (100, 200)
    ]
    assert all((more >= less).all() for less, more in zip(*found, strict=True))
    assert all(part >= 0 for one in found for part in one)
    parts = kind().parts(4096.0 * ONE, 32000.0, 4096)
    assert (parts >= 1).all()
    assert (kind().launches(parts) > 0).all()


def asked(stack: str, seq_len: int = 8192, device: str = "a100-sxm-80g", **more: int) -> Problem:
    request = Request(
        "llama-3-8b", f"1x8 {device} 400G-ib", seq_len=seq_len, global_batch="8", stack=stack, **more
    )
    return resolve(request)[0]


def edges(model: CostModel) -> EdgeCost:
    return model.layers.edges(ConfigTable.of([ParallelConfig(dp=8, zero=3)]))


@pytest.mark.parametrize(
    ("tokens", "whole", "linear"),
    [(4096, 56.0, 121.4), (8192, 111.5, 166.7), (16384, 220.8, 277.1), (32768, 452.5, 511.1)],
)
def test_times_that_liger_published(tokens: int, whole: float, linear: float) -> None:
    """Head and loss of Llama 3 8B on an A100, forward and backward, in bf16 [ms]: linkedin/Liger-Kernel@ead96b6
    benchmark/data/all_benchmark_data.csv, fused_linear_cross_entropy, release 0.4.2."""
    eager, liger = (
        cost_model(asked(f"fsdp1-2023+{option}", tokens))
        for option in ("no-compile", "use-liger-kernel-0.6.1")
    )
    host = 0.0  # the benchmark's programs launch nothing else
    for model, measured, off in ((eager, whole, 0.22), (liger, linear, 0.08)):
        stack = model.problem.stack
        bare = stack.model_copy(
            update={
                "compute": stack.compute.model_copy(
                    update={"gemm": {}, "memory_bound": 1.0, "accelerator": {}}
                ),
                "host": stack.host.model_copy(update={"layer_floor": host, "layer_floor_tp": host}),
            }
        )
        found = edges(CostModel(replace(model.problem, stack=bare), model.kernels, model.links))
        assert 1e3 * float(found.head[0]) == pytest.approx(measured, rel=off)


def test_sums_of_gradients() -> None:
    """131,072 x 4,096: 3,072 MiB of a part's gradient in 16 bits and fp32 (linkedin/Liger-Kernel#1239), and a sum."""
    weights = 131072 * 4096 * ONE
    none = Logits(0 * ONE, 0 * ONE, 0 * ONE, 0 * ONE, weights, ONE, 2.0)
    assert LINEAR.held(none)[1] == (3072 + 1024) * 2**20
    assert OLDER.held(none)[1] == 1024 * 2**20
    assert [loss.sum_bytes(2.0, 4.0) for loss in (LINEAR, OLDER, CHUNKED)] == [14, 4, 10]


def test_memory_at_the_loss_holds_a_part_and_three_gradients_of_the_head() -> None:
    """Of 8,192 tokens 32 parts of the logits, in 16 bits, and 8 bytes a weight of the head."""
    memory = edges(cost_model(asked("fsdp1-2023+use-liger-kernel"))).memory
    logits, weights = 2 * 8192 * 128256 / 32, 128256 * 4096
    assert float(memory.transient[0]) == pytest.approx(logits + 8 * weights)
    frozen = edges(cost_model(asked("fsdp1-2023+use-liger-kernel", lora_rank=16))).memory
    assert float(frozen.transient[0]) == pytest.approx(logits)


def test_a_frozen_head_adds_nothing_up() -> None:
    trained, frozen = (
        edges(cost_model(asked("fsdp1-2023+use-liger-kernel", **more))) for more in ({}, {"lora_rank": 16})
    )
    passes = [float((edge.head - edge.head_gemm)[0]) for edge in (trained, frozen)]
    assert passes[0] > 5 * passes[1]


def test_torchs_chunks_take_longer_than_whole_logits() -> None:
    problem = asked("torchtitan-2026", device="h100-sxm-80g")
    kernels = problem.stack.kernels
    whole = kernels.model_copy(update={"loss": VocabParallel()})
    again = kernels.model_copy(update={"loss": Chunked(makes_again=True)})
    rates = cost_model(problem)
    found = []
    for each in (whole, kernels, again):
        stack = problem.stack.model_copy(update={"kernels": each})
        found.append(edges(CostModel(replace(problem, stack=stack), rates.kernels, rates.links)))
    assert found[0].head[0] < found[1].head[0] < found[2].head[0]
    sums = 10 * 8 * 128256 * 4096 / problem.cluster.accelerator.memory_bandwidth
    assert found[1].head[0] - found[0].head[0] > sums
    assert found[2].head_gemm[0] - found[1].head_gemm[0] == pytest.approx(found[1].head_gemm[0] / 3, rel=0.2)


def test_what_is_not_told_apart_is_said() -> None:
    problem = asked("megatron-2026", device="h100-sxm-80g")
    chip, precision = problem.cluster.accelerator, problem.job.precision
    for kind in LOSSES.values():
        kernels = problem.stack.kernels.model_copy(update={"loss": kind()})
        notes = missing_kernels(
            problem.stack.model_copy(update={"kernels": kernels}), problem.model, chip, precision
        )
        assert any(note.code == "fused_loss" for note in notes) is (kind in (Fused, InPlace, Compiled))

"""Megatron-FSDP: bytes of a parameter, of gathered layers and of queued gradients, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.engines.of_stack import engine_of
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Job
from planner.spec.load_model import load_model
from planner.spec.precision import Precision
from tests.problems import costs, dense_model, legal_table, problem

STACK = "megatron-fsdp-2026"
FP32 = f"{STACK}+megatron-fsdp-main-grads-dtype=fp32"
LLAMA = load_model("llama-3.1-8b")
# a layer: 4096 x (4096 + 2 x 1024) + 4096^2 + 3 x 4096 x 14336 and two norms; embedding and head 128256 x 4096 each
LAYER = 4096 * 6144 + 4096**2 + 3 * 4096 * 14336 + 2 * 4096
HEAD = 128256 * 4096
OUTER = 2 * HEAD + 4096


def moments(stack: str, config: ParallelConfig, **changes: Precision) -> dict[str, dict[str, float]]:
    """Terms of Llama 3.1 8B on 64 H100 by moment."""
    subject = problem(LLAMA, "8x8 h100 400G-ib", stack=stack, **changes)
    detail = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    return {
        moment: {name: float(value[0, 0]) for name, value in terms.items()}
        for moment, terms in detail.memory.items()
    }


ZERO_3 = ParallelConfig(dp=64, num_microbatches=1, zero=3)


@pytest.mark.parametrize(
    ("stack", "zero", "total"),
    [
        (STACK, 0, 2 + 2 + 12),
        (STACK, 1, 2 + 2 + 12 / 64),
        (STACK, 2, 2 + 14 / 64),
        (STACK, 3, 16 / 64),
        (FP32, 3, 18 / 64),
        (FP32, 1, 6 + 12 / 64),
    ],
)
def test_bytes_of_a_parameter_by_strategy(stack: str, zero: int, total: float) -> None:
    number = np.array([64.0])
    found = engine_of(load_stack(stack)).state_bytes(np.array([float(zero)]), number, number, Job(4096, 64))
    assert float(found.total[0]) == pytest.approx(total)


def test_ddp_sums_copies_of_gradients() -> None:
    """In buckets, which stay; one device has none, nor have ranks that shard."""
    stack, job = load_stack("transformers-2026"), Job(4096, 64)
    found = {
        (zero, ranks): float(
            engine_of(stack)
            .state_bytes(np.array([zero]), np.array([ranks]), np.array([ranks]), job)
            .buffers[0]
        )
        for zero in (0.0, 2.0, 3.0)
        for ranks in (1.0, 8.0)
    }
    assert {case for case, size in found.items() if size} == {(0.0, 8.0)}
    assert found[0.0, 8.0] == stack.engine.gradient


@pytest.mark.parametrize(
    ("options", "ahead", "queued"),
    [
        # capacity 1e9: gathering goes on until 5e8 are under way, 3 layers of 2.18e8; the head's gradient of 5.25e8
        # leaves room for 2 layers in the queue
        ("", 3, 2),
        ("+fsdp-double-buffer", 1, 1),
    ],
)
def test_what_is_under_way(options: str, ahead: int, queued: int) -> None:
    subject = problem(LLAMA, "8x8 h100 400G-ib", stack=STACK + options)
    detail = costs(subject).evaluate(ConfigTable.of([ZERO_3]), keep_terms=True).detail
    assert detail is not None
    at = {m: {n: float(v[0, 0]) for n, v in terms.items()} for m, terms in detail.memory.items()}
    gathered = 2 * (OUTER + (1 + ahead) * LAYER)
    assert at["forward"]["gathered_parameters"] == pytest.approx(gathered)
    assert at["backward"]["gathered_parameters"] == pytest.approx(gathered)
    assert at["loss"]["gathered_parameters"] == pytest.approx(2 * OUTER)
    assert at["optimizer"]["gathered_parameters"] == pytest.approx(2 * OUTER)
    assert "gathered_parameters" not in at["after_init"]
    # gradients in bf16: of the head and of the layer at work, then of those in the queue
    assert at["backward"]["reduction_buffers"] == pytest.approx(2 * (HEAD + LAYER))
    assert at["layer_backward"]["reduction_buffers"] == pytest.approx(2 * (HEAD + (queued + 1) * LAYER))
    passed = at["backward"]["activations"] - at["layer_backward"]["activations"]
    assert passed == pytest.approx(queued / 32 * at["backward"]["activations"])


def test_what_does_not_fall_with_the_number_of_ranks() -> None:
    few, many = (
        moments(STACK, ParallelConfig(dp=64, num_microbatches=1, zero=3)),
        moments(STACK, ParallelConfig(tp=1, dp=8, cp=8, num_microbatches=8, zero=3)),
    )
    for name in ("gathered_parameters", "reduction_buffers"):
        assert few["backward"][name] == many["backward"][name]
    assert few["backward"]["weights"] == pytest.approx(2 * (32 * LAYER + OUTER) / 64)


def test_gradients_sharded_alone_gather_nothing() -> None:
    at = moments(STACK, replace(ZERO_3, zero=2))
    assert at["backward"]["gathered_parameters"] == 0
    assert at["backward"]["weights"] == pytest.approx(2 * (32 * LAYER + OUTER))
    assert at["backward"]["reduction_buffers"] == pytest.approx(2 * (HEAD + LAYER))
    below = moments(STACK, replace(ZERO_3, zero=1))
    assert below["backward"]["reduction_buffers"] == 0
    assert below["backward"]["gradients"] == pytest.approx(2 * (32 * LAYER + OUTER))


@pytest.mark.parametrize(
    ("precision", "shard", "gathered"),
    [
        (Precision.FP8_CS, 1.0, 2.0),  # the transposed copy is made of a gathered layer on Hopper
        (
            Precision.FP8_MX,
            2 * 33 / 32,
            33 / 32,
        ),  # both orientations are sharded, one of them gathered by a pass
    ],
)
def test_weights_in_8_bits(precision: Precision, shard: float, gathered: float) -> None:
    machine = "8x8 b200 400G-ib" if precision is Precision.FP8_MX else "8x8 h100 400G-ib"
    subject = problem(LLAMA, machine, stack=STACK, precision=precision)
    detail = costs(subject).evaluate(ConfigTable.of([ZERO_3]), keep_terms=True).detail
    assert detail is not None
    at = {name: float(value[0, 0]) for name, value in detail.memory["backward"].items()}
    assert at["weights"] + at["narrow_weight_copies"] == pytest.approx((shard * 32 * LAYER + 2 * OUTER) / 64)
    assert at["gathered_parameters"] == pytest.approx(gathered * 4 * LAYER + 2 * OUTER)


def test_the_bound_stays_below_what_rows_need() -> None:
    subject = problem(dense_model(), stack=STACK)
    model, table = costs(subject), legal_table(subject)
    table = table.take(slice(0, len(table), max(len(table) // 400, 1)))
    assert set(table["zero"]) == {0, 1, 2, 3}
    assert (model.least_memory(table) <= model.evaluate(table).device_memory * (1 + 1e-9)).all()


def test_times_are_those_of_its_kin_but_for_gradients() -> None:
    own, kin = load_stack(STACK), load_stack("megatron-2026")
    assert own.kin == kin.name
    assert not own.fitted
    assert own.band == pytest.approx(2 * kin.band)
    assert (own.compute, own.host, own.kernels) == (kin.compute, kin.host, kin.kernels)


def test_deepspeed_keeps_bf16_gradients_beside_fp32_ones_and_none_beside_fp16_ones() -> None:
    """A rank of a 175B model on LUMI held 2 + 4 + 2 bytes a parameter and its share of 12 (logs of its runs)."""
    stack, number = load_stack("megatron-deepspeed-2022"), np.array([32.0])
    for precision, gradients in ((Precision.BF16, 6.0), (Precision.FP16, 2.0)):
        job = Job(4096, 64, precision=precision)
        found = engine_of(stack.for_precision(precision)).state_bytes(np.array([1.0]), number, number, job)
        assert float(found.gradients[0]) == gradients

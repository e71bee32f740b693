"""Weights in 8 and 4 bits: bytes kept and gathered by recipe, by hand from Transformer Engine's storage classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.model import CostModel
from planner.cost.network.collectives import all_gather_time
from planner.cost.network.traffic import group_links
from planner.cost.params_fp8 import narrow_weights, reads_transposed
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.problems import costs, dense_model, legal_table, moe_model, problem

H100, B200 = "2x8 h100 400G-ib", "2x8 b200 400G-ib"
ON = "megatron-2026+fp8-param-gather+fp4-param-gather"
OFF = "megatron-2026+no-fp8-param-gather+no-fp4-param-gather"
FLOAT8_GATHER = "+enable-fsdp-float8-all-gather"
FSDP = ParallelConfig(dp=16, num_microbatches=4, sp=0, zero=3)
ZERO_1 = ParallelConfig(tp=2, dp=8, num_microbatches=8, sp=1, zero=1)


def held(subject: Problem, config: ParallelConfig) -> dict[str, float]:
    """Terms of the stage's memory before the first step."""
    detail = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    return {name: float(value[0, 0]) for name, value in detail.memory["after_init"].items()}


@pytest.mark.parametrize(
    ("machine", "precision", "kept", "beside_16_bits"),
    [
        # one byte and its transpose; one byte that products read either way; with scales of 1 byte per 32 values;
        # with scales of 4 bytes per 128 x 128
        (H100, Precision.FP8, 2.0, 4.0),
        (H100, Precision.FP8_CS, 2.0, 4.0),
        (B200, Precision.FP8_CS, 1.0, 3.0),
        (B200, Precision.FP8_MX, 2 + 2 / 32, 4 + 2 / 32),
        (H100, Precision.FP8_BLOCKWISE, 2 + 8 / 16384, 4 + 8 / 16384),
        # half a byte and a scale of 1 byte per 16 values, twice
        (B200, Precision.NVFP4, 1 + 2 / 16, 2 + 1 + 2 / 16),
    ],
)
def test_bytes_of_a_linear_weight(
    machine: str, precision: Precision, kept: float, beside_16_bits: float
) -> None:
    model = dense_model(layers=4)
    # tp 2: half of q, k, v, projection, gate, up and down; outside the layers 2 x 32000 x 2048 / 2 and 2048 of a norm
    linear = 4 * (2048 * (2 * 2048 + 2 * 1024) + 3 * 2048 * 7168) / 2
    outer, norms = 32000 * 2048 + 2048, 4 * 2 * 2048
    for stack, width in ((ON, kept), (OFF, beside_16_bits)):
        terms = held(problem(model, machine, precision=precision, stack=stack), ZERO_1)
        found = terms["weights"] + terms.get("narrow_weight_copies", 0.0)
        # norms of layers are taken for linear weights: under 0.1 % here
        assert found == pytest.approx(width * (linear + norms) + 2 * outer, rel=1e-9)
        assert terms["optimizer"] == pytest.approx(12 * (linear + norms + outer) / 8)
        assert terms["gradients"] == pytest.approx(4 * (linear + norms + outer))


def test_experts_are_linear_weights_too() -> None:
    model, expert = moe_model(), ParallelConfig(dp=16, ep=16, num_microbatches=4, sp=1, zero=1)
    on, off = (
        held(problem(model, B200, precision=Precision.FP8_CS, stack=stack), expert) for stack in (ON, OFF)
    )
    assert on["narrow_weight_copies"] == 0
    assert off["weights"] - on["weights"] == pytest.approx(off["narrow_weight_copies"])
    # 7 layers of one expert 3 x 2048 x 1024 on each of 16 ranks, and what is dense
    assert off["narrow_weight_copies"] > 7 * 3 * 2048 * 1024


@pytest.mark.parametrize(
    ("config", "precision", "in_8_bits"),
    [
        (ZERO_1, Precision.FP8_CS, True),
        (ParallelConfig(tp=2, dp=8, num_microbatches=8, sp=1, zero=0), Precision.FP8_CS, False),
        (ParallelConfig(tp=2, dp=8, num_microbatches=8, sp=1, zero=1, offload=1), Precision.FP8_CS, False),
        (ParallelConfig(tp=2, dp=8, num_microbatches=8, sp=1, zero=1, offload=1), Precision.FP8, True),
    ],
)
def test_only_the_distributed_optimizer_keeps_them(
    config: ParallelConfig, precision: Precision, in_8_bits: bool
) -> None:
    subject = problem(machine=H100, precision=precision, stack=ON)
    copies = held(subject, config)["narrow_weight_copies"] / held(subject, ZERO_1)["narrow_weight_copies"]
    assert copies == pytest.approx(1 if in_8_bits else 2)


def test_gathered_bytes_halve_for_a_byte_and_stay_for_mxfp8() -> None:
    def gathered(precision: Precision, stack: str) -> float:
        prepared = costs(problem(machine=B200, precision=precision, stack=stack)).prepare(
            ConfigTable.of([ZERO_1])
        )
        return float(prepared.shards.gather[0])

    subject = problem(machine=B200, precision=Precision.FP8_CS, stack=ON)
    model = CostModel(subject, costs(subject).kernels, costs(subject).links)
    shards = model.prepare(ConfigTable.of([ZERO_1])).shards
    linear = float((shards.dense - shards.outer)[0, 0])
    outer = float(shards.outer[0, 0])
    group = group_links(np.array([2.0]), np.array([8.0]), subject.cluster)
    sizes = np.array([linear + 2 * outer, 2 * (linear + outer)])
    on, off = all_gather_time(sizes, group, model.links)
    saved = gathered(Precision.FP8_CS, OFF) - gathered(Precision.FP8_CS, ON)
    assert saved == pytest.approx(subject.stack.communication.dp_time * float(off - on), rel=1e-6)
    assert saved > 0
    assert gathered(Precision.FP8_MX, ON) == pytest.approx(gathered(Precision.FP8_MX, OFF))


@pytest.mark.parametrize(("stack", "bytes_each"), [(ON, 1.0), (OFF, 2.0)])
def test_the_messages_that_are_told_are_as_narrow(stack: str, bytes_each: float) -> None:
    """Linear weights in 8 bits, embedding, head and norms in 16."""
    subject = problem(dense_model(), H100, global_batch=64, stack=stack)
    subject = replace(subject, job=replace(subject.job, precision=Precision.FP8_CS))
    model = costs(subject)
    (sent,) = (e for e in step_messages(model, ZERO_1, 0) if e.what == "weights")
    shards = model.prepare(ConfigTable.of([ZERO_1])).shards
    whole, outer = float(shards.dense[0, 0]), float(shards.outer[0, 0])
    assert 0 < outer < whole
    assert sent.size == pytest.approx(bytes_each * (whole - outer) + 2 * outer)


def test_nvfp4_gathers_half_a_byte_and_agrees_on_scales() -> None:
    subject = problem(machine=B200, precision=Precision.NVFP4, stack=ON)
    model = CostModel(subject, costs(subject).kernels, costs(subject).links)
    shards = model.prepare(ConfigTable.of([ZERO_1])).shards
    wide = (
        costs(problem(machine=B200, precision=Precision.NVFP4, stack=OFF))
        .prepare(ConfigTable.of([ZERO_1]))
        .shards
    )
    linear, outer = float((shards.dense - shards.outer)[0, 0]), float(shards.outer[0, 0])
    # half a byte a value; one fp32 maximum per 16 x 16, which an all-reduce sends twice over where a gather sends once
    sizes = np.array([linear * (1 / 2 + 2 * 4 / 256) + 2 * outer, 2 * (linear + outer)])
    group = group_links(np.array([2.0]), np.array([8.0]), subject.cluster)
    on, off = all_gather_time(sizes, group, model.links)
    saved = subject.stack.communication.dp_time * float(off - on)
    assert float(wide.gather[0] - shards.gather[0]) == pytest.approx(saved, rel=1e-6)
    assert saved > 0


def test_nvfp4_parameters_need_masters_outside_the_optimizer() -> None:
    for optimizer, kept in ((Optimizer.ADAMW, 1.125), (Optimizer.ADAMW_BF16, 3.125)):
        subject = problem(machine=B200, precision=Precision.NVFP4, stack="megatron-2026", optimizer=optimizer)
        weights = narrow_weights(subject)
        assert weights is not None
        assert sum(weights.kept(np.ones(1), np.zeros(1, np.int32)))[0] == kept
    # an optimizer on the host is a precision-aware one too
    assert (
        held(
            problem(machine=B200, precision=Precision.NVFP4, stack="megatron-2026"),
            replace(ZERO_1, offload=1),
        )["narrow_weight_copies"]
        == held(problem(machine=B200, precision=Precision.NVFP4, stack=OFF), ZERO_1)["narrow_weight_copies"]
    )


def test_other_recipes_and_stacks_are_as_they_were() -> None:
    for stack in ("megatron-2026", ON, OFF):
        assert held(problem(stack=stack), ZERO_1) == held(problem(stack="megatron-2026"), ZERO_1)
    assert not load_stack("torchtitan-2026").engine.states_narrow()
    assert narrow_weights(problem(machine=H100, precision=Precision.FP8, stack="megatron-2024")) is None


@pytest.mark.parametrize(("chip", "transposed"), [("h100", True), ("b200", False), ("gb300", False)])
def test_transposed_copies_by_device(chip: str, transposed: bool) -> None:
    assert reads_transposed(load_cluster(f"1x8 {chip} 400G-ib").accelerator) is transposed


@pytest.mark.parametrize("stack", [ON, OFF])
@pytest.mark.parametrize("precision", [Precision.FP8_CS, Precision.FP8_MX, Precision.NVFP4])
def test_the_bound_stays_below_what_rows_need(stack: str, precision: Precision) -> None:
    subject = problem(machine=B200, precision=precision, stack=stack)
    model, table = costs(subject), legal_table(subject)
    table = table.take(slice(0, len(table), max(len(table) // 400, 1)))
    assert (model.least_memory(table) <= model.evaluate(table).device_memory * (1 + 1e-9)).all()


@pytest.mark.parametrize("zero", [2, 3])
def test_fsdp2_gathers_a_byte_of_each_linear_weight(zero: int) -> None:
    def units(precision: Precision, stack: str) -> tuple[float, float]:
        subject = problem(dense_model(layers=4), H100, precision=precision, stack=stack)
        rows = ConfigTable.of([replace(FSDP, zero=zero)])
        detail = costs(subject).evaluate(rows, keep_terms=True).detail
        assert detail is not None
        gathered = float(detail.memory["forward"]["gathered_parameters"][0, 0])
        return gathered, float(costs(subject).prepare(rows).shards.gather[0])

    on, off = (units(Precision.FP8_CS, "torchtitan-2024" + option) for option in (FLOAT8_GATHER, ""))
    layer = 2048 * (2 * 2048 + 2 * 1024) + 3 * 2048 * 7168 + 2 * 2048  # with its norms
    # at the end of the forward pass the whole model at stage 2, the last layer at stage 3; its buffer in either
    assert off[0] - on[0] == pytest.approx({2: 4 + 1, 3: 1 + 1}[zero] * layer, rel=1e-9)
    subject = problem(dense_model(layers=4), H100)
    group = group_links(np.array([1.0]), np.array([16.0]), subject.cluster)
    sizes = np.array([4 * layer, 2 * 4 * layer]) + 2 * (2 * 32000 * 2048 + 2048)
    narrow, wide = 6 * all_gather_time(sizes / 6, group, costs(subject).links)  # layers, embedding and head
    comm = load_stack("torchtitan-2024").communication
    assert off[1] - on[1] == pytest.approx(comm.dp_time * float(wide - narrow), rel=1e-6)
    # other recipes and the states that stay on a rank are as they were
    assert units(Precision.BF16, "torchtitan-2024" + FLOAT8_GATHER) == units(
        Precision.BF16, "torchtitan-2024"
    )
    for precision in (Precision.FP8_CS, Precision.FP8_MX):
        states = [
            held(problem(machine=H100, precision=precision, stack="torchtitan-2024" + option), FSDP)
            for option in (FLOAT8_GATHER, "")
        ]
        assert states[0] == states[1]


@pytest.mark.parametrize(
    ("model", "config"),
    [(moe_model(), FSDP), (dense_model(), replace(FSDP, offload=3))],
    ids=["experts", "host"],
)
def test_experts_and_shards_on_the_host_are_gathered_wide(model: ModelSpec, config: ParallelConfig) -> None:
    def gathered(option: str) -> float:
        subject = problem(model, H100, precision=Precision.FP8_CS, stack="torchtitan-2026" + option)
        return float(costs(subject).prepare(ConfigTable.of([config])).shards.gather[0])

    assert gathered(FLOAT8_GATHER) == gathered("")

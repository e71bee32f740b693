"""States per parameter and the peak over phases, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.memory import Kept, memory_cost
from planner.cost.memory_moments import PHASES, MemoryInputs
from planner.cost.state_bytes import StateBytes, state_bytes
from planner.spec.config import ConfigTable, ParallelConfig, Schedule
from planner.spec.job import Job, Optimizer
from planner.spec.precision import Precision
from planner.spec.stack import Overhead, Stack, States
from tests.problems import costs, dense_model, problem

GIB = 2.0**30
MEGATRON = load_stack("megatron-2026")
BARE = MEGATRON.model_copy(
    update={
        "overhead": Overhead(context="3 GiB", workspace="2 GiB", fragmentation=0.1),
        "states": States(optimizer_transient=0.0),
    }
)


def job(optimizer: Optimizer = Optimizer.ADAMW, precision: Precision = Precision.BF16) -> Job:
    return Job(4096, 64, precision, optimizer)


def states(zero: int, shards: float, stack: Stack, asked: Job) -> StateBytes:
    number = np.array([float(shards)])
    return state_bytes(np.array([float(zero)]), number, number, stack, asked)


@pytest.mark.parametrize(
    ("optimizer", "total"),
    [
        (Optimizer.ADAMW, 18.0),
        (Optimizer.ADAMW_BF16, 14.0),
        (Optimizer.ADAMW_8BIT, 12.03),
        (Optimizer.SGD, 10.0),
        (Optimizer.SGD_MOMENTUM, 14.0),
        (Optimizer.MUON, 14.0),
    ],
)
def test_moments_of_the_optimizer(optimizer: Optimizer, total: float) -> None:
    assert float(states(0, 8, MEGATRON, job(optimizer)).total[0]) == pytest.approx(total)


def test_fp32_needs_no_master_copy() -> None:
    # 4 weights, 4 gradients, 8 moments
    assert float(states(0, 8, MEGATRON, job(precision=Precision.FP32)).total[0]) == pytest.approx(16)


@pytest.mark.parametrize("shards", [2.0, 16.0])
def test_zero_shards_optimizer_then_gradients_then_weights(shards: float) -> None:
    by_stage = [states(zero, shards, MEGATRON, job()) for zero in range(4)]
    for part, from_stage in (("optimizer", 1), ("gradients", 2), ("weights", 3)):
        whole = float(getattr(by_stage[0], part)[0])
        for zero in range(4):
            assert float(getattr(by_stage[zero], part)[0]) == pytest.approx(
                whole / shards if zero >= from_stage else whole
            )


def inputs(dense: list[float], in_flight: list[float], head: list[float]) -> MemoryInputs:
    """One stem whose stage classes hold these parameters, micro-batches and bytes of the loss."""

    def row(values: list[float]) -> np.ndarray:
        return np.array([values])

    each = StateBytes(*(np.array([size]) for size in (2.0, 4.0, 12.0, 0.0)))
    none, one = np.zeros((1, len(dense))), np.ones(1)
    return MemoryInputs(
        dense=row(dense), expert=none, outer=none, head=none, head_excess=none, unit=np.zeros(1), layers=none + 8.0,
        alive=none + 1.0, in_flight=row(in_flight), head_inputs=none, head_kept=row(head), head_transient=none,
        logit_gradient=none, boundary=none, adapters=none, stream=np.zeros(1),
        gather_buffers=np.zeros(1), deferred=none, states=each, expert_states=each,
        zero=np.zeros(1), shards=one, expert_shards=one, accumulates=one, weight_bytes=2.0, largest_tensor=np.zeros(1),
        communicators=np.array([2.0 * GIB]),
    )  # fmt: skip


def alike(*kept: float) -> Kept:
    """Bytes of a micro-batch on one row's stage classes, whose chunks are alike."""
    return Kept(np.array([kept]))


def test_the_first_stage_binds_by_micro_batches_in_flight() -> None:
    # 1 Gi parameters each: 18 GiB + 2 workspace; 4 or 1 micro-batches of 5 GiB, 10 % wasted; 1 GiB at work
    x = inputs([GIB, GIB], [4.0, 1.0], [0.0, 0.0])
    row = np.zeros(1, dtype=np.intp)
    cost = memory_cost(x, row, alike(5 * GIB, 5 * GIB), np.array([GIB]), BARE)
    assert int(cost.stage_class[0]) == 0
    assert PHASES[int(cost.phase[0])] == "backward"
    assert float(cost.device[0]) / GIB == pytest.approx(18 + 2 + 4 * 5 * 1.1 + 1 + 3 + 2 * 1)
    assert float(cost.peak[0]) / GIB == pytest.approx(18 + 2 + 4 * 5 + 1)  # allocated, as the stack logs it


def test_the_last_stage_binds_by_the_loss() -> None:
    x = inputs([GIB, GIB], [2.0, 1.0], [0.0, 30 * GIB])
    row = np.zeros(1, dtype=np.intp)
    cost = memory_cost(x, row, alike(5 * GIB, 5 * GIB), np.array([GIB]), BARE)
    assert int(cost.stage_class[0]) == 1
    assert PHASES[int(cost.phase[0])] == "loss"
    assert float(cost.device[0]) / GIB == pytest.approx(18 + 2 + 5.5 + 30 + 5)


def test_the_update_binds_where_it_needs_temporaries() -> None:
    # 4 bytes per parameter, and next to no activations
    stack = BARE
    x = replace(inputs([GIB], [1.0], [0.0]), update_bytes=4.0)
    row = np.zeros(1, dtype=np.intp)
    cost = memory_cost(x, row, alike(GIB), np.array([0.1 * GIB]), stack)
    assert PHASES[int(cost.phase[0])] == "optimizer"
    assert float(cost.device[0]) / GIB == pytest.approx(18 + 4 + 2 + 5)


def test_weights_of_a_whole_model_on_one_device() -> None:
    subject = problem(dense_model(4), "1x1 h100", global_batch=4)
    cost = costs(subject).evaluate(ConfigTable.of([ParallelConfig(num_microbatches=4)]), keep_terms=True)
    assert cost.detail is not None
    block = 2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 7168 + 2 * 2048
    padded = 32000  # already a multiple of 128
    parameters = 4 * block + 2 * padded * 2048 + 2048
    parts = cost.detail.memory["optimizer"]
    assert float(parts["weights"][0, 0]) == 2 * parameters
    assert float(parts["optimizer"][0, 0]) == 12 * parameters


def test_tied_embeddings_are_held_once_on_one_stage_and_twice_on_two() -> None:
    def held(pp: int) -> float:
        subject = problem(dense_model(4, tied=True), f"1x{pp} h100", global_batch=4)
        row = ParallelConfig(pp=pp, num_microbatches=4)
        detail = costs(subject).evaluate(ConfigTable.of([row]), keep_terms=True).detail
        assert detail is not None
        weights = detail.memory["optimizer"]["weights"][0]
        return float((weights * detail.classes.count[detail.class_row[0]]).sum())

    assert held(2) - held(1) == 2 * 32000 * 2048


def test_vocabulary_is_padded_before_it_is_divided() -> None:
    # Megatron pads 32,001 to a multiple of 128 x tp: 32,128 at tp 1, 32,256 at tp 4
    def embedding(tp: int) -> float:
        models = [dense_model(4, vocab=vocab) for vocab in (32001, 128 * tp)]
        found = []
        for model in models:
            subject = problem(model, f"1x{tp} h100", global_batch=4)
            row = ParallelConfig(tp=tp, sp=int(tp > 1), num_microbatches=4)
            detail = costs(subject).evaluate(ConfigTable.of([row]), keep_terms=True).detail
            assert detail is not None
            found.append(float(detail.memory["optimizer"]["weights"][0, 0]))
        return (found[0] - found[1]) / (2 * 2 * 2048) * tp + 128 * tp

    assert embedding(1) == 32128
    assert embedding(4) == 32256


def test_sixteen_bit_gradients_are_copied_for_the_update() -> None:
    # Megatron-LM distrib_optimizer.py: shard_main_param.grad = shard_model_grad.float(), but for the optimizer that
    # takes gradients as they are. Recomputing more did not lower the published peaks of a run that this copy bounds.
    kin = load_stack("megatron-2025")
    subject = replace(problem(dense_model(4), "1x8 h100", global_batch=8), stack=kin)
    table = ConfigTable.of([ParallelConfig(dp=8, zero=1)])
    found = []
    for optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_BF16):
        job = replace(subject.job, optimizer=optimizer)
        detail = costs(replace(subject, job=job)).evaluate(table, keep_terms=True).detail
        assert detail is not None
        found.append(detail.memory["optimizer"])
    parameters = found[0]["weights"][0, 0] / 2
    assert found[0]["optimizer_temporaries"][0, 0] == pytest.approx(4 * parameters / 8)
    assert found[1]["optimizer_temporaries"][0, 0] == 0


@pytest.mark.parametrize("dualpipe", [False, True])
@pytest.mark.parametrize(
    ("stack", "axes"),
    [
        ("deepspeed-2025", {"zero": 2, "offload": 5}),
        ("deepspeed-2025", {"zero": 3, "offload": 7}),
        ("megatron-2026", {"zero": 1, "offload": 5}),
        ("megatron-fsdp-2026", {"zero": 3, "offload": 4}),
        ("torchtitan-2026", {"zero": 3, "offload": 4}),
        ("torchtitan-2026", {"zero": 2, "pp": 4, "dp": 2, "schedule": Schedule.ZB_H1}),
        ("torchtitan-2026", {"zero": 2, "pp": 4, "dp": 2, "schedule": Schedule.ZB_V, "vpp": 2}),
    ],
)
def test_no_part_is_negative(stack: str, axes: dict[str, int], dualpipe: bool) -> None:
    """What waits on the host, or for weight gradients alone, is not freed again by the backward pass."""
    rows = [ParallelConfig(**{"dp": 8, "num_microbatches": 8} | {key: int(of) for key, of in axes.items()})]
    rows += [
        ParallelConfig(pp=4, dp=2, zero=2, num_microbatches=8, schedule=int(Schedule.DUALPIPE))
    ] * dualpipe
    found = costs(problem(dense_model(8), "1x8 h100", stack=stack)).evaluate(
        ConfigTable.of(rows), keep_terms=True
    )
    assert found.detail is not None
    for phase, terms in found.detail.memory.items():
        for name, amounts in terms.items():
            assert amounts[0].min() >= 0, (phase, name)

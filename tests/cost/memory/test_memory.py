"""States per parameter and the peak over phases, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.catalog.load_stacks import load_stack
from planner.cost.engines.of_stack import engine_of
from planner.cost.memory.moments import PHASES, MemoryInputs
from planner.cost.memory.peak import Kept, memory_cost
from planner.cost.memory.state_bytes import StateBytes
from planner.spec.config import ConfigTable, ParallelConfig, Recompute, Schedule
from planner.spec.job import Job, Optimizer
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.engines import Contiguous
from planner.spec.stack.kinds import PipelineSplit
from planner.spec.stack.memory import Overhead
from tests.problems import costs, dense_model, problem

GIB = 2.0**30
MEGATRON = load_stack("megatron-2026")
BARE = MEGATRON.model_copy(
    update={
        "overhead": Overhead(context="3 GiB", workspace="2 GiB", fragmentation=0.1),
        "engine": Contiguous(),
    }
)


def job(optimizer: Optimizer = Optimizer.ADAMW, precision: Precision = Precision.BF16) -> Job:
    return Job(4096, 64, precision, optimizer)


def states(zero: int, shards: float, stack: Stack, asked: Job) -> StateBytes:
    number = np.array([float(shards)])
    return engine_of(stack).state_bytes(np.array([float(zero)]), number, number, asked)


@pytest.mark.parametrize(
    ("optimizer", "total"),
    [
        (Optimizer.ADAMW, 18.0),
        (Optimizer.ADAMW_BF16, 12.0),
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
        dense=row(dense), expert=none, outer=none, head=none, unit=np.zeros(1), padded_unit=np.zeros(1),
        padding=(one, one), layers=none + 8.0,
        alive=none + 1.0, in_flight=row(in_flight), head_inputs=none, head_kept=row(head), head_transient=none,
        logit_gradient=none, boundary=none, stage_buffers=none, adapters=none, stream=np.zeros(1),
        gather_buffers=np.zeros(1), deferred=none, states=each, expert_states=each,
        zero=np.zeros(1), shards=one, expert_shards=one, accumulates=none + 1.0,
        waits_whole=np.zeros(1), reduces_last=np.zeros(1, dtype=np.bool_), reduces_aside=np.ones(1, dtype=np.bool_),
        weight_bytes=2.0, step_elements=np.zeros(1), communicators=np.array([2.0 * GIB]),
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


@pytest.mark.parametrize(("capacity", "logged"), [(100.0, 60.5), (63.0, 58.0), (40.0, 55.5)])
def test_a_log_of_reserved_memory_shows_free_blocks_only_where_there_is_room(
    capacity: float, logged: float
) -> None:
    """At the loss, 55.5 GiB, 5 GiB of blocks of recomputed layers are free; 5 GiB lie outside the allocator. The
    device needs none of the blocks."""
    overhead = BARE.overhead.model_copy(update={"logs_reserved": True})
    stack = BARE.model_copy(update={"overhead": overhead})
    x = inputs([GIB], [1.0], [30 * GIB])
    row = np.zeros(1, dtype=np.intp)
    room = capacity * GIB
    cost = memory_cost(x, row, alike(5 * GIB), np.array([GIB]), stack, cached=5 * GIB, capacity=room)
    assert float(cost.peak[0]) / GIB == pytest.approx(logged)
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


@pytest.mark.parametrize(
    "model",
    [
        dense_model(4, tied=True),
        replace(dense_model(4), mtp_layers=1),  # a prediction module embeds its tokens on the last stage
        replace(dense_model(4, tied=True), mtp_layers=1),
        replace(dense_model(4, tied=True), position_rows=1024),  # positions are not copied
    ],
)
def test_shared_embeddings_are_held_once_on_one_stage_and_twice_on_two(model: ModelSpec) -> None:
    def held(pp: int) -> float:
        subject = problem(model, f"1x{pp} h100", global_batch=4)
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
    # That one casts both moments to fp32 in a list, all at once, until Transformer Engine 2.14.
    # Gradients in fp32 need no copy.
    found = []
    for kin in ("megatron-2025", "megatron-2026", "megatron-2026+te-2.13"):
        subject = problem(dense_model(4), "1x8 h100", global_batch=8, stack=kin)
        table = ConfigTable.of([ParallelConfig(dp=8, zero=1)])
        for optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_BF16):
            job = replace(subject.job, optimizer=optimizer)
            detail = costs(replace(subject, job=job)).evaluate(table, keep_terms=True).detail
            assert detail is not None
            found.append(detail.memory["optimizer"])
    parameters = found[0]["weights"][0, 0] / 2
    each = [terms["optimizer_temporaries"][0, 0] * 8 / parameters for terms in found]
    assert each == pytest.approx([4, 8, 0, 0, 0, 8])


@pytest.mark.parametrize(
    ("precision", "stack", "total"),
    [
        (
            Precision.BF16,
            "megatron-2026",
            2 + 2 + 2,
        ),  # 16-bit moments and what of the master the weight lacks
        (Precision.FP8, "megatron-2026", 2 + 2 + 4),  # kept in 8 bits: masters are whole
        (Precision.FP8, "megatron-2026+no-fp8-param-gather", 2 + 2 + 2),
        (Precision.FP8_MX, "megatron-2026+no-fp8-param-gather", 2 + 2 + 4),  # Megatron-LM keeps them itself
    ],
)
def test_masters_of_16_bit_moments_are_remainders(precision: Precision, stack: str, total: float) -> None:
    found = states(0, 1, load_stack(stack), job(Optimizer.ADAMW_BF16, precision))
    assert float(found.optimizer[0]) == total


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


# of `dense_model(8)` on two stages: layers' parameters on each, and of the embedding or of norm and head
BLOCK = 2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 7168 + 2 * 2048
FIRST, LAST = 4 * BLOCK + 32000 * 2048, 4 * BLOCK + 32000 * 2048 + 2048


def of_phases(stack: str, **axes: int) -> dict[str, dict[str, np.ndarray]]:
    """Terms of `dense_model(8)` by phase on the two classes of stages, the first one first."""
    count = axes.get("pp", 2) * axes.get("dp", 4)
    row = ParallelConfig(**{"pp": 2, "dp": 4, **axes})
    even = load_stack(stack).model_copy(update={"split": PipelineSplit.EVEN})
    subject = problem(dense_model(8), f"1x{count} h100", stack=even, global_batch=64)
    detail = costs(subject).evaluate(ConfigTable.of([row]), keep_terms=True).detail
    assert detail is not None
    return {phase: {name: of[0] for name, of in terms.items()} for phase, terms in detail.memory.items()}


@pytest.mark.parametrize("zero", [2, 3])
def test_gradients_of_a_torch_pipeline_wait_whole(zero: int) -> None:
    """2 bytes a gathered weight and 4 a gradient, none of them sharded, and the head's own gradient of 2; only the
    update has shards. ZeRO 3 starts a backward pass with two layers and what lies outside them, and ends with all."""
    found = of_phases("torchtitan-2024", zero=zero, num_microbatches=16)
    end, start = found["backward_end"], found["backward"]
    assert end["gathered_parameters"] == pytest.approx([2 * FIRST, 2 * LAST])
    assert end["gradients"] == pytest.approx([4 * FIRST, 4 * LAST + 2 * 32000 * 2048])
    first = FIRST if zero == 2 else 2 * BLOCK + 32000 * 2048
    assert start["gathered_parameters"][0] == pytest.approx(2 * first)
    assert start["gradients"][0] == pytest.approx(4 * FIRST)
    assert found["gradient_reduction"]["reduction_buffers"][0] == pytest.approx(4 * 32000 * 2048)
    assert found["gradient_reduction"]["activations"].max() == 0
    assert found["optimizer"]["gradients"] == pytest.approx([FIRST, LAST])


def test_the_first_of_as_many_micro_batches_as_stages_finds_no_gradients() -> None:
    """With two micro-batches on two stages the first stage has both in flight when its backward pass begins; three of
    its four layers are through when it ends."""
    found = of_phases("torchtitan-2024", zero=2, num_microbatches=2)
    assert found["backward"]["gradients"][0] == 0
    assert found["backward_end"]["gradients"][0] == pytest.approx(4 * 3 * BLOCK)
    assert found["backward"]["gradients"][1] == pytest.approx(4 * LAST + 2 * 32000 * 2048)


@pytest.mark.parametrize(
    ("stack", "axes"),
    [("torchtitan-2024", {"pp": 1, "dp": 8}), ("megatron-fsdp-2026", {}), ("megatron-2026", {"zero": 1})],
)
def test_others_keep_no_whole_gradients(stack: str, axes: dict[str, int]) -> None:
    """FSDP2 without a pipeline reduces after every micro-batch, as Megatron-FSDP does with one; Megatron's are kept
    whole by its buffer from the start."""
    found = of_phases(stack, **{"zero": 3, "num_microbatches": 16, **axes})
    gradients = {phase: terms["gradients"].max() for phase, terms in found.items() if "gradients" in terms}
    kept = gradients.pop("optimizer")
    assert max(gradients.values()) <= kept + 2 * 32000 * 2048 + 2 * BLOCK


def test_a_torch_pipeline_buffers_every_micro_batch_of_a_step() -> None:
    """A micro-batch is 4096 x 2048 values of 2 bytes, m of them 16. Four stages: both ways inside (torch 2.6 also keeps
    16 outputs, where the layers count the inputs of 3 in flight on the second stage); gradients alone on the first."""
    one = 2 * 4096 * 2048
    new = of_phases("torchtitan-2026", pp=4, dp=2, zero=2, num_microbatches=16)["loss"]["pipeline_buffers"]
    assert new[1] == pytest.approx((16 + 16) * one)
    assert new[0] == pytest.approx((16 + 4) * one)  # outputs of 4 in flight, no buffered input
    old = of_phases("torchtitan-2024", pp=4, dp=2, zero=2, num_microbatches=16)["loss"]["pipeline_buffers"]
    assert old[1] == pytest.approx((16 + 16 + 16 - 3) * one)
    assert old[-1] == pytest.approx(
        (16 - 1) * one + 16 * 2 * 4096 * 32000
    )  # the last stage's outputs are logits


@pytest.mark.parametrize("stack", ["torchtitan-2026-eager", "torchtitan-2026", "fsdp1-2023", "megatron-2026"])
@pytest.mark.parametrize("again", [0, 32])
def test_what_is_logged_never_falls_as_micro_batches_grow(stack: str, again: int) -> None:
    """Also where another phase takes the lead, whose counter shows fewer idle blocks."""
    asked = Request("llama-3-8b", "2x8 h100 400G-ib", 16, seq_len=4096, global_batch="960", stack=stack)
    model = cost_model(resolve(asked)[0])
    zero = max(model.problem.stack.limits.zero)
    rows = [
        ParallelConfig(
            dp=16, micro_batch=b, num_microbatches=60 // b, zero=zero, recompute_layers=again,
            recompute=Recompute.FULL if again else Recompute.NONE,
        )
        for b in (1, 2, 3, 4, 5, 6)
    ]  # fmt: skip
    assert np.all(np.diff(model.evaluate(ConfigTable.of(rows)).peak_memory) > 0)

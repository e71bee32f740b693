"""What FSDP sends and copies layer by layer: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.params import model_parameters
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.rule import Problem
from planner.spec.stack.engines import FullyShard
from planner.spec.stack.kinds import AttentionKernel, FlatParameters, StaysGathered
from tests.problems import costs, dense_model, problem, seconds_of, with_section

SUBJECT = problem(dense_model(4), "1x8 a100", global_batch=32, stack="torchtitan-2026")
PARAMETERS = float(model_parameters(SUBJECT.model).total)
HEAD = 32000 * 2048  # stays gathered from forward to backward
ONCE_MORE = 1 - HEAD / PARAMETERS  # of the weights
RATE = 2039e9 * 0.85  # of the device's memory


@pytest.mark.parametrize(("zero", "gathers"), [(2, 4.0), (3, 4 + 4 * ONCE_MORE)])
def test_copies_out_of_gathers_and_into_reductions(
    zero: int, gathers: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = seconds_of(SUBJECT, "dp_comm", zero)
    monkeypatch.setattr(FullyShard, "reduction_copies", 0.0)
    monkeypatch.setattr(FullyShard, "gather_copies", 0.0)
    more = whole - seconds_of(SUBJECT, "dp_comm", zero)
    # 2 + 2 bytes a gather; 2 + 4 in each of four micro-batches
    assert more == pytest.approx((4 * gathers + 6 * 4) * PARAMETERS / RATE, rel=1e-3)


def test_a_pipeline_that_accumulates_whole_reduces_once_and_gathers_once_more_than_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = seconds_of(SUBJECT, "dp_comm", 3, dp=4, pp=2)
    monkeypatch.setattr(FullyShard, "reduction_copies", 0.0)
    half = whole - seconds_of(SUBJECT, "dp_comm", 3, dp=4, pp=2)
    monkeypatch.setattr(FullyShard, "gather_copies", 0.0)
    more = whole - seconds_of(SUBJECT, "dp_comm", 3, dp=4, pp=2)
    # the first stage, the heavier, has three of four layers and the embedding, of which nothing stays
    assert more / half == pytest.approx((4 * 5 + 6) / 6)


def test_without_syncing_each_batch_gradients_wait_whole_and_are_reduced_once() -> None:
    waiting = with_section(SUBJECT, "engine", microbatches_accumulate_whole=True)
    many, lone = (ParallelConfig(dp=8, zero=3, num_microbatches=m) for m in (4, 1))
    units = SUBJECT.model.num_layers + 2
    sent = {e.what: e.calls for e in step_messages(costs(waiting), many, 0) if e.axis == "dp"}
    assert sent == {"gradients": units, "weights": pytest.approx(4 * (1 + ONCE_MORE) * units, rel=1e-3)}

    def held(subject: Problem, config: ParallelConfig, phase: str) -> float:
        detail = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
        assert detail is not None
        return float(detail.memory[phase]["gradients"][0, 0])

    # in fp32, as FSDP2 reduces them; an eighth of them where each micro-batch reduces its own, and behind the step
    assert held(waiting, many, "loss") == pytest.approx(4 * PARAMETERS, rel=1e-3)
    assert held(SUBJECT, many, "loss") == pytest.approx(4 * PARAMETERS / 8, rel=1e-3)
    assert held(waiting, many, "optimizer") == held(SUBJECT, many, "optimizer")
    assert held(waiting, lone, "loss") == held(SUBJECT, lone, "loss") == 0.0


def test_every_layer_the_embedding_and_the_head_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ParallelConfig(dp=8, zero=3, num_microbatches=4)
    units = SUBJECT.model.num_layers + 2
    sent = {e.what: e for e in step_messages(costs(SUBJECT), config, 0) if e.axis == "dp"}
    assert sent["gradients"].calls == 4 * units
    assert sent["weights"].forward == 4 * units
    assert sent["weights"].backward == pytest.approx(
        4 * ONCE_MORE * units, rel=1e-3
    )  # the head stays gathered
    carried = sent["weights"].calls * sent["weights"].size
    assert carried == pytest.approx(4 * (1 + ONCE_MORE) * 2 * PARAMETERS, rel=1e-3)
    monkeypatch.setattr(FullyShard, "unit_messages", False)
    of_step = [e.calls * e.sent for e in step_messages(costs(SUBJECT), config, 0) if e.what == "weights"]
    assert sent["weights"].calls * sent["weights"].sent == pytest.approx(of_step[0])


def test_attention_in_triton_is_slower_backward_than_forward() -> None:
    two, triton = (
        with_section(SUBJECT, "kernels", attention=kernel)
        for kernel in (AttentionKernel.FLASH_2, AttentionKernel.FLASH_TRITON)
    )
    slower = seconds_of(triton, "attention", 3) / seconds_of(two, "attention", 3)
    assert 1.4 < slower < 2.0


def held_at(stage: StaysGathered, zero: int = 3) -> dict[str, float]:
    """Gathered weights [bytes] at the loss and where the head's backward pass starts, of one rank of eight."""
    subject = with_section(SUBJECT, "engine", stays_gathered=stage)
    detail = (
        costs(subject).evaluate(ConfigTable.of([ParallelConfig(dp=8, zero=zero)]), keep_terms=True).detail
    )
    assert detail is not None
    return {
        phase: float(detail.memory[phase]["gathered_parameters"][0, 0]) for phase in ("loss", "head_backward")
    }


def test_what_is_not_resharded_after_the_forward_pass_is_there_at_the_loss_and_is_not_gathered_again() -> (
    None
):
    head, embedding, norm = 2 * 32000 * 2048, 2 * 32000 * 2048, 2 * 2048
    assert held_at(StaysGathered.NOTHING) == {"loss": 0.0, "head_backward": 2 * (head + embedding + norm)}
    assert held_at(StaysGathered.HEAD) == {"loss": head, "head_backward": head}
    assert held_at(StaysGathered.ROOT) == dict.fromkeys(("loss", "head_backward"), head + embedding + norm)


@pytest.mark.parametrize("stage", StaysGathered)
def test_what_stays_is_gathered_once_in_a_micro_batch(
    stage: StaysGathered, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = with_section(SUBJECT, "engine", stays_gathered=stage)
    subject = with_section(subject, "communication", dp_overlap=0.0)
    monkeypatch.setattr(FullyShard, "reduction_copies", 0.0)
    monkeypatch.setattr(FullyShard, "gather_copies", 0.0)
    root = 2 * HEAD + 2048
    layer = (PARAMETERS - root) / 4
    stays = {"nothing": 0, "head": HEAD, "root": root, "last-layer": root + layer}[stage]
    config = ParallelConfig(dp=8, zero=3, num_microbatches=4)
    sent = sum(e.calls * e.size for e in step_messages(costs(subject), config, 0) if e.what == "weights")
    assert sent == pytest.approx(4 * 2 * (2 * PARAMETERS - stays))
    # nothing hides them: two gathers and a reduction of twice the bytes, at one rate within a node
    none = with_section(subject, "engine", stays_gathered=StaysGathered.NOTHING)
    share = seconds_of(subject, "dp_comm", 3) / seconds_of(none, "dp_comm", 3)
    assert share == pytest.approx(1 - stays / PARAMETERS / 4, rel=0.02)


@pytest.mark.parametrize("stage", StaysGathered)
def test_stage_2_keeps_everything_gathered_whatever_stays(stage: StaysGathered) -> None:
    assert held_at(stage, zero=2) == dict.fromkeys(("loss", "head_backward"), 2 * PARAMETERS)


@pytest.mark.parametrize(("optimizer", "each"), [(Optimizer.ADAMW, 4.0), (Optimizer.ADAMW_8BIT, 0.0)])
def test_8_bit_adamw_updates_one_parameter_after_the_other(optimizer: Optimizer, each: float) -> None:
    subject = problem(dense_model(4), "1x8 a100", global_batch=32, stack="fsdp1-2023")
    subject = replace(subject, job=replace(subject.job, optimizer=optimizer))
    detail = costs(subject).evaluate(ConfigTable.of([ParallelConfig(dp=8, zero=3)]), keep_terms=True).detail
    assert detail is not None
    held = float(detail.memory["optimizer"]["optimizer_temporaries"][0, 0])
    assert held == pytest.approx(each * PARAMETERS / 8)


@pytest.mark.parametrize(
    ("flat", "stays"),
    [("none", "nothing"), ("of-a-kind", "root"), ("none", "head"), ("none", "last-layer")],
)
def test_the_buffer_of_the_last_all_gather_is_there_when_the_head_runs(flat: str, stays: str) -> None:
    """FSDP2 copies parameters out of it; FSDP1 gathers into what it uses."""
    kinds = {"stays_gathered": StaysGathered(stays), "flat_parameters": FlatParameters(flat)}
    subject = with_section(SUBJECT, "engine", **kinds)
    found = {}
    for zero in (2, 3):
        row = ConfigTable.of([ParallelConfig(dp=8, zero=zero)])
        detail = costs(subject).evaluate(row, keep_terms=True).detail
        assert detail is not None
        assert detail.memory["forward"]["logits"].any()
        found[zero] = float(detail.memory["forward"]["gathered_parameters"][0, 0])
    root = 2 * HEAD + 2048
    layer = (PARAMETERS - root) / 4
    buffer = (HEAD if stays == "head" else layer) * (flat == "none")
    held = {"head": HEAD, "last-layer": root + layer}.get(stays, root)
    assert found == pytest.approx({2: 2 * (PARAMETERS + buffer), 3: 2 * (held + buffer)})


@pytest.mark.parametrize(
    ("vocab", "elements"),
    [
        (64000, 2 * 64000 * 2048 + 2048),  # of the head, behind the norm; the embedding has nothing before it
        (1024, 3 * 2048 * 7168),  # of the second of three matrices as large
    ],
)
def test_temporaries_of_an_update_of_one_parameter_after_the_other(vocab: int, elements: float) -> None:
    """Two tensors of a parameter and one of that before it, over 8 ranks, in the 4 bytes of fp32 shards."""
    model = replace(dense_model(4), vocab=vocab)
    subject = problem(model, "1x8 a100", global_batch=32, stack="torchtitan-2026")
    subject = with_section(subject, "engine", step_tensors=3.0)
    row = ConfigTable.of([ParallelConfig(dp=8, zero=3)])
    detail = costs(subject).evaluate(row, keep_terms=True).detail
    assert detail is not None
    found = float(detail.memory["optimizer"]["optimizer_temporaries"][0, 0])
    assert found == pytest.approx(4.0 * elements / 8)


def test_tp_ranks_make_the_whole_gradient_of_their_embedding_at_the_end_of_the_backward_pass() -> None:
    """Two ranks a half each: the update finds a half more without sharding, none with it."""
    subject = problem(dense_model(4), "1x8 a100", global_batch=32, stack="torchtitan-2026")
    found = {}
    for zero in (0, 3):
        row = ConfigTable.of([ParallelConfig(tp=2, sp=1, dp=4, num_microbatches=1, zero=zero)])
        model = costs(subject)
        detail = model.evaluate(row, keep_terms=True).detail
        assert detail is not None
        own = model.prepare(row).shards.dense[0, 0]
        found[zero] = (
            float(detail.memory["optimizer"]["gradients"][0, 0]) / 4.0 - own / (1 if zero == 0 else 4),
            float(detail.memory["backward"]["gradients"][0, 0]) / 2.0,
        )
    assert found[0][0] == pytest.approx(HEAD / 2)
    # as the backward pass starts the head's own alone, in 4 bytes over 4 ranks: reduced behind its loss
    assert found[3] == pytest.approx((0.0, HEAD / 2 * 4 / 4 / 2), abs=1.0)


def test_adapters_in_the_flat_parameters_of_frozen_weights_have_gradients_as_large() -> None:
    """LitGPT's LoRA on two and four A100 peaks at the whole model's gradients beside the shards: 7B 20.7 GiB at one
    sequence, 13B on four 33.1 (Lightning-AI/litgpt tutorials/resource-tables.md)."""
    held = {}
    for flat in (FlatParameters.OF_A_KIND, FlatParameters.ALL):
        for late in (False, True):
            kinds = {"flat_parameters": flat, "microbatches_accumulate_whole": late, "gradient": 2.0}
            subject = with_section(SUBJECT, "engine", reduce_bytes=2.0, **kinds)
            subject = replace(subject, job=replace(subject.job, lora_rank=8))
            row = ConfigTable.of([ParallelConfig(dp=8, zero=3, num_microbatches=4)])
            detail = costs(subject).evaluate(row, keep_terms=True).detail
            assert detail is not None
            held[flat, late] = float(detail.memory["backward_end"]["gradients"][0, 0])
    assert held[FlatParameters.OF_A_KIND, False] == held[FlatParameters.OF_A_KIND, True] == 0
    assert held[FlatParameters.ALL, False] == pytest.approx(2 * PARAMETERS / 8, rel=0.4)
    assert held[FlatParameters.ALL, True] == pytest.approx(2 * PARAMETERS, rel=0.4)

"""Sequences of several lengths: memory follows the longest, time the mean with its padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.host import LAUNCH
from planner.cost.table import CostTable
from planner.errors import InputError
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ContextKind, ParallelConfig, Recompute
from planner.spec.job import Job
from planner.spec.rule import Problem
from planner.spec.stack.kinds import ContextExchange
from tests.problems import costs, dense_model, problem

SUBJECT = problem(dense_model(4), "1x1 h100", global_batch=4)
CONFIG = ConfigTable.of([ParallelConfig(num_microbatches=4)])


def evaluated(mean: float | None, packed: bool = False, seq_len: int = SUBJECT.job.seq_len) -> CostTable:
    job = replace(SUBJECT.job, seq_len=seq_len, mean_length=mean, packed=packed)
    return costs(replace(SUBJECT, job=job)).evaluate(CONFIG, keep_terms=True)


def test_padded_memory_is_the_longest_time_the_mean() -> None:
    whole, mixed = evaluated(None), evaluated(SUBJECT.job.seq_len / 4)
    short = evaluated(None, seq_len=SUBJECT.job.seq_len // 4)
    assert mixed.peak_memory[0] == whole.peak_memory[0] > short.peak_memory[0]
    assert mixed.step_time[0] == pytest.approx(short.step_time[0])


def test_packed_is_full_but_for_attention() -> None:
    whole, packed = evaluated(None), evaluated(128, packed=True)
    assert packed.peak_memory[0] == whole.peak_memory[0]
    assert 0.5 * whole.step_time[0] < packed.step_time[0] < whole.step_time[0]


def test_packed_texts_rotated_one_by_one_cost_launches() -> None:
    """48 launches a text and layer: Qwen3-8B with tp 4, 32 packs of 2,048 tokens in texts of 380, takes 7.42 s on
    four H100 (Megatron-Bridge examples/model_verification_cards/qwen3-8b/card.yaml), 1.95 ms a layer without."""
    fused, apart = (
        problem(dense_model(4), "1x1 h100", stack=f"megatron-2026{x}") for x in ("", "+no-rope-fusion")
    )

    def step(subject: Problem, texts: int, packed: bool = True) -> float:
        job = replace(subject.job, mean_length=subject.job.seq_len / texts if packed else None, packed=packed)
        return float(
            costs(replace(subject, job=job)).evaluate(ConfigTable.of([ParallelConfig()])).step_time[0]
        )

    assert step(apart, 1, packed=False) == step(fused, 1, packed=False)
    more = step(apart, 64) - step(apart, 32)
    assert more > step(fused, 64) - step(fused, 32)
    assert more == pytest.approx(4 * 32 * 48 * LAUNCH, rel=0.1)


def test_more_sequences_are_padded_further_but_never_beyond_the_longest() -> None:
    job = Job(4096, 64, mean_length=512)
    found = job.timed_length(np.array([1.0, 2.0, 4.0, 1e6]))
    # 512 x (1, 1 + 1/2, 1 + 1/2 + 1/3 + 1/4), the longest
    np.testing.assert_allclose(found, [512, 768, 512 * 25 / 12, 4096], rtol=2e-3)
    assert job.timed_tokens(2) == pytest.approx(2 * 768, rel=2e-3)
    assert job.tokens_per_step == 64 * 512  # padding is no work
    assert Job(4096, 64, mean_length=512, packed=True).tokens_per_step == 64 * 4096


@pytest.mark.parametrize(("mean", "packed"), [(0.0, False), (5000, False), (None, True)])
def test_impossible_lengths_are_refused(mean: float | None, packed: bool) -> None:
    with pytest.raises(InputError):
        Job(4096, 4, mean_length=mean, packed=packed)


def test_a_shorter_longest_keeps_the_mean_legal() -> None:
    assert Job(4096, 4, mean_length=1024).with_length(512).mean_length == 512


def test_a_ring_launches_no_rotation_again() -> None:
    """Its steps attend and correct; rotations and adapters are launched once a layer."""
    subject = problem(dense_model(4), "1x2 h100", global_batch=1, stack="megatron-2026+no-rope-fusion")

    def step(texts: int) -> float:
        job = replace(subject.job, mean_length=subject.job.seq_len / texts, packed=True)
        table = costs(replace(subject, job=job)).evaluate(ConfigTable.of([ParallelConfig(cp=2)]))
        return float(table.step_time[0])

    assert step(96) - step(64) == pytest.approx(4 * 32 * 48 * LAUNCH, rel=0.02)


RINGS = (ContextExchange.RING, ContextExchange.RING_2_10, ContextExchange.RING_2_17)


def dealt(exchange: ContextExchange, texts: int, kind: ContextKind = ContextKind.A2A, **axes: int) -> float:
    """Seconds a step on four cards whose context parallelism packs `texts` a sequence."""
    subject = problem(dense_model(4), "1x4 h100", global_batch=1)
    communication = subject.stack.communication.model_copy(update={"cp_exchange": exchange})
    stack = subject.stack.model_copy(update={"communication": communication})
    job = replace(subject.job, mean_length=subject.job.seq_len / texts, packed=True)
    config = ParallelConfig(cp=4, cp_kind=kind, **axes)
    table = costs(replace(subject, job=job, stack=stack)).evaluate(ConfigTable.of([config]))
    return float(table.step_time[0])


def test_packed_texts_put_in_order_one_by_one_cost_operations() -> None:
    """7.5 us for each of 40 operations forward and 32 backward, a text and half, of which a text of cp 4 has eight:
    GPT-OSS 120B took 24.39 s a step of four packs of 86 texts with pp 6, six layers a stage and nine passes deep, where
    4.49 are due without (Megatron-Bridge examples/model_verification_cards/gpt-oss-120b/card.yaml)."""
    more = dealt(ContextExchange.RING_2_17, 96) - dealt(ContextExchange.RING_2_17, 64)
    assert more == pytest.approx(4 * 32 * 8 * 72 * 7.5e-6, rel=0.02)
    assert dealt(ContextExchange.RING, 96) - dealt(ContextExchange.RING, 64) < 0.01 * more
    ring = [dealt(way, 64, ContextKind.P2P) for way in RINGS]
    assert ring[0] == ring[1] == ring[2]


def test_recomputed_attention_puts_texts_in_order_again() -> None:
    core = 1 << RECOMPUTE_MODULES.index("core_attn")
    for again in (
        {"recompute": Recompute.SELECTIVE, "recompute_modules": core},
        {"recompute": Recompute.FULL, "recompute_layers": 4},
    ):
        more = dealt(ContextExchange.RING_2_17, 96, **again) - dealt(ContextExchange.RING_2_17, 64, **again)
        assert more == pytest.approx(4 * 32 * 8 * (40 + 72) * 7.5e-6, rel=0.02)

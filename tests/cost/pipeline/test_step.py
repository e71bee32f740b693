"""Exposed data-parallel time and stragglers, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.pipeline.step import (
    chance_of_full_memory,
    exposed_data_parallel,
    slow_mode_time,
    straggling,
)
from planner.spec.stack.time import Communication

COMM = Communication(
    dp_overlap=0.5, fsdp_overlap=0.5, overlap_slowdown=0.0, bucket_latency="0 s", slowdown_per_doubling=0.01
)


def exposed(
    zero: int, scatter: float, gather: float, stage: float = 3.0, microbatches: float = 4.0, layers: float = 10.0,
    buckets: float = 0.0, ranks: float = 8.0, comm: Communication = COMM, waits_whole: float = 0.0,
    turns: tuple[float, float] = (1.0, 1.0), aside: bool = True, last: bool = False,
) -> float:  # fmt: skip
    values = (scatter, gather, stage, microbatches, float(zero), layers, buckets, ranks)
    arrays = [np.array([v]) for v in values]
    seconds = exposed_data_parallel(*arrays, comm, waits_whole, turns=turns, aside=aside, reduces_last=last)  # type: ignore[arg-type]
    return float(seconds[0])


def test_gradients_hide_under_the_last_backward() -> None:
    # backward is 2 s, half of it hides; the last of 10 pieces never does
    assert exposed(0, scatter=3.0, gather=0.0) == pytest.approx(3.0 - 1.0)
    assert exposed(0, scatter=1.0, gather=0.0) == pytest.approx(0.1)


def test_zero_1_also_gathers_parameters_under_the_first_forward() -> None:
    # forward is 1 s, half of it hides
    assert exposed(1, scatter=3.0, gather=2.0) == pytest.approx(2.0 + 1.5)
    assert exposed(0, scatter=3.0, gather=2.0) == pytest.approx(2.0)


def test_what_is_reduced_behind_a_pipeline_is_in_sight() -> None:
    assert exposed(0, scatter=3.0, gather=0.0, aside=False) == pytest.approx(3.0)
    assert exposed(1, scatter=3.0, gather=2.0, aside=False) == pytest.approx(3.0 + 1.5)
    assert exposed(2, scatter=3.0, gather=2.0, aside=False) == pytest.approx(4 * (3.0 + 1.5))


def test_chunks_hide_each_others_collectives() -> None:
    # 4 chunks, each for 2 micro-batches in turn: 3 x 2 passes of the others and the last one's own, of 2/4 s each
    # backward and 1/4 s forward, of which half hides
    assert exposed(0, scatter=7.0, gather=0.0, turns=(4.0, 2.0)) == pytest.approx(7.0 - 7 * 0.25)
    assert exposed(1, scatter=7.0, gather=7.0, turns=(4.0, 2.0)) == pytest.approx(14.0 - 7 * 0.25 - 7 * 0.125)
    # what its own pass leaves of the last chunk stays in sight
    assert exposed(0, 1.5, 0.0, layers=100.0, turns=(4.0, 2.0)) == pytest.approx((1.5 - 1.0) / 4)
    assert exposed(3, scatter=3.0, gather=2.0, turns=(4.0, 2.0)) == exposed(3, scatter=3.0, gather=2.0)


def test_zero_3_communicates_in_every_micro_batch() -> None:
    # gather 2 - 0.5 under forward; gather and scatter 5 - 1 under backward; 4 micro-batches
    assert exposed(3, scatter=3.0, gather=2.0) == pytest.approx(4 * (1.5 + 4.0))
    # ZeRO 2 keeps the parameters for backward
    assert exposed(2, scatter=3.0, gather=2.0) == pytest.approx(4 * (1.5 + 2.0))


def test_weights_gathered_behind_the_step_are_in_sight() -> None:
    comm = COMM.model_copy(update={"gathers_after_step": True})
    # ZeRO 1: 2 of 3 s of gradients and all 2 s of weights; ZeRO 2 reduces in every micro-batch and gathers once
    assert exposed(1, scatter=3.0, gather=2.0, comm=comm) == pytest.approx(2.0 + 2.0)
    assert exposed(2, scatter=3.0, gather=2.0, comm=comm) == pytest.approx(4 * 2.0 + 2.0)
    for zero in (0, 3):
        assert exposed(zero, 3.0, 2.0, comm=comm) == exposed(zero, 3.0, 2.0)


def test_whole_gradients_are_scattered_once_in_sight() -> None:
    # ZeRO 2: one gather of 2 s, 0.5 s of the first forward hides; 3 s of scatter under nothing
    assert exposed(2, scatter=3.0, gather=2.0, waits_whole=1.0) == pytest.approx(1.5 + 3.0)
    # ZeRO 3 gathers again under each of 4 backward passes of 2 s, of which half hides
    assert exposed(3, scatter=3.0, gather=2.0, waits_whole=1.0) == pytest.approx(1.5 + 4 * 1.0 + 3.0)


def test_gradients_that_wait_for_the_last_micro_batch_are_scattered_under_its_backward_pass() -> None:
    # ZeRO 3, 4 micro-batches: gathers of 2 s show 1.5 forward and 1 backward; 3 s of scatter show 2 more, once
    assert exposed(3, scatter=3.0, gather=2.0) == pytest.approx(4 * (1.5 + 4.0))
    assert exposed(3, scatter=3.0, gather=2.0, last=True) == pytest.approx(4 * (1.5 + 1.0) + 3.0)
    # ZeRO 2 gathers forward alone
    assert exposed(2, scatter=3.0, gather=2.0, last=True) == pytest.approx(4 * 1.5 + 2.0)


def test_what_is_hidden_slows_down_what_hides_it() -> None:
    comm = COMM.model_copy(update={"overlap_slowdown": 0.2})
    # ZeRO 1: 3 + 2 s in all, 2 + 1.5 s in sight
    assert exposed(1, scatter=3.0, gather=2.0, comm=comm) == pytest.approx(3.5 + 0.2 * 1.5)
    # ZeRO 3: 2 + 5 s a micro-batch, 1.5 + 4 s in sight
    assert exposed(3, scatter=3.0, gather=2.0, comm=comm) == pytest.approx(4 * (5.5 + 0.2 * 1.5))


def test_buckets_cost_latency_per_rank() -> None:
    comm = COMM.model_copy(update={"bucket_latency": 1e-6})
    more = exposed(0, 1.0, 0.0, buckets=100, ranks=64, comm=comm) - exposed(0, 1.0, 0.0, ranks=64)
    assert more == pytest.approx(100 * 63 * 1e-6)


@pytest.mark.parametrize("zero", range(4))
def test_a_rank_alone_exchanges_nothing(zero: int) -> None:
    assert exposed(zero, 3.0, 2.0, ranks=1.0, buckets=100) == 0.0


@pytest.mark.parametrize("zero", range(4))
def test_faster_links_and_longer_compute_never_expose_more(zero: int) -> None:
    slow, fast = exposed(zero, 3.0, 2.0), exposed(zero, 1.5, 1.0)
    assert fast < slow
    assert exposed(zero, 3.0, 2.0, stage=4.0) <= slow


def test_stragglers_cost_a_share_per_doubling_of_nodes() -> None:
    assert float(straggling(np.array([10.0]), 1.0, COMM)[0]) == 0.0
    assert float(straggling(np.array([10.0]), 8.0, COMM)[0]) == pytest.approx(10 * 0.01 * 3)


def test_slow_messages_cost_what_nanotrons_runs_lost() -> None:
    """0.26 s a message: 0.52 s a slot at pp 2, 1.04 s at pp 4 and more; nothing without a pipeline."""
    lost = slow_mode_time(np.array([8.0, 8.0, 8.0, 8.0]), np.array([1.0, 2.0, 4.0, 16.0]), 0.26)
    assert lost == pytest.approx([0, 0.52 * 8.5, 1.04 * 9.5, 1.04 * 15.5])


def test_a_device_fills_up_within_the_band_of_its_verdict() -> None:
    chance = chance_of_full_memory(np.array([70.0, 72.0, 80.0, 84.0, 90.0]), 80.0, 0.1)
    assert chance == pytest.approx([0, 0, 0.5, 0.75, 1])


def test_sharded_gradients_may_overlap_less() -> None:
    comm = COMM.model_copy(update={"dp_overlap": 1.0, "sharded_dp_overlap": 0.0})
    one = [np.array([v]) for v in (1.0, 1.0, 9.0, 1.0, 0.0, 10.0, 0.0, 8.0)]
    whole = exposed_data_parallel(*one, comm)  # type: ignore[arg-type]
    one[4] = np.array([1.0])
    sharded = exposed_data_parallel(*one, comm)  # type: ignore[arg-type]
    assert float(whole[0]) == pytest.approx(0.1)
    assert float(sharded[0]) == pytest.approx(2.0)

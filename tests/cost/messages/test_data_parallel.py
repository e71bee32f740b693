"""Exposed data-parallel time, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.cost.messages import data_parallel
from planner.cost.messages.data_parallel import DataParallel, exposed_data_parallel
from planner.cost.network.collectives import all_reduce_time
from planner.cost.network.traffic import group_links
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.stack.engines import DeepSpeed, Nanotron
from tests.problems import costs, dense_model, problem


@pytest.fixture(autouse=True)
def _nothing_slows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "OVERLAP_SLOWDOWN", 0.0)


def row_of(
    zero: int, scatter: float, gather: float, microbatches: float = 4.0, latency: float = 0.0, hidden: float = 0.5,
    behind: bool = False, waits_whole: bool = False, turns: tuple[float, float] = (1.0, 1.0), aside: bool = True,
    last: bool = False, copies: float = 0.0,
) -> DataParallel:  # fmt: skip
    """One row, of which the same share hides once a step and in every layer."""

    def column(value: float) -> NDArray[Any]:
        return np.array([value])

    return DataParallel(
        scatter=column(scatter), gather=column(gather), again=column(1.0), zero=column(float(zero)),
        microbatches=column(microbatches), latency=column(latency), hidden=(column(hidden), column(hidden)),
        in_each=column(zero >= 2), behind=column(behind), waits_whole=column(waits_whole), reduces_last=column(last),
        aside=column(aside), copies=column(copies), turns=(column(turns[0]), column(turns[1])),
    )  # fmt: skip


def exposed(
    zero: int, scatter: float, gather: float, stage: float = 3.0, layers: float = 10.0, **row: Any
) -> float:
    found = exposed_data_parallel(row_of(zero, scatter, gather, **row), np.array([stage]), np.array([layers]))
    return float(found[0])


def test_gradients_hide_under_the_last_backward() -> None:
    # backward is 2 s, half of it hides; the last of 10 pieces never does
    assert exposed(0, scatter=3.0, gather=0.0) == pytest.approx(3.0 - 1.0)
    assert exposed(0, scatter=1.0, gather=0.0) == pytest.approx(0.1)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_copies_between_kernels_hide_what_the_stage_hides(zero: int) -> None:
    longer = exposed(zero, scatter=3.0, gather=2.0, stage=3.6)
    assert exposed(zero, scatter=3.0, gather=2.0, copies=0.6) == pytest.approx(longer)
    # and take no less than they hide, in each of four micro-batches
    assert exposed(zero, scatter=3.0, gather=2.0) <= longer + 4 * 0.6


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
    # ZeRO 1: 2 of 3 s of gradients and all 2 s of weights; ZeRO 2 reduces in every micro-batch and gathers once
    assert exposed(1, scatter=3.0, gather=2.0, behind=True) == pytest.approx(2.0 + 2.0)
    assert exposed(2, scatter=3.0, gather=2.0, behind=True) == pytest.approx(4 * 2.0 + 2.0)


def test_whole_gradients_are_scattered_once_in_sight() -> None:
    # ZeRO 2: one gather of 2 s, 0.5 s of the first forward hides; 3 s of scatter under nothing
    assert exposed(2, scatter=3.0, gather=2.0, waits_whole=True) == pytest.approx(1.5 + 3.0)
    # ZeRO 3 gathers again under each of 4 backward passes of 2 s, of which half hides
    assert exposed(3, scatter=3.0, gather=2.0, waits_whole=True) == pytest.approx(1.5 + 4 * 1.0 + 3.0)


def test_gradients_that_wait_for_the_last_micro_batch_are_scattered_under_its_backward_pass() -> None:
    # ZeRO 3, 4 micro-batches: gathers of 2 s show 1.5 forward and 1 backward; 3 s of scatter show 2 more, once
    assert exposed(3, scatter=3.0, gather=2.0) == pytest.approx(4 * (1.5 + 4.0))
    assert exposed(3, scatter=3.0, gather=2.0, last=True) == pytest.approx(4 * (1.5 + 1.0) + 3.0)
    # ZeRO 2 gathers forward alone
    assert exposed(2, scatter=3.0, gather=2.0, last=True) == pytest.approx(4 * 1.5 + 2.0)


def test_what_is_hidden_slows_down_what_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "OVERLAP_SLOWDOWN", 0.2)
    # ZeRO 1: 3 + 2 s in all, 2 + 1.5 s in sight
    assert exposed(1, scatter=3.0, gather=2.0) == pytest.approx(3.5 + 0.2 * 1.5)
    # ZeRO 3: 2 + 5 s a micro-batch, 1.5 + 4 s in sight
    assert exposed(3, scatter=3.0, gather=2.0) == pytest.approx(4 * (5.5 + 0.2 * 1.5))


@pytest.mark.parametrize("zero", range(4))
def test_buckets_cost_their_latency_and_a_rank_alone_exchanges_nothing(zero: int) -> None:
    more = exposed(zero, 1.0, 0.0, latency=0.25) - exposed(zero, 1.0, 0.0)
    assert more == pytest.approx(0.25)
    assert exposed(zero, 0.0, 0.0) == 0.0


@pytest.mark.parametrize("zero", range(4))
def test_faster_links_and_longer_compute_never_expose_more(zero: int) -> None:
    slow, fast = exposed(zero, 3.0, 2.0), exposed(zero, 1.5, 1.0)
    assert fast < slow
    assert exposed(zero, 3.0, 2.0, stage=4.0) <= slow


def test_engines_say_which_stages_hide_what_is_due_once() -> None:
    zero = np.array([0.0, 1.0])
    assert Nanotron().hidden_once(0.5, zero).tolist() == [0.5, 0.0]
    assert DeepSpeed().hidden_once(0.5, zero).tolist() == [0.0, 0.5]
    assert DeepSpeed(ddp=True).hidden_once(0.5, zero).tolist() == [0.5, 0.5]


def test_a_model_without_experts_sends_nothing_of_them() -> None:
    """Seconds of its gradients are those of one all-reduce, whatever the ranks that would share experts."""
    subject = problem(dense_model(8), "2x8 h100 400G-ib")
    model = costs(subject)
    shards = model.prepare(ConfigTable.of([ParallelConfig(tp=2, dp=8, num_microbatches=8)])).shards
    size = np.array([subject.stack.engine.sent_gradient * shards.most_dense[0]])
    seconds = all_reduce_time(
        size, group_links(np.array([2.0]), np.array([8.0]), subject.cluster), model.links
    )
    assert float(shards.reduce[0]) == pytest.approx(subject.stack.communication.dp_time * float(seconds[0]))

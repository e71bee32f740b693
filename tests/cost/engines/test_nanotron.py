"""Idle blocks of an allocator: as many as the launch queue reaches, fewer where the host waits for messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.engines.nanotron import LAUNCH_QUEUE, NanotronEngine
from planner.cost.levels import Layers
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Job

NANOTRON = load_stack("nanotron-2024")
ENGINE = NanotronEngine(NANOTRON)
WIDTH = ENGINE.states.deferred_bytes


def blocks(depth: float, held: float, slowness: float = 1.0, **axes: Any) -> float:
    """Idle blocks, in whole ones, of a stage that holds `held` micro-batches; `slowness`: of the layer by its host."""
    config = ParallelConfig(**{"tp": 8, "sp": 1, "num_microbatches": 64, **axes})
    layers = SimpleNamespace(terms=np.ones((1, 1, 1)), time=np.full((1, 1), slowness))
    row = np.zeros(1, dtype=np.intp)
    found = ENGINE.waiting_blocks(
        ConfigTable.of([config]), cast(Layers, layers), row, np.array([[held]]), np.array([[depth]]),
        np.array([1.0]),
    )  # fmt: skip
    return float(found[0, 0]) / WIDTH


def test_without_a_pipeline_the_launch_queue_bounds_them_whatever_the_depth() -> None:
    queue = (2 + 1 / 8) * LAUNCH_QUEUE / ENGINE.states.launches_forward
    assert blocks(80, 1) == blocks(32, 1) == pytest.approx(queue)
    assert (2 + 1 / 8) * 4 < blocks(4, 1) < queue  # and the backward pass before
    assert blocks(4, 1, num_microbatches=1) == pytest.approx((2 + 1 / 8) * 4)


def test_a_host_that_waits_for_messages_runs_ahead_by_the_passes_that_fill_the_pipeline() -> None:
    assert blocks(8, 2, slowness=2.0, pp=2) == 0
    assert blocks(8, 4, slowness=2.0, pp=4) == pytest.approx((2 + 1 / 8) * 2 * 8)
    assert blocks(8, 4, pp=4) > blocks(8, 4, slowness=2.0, pp=4)
    assert blocks(8, 2, pp=2) == pytest.approx(blocks(16, 4, pp=4))


def test_an_embedding_larger_than_any_activation_leaves_its_gradient_idle_on_a_first_stage() -> None:
    problem: Any = SimpleNamespace(job=Job(4096, 64), model=SimpleNamespace(hidden=8, layer_kinds=()))
    classes: Any = SimpleNamespace(first=np.array([[1.0, 0.0]]), last=np.array([[0.0, 1.0]]))
    table, row = ConfigTable.of([ParallelConfig(pp=2)]), np.zeros(1, dtype=np.intp)
    outer = np.array([[100.0, 100.0]])
    found = ENGINE.lone_gradient(problem, table, classes, row, np.array([80.0]), outer)
    assert found.tolist() == [[200.0, 0.0]]

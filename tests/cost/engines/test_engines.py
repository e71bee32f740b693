"""What every engine holds to, whatever its kind; one class, which each kind inherits the cases of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner.catalog.load_stacks import load_stack, stack_names
from planner.cost.bounds import states_at_work
from planner.cost.engines.engine import Engine
from planner.cost.engines.of_stack import engine_of
from planner.cost.memory.moments import PHASES
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Job, Optimizer
from planner.spec.precision import RECIPES
from planner.spec.stack import Stack
from planner.spec.stack.engines import ENGINES
from tests.problems import costs, legal_table, problem, random_rows

STACKS = [load_stack(name) for name in stack_names()]
ONE_OF_EACH = {type(stack.engine): stack for stack in STACKS}
PACKAGE = Path(planner.__file__).parent
EVERY_STEP = {"after_init", "forward", "loss", "head_backward", "backward", "gradient_reduction", "optimizer"}
OF_STATES = (
    "weights",
    "narrow_weight_copies",
    "gradients",
    "optimizer",
    "gathered_parameters",
    "reduction_buffers",
)
KINDS = "|".join(kind.__name__ for kind in ENGINES)
ASKS = re.compile(rf"\b(?:is|not|in|==|!=) \(?EngineKind\.|isinstance\([^)]*, (?:{KINDS})\)")


def test_every_kind_has_a_stack_and_an_engine() -> None:
    assert set(ONE_OF_EACH) == set(ENGINES)


def test_nothing_else_asks_for_the_kind_of_an_engine() -> None:
    found = {
        str(path.relative_to(PACKAGE)): len(ASKS.findall(path.read_text()))
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE / "cost" / "engines"
    }
    assert not {name: number for name, number in found.items() if number}


def test_no_equation_asks_for_a_framework_or_a_stack() -> None:
    """But those of how a log counts FLOPs (`cost/mfu.py`), which has its software's name."""
    asking = re.compile(r"stack\.(?:name|base|framework|released|options)\b")
    names = "|".join({name for stack in STACKS for name in (stack.name, stack.framework)})
    named = re.compile(f"[\"'](?:{names})[\"']")
    for path in sorted((PACKAGE / "cost").rglob("*.py")):
        found = asking.findall(path.read_text()) + named.findall(path.read_text())
        assert not found or path.name == "mfu.py", (path, found)


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
class TestEngine:
    """An engine of a shipped stack."""

    def test_a_rank_alone_holds_weights_gradients_masters_and_moments(self, stack: Stack) -> None:
        engine, job = engine_of(stack), Job(4096, 64)
        zero, one, weight = np.arange(4.0), np.ones(4), RECIPES[job.precision].weight_bytes
        held, states = engine.state_bytes(zero, one, one, job), engine.states
        beside = states.gradient + engine.second_gradient + states.master + states.moment_bytes(job.optimizer)
        cast = states.weights_sharded(zero) & (not states.low_precision_shard) & (states.master > 0)
        assert held.total == pytest.approx(beside + np.where(cast, 0.0, weight))

    def test_more_ranks_and_later_stages_never_hold_more_of_a_parameter(self, stack: Stack) -> None:
        engine, job = engine_of(stack), Job(4096, 64)
        zero, ranks = np.repeat(np.arange(4.0), 3), np.tile([2.0, 8.0, 64.0], 4)
        total = engine.state_bytes(zero, ranks, ranks, job).total.reshape(4, 3)
        assert (np.diff(total, axis=0) <= 0).all()
        assert (np.diff(total, axis=1) <= 0).all()

    def test_what_leaves_the_device_is_held_no_more(self, stack: Stack) -> None:
        engine, ranks = engine_of(stack), np.full(4, 8.0)
        held = engine.state_bytes(np.full(4, 3.0), ranks, ranks, Job(4096, 64))
        here = engine.on_device(held, np.arange(4, dtype=np.int32))
        for part in ("weights", "gradients", "optimizer", "buffers"):
            assert (getattr(here, part) <= getattr(held, part)).all()
        assert (here.optimizer == held.optimizer * [1, 0, 1, 0]).all()
        assert (here.weights == held.weights * [1, 1, 0, 0]).all()

    def test_moments_that_can_bind_hold_as_much_as_all_of_them(self, stack: Stack) -> None:
        model = costs(problem(stack=stack))
        table = random_rows(legal_table(model.problem), 40, 0)
        some, every = model.evaluate(table), model.evaluate(table, keep_terms=True)
        assert (some.peak_memory == every.peak_memory).all()
        assert every.detail is not None
        assert EVERY_STEP <= set(every.detail.memory) <= set(PHASES)
        for terms in every.detail.memory.values():
            assert all((value >= 0).all() for value in terms.values())

    def test_least_bounds_hold(self, stack: Stack) -> None:
        model = costs(problem(stack=stack))
        table = random_rows(legal_table(model.problem), 40, 0)
        assert (model.least_memory(table) <= model.evaluate(table).device_memory).all()

    def test_states_at_work_are_held_while_a_layer_s_backward_pass_runs(self, stack: Stack) -> None:
        model = costs(problem(stack=stack))
        table = random_rows(legal_table(model.problem), 12, 0)
        for row in range(len(table)):
            one = table.take(slice(row, row + 1))
            detail = model.evaluate(one, keep_terms=True).detail
            assert detail is not None
            held = sum(value for name, value in detail.memory["backward"].items() if name in OF_STATES)
            least = states_at_work(model.shards, one, detail.classes)
            assert (least <= held * (1 + 1e-9) + np.where(detail.classes.count > 0, 0.0, np.inf)).all()

    def test_collectives_grow_with_micro_batches_by_stage(self, stack: Stack) -> None:
        engine = engine_of(stack)
        table = ConfigTable.of([ParallelConfig(dp=8, zero=zero, num_microbatches=8) for zero in range(4)])
        reductions, gathers = engine.collectives(table, np.ones(4))
        assert reductions[:2].tolist() == [1.0, 1.0]
        assert gathers[:2].tolist() == [0.0, 0.0]
        assert gathers[3] == 2 * 8
        assert reductions[3] == 8

    def test_an_update_moves_at_least_weights_and_moments(self, stack: Stack) -> None:
        engine: Engine[Any] = engine_of(stack)
        for optimizer in (Optimizer.ADAMW, Optimizer.SGD):
            least = 2 * engine.states.moment_bytes(optimizer)
            assert engine.update_traffic(optimizer) >= engine.states.step_bytes(optimizer) >= least
            assert engine.host_traffic(optimizer) >= engine.states.step_bytes(optimizer)

"""Is what changes numerics tried as it should be: one by one, together, and where the answer's rows do not profit?"""

from __future__ import annotations

import numpy as np
import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.cost.simulated import evaluate_exactly
from planner.report.words import texts
from planner.solve.unasked import (
    WORTH_SAYING,
    Answer,
    Change,
    degrees_of,
    findings_of,
    numeric_changes,
    numeric_gains,
    option_gains,
)
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.precision import Precision
from planner.spec.rule import Problem

CONFIG = ParallelConfig(dp=64, micro_batch=1, num_microbatches=16, zero=1)


def posed(
    model: str = "llama-3.1-8b",
    precision: str = "bf16",
    cluster: str = "8x8 h100 400G-ib",
    stack: str = "megatron-2026",
) -> Problem:
    asked = Request(model, cluster, seq_len=4096, global_batch="1024", precision=precision, stack=stack)
    return resolve(asked)[0]


def answer(problem: Problem, *configs: ParallelConfig, limit: float = np.inf) -> Answer:
    return Answer(problem, ConfigTable.of(configs or (CONFIG,)), limit, cost_model)


def test_changes_are_what_the_device_and_the_recipe_have() -> None:
    found = numeric_changes(posed())
    assert {change.precision for change in found} == {
        None,
        Precision.FP8,
        Precision.FP8_CS,
        Precision.FP8_BLOCKWISE,
    }
    assert ("grad-reduce-in-bf16",) in [change.options for change in found]
    narrow = numeric_changes(posed(precision="fp8_blockwise"))
    assert all(change.precision is None for change in narrow)
    assert ("fp8-param-gather",) in [change.options for change in narrow]  # of that recipe alone they are not
    assert ("fp8-param-gather",) not in [change.options for change in numeric_changes(posed(precision="fp8"))]
    assert not numeric_changes(posed(cluster="1x8 v100 100G-ib", precision="fp16", stack="megatron-2022"))
    named = "megatron-2026+grad-reduce-in-bf16+activation-func-fp8-input-store"
    left = {change.options for change in numeric_changes(posed(stack=named, precision="fp8"))}
    assert left == {("no-fp8-param-gather",), ("cross-entropy-fusion-impl=te",)}


def test_each_gain_is_that_of_the_problem_with_it_and_the_best_go_together() -> None:
    problem = posed()
    found = numeric_gains(answer(problem))
    one = ConfigTable.of([CONFIG])
    plain = evaluate_exactly(cost_model(problem), one).step_time[0]
    for gain in found:
        changed = evaluate_exactly(cost_model(gain.change.of(problem)), one).step_time[0]
        assert gain.share == pytest.approx(1 - changed / plain)
        assert gain.first
    *singles, both = found
    shares = [gain.share for gain in singles if gain.share is not None]
    assert shares == sorted(shares, reverse=True)
    assert both.change.precision is Precision.FP8
    assert "grad-reduce-in-bf16" in both.change.options
    assert both.share is not None
    assert both.share >= shares[0] + WORTH_SAYING
    assert sum(gain.change.precision is not None for gain in singles) == 1  # of recipes of 8 bits the best


def test_the_sentences_say_how_to_ask() -> None:
    asked = answer(posed())
    first, *_, last = texts(findings_of(numeric_gains(asked), asked, "megatron-2026"))
    assert first.startswith("GEMMs in fp8 would cut the step time by ")
    assert first.endswith(": --precision fp8 (a choice of numerics)")
    assert "--precision fp8 --stack megatron-2026+" in last


def test_a_change_may_make_it_fit() -> None:
    problem = posed()
    one = ConfigTable.of([CONFIG])
    wide = cost_model(problem).evaluate(one).device_memory[0]
    narrow = Change(("grad-reduce-in-bf16",))
    less = cost_model(narrow.of(problem)).evaluate(one).device_memory[0]
    assert less < wide
    tight = answer(problem, limit=(wide + less) / 2)
    gain = tight.gain(narrow)
    assert gain is not None
    assert gain.share is None
    (line,) = texts(findings_of([gain], tight, "megatron-2026"))
    assert "would make it fit: --stack megatron-2026+grad-reduce-in-bf16" in line
    assert answer(problem, limit=less / 2).gain(narrow) is None


def test_configurations_of_the_same_degrees_are_looked_at_too() -> None:
    """Where memory binds, other numerics save by less recomputation, which the listed configuration does anyway."""
    problem = posed("llama-3.1-70b", cluster="8x8 h100 400G-ib")
    config = ParallelConfig(
        tp=8, sp=1, dp=8, micro_batch=1, num_microbatches=128, zero=1, recompute=2, recompute_layers=80
    )
    table, limit = ConfigTable.of([config]), 0.95 * problem.cluster.accelerator.memory
    near = degrees_of(table, {"cp": (1, 2)})
    assert near == {"cp": (1, 2), "tp": (8,), "pp": (1,)}
    narrow = Change(("grad-reduce-in-bf16",))
    listed = Answer(problem, table, limit, cost_model).gain(narrow)
    sought = Answer(problem, table, limit, cost_model, near=near).gain(narrow, seek=True)
    assert listed is not None
    assert sought is not None
    assert listed.share is not None
    assert sought.share is not None
    assert sought.share > listed.share + WORTH_SAYING
    assert not sought.first
    other = narrow.of(problem)
    space = enumerate_configs(other, rules_for(other.stack), near).table()
    cost = evaluate_exactly(cost_model(other), space)
    best = np.where(cost.device_memory <= limit, cost.step_time, np.inf).min()
    plain = evaluate_exactly(cost_model(problem), table).step_time[0]
    assert sought.share == pytest.approx(1 - best / plain, abs=1e-4)


def test_of_options_that_exclude_each_other_the_best_is_named() -> None:
    problem = posed("qwen3-30b-a3b")
    named = option_gains(
        answer(problem, ParallelConfig(dp=64, ep=16, micro_batch=1, num_microbatches=16, zero=1))
    )
    dispatchers = {"deepep", "hybridep", "moe-token-dispatcher-type=allgather"}
    assert len([gain for gain in named if dispatchers & set(gain.change.options)]) == 1

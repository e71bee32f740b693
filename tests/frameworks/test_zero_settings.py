"""What `planner check` takes from the ZeRO settings of a ds_config.json: read, costed, said."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.ask.question import Question
from planner.catalog.load_stacks import load_stack
from planner.cli.files import problem_of
from planner.cost.engines.zero3_gathers import modules_of
from planner.errors import FileInputError
from planner.frameworks import framework
from planner.frameworks.deepspeed.parse import parse
from planner.frameworks.framework import StackSetting
from planner.frameworks.options import not_costed
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config
from planner.spec.config import OFFLOAD_ACTIVATIONS, OFFLOAD_STATES, ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from tests.frameworks.launches import problem
from tests.problems import costs


def files(stage: int, **zero: Any) -> dict[str, str]:
    settings = {
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage, **zero},
    }  # fmt: skip
    return {"ds_config.json": json.dumps(settings)}


def checked(stage: int, **zero: Any) -> tuple[Problem, list[str]]:
    parsed = parse(files(stage, **zero))
    return problem_of(parsed, framework("deepspeed"), Question("llama-3.1-8b", "2x8 a100 200G-ib", 16))


def step(problem: Problem, zero: int) -> float:
    table = ConfigTable.of([ParallelConfig(dp=16, zero=zero)])
    return float(costs(problem).evaluate(table).step_time[0])


def test_numbers_of_elements_reach_the_stack_and_are_said() -> None:
    problem, said = checked(
        3, reduce_bucket_size=2e8, stage3_max_live_parameters=3e9, stage3_max_reuse_distance=5e8
    )
    states = problem.stack.engine
    assert (states.bucket_elements, states.live_parameters, states.reuse_distance) == (2e8, 3e9, 5e8)
    assert "modelled with reduce_bucket_size 200,000,000" in said
    assert not any("overlap_comm" in line for line in said)  # on by default in stage 3


def test_names_without_their_prefix_are_taken_as_deepspeed_takes_them() -> None:
    """runtime/zero/config.py DeepSpeedZeroConfig takes its fields by name beside their alias."""
    read = parse(files(3, prefetch_bucket_size=2e7, gather_16bit_weights_on_model_save=True))
    assert not read.unknown
    assert [(s.field, s.value) for s in read.stack_settings if s.field == "prefetch_elements"] == [
        ("prefetch_elements", 2e7)
    ]


def test_auto_is_what_the_trainer_of_transformers_writes() -> None:
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    states = checked(3, **dict.fromkeys(names, "auto"))[0].stack.engine
    assert states.bucket_elements == 4096**2
    assert states.prefetch_elements == pytest.approx(0.9 * 4096**2)
    assert states.persistent_elements == 40960


def test_reductions_of_stages_1_and_2_wait_unless_overlap_comm_is_set() -> None:
    silent, said = checked(2)
    assert "modelled with overlap_comm false" in said
    assert step(silent, 2) > step(checked(2, overlap_comm=True)[0], 2)
    assert step(checked(3, overlap_comm=False)[0], 3) > step(checked(3)[0], 3)


def test_nothing_is_prefetched_with_a_bucket_of_none_and_small_weights_stay() -> None:
    usual = step(checked(3)[0], 3)
    assert step(checked(3, stage3_prefetch_bucket_size=0)[0], 3) > usual
    large = {"stage3_param_persistence_threshold": 2e7}
    kept = checked(3, **large)[0]
    modules = modules_of(kept.model.layers[0], kept, np.ones(1))
    assert [float(one.size[0]) for one in modules] == 3 * [4096 * 14336]  # not the four of attention
    assert any("in time, not in memory" in note for note in parse(files(3, **large)).notes)


def test_a_bucket_that_nothing_runs_beside_needs_no_second_one() -> None:
    table = ConfigTable.of([ParallelConfig(dp=16, zero=1)])
    one, two = (
        costs(checked(1, overlap_comm=overlaps)[0]).evaluate(table).peak_memory[0]
        for overlaps in (False, True)
    )
    assert two > one


def test_settings_of_deepspeed_change_no_other_engine() -> None:
    parsed = parse(files(3, reduce_bucket_size=2e8))
    problem, said = problem_of(
        parsed, framework("deepspeed"), Question("llama-3.1-8b", "1x8 h100", 8, stack="hai-llm-2024")
    )
    assert problem.stack.engine == load_stack("hai-llm-2024").engine
    assert not any("reduce_bucket_size" in line for line in said)
    assert StackSetting("reduce_bucket_size", "engine", "bucket_elements", 2e8) in parsed.stack_settings


@pytest.mark.parametrize("value", ["much", -1, True, 1e20, [1]])
def test_what_is_no_number_of_elements_is_refused(value: Any) -> None:
    with pytest.raises(FileInputError, match="reduce_bucket_size"):
        parse(files(2, reduce_bucket_size=value))


def test_activations_stay_on_the_device() -> None:
    """transformers recomputes by torch's checkpoint, which DeepSpeed's cpu_checkpointing does not reach."""
    given = problem("llama-3.1-8b", "deepspeed-2025")
    config = ParallelConfig(dp=128, num_microbatches=2, zero=3, recompute=2, recompute_layers=32)
    rules = all_rules_for("deepspeed")
    assert not explain_config(config, given, rules)
    for offload in (OFFLOAD_ACTIVATIONS, OFFLOAD_STATES | OFFLOAD_ACTIVATIONS):
        broken = explain_config(replace(config, offload=offload), given, rules)
        assert [violation.rule for violation in broken] == ["offload-activations"]
        assert "cpu_checkpointing" in broken[0].reason
    pins = {"offload": (OFFLOAD_ACTIVATIONS,)}
    assert not len(enumerate_configs(given, rules_for(given.stack), pins))
    settings = {"train_micro_batch_size_per_gpu": 1, "activation_checkpointing": {"cpu_checkpointing": True}}
    read = framework("deepspeed").parse({"ds_config.json": json.dumps(settings)})
    assert read.axes["offload"] == 0
    assert any("cpu_checkpointing" in note and "not modelled" in note for note in read.notes)


def test_a_known_setting_that_is_not_costed_is_named() -> None:
    """Every one: neither silence nor a changed figure."""
    plain = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    }
    for name in not_costed("deepspeed"):
        *path, last = name.split(".")
        document: dict[str, Any] = copy.deepcopy(plain)
        inner = document
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = 0.3 if last == "ratio" else "bf16" if "dtype" in last or "type" in last else True
        if "offload_optimizer" in name:
            inner["device"] = "cpu"
        said = parse({"ds_config.json": json.dumps(document)}).notes
        assert any(note.startswith(f"{name}: ") for note in said), name
    assert not [note for note in parse({"ds_config.json": json.dumps(plain)}).notes if "counted" in note]

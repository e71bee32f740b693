"""Plan files of schema 1, which held codes, read as those of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import FileInputError
from planner.spec.config import AXES, ParallelConfig
from planner.spec.load_plan import load_plan, parse_plan, plan_json
from planner.spec.planfile import SCHEMA_VERSION

DATA = Path(__file__).parents[1] / "data"
FILES = ("plan_of_schema_1.json", "estimate_of_schema_1.json")


def raw(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DATA / name).read_text())
    return document


def described(config: dict[str, Any]) -> ParallelConfig:
    return ParallelConfig(**{axis: config[axis] for axis in AXES})


@pytest.mark.parametrize("name", FILES)
def test_configurations_are_those_of_the_codes(name: str) -> None:
    document, plan = raw(name), load_plan(DATA / name)
    assert plan.schema_version == SCHEMA_VERSION
    for old, new in zip(document["choices"], plan.choices, strict=True):
        assert new.config.parallel() == described(old["config"]).in_usual_words()
        assert new.config.text == old["config"]["text"]
        assert (new.step_time, new.memory.peak) == (old["step_time"], old["memory"]["peak"])
    for old, point in zip(document["pareto"], plan.pareto, strict=True):
        assert point.config.parallel() == described(old["config"]).in_usual_words()


@pytest.mark.parametrize("name", FILES)
def test_sentences_are_kept(name: str) -> None:
    document, plan = raw(name), load_plan(DATA / name)
    assert [one.text for one in plan.headline] == [document["headline"]]
    assert [one.text for one in plan.assumptions] == document["assumptions"]
    for old, new in zip(document["choices"], plan.choices, strict=True):
        assert [one.text for one in new.why] == old["why"]


def test_every_kind_of_code_is_read() -> None:
    taken = [load_plan(DATA / name).choices[0].config for name in FILES]
    assert taken[0].recompute.modules == ("layernorm",)
    assert taken[0].cuda_graphs.by == "full_iteration"
    assert taken[0].schedule == "interleaved"
    assert taken[1].recompute.modules == ("core_attn", "mlp")
    assert (taken[1].offload, taken[1].cp_kind) == (("optimizer",), "a2a")


def test_what_was_fixed_is_named() -> None:
    assert load_plan(DATA / FILES[0]).search.restricted == {"pp": (2,), "recompute": ("selective", "full")}


@pytest.mark.parametrize("name", FILES)
def test_written_again_it_reads_the_same(name: str) -> None:
    plan = load_plan(DATA / name)
    assert parse_plan(plan_json(plan), name) == plan


@pytest.mark.parametrize(("axis", "value"), [("schedule", 99), ("offload", "all"), ("recompute", -1)])
def test_a_code_without_a_meaning_is_refused(axis: str, value: object) -> None:
    document = raw(FILES[0])
    document["choices"][0]["config"][axis] = value
    with pytest.raises(FileInputError, match=r"choices\.0\.config"):
        parse_plan(json.dumps(document), "plan.json")

"""docs/json.md is true: units of a plan's fields, names of its codes, fields that are taken for others."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.docs_output import DOCS, SCHEMA_FILE
from planner.answer.estimate import make_estimate
from planner.ask.request import Request
from planner.cli import app
from planner.spec.config import CODED, ContextKind, CudaGraphs, Recompute, Schedule, value_text
from planner.spec.planfile import Plan

PAGE = (DOCS / "json.md").read_text(encoding="utf-8")
SCHEMA = Plan.model_json_schema()
UNITS = {
    "1", "s", "bytes", "bytes/s", "FLOP/s", "FLOP/s/device", "tokens/s/device", "US dollars", "US dollars/h", "J", "W",
    "kg", "bits",
}  # fmt: skip
IN_NAME = {"_s": "s", "_gib": "GiB", "_bytes": "bytes", "days": "days", "_hours": "h"}


def described() -> Iterator[tuple[str, str]]:
    """Every field of a plan and its unit."""
    for part in SCHEMA["$defs"].values():
        for name, field in part.get("properties", {}).items():
            if unit := re.search(r"\[([^\[\]]+)\]$", field.get("description", "")):
                yield name, unit.group(1)


def test_units_are_those_of_the_page() -> None:
    assert len(list(described())) > 60
    for name, unit in described():
        stated = next((u for end, u in IN_NAME.items() if name.endswith(end)), None)
        assert unit == stated if stated else unit in UNITS, name


def test_kinds_name_fields_with_their_unit() -> None:
    units = dict(described())
    rows = dict(re.findall(r"^\| (time|memory, message|money) \| .*? \| (.*?) \|$", PAGE, re.MULTILINE))
    for kind, unit in (("time", "s"), ("memory, message", "bytes"), ("money", "US dollars")):
        told = [name.split(".")[-1] for name in re.findall(r"`([^`]+)`", rows[kind])]
        known = [name for name in told if name in units]
        assert known
        assert all(units[name].startswith(unit) for name in known)


def resolved(path: str) -> dict[str, Any]:
    part: dict[str, Any] = SCHEMA
    for name in path.replace("[]", "").split("."):
        field = part["properties"][name]
        options = [field, field.get("items", {}), *field.get("anyOf", ())]
        inner = next((option["$ref"] for option in options if "$ref" in option), None)
        part = SCHEMA["$defs"][inner.rpartition("/")[2]] if inner else field
    return part


def test_a_log_can_show_more_than_the_peak() -> None:
    """torchtitan logs reserved memory, blocks that are free included: the peak is not all that is in use."""
    asked = Request("llama-3.1-8b", "dgx-h100", 16, seq_len=8192, global_batch="64", stack="torchtitan-2024")
    memory = make_estimate(asked).choices[0].memory
    assert memory.logged > memory.peak
    (row,) = re.findall(r"^\| `choices\[\]\.memory\.peak` \|.*$", PAGE, re.MULTILINE)
    assert "left out" in row
    assert "memory.logged" in row
    assert "all that is in use" not in PAGE


@pytest.mark.parametrize("path", re.findall(r"`((?:choices|subject)[\w.\[\]]*)`", PAGE))
def test_fields_are_there(path: str) -> None:
    assert resolved(path)


def words(axis: str) -> set[str]:
    """What the page says that a part of a configuration holds."""
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{axis}` |"))
    return set(re.findall(r"[\w-]+", row.split("|")[2]))


@pytest.mark.parametrize(
    "axis", [axis for axis in CODED if axis not in ("recompute_modules", "cuda_graph_modules", "offload")]
)
def test_names_are_those_of_configurations(axis: str) -> None:
    field = {"cuda_graph_impl": "cuda_graphs", "cp_kind": "cp_comm_type"}.get(axis, axis)
    codes = {
        "schedule": Schedule,
        "recompute": Recompute,
        "cp_kind": ContextKind,
        "cuda_graph_impl": CudaGraphs,
    }
    assert {value_text(axis, code) for code in codes[axis]} <= words(field)


def test_parts_in_host_memory_are_named() -> None:
    assert {"optimizer", "params", "activations"} <= words("offload")


def test_the_published_schema_is_that_of_a_plan() -> None:
    """`python -m benchmarks.docs_output` writes it."""
    assert json.loads(SCHEMA_FILE.read_text(encoding="utf-8")) == SCHEMA


@pytest.mark.parametrize(
    "words",
    ["plan gpt2 '1x8 h100' --global-batch 64 --top 2 --tokens 1B", "plan llama-3.1-405b '1x8 h100'",
     "estimate qwen3-30b-a3b '1x8 h100' --seq-len 4k --set ep=8,recompute_modules=mlp",
     "estimate gpt2 '1x8 h100' --set tp=5"],
)  # fmt: skip
def test_what_is_printed_is_as_the_published_schema_says(words: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    printed = CliRunner().invoke(app, [*shlex.split(words), "--json"])
    assert printed.exit_code in (0, 1), printed.output
    schema = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    assert [error.message for error in schema.iter_errors(json.loads(printed.stdout))] == []
    assert [*schema.iter_errors(json.loads(printed.stdout) | {"recommended": "the first"})]

"""torchtitan 0.3.0 refuses sequences longer than a model's RoPE table; 0.2.2 makes the table as long as they are."""

from __future__ import annotations

import json

import pytest

from planner.ask.question import Question
from planner.cli.check import check_files
from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.torchtitan.names import MODELS
from planner.space.framework_rules import rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.load_model import load_model
from tests import problems
from tests.frameworks.launches import launch
from tests.frameworks.test_own_parsers import needs, run

TABLES = """
import importlib, json, sys
for name, family, flavor in json.load(open(sys.argv[1])):
    registry = importlib.import_module("torchtitan.models." + family).model_registry
    print(json.dumps([name, registry(flavor).model.max_seq_len]))
"""


def legal(model: str, seq_len: int, stack: str) -> bool:
    """By the rule alone, or because the stack has none."""
    subject = problems.problem(load_model(model), seq_len=seq_len, stack=stack)
    table = ConfigTable.of([ParallelConfig()])
    rule = next(rule for rule in rules_for(subject.stack) if rule.id == "rope-table")
    return bool(rule.holds(table.columns, subject)[0])


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_sequence_is_longer_than_the_table(name: str) -> None:
    longest = MODELS[name].longest
    assert legal(name, longest, "torchtitan-2026")
    assert not legal(name, longest + 128, "torchtitan-2026")
    assert legal(name, longest + 128, "torchtitan-2024")


def test_files_are_refused_both_ways() -> None:
    text = "torchrun --nproc_per_node 8 -m torchtitan.train --module qwen3 --config qwen3_1_7b --training.seq_len 65536"
    answer = check_files({"a.sh": text}, Question(model="", cluster="1x8 h100 400G-ib"))
    assert [broken["rule"] for broken in answer["violations"]] == ["rope-table"]
    subject = problems.problem(load_model("qwen3-1.7b"), seq_len=65536, stack="torchtitan-2024")
    config = ParallelConfig(dp=subject.cluster.num_devices, zero=3, micro_batch=1, num_microbatches=1)
    one = launch("torchtitan", config, subject)
    with pytest.raises(UnsupportedError, match="RoPE table"):
        framework("torchtitan").render(one, "0.3.0")
    assert framework("torchtitan").render(one, "0.2.2")


@needs("torchtitan")
def test_tables_are_as_long_as_its_own(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([(name, one.family, one.flavor) for name, one in MODELS.items()]))
    found = dict(json.loads(line) for line in run(TABLES, str(cases)).splitlines() if line.startswith("["))
    assert found == {name: one.longest for name, one in MODELS.items()}

"""Every framework has the same parts; a forgotten step of the recipe fails here.

Golden files are written anew with PLANNER_WRITE_GOLDEN=1; read the difference before committing it.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

from planner.errors import UnknownNameError
from planner.frameworks import framework, framework_names, framework_of_stack
from planner.frameworks.options import OPTIONS_FOLDER, option_table, table_releases, table_source
from planner.space.framework_rules import all_rules_for, rules_for
from planner.spec.config import AXES
from tests.frameworks.launches import CONFIGS, golden_launch, problem

GOLDEN = Path(__file__).parent / "golden"
NAMES = framework_names()
CASES = [(name, version) for name in NAMES for version in framework(name).versions]


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_complete(name: str) -> None:
    found = framework(name)
    module = import_module(f"planner.frameworks.{name.replace('-', '_')}")
    assert module.__doc__
    assert "Source" in module.__doc__ or name == "megatron"
    assert found in vars(module).values()
    assert (OPTIONS_FOLDER / f"{name}.json").is_file()
    assert table_releases(name) == found.versions
    assert found.default_version in found.versions
    assert name in CONFIGS, "a golden configuration"
    assert all(table_source(name, version) for version in found.versions)
    assert found.rules
    assert all(rule.source and rule.hint for rule in found.rules)
    assert len({rule.id for rule in found.rules}) == len(found.rules)
    assert all(axis in AXES for rule in found.rules for axis in rule.needs)


def test_modules_and_tables_have_a_framework() -> None:
    assert {path.stem for path in OPTIONS_FOLDER.glob("*.json")} == set(NAMES)
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}-{version}" for name, version in CASES}


@pytest.mark.parametrize(("name", "version"), CASES)
def test_golden_files(name: str, version: str) -> None:
    rendered = framework(name).render(golden_launch(name), version)
    # not as .py: golden files are data, which no formatter touches
    files = {file + ".txt" * file.endswith(".py"): text for file, text in rendered.items()}
    folder = GOLDEN / f"{name}-{version}"
    if os.environ.get("PLANNER_WRITE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    assert {path.name for path in folder.iterdir()} == set(files)
    for file, text in files.items():
        assert (folder / file).read_text(encoding="utf-8") == text, file


@pytest.mark.parametrize(("name", "version"), CASES)
def test_option_table_is_a_parsers(name: str, version: str) -> None:
    table = option_table(name, version)
    assert len(table) >= 25
    kinds = {option.type.removesuffix("*") for option in table.values()}
    assert kinds <= {"flag", "int", "float", "str", "bool"}


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="torchtitan"):
        framework("torchtitn")
    with pytest.raises(UnknownNameError, match=r"0\.18\.2"):
        framework("megatron").version("0.18")


def test_a_framework_rule_replaces_the_generic_one() -> None:
    stack = problem("llama-3.1-8b", "torchtitan-2026").stack
    rules = rules_for(stack)
    assert len({rule.id for rule in rules}) == len(rules)
    kv = next(rule for rule in rules if rule.id == "kv-heads-tp")
    assert "torchtitan" in kv.source
    assert framework_of_stack("hai-llm") is None
    assert {rule.id for rule in rules} <= {rule.id for rule in all_rules_for("torchtitan")}

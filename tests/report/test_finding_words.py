"""Every finding that is made has words, every word is of a finding that is made, in all dialects."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.answer.answerer import NOT_MODELLED
from planner.api import estimate
from planner.cli.serve import ON_PAGE
from planner.cli.sweep_workers import IN_FILE
from planner.dialect import Dialect, as_keyword, in_words, on_command_line, option
from planner.errors import FileInputError, InputError
from planner.report.words import WORDS, line_of, text_of, worded
from planner.report.words.template import Template, phrase
from planner.spec.findings import Change, Effect, Finding, Stored, finding
from planner.spec.load_finding_codes import CODES, TEXT
from planner.spec.load_plan import parse_plan, plan_json
from planner.spec.planfile import Plan

PACKAGE = Path(planner.__file__).parent


def made(tree: ast.AST) -> Iterator[str]:
    """Codes of the findings that a module makes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "finding":
            codes = [one for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]
            yield from (one.value for one in codes if isinstance(one.value, str))


def left_out() -> set[str]:
    return {f"left_out_{what}" for what in NOT_MODELLED}


def test_every_code_is_made_and_has_words_and_units() -> None:
    codes = {code for path in PACKAGE.rglob("*.py") for code in made(ast.parse(path.read_text("utf-8")))}
    codes = codes - {"left_out_"} | left_out()
    assert codes == set(CODES) - {TEXT} == set(WORDS)


def test_templates_name_values_of_their_codes() -> None:
    for code, words in WORDS.items():
        if isinstance(words, Template):
            texts = [words.text, *(text for table in words.tables.values() for text in table.values())]
            named = {name for text in texts for name in re.findall(r"\{(\w+)", text)} | words.tables.keys()
            assert named <= CODES[code].keys() | {"change", "to", "fit"}, code


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{size:capacity} in {time:time}, {share:.0%}, {several: or }", "1 GiB in 2 s, 25%, a or b"),
        ("{size:capacity}[ of {limit:capacity}][, {share:percent}]", "1 GiB, 25.0 %"),
        ("{kind}; {other}", "words of one, 2 s; other"),
        ("{--set=tp=1} or {--mtp}", "--set tp=1 or --mtp"),
        ("{to} by {change}", "fp8 by --precision fp8"),
    ],
)
def test_a_template_is_filled_in(text: str, said: str) -> None:
    values: dict[str, Stored] = {
        "size": 2.0**30, "time": 2.0, "share": 0.25, "several": ["a", "b"], "kind": "one", "other": "other",
    }  # fmt: skip
    tables = {"kind": {"one": "words of one, {time:time}"}, "other": {"one": "words"}}
    found = Finding(code=TEXT, values=values, change=Change(option="precision", value="fp8"))
    assert in_words(phrase(Template(text, tables), found)) == said


def test_a_finding_has_the_values_of_its_code() -> None:
    with pytest.raises(AssertionError):
        finding("more_devices", sequences=8)
    assert finding("more_devices", devices=8, batch=None).values == {"devices": 8}


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        (on_command_line, "--precision fp8 --stack a+b"),
        (as_keyword, "precision='fp8' stack='a+b'"),
        (IN_FILE, "precision: fp8 stack: a+b"),
        (ON_PAGE, "precision: fp8 software: a+b"),
    ],
)
def test_a_change_in_every_dialect(dialect: Dialect, said: str) -> None:
    change = Change(option="precision", value="fp8", also=Change(option="stack", value="a+b"))
    effect = Effect(quantity="step_time", share=-0.25)
    found = finding(
        "untried_option", change, effect, precision="fp8", options=["b"], meanings=["b's meaning"], needs=["c"],
        numerics=True,
    )  # fmt: skip
    text = f"GEMMs in fp8 and b (b's meaning) would cut the step time by 25%: {said}, if c is installed"
    assert worded((found,), dialect)[0].text == f"{text} (a choice of numerics)"


def test_a_whole_answer_is_worded(example_plan: Plan) -> None:
    least = finding("least_memory", configuration="tp8", of_those_seen=False, over=2.0**30)
    fits = Effect(quantity="verdict", before="does_not_fit", after="fits")
    free = finding("axis_free", Change(option="set"), fits, axis="tp", configuration="tp4")
    helps = (least, free, Finding(code=TEXT, text=f"a sentence, {option('gpus', 8)}"))
    plan = example_plan.model_copy(update={"smallest_change": helps})
    said = worded(plan, as_keyword).smallest_change
    assert [one.text for one in said[1:]] == ["this would fit: leave tp free (tp4)", "a sentence, gpus=8"]
    assert text_of(least) == said[0].text
    assert line_of(said).startswith(
        "even the configuration that needs least memory (tp8) exceeds the limit by 1 GiB per device; this would fit: "
    )
    again = Plan.model_validate_json(worded(plan).model_dump_json(), strict=True)
    assert again == worded(plan)


def test_what_stands_in_two_places_is_one_afterwards(example_plan: Plan) -> None:
    """As the knee of a curve, which is a size of it."""
    plan = example_plan.model_copy(update={"smallest_change": (finding("nothing_makes_fit"),)})
    first, (second,) = worded((plan, (plan,)))
    assert first is second
    assert first is not plan


def test_python_gets_its_own_words() -> None:
    plan = estimate("llama-3.2-1b", "1x8 h100", set={"tp": 2})
    (found,) = (one for one in plan.smallest_change if one.change and one.change.option == "precision")
    assert found.text.endswith(": precision='fp8' (a choice of numerics)")
    refused = estimate("llama-3.2-1b", "1x8 h100", set={"tp": 3}, mtp=False)
    assert not any("--" in broken.hint for broken in refused.violations)


def findings(value: object) -> Iterator[dict[str, Any]]:
    """Those of a plan's JSON."""
    if isinstance(value, dict) and "code" in value:
        yield value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inside:
        yield from findings(one)


@pytest.mark.parametrize(
    "changes", [{"code": "of_another_release"}, {"values": {}}, {"values": {"x": [1]}}], ids=str
)
def test_a_file_whose_findings_are_others_is_told_as_it_was(changes: dict[str, Any]) -> None:
    """Of another release, or changed by hand."""
    document = json.loads(plan_json(estimate("gpt2", "1x8 h100", tokens="1B")))
    for one in findings(document):
        one |= changes
    read = worded(parse_plan(json.dumps(document), "plan.json"), as_keyword)
    assert [one["text"] for one in findings(json.loads(plan_json(read)))] == [
        one["text"] for one in findings(document)
    ]


def test_findings_of_a_file_have_words() -> None:
    document = json.loads(plan_json(estimate("gpt2", "1x8 h100")))
    document["assumptions"][0] |= {"text": "", "values": {}}
    with pytest.raises(InputError, match="a finding must have a known code"):
        worded(parse_plan(json.dumps(document), "plan.json"))
    for key in ("assumptions", "not_modelled", "notes"):  # of files of schema 1, too
        with pytest.raises(FileInputError, match=key):
            parse_plan(json.dumps(document | {"assumptions": [], key: [""]}), "plan.json")

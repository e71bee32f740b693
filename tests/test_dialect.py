"""Options that errors name are said in the words of where the question was asked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import planner
from planner.ask.option import options_of
from planner.ask.question import ComparisonQuestion, Question, SearchQuestion, SizeQuestion
from planner.cli.serve import ON_PAGE
from planner.dialect import Dialect, as_key, as_keyword, in_words, on_command_line, option
from planner.errors import InputError


@pytest.mark.parametrize(
    ("dialect", "name", "value", "said"),
    [
        (on_command_line, "seq_len", 8192, "--seq-len 8192"),
        (on_command_line, "mtp", "", "--mtp"),
        (on_command_line, "set", "pp=8,16", "--set pp=8,16"),
        (on_command_line, "assume", "price=2.50 $/h", "--assume 'price=2.50 $/h'"),
        (on_command_line, "stack", "megatron-2026+te-2.17", "--stack megatron-2026+te-2.17"),
        (as_keyword, "gpus", 8, "gpus=8"),
        (as_keyword, "tokens", "15.6T", "tokens='15.6T'"),
        (as_keyword, "set", "pp=8,16", "set={'pp': '8,16'}"),
        (as_keyword, "set", "cp_kind=...", "set={'cp_kind': ...}"),
        (as_keyword, "assume", "price=2.50 $/h", "assume={'price': '2.50 $/h'}"),
        (as_key, "set", "tp=8,16", "set: {tp: [8,16]}"),
        (as_key, "seq_len", 4096, "seq_len: 4096"),
        (as_key, "assume", "pue=1.2", "assume: [pue=1.2]"),
        (ON_PAGE, "gpus", 8, "GPUs: 8"),
        (ON_PAGE, "set", "cp_kind=a2a", "only: cp_kind=a2a"),
        (ON_PAGE, "set", "", "only"),
        (ON_PAGE, "lora_rank", 16, "LoRA rank: 16"),
        (ON_PAGE, "calibration", "ours.yaml", "--calibration ours.yaml"),  # which the form lacks
    ],
)
def test_an_option_in_every_dialect(dialect: Dialect, name: str, value: object, said: str) -> None:
    assert in_words(f"add {option(name, value)}, say.", dialect) == f"add {said}, say."


def test_options_of_other_software_have_one_name() -> None:
    text = "with --optimizer-cpu-offload, --seq-len 4096 of Megatron-LM <i style='--bar: 3'>"
    assert in_words(text, as_keyword) == text


def test_errors_are_in_words_of_the_command_line_until_they_are_told_otherwise() -> None:
    error = InputError(f"{option('gpus')} must be one number", "", f"add {option('gpus', 8)}")
    assert str(error) == "--gpus must be one number\n  hint: add --gpus 8"
    error.say_in(as_keyword)
    assert (error.must, error.hint) == ("gpus must be one number", "add gpus=8")
    assert str(error) == "gpus must be one number\n  hint: add gpus=8"


def test_python_is_told_keywords() -> None:
    with pytest.raises(planner.InputError) as refused:
        planner.plan("llama-3.2-1b", "dgx-h100")
    assert refused.value.hint == "add gpus=8"
    assert str(refused.value).endswith("hint: add gpus=8")
    with pytest.raises(planner.PlannerError, match=r"^max_gpus must be at least"):
        planner.size("llama-3.2-1b", "dgx-h100", max_gpus=7, days=9, tokens="1T")


def test_errors_are_at_hand() -> None:
    assert planner.InputError is InputError
    assert issubclass(planner.InputError, planner.PlannerError)


KINDS = (Question, SearchQuestion, SizeQuestion, ComparisonQuestion)
NAMES = {name.replace("_", "-") for kind in KINDS for name in options_of(kind)}
LONGEST_FIRST = sorted(NAMES, key=len, reverse=True)
PLAIN = re.compile(
    rf"(?<!\.\.\. )--({'|'.join(LONGEST_FIRST)})\b(?!-)"
    rf"|(?<![\w-])({'|'.join(name for name in LONGEST_FIRST if '-' in name)})\b(?!-)"  # no words of English
)
COMMANDS = re.compile(
    r"\A\x08\nExample|\A# |planner estimate PLAN\.json --"
)  # to be pasted, and heads of files
FOLDERS = (
    "answer",
    "ask",
    "calibrate",
    "campaign",
    "catalog",
    "cost",
    "report",
    "schedule",
    "solve",
    "space",
    "spec",
)
CHECKS = ("cli/check.py", "cli/files.py")  # the other verbs of the command line speak its words alone


def plain_options(source: str) -> list[str]:
    """Texts that name an option of a question without a mark; docstrings and examples may."""
    tree = ast.parse(source)
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped |= {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "description"
    }  # of fields of a plan, which say what the command line calls it
    texts = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in skipped
    ]
    return [t for t in texts if isinstance(t, str) and PLAIN.search(t) and not COMMANDS.search(t)]


def test_options_are_marked_where_a_text_names_them() -> None:
    package = Path(planner.__file__).parent
    paths = [
        *(path for part in FOLDERS for path in (package / part).rglob("*.py")),
        *(package / p for p in CHECKS),
    ]
    assert {path: found for path in paths if (found := plain_options(path.read_text("utf-8")))} == {}
    words = (package / "report/words/words.json").read_text("utf-8")
    assert not PLAIN.search(words.replace("{--", "{"))


def test_an_option_without_a_mark_is_seen() -> None:
    assert plain_options('raise InputError("--mtp needs a model")')
    assert plain_options('raise InputError("lora-rank must be above 0")')
    assert plain_options('hint = f"name it with --cluster {name}"')
    assert not plain_options('axis: str = Field(description="as --set names it")')
    assert not plain_options('"""As `--set` takes it."""\nwhy = "--optimizer-cpu-offload"')

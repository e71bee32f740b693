"""The core finds codes and numbers; nothing takes sentences apart, and sentences are made where they are shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import planner

PACKAGE = Path(planner.__file__).parent
CORE = ("cost", "solve", "space")
# what errors are made of
NAMES_OF_ERRORS = {"must", "hint", "given", "example", "what", "why"}
ERRORS = {
    "InputError",
    "UnknownNameError",
    "UnsupportedError",
    "parse_count",
    "SetSolverSpecificParametersAsString",
}
READS_OTHERS = ("frameworks", "logs", "published", "hf")  # text that other software or people wrote
PARSED = (
    re.compile(r"split\(\"; or \"\)"),
    re.compile(r"[\"A-Z] in (said|note|sentence)\b"),  # a test of words within a sentence
    re.compile(r"\b(said|note|sentence)\.(startswith|endswith|removeprefix|partition)\("),
    re.compile(r"re\.\w+\(r?f?\"[^\"]*--"),  # a search for options
    re.compile(r"\b(must|hint|reason)\.(startswith|endswith|removeprefix|removesuffix|partition)\("),
)


def sources(*parts: str) -> list[Path]:
    return sorted(path for part in parts for path in (PACKAGE / part).rglob("*.py"))


def parses(text: str) -> list[str]:
    """Lines that take a sentence apart."""
    return [line for line in text.splitlines() if any(found.search(line) for found in PARSED)]


def test_no_sentence_is_taken_apart() -> None:
    paths = [path for path in sources("") if not set(READS_OTHERS) & set(path.parts)]
    assert {path: found for path in paths if (found := parses(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "line",
    [
        'helps = change.split("; or ")',
        'kept = [line for note in notes if "defaults used" in note]',
        "held = TOKENS_MEANT in said",
        'if said.startswith("planner export cannot"):',
        "said = error.must.removeprefix(name)",
        '_OPTION = re.compile(rf"--([a-z]+)")',
    ],
)
def test_a_sentence_taken_apart_is_seen(line: str) -> None:
    assert parses(line) == [line]


def sentences(tree: ast.Module) -> Iterator[str]:
    """Literals with a space that are no docstrings and no part of an error, an assertion or a rule."""
    allowed = {id(part) for node in ast.walk(tree) if _allowed(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in allowed else None
        if isinstance(text, str) and re.search(r"\w \w", text):
            yield f"{text}"


def _allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):  # a docstring
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Raise | ast.Assert):
        return True
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return called in ERRORS
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return bool(names) and names <= NAMES_OF_ERRORS


@pytest.mark.parametrize(
    "path", [path for path in sources(*CORE) if not path.stem.endswith("rules")], ids=lambda path: path.stem
)
def test_sentences_of_the_core_are_rules_errors_and_docstrings(path: Path) -> None:
    assert list(sentences(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def f():\n    """A docstring."""\n    return "two words"', 1),
        ('def f(n):\n    return f"so many words: {n}"', 1),
        ('def f():\n    raise InputError("it must hold", hint="do that")', 0),
        ('def f():\n    must, hint = "it must hold", "do that"\n    assert f, "it is so"', 0),
        ('A = "snake_case"', 0),
    ],
)
def test_a_sentence_is_seen(source: str, found: int) -> None:
    assert len(list(sentences(ast.parse(source)))) == found

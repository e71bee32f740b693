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
    cut = {path: found for path in paths if (found := sorted({*cuts(path.read_text(encoding="utf-8"))}))}
    assert {path.relative_to(PACKAGE).as_posix(): found for path, found in cut.items()} == OF_OTHERS


CUT = {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix",
       "replace", "find", "rfind", "index"}  # fmt: skip
IN_SENTENCES = re.compile(r"[a-z]{2} [a-z]|[,;:.] |\A [a-z]|[a-z] \Z")
OF_OTHERS = {
    "catalog/load_links.py": ["amd "],  # of a device's name, as NCCL's tables write it
    "errors.py": ["Input should be ", "Value error, "],  # pydantic's
    "report/html.py": [": "],  # of a chart's label, which its table shows in two columns
    "report/listings_text.py": [", "],  # of a stack's masks, flattened to a row
}


def cuts(source: str) -> Iterator[str]:
    """What text is searched or taken apart for and only sentences have: a space beside a word or a stop."""
    tree = ast.parse(source)
    named = dict(pair for node in tree.body for pair in _texts(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUT:
            sought = node.args[:1]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            sought = [node.left]
        else:
            continue
        for one in sought:
            text = named.get(one.id, "") if isinstance(one, ast.Name) else getattr(one, "value", "")
            if isinstance(text, str) and IN_SENTENCES.search(text):
                yield text


def _texts(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Names that a module gives texts, and these."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
    pairs = zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]
    for name, value in pairs:
        if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield name.id, value.value


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('must, _, values = reason.rpartition("; ")', ["; "]),
        ('names, colon, runs = stack.fitted.partition(": on ")', [": on "]),
        ('told = [m.removeprefix("must be ") for m in here]', ["must be "]),
        ('if "too slow" in error.hint: pass', ["too slow"]),
        ('text.split(", ")', [", "]),
        ('HEAD = "must be "\nmust.removeprefix(HEAD)', ["must be "]),
        ('name.split("-"); "tp" in restrict; text.partition("="); text.replace("_", " ")', []),
    ],
)
def test_a_cut_is_seen(line: str, found: list[str]) -> None:
    assert [*cuts(line)] == found


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

"""What is said of an answer, in words: of each finding by its code, of a whole answer in the words of who asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter

from planner.dialect import Dialect, in_words, on_command_line
from planner.errors import InputError
from planner.report.words import assumed, changes, headline, reasons
from planner.report.words.template import Template, Words, phrase
from planner.spec.findings import Finding
from planner.spec.load_finding_codes import TEXT


def _templates() -> dict[str, Template]:
    """Code -> its words, where they are a template: `words.json` has them by what they are about."""
    text = Path(__file__).with_name("words.json").read_bytes()
    sections = TypeAdapter(dict[str, dict[str, Template | str]]).validate_json(text).values()
    every = [item for section in sections for item in section.items()]
    return {code: Template(words) if isinstance(words, str) else words for code, words in every}


WORDS: Final[Mapping[str, Words]] = {
    **headline.WORDS, **changes.WORDS, **reasons.WORDS, **assumed.WORDS, **_templates(),
}  # fmt: skip
Answer = TypeVar("Answer")


def text_of(found: Finding) -> str:
    """A finding in words: those that it has, else those of the command line."""
    return found.text or in_words(_marked(found))


def _marked(found: Finding) -> str:
    """A finding in words, options marked. One of a file stays as it was said there where its code is not known, as of
    another release, or has other values. Raises `InputError` where it was not said."""
    if found.code == TEXT:
        return found.text
    try:
        return phrase(WORDS[found.code], found)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if found.text:
            return found.text
        raise InputError(
            f"a finding must have a known code, with its values: {found.code}", repr(error)
        ) from error


def texts(found: Iterable[Finding]) -> tuple[str, ...]:
    """Findings in words."""
    return tuple(text_of(one) for one in found)


_BEHIND: Final[Mapping[str, str]] = {
    "no_legal_split": "; would help: ", "nothing_fits": ": ", "size": ": ", "least_memory": "; ",
}  # fmt: skip


def line_of(found: Iterable[Finding]) -> str:
    """Why there is no answer and what would help, of which one is enough, in one line."""
    said = between = ""
    for one in found:
        said, between = said + between + text_of(one), _BEHIND.get(one.code, "; or ")
    return said


def dumped(found: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as plain data."""
    return [{**one.model_dump(), "text": text_of(one)} for one in found]


def worded(answer: Answer, dialect: Dialect = on_command_line) -> Answer:
    """The answer with the text of every finding in it, and with every option that it names in a dialect's words; what
    stands in several places of it is one there as before."""
    said: Answer = _worded(answer, dialect, {})
    return said


def _worded(value: Any, dialect: Dialect, seen: dict[int, Any]) -> Any:
    if isinstance(value, str):
        return value if type(value) is not str else in_words(value, dialect)
    if isinstance(value, tuple) and type(value) is tuple:
        inner = tuple(_worded(one, dialect, seen) for one in value)
        return inner if any(a is not b for a, b in zip(inner, value, strict=True)) else value
    if not isinstance(value, BaseModel) and (not is_dataclass(value) or isinstance(value, type)):
        return value
    if id(value) not in seen:
        seen[id(value)] = _record(value, dialect, seen)
    return seen[id(value)]


def _record(value: Any, dialect: Dialect, seen: dict[int, Any]) -> Any:
    if isinstance(value, Finding):
        text = _marked(value)
        values = {name: _worded(one, dialect, seen) for name, one in value.values.items()}
        return value.model_copy(update={"values": values, "text": in_words(text, dialect)})
    names = type(value).model_fields if isinstance(value, BaseModel) else [one.name for one in fields(value)]
    held = {name: getattr(value, name) for name in names}
    new = {name: said for name, one in held.items() if (said := _worded(one, dialect, seen)) is not one}
    if not new:
        return value
    return value.model_copy(update=new) if isinstance(value, BaseModel) else replace(value, **new)

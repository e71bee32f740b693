"""What does one word of a program with Transformers' Trainer say: is a flag set, which number is it?

Left out: what the words mean (`trainer.py`, `adapters.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import InputError
from planner.frameworks.shell.script import whole
from planner.frameworks.shell.unset import how_to_set

Words = Mapping[str, list[str]]


def first_word(words: Words, names: tuple[str, ...]) -> str:
    """The value of the first of `names` that has one; empty where none has."""
    return next((words[name][0] for name in names if words.get(name)), "")


def number(words: Words, name: str) -> int | None:
    """A whole number; None where the word is absent or is none. Raises `InputError` for one that no file sets."""
    text = first_word(words, (name,))
    if set("$`") & set(text):
        raise InputError(f"--{name} must be a whole number", text[:80], how_to_set(text))
    return whole(text)


def is_on(words: Words, name: str) -> bool:
    """Is a flag set? Alone, or with a value that hf_argparser.py string_to_bool takes for true, or a number above 0."""
    value = (words.get(name) or [""])[0].lower()
    return name in words and (value in ("", "true", "yes", "y", "t", "1") or bool(whole(value)))

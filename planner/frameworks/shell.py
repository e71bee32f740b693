"""Which options does a user's launch script pass? Reads plain words, or a bash script that builds them.

Understands assignments, arrays, +=, $NAME, ${NAME}, ${NAME:-default} and line continuations, which is what
launch scripts are made of. Left out: everything else a shell can do (loops, conditions, substitutions); words
that need it stay as they are. Nothing is ever executed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final

_ASSIGNMENT: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_ARRAY: Final = re.compile(r"\"?\$\{(\w+)\[[@*]\]\}\"?")
_LARGEST: Final = 2_000_000  # characters


def script_words(text: str) -> tuple[list[str], dict[str, str]]:
    """The words of all commands of a script, variables filled in, and its variables as text."""
    variables: dict[str, str] = {}
    words: list[str] = []
    for statement in _statements(text[:_LARGEST]):
        match = _ASSIGNMENT.fullmatch(statement.strip())
        if match is None:
            words += _split(_expand(statement, variables))
            continue
        name, plus, value = match.groups()
        value = value.strip()
        inner = value[1:-1] if value.startswith("(") and value.endswith(")") else value
        tokens = _words(inner)
        if value.startswith("(") or len(tokens) <= 1:
            plain = inner if value.startswith("(") else (tokens[0] if tokens else "")
            filled = _expand(plain, variables)
            if value.startswith("("):
                filled = " ".join(filled.split())
            variables[name] = (variables.get(name, "") + " " + filled).strip() if plus else filled
        else:  # NAME=value command ...: the variable is for that command alone
            words += tokens[1:]
    return words, variables


def options_of(text: str) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Options (--name and its words) of a script or of plain words, and the variables that were set.

    Options that no command uses (an array that is only assigned) count too, after the used ones.
    """
    words, variables = script_words(text)
    options = list(group_options(words))
    if not options:
        for value in variables.values():
            options += group_options(_split(value))
    return options, variables


def group_options(words: Iterable[str]) -> list[tuple[str, ...]]:
    """Words gathered behind the option that precedes them; `--name=value` is split."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            options.append([name, value] if equals else [name])
        elif options:
            options[-1].append(word)
    return [tuple(option) for option in options]


def _statements(text: str) -> list[str]:
    """Statements of a script: split at line ends and semicolons that are neither quoted nor inside parentheses."""
    statements: list[str] = []
    current, quote, depth, skip = "", "", 0, False
    for letter in text.replace("\\\r\n", " ").replace("\\\n", " ") + "\n":
        if skip:
            skip = letter != "\n"
        if skip:
            continue
        if quote:
            escaped = quote == '"' and current.endswith("\\")
            quote = "" if letter == quote and not escaped else quote
        elif letter in "\"'" and not current.endswith("\\"):
            quote = letter
        elif letter == "#" and (not current or current[-1].isspace()):
            skip = True
            continue
        elif letter in "()":
            depth = max(depth + (1 if letter == "(" else -1), 0)
        elif letter in "\n;" and depth == 0:
            statements.append(current.strip())
            current = ""
            continue
        current += letter
    return [statement for statement in [*statements, current.strip()] if statement]


def _expand(text: str, variables: dict[str, str]) -> str:
    """Variables replaced by their values, to a small depth; unknown ones stay."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in variables:
            return variables[name]
        return match[2] if match[2] is not None else match[0]

    for _ in range(8):
        # an array stands for its words with their own quotes
        filled = _ARRAY.sub(lambda match: variables.get(match[1], match[0]), text)
        filled = _VARIABLE.sub(value, filled)
        if filled == text or len(filled) > _LARGEST:
            break
        text = filled
    return text


def _words(text: str) -> list[str]:
    """Words of a line; text that no shell could split is split at spaces."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _split(text: str) -> list[str]:
    """Words of a line, those of a quoted group of options apart."""
    return [part for word in _words(text) for part in (word.split() if " --" in f" {word}" else [word])]

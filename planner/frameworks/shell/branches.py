"""Which statements of a shell script run? Follows if, elif, else, case and loops as far as their conditions are known.

Conditions are tests of strings and whole numbers; files named in one are taken to exist. A branch whose condition is
not known runs, and so do the others of its `if`. Left out: running anything.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final

from planner.errors import InputError

_ARITHMETIC: Final = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
_SHELL_COMPARISONS: Final = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_SIGNS: Final = ("=", "==", "!=")
_PATTERN: Final = re.compile(r"\(?\s*([^()\s][^()]*?)\s*\)\s*(.*)", re.DOTALL)
_MOST_WORDS: Final = 200  # of a condition
_DEEPEST: Final = 200  # blocks within each other
_LARGEST_NUMBER: Final = 10**12


def arithmetic(text: str) -> int | None:
    """The value of a shell's whole-number expression such as 8*4 or (2+1)/3; None where it is not one."""
    try:
        return _number(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_number(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SHELL_COMPARISONS:
        compare = _SHELL_COMPARISONS[type(node.ops[0])]
        value = int(compare(_number(node.left), _number(node.comparators[0])))
    else:
        raise ValueError("not arithmetic")
    if abs(value) > _LARGEST_NUMBER:
        raise ValueError("too large")
    return value


def truth(condition: str) -> bool | None:
    """Does a condition hold whose variables are filled in? None where that cannot be said."""
    try:
        words = shlex.split(condition)
    except ValueError:
        return None
    if len(words) > _MOST_WORDS:
        return None
    whole = words[:1] == ["[["] and "]]" not in words[:-1]  # joints within one test
    for joint, decide in (("||", any), ("&&", all)):
        if joint in words:
            at = words.index(joint)
            left, right = words[:at], words[at + 1 :]
            if whole:
                left, right = [*left, "]]"], ["[[", *right]
            sides = [truth(shlex.join(left)), truth(shlex.join(right))]
            settled = decide is any
            if settled in sides:
                return settled
            return None if None in sides else not settled
    if words[:1] == ["!"]:
        inside = truth(shlex.join(words[1:]))
        return None if inside is None else not inside
    if condition.startswith("((") and condition.endswith("))"):
        value = arithmetic(condition[2:-2])
        return None if value is None else value != 0
    if len(words) < 2 or (words[0], words[-1]) not in (("[", "]"), ("[[", "]]")):
        return None
    test = words[1:-1]
    if (
        len(test) == 2 and test[0] in _SIGNS
    ):  # of an empty variable without quotes, which [ takes for an error
        return words[0] == "[[" and _test(["", *test])
    return _test(test)


def _test(words: list[str]) -> bool | None:
    if words[:1] == ["!"]:
        inside = _test(words[1:])
        return None if inside is None else not inside
    if any("$" in word or "`" in word for word in words):
        return None
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2:
        flag, text = words
        known = {"-n": bool(text), "-z": not text}
        return True if flag in ("-f", "-d", "-e", "-r", "-s", "-x") else known.get(flag)
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "=="):
        return fnmatchcase(left, right)
    if sign == "!=":
        return not fnmatchcase(left, right)
    if sign in _COMPARISONS:
        numbers = arithmetic(left), arithmetic(right)
        if numbers[0] is not None and numbers[1] is not None:
            return _COMPARISONS[sign](numbers[0], numbers[1])
    return None


class Branches:
    """The blocks a statement lies in. `enter(statement, filled)` answers with what of it runs, empty for nothing."""

    def __init__(self) -> None:
        # (kind, does this part run?, has an earlier part surely run?, text that case compares)
        self.blocks: list[tuple[str, bool, bool, str]] = []
        self.loops: list[str] = []  # NAME=value of the first round, of loops that have more
        self.conditions: list[
            str
        ] = []  # of those not known to hold that have other branches, all of which are read
        self._open_conditions: list[str] = []  # of every block, "" for a known one and for no condition

    @property
    def running(self) -> bool:
        return all(runs for _, runs, _, _ in self.blocks)

    def enter(self, statement: str, fill: Callable[[str], str]) -> str:
        """Follow a statement; `fill` puts values for its variables, nothing for unknown ones."""
        head, _, rest = statement.partition(" ")
        rest = rest.strip()
        if head in ("if", "while", "until", "for", "case", "select"):
            self._open(head, rest, fill)
            return self._first_round(rest, fill) if head == "for" and self.running else ""
        if not self.blocks:
            return statement
        kind, _, done, text = self.blocks[-1]
        if head in ("fi", "done", "esac"):
            self.blocks.pop()
            self._open_conditions.pop()
            return ""
        if head in ("elif", "else") and all(runs for _, runs, _, _ in self.blocks[:-1]):
            self.conditions += [condition for condition in (self._open_conditions[-1],) if condition]
            self._open_conditions[-1] = ""
        if head == "elif":
            holds = None if done is False else False
            holds = truth(fill(rest)) if holds is None else False
            self.blocks[-1] = (kind, holds is not False, done or holds is True, text)
            return ""
        if head in ("then", "do", "else"):
            if head == "else":
                self.blocks[-1] = (kind, not done, True, text)
            return self.enter(rest, fill) if rest else ""
        if kind == "case" and (match := _PATTERN.fullmatch(statement)):
            return self._case(match[1], match[2], fill)
        return statement if self.running else ""

    def _open(self, head: str, rest: str, fill: Callable[[str], str]) -> None:
        if len(self.blocks) >= _DEEPEST:
            must = f"blocks of a script (if, case, for) must lie at most {_DEEPEST} deep within each other"
            raise InputError(
                must, "more", "give the arguments themselves, without the script that builds them"
            )
        self._open_conditions.append(rest if head == "if" and truth(fill(rest)) is None else "")
        if head == "case":
            words = fill(rest.removesuffix("in")).split()
            self.blocks.append((head, False, False, words[0].strip("\"'") if words else ""))
        elif head == "if":
            holds = truth(fill(rest))
            self.blocks.append((head, holds is not False, holds is True, ""))
        else:  # a loop over the arguments of the script runs no time; another once
            self.blocks.append((head, head in ("for", "select"), False, ""))

    def _first_round(self, rest: str, fill: Callable[[str], str]) -> str:
        """The assignment of a loop's first round; empty where its words are not known."""
        name, _, listed = rest.partition(" in ")
        try:
            words = shlex.split(fill(listed))
        except ValueError:
            return ""
        if not words or not name.strip().isidentifier() or any(mark in words[0] for mark in "$`{*"):
            return ""
        first = f"{name.strip()}={words[0]}"
        self.loops += [first] if len(words) > 1 else []
        return f"{name.strip()}={shlex.quote(words[0])}"

    def _case(self, patterns: str, rest: str, fill: Callable[[str], str]) -> str:
        kind, _, done, text = self.blocks[-1]
        alternatives = [fill(p.strip()).strip("\"'") for p in patterns.split("|")]
        runs = not done and any(fnmatchcase(text, pattern) for pattern in alternatives)
        self.blocks[-1] = (kind, runs, done or runs, text)
        return self.enter(rest, fill) if rest and runs else ""

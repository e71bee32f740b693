"""Is YAML of the user's read strictly, whatever it holds?"""

from __future__ import annotations

import pytest

from planner.errors import FileInputError
from planner.spec.load_yaml import parse_yaml

BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: 1\nname: 2", "given twice"),
        ("a: &a [*a]", "as often as aliases repeat them"),
        (BOMB, "as often as aliases repeat them"),
        ("[" * 1000, "levels deep"),
        ("3", "a number"),
    ],
)
def test_what_is_no_mapping_is_refused(text: str, said: str) -> None:
    with pytest.raises(FileInputError, match=said):
        parse_yaml(text, "own.yaml")


def test_an_alias_is_read() -> None:
    assert parse_yaml("a: &a [1]\nb: *a", "own.yaml") == {"a": [1], "b": [1]}

"""Are planner's frozen dataclasses like those of the standard library, and only made sooner?"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
import typing
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

import planner
from planner import records
from planner.spec.config import ParallelConfig

PACKAGE = Path(planner.__file__).parent
Decorator = Callable[..., Any]


def point(decorator: Decorator) -> Any:
    @decorator(frozen=True)
    class Point:
        """A value with every kind of field in use."""

        x: int
        label: str = "here"
        parts: dict[str, int] = field(default_factory=dict, hash=False)
        source: str = field(default="", compare=False, repr=False)

        @property
        def twice(self) -> int:
            return 2 * self.x

    return Point


def checked(decorator: Decorator) -> Any:
    @decorator(frozen=True)
    class Checked:
        """A value that refuses some."""

        count: int

        def __post_init__(self) -> None:
            if self.count < 0:
                raise ValueError("no fewer than none")

    return Checked


@pytest.fixture(params=[dataclasses.dataclass, records.dataclass], ids=["standard", "planner"])
def decorator(request: pytest.FixtureRequest) -> Decorator:
    return typing.cast(Decorator, request.param)


def test_values_are_made_shown_and_told_apart(decorator: Decorator) -> None:
    made = point(decorator)
    one = made(1)
    assert (one.x, one.label, one.parts, one.source, one.twice) == (1, "here", {}, "", 2)
    assert repr(one).endswith("Point(x=1, label='here', parts={})")
    assert made(1, parts={"a": 1}) != one
    assert one == made(1, "here", source="elsewhere")
    assert one != made(2)
    assert one != (1, "here", {}, "")
    assert hash(one) == hash(made(1, parts={"a": 1}, source="elsewhere")) == hash((1, "here"))
    assert one.parts is not made(1).parts
    match one:
        case made(x, label):
            assert (x, label) == (1, "here")


def test_values_do_not_change(decorator: Decorator) -> None:
    one = point(decorator)(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del one.x
    assert dataclasses.replace(one, x=2).x == 2


def test_wrong_arguments_are_refused(decorator: Decorator) -> None:
    made = point(decorator)
    for arguments, named in (((), {}), ((1,), {"y": 2}), ((1, "a", {}, "", 5), {})):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            made(*arguments, **named)


def test_what_a_class_says_of_itself_counts(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, int)

        def __repr__(self) -> str:
            return "own"

    assert Own(1) == 5
    assert repr(Own(1)) == "own"
    assert hash(Own(1)) == hash((1,))

    @decorator(frozen=True, eq=False)
    class Alone:
        x: int

    one = Alone(1)
    assert one != Alone(1)
    assert hash(one) == object.__hash__(one)


def test_values_are_checked_when_they_are_made(decorator: Decorator) -> None:
    with pytest.raises(ValueError, match="no fewer"):
        checked(decorator)(-1)
    with pytest.raises(ValueError, match="no fewer"):
        dataclasses.replace(checked(decorator)(1), count=-1)


def test_a_class_adds_fields_to_those_of_another(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class More(point(decorator)):  # type: ignore[misc]
        y: int = 3

    more = More(1, y=4)
    assert [field.name for field in dataclasses.fields(More)] == ["x", "label", "parts", "source", "y"]
    assert (more.x, more.y, more.twice) == (1, 4, 2)
    assert more != point(decorator)(1)
    assert more == More(1, y=4)


def test_a_field_may_be_given_by_keyword_alone(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Named:
        x: int = 1
        kind: str = field(kw_only=True)
        y: int = 2

    assert Named(3, 4, kind="a") == Named(x=3, kind="a", y=4)
    assert list(inspect.signature(Named).parameters) == ["x", "y", "kind"]
    with pytest.raises(TypeError, match="kind"):
        Named(3)


def test_a_class_without_fields_has_one_value(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Nothing:
        """No fields."""

    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(())


def test_signatures_and_pickles() -> None:
    """Of a class at the top of a module."""
    assert list(inspect.signature(ParallelConfig).parameters) == [
        field.name for field in dataclasses.fields(ParallelConfig)
    ]
    hints = typing.get_type_hints(ParallelConfig.__init__)
    assert {hints.pop("return"), *hints.values()} == {type(None), int}
    config = ParallelConfig(tp=2)
    assert pickle.loads(pickle.dumps(config)) == config


def test_modules_take_dataclasses_from_here() -> None:
    """One of another kind could not be the base of one of these, and would be slow to make."""
    standard = re.compile(r"^from dataclasses import (?:[^\n(]*|\([^)]*)\bdataclass\b", re.MULTILINE)
    found = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if standard.search(path.read_text(encoding="utf-8")) and path.name != "records.py"
    ]
    assert found == []

"""What is said of an answer, before anyone puts it into words: a code, its values, what to change and what that does.

Findings are made where they are found; `planner.report.words` has the words for each code, in every dialect. Left out:
the codes and the units of their values (`finding_codes.json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from planner.errors import PlannerError
from planner.spec.load_finding_codes import CODES, TEXT
from planner.spec.record import Record

Stored = bool | int | float | str | list[int | float | str]  # as a plan file has it
Value = bool | int | float | str | Sequence[int | float | str]


class Change(Record):
    """What to change of the question."""

    option: str = Field(description="as a question names it, such as seq_len")
    value: Stored | None = Field(None, description="to what; several: any of these; none: leave it out")
    also: Change | None = Field(None, description="what to change together with it")

    def __iter__(self) -> Iterator[Change]:  # type: ignore[override]
        """It, and what goes together with it."""
        yield self
        yield from self.also or ()


class Effect(Record):
    """What a change does to a quantity."""

    quantity: str = Field(description="a field of a choice or of its memory, such as step_time")
    before: Stored | None = Field(None, description="in planner's inner units")
    after: Stored | None = Field(None, description="in planner's inner units")
    share: float | None = Field(None, description="by how much, negative for less [1]")


class Finding(Record):
    """One thing to say."""

    code: str = Field(description="what it is; `planner/spec/finding_codes.json` has all of them")
    values: dict[str, Stored] = Field(
        default_factory=dict, description="name -> number or short word, in the units of the code"
    )
    change: Change | None = Field(None, description="what would help")
    effect: Effect | None = Field(None, description="what that brings")
    text: str = Field("", description="in words, of where the question was asked")

    def __hash__(self) -> int:
        return hash(self.code)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class OrText:
    """Older files hold a sentence, which is made a finding; `several`: one or none of them, where now are several;
    `optional`: or an empty one, where now is none."""

    several: bool = False
    optional: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """What is written now, or a sentence."""
        text = core_schema.no_info_after_validator_function(self._read, core_schema.str_schema())
        return core_schema.union_schema([handler(source), text])

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What is written now, alone."""
        now: dict[str, Any] = handler(core)["anyOf"][0]
        return now

    def _read(self, text: str) -> Finding | tuple[Finding, ...] | None:
        if not text and not (self.several or self.optional):
            raise ValueError("must say something")
        found = Finding(code=TEXT, text=text) if text else None
        return tuple(filter(None, [found])) if self.several else found


Said = Annotated[Finding, OrText()]
Findings = Annotated[tuple[Said, ...], OrText(several=True)]


def one_line(found: Iterable[Finding]) -> str:
    """The texts of findings that have some, in one line."""
    return "; ".join(one.text for one in found if one.text)


def finding(
    code: str, change: Change | None = None, effect: Effect | None = None, /, **values: Value | None
) -> Finding:
    """A finding with those values that are not None. Its code is a known one that has such values."""
    held = {name: value for name, value in values.items() if value is not None}
    assert held.keys() <= CODES[code].keys(), (code, held)
    return Finding(code=code, values=held, change=change, effect=effect)


def refusal(error: PlannerError) -> Finding:
    """Why a question was refused."""
    return finding("refused", must=error.must, given=error.given or None, hint=error.hint or None)

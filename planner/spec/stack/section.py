"""What is a section of a stack file? A frozen set of named fields; times and sizes are written with their units.

Left out: the sections themselves (`spec/stack/`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from planner.errors import UnitError
from planner.units import parse_quantity


def quantity(kind: str) -> BeforeValidator:
    """A validator that reads "0.5 ms" or "0.75 GiB"; a bare number is refused."""

    def read(value: object) -> float:
        try:
            return parse_quantity(value if isinstance(value, str) else str(value), kind)
        except UnitError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


def of_a_kind(kinds: type[StrEnum]) -> BeforeValidator:
    """A validator that refuses a section whose `kind` is none of these."""

    def read(value: object) -> object:
        if isinstance(value, dict) and value.get("kind") not in [*kinds]:
            raise ValueError(f"its kind must be one of {', '.join(kinds)}")
        return value

    return BeforeValidator(read)


Seconds = Annotated[float, quantity("time")]
Bytes = Annotated[float, quantity("capacity")]


class Section(BaseModel):
    """Fields of one part of a stack."""

    model_config = ConfigDict(extra="forbid", frozen=True)

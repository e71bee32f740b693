"""Which options have the stacks of a framework? Reads `catalog/stack_options.json`.

An entry has a source where its fields have one. Left out: how options are named on a stack (`stack_options.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, field_validator

from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.engines import ENGINES, AnyEngine, EngineKind
from planner.spec.stack.kinds import Dispatcher


class OptionKind(StrEnum):
    """What turns an option on.

    SPEED: the same sums, taken in another time or memory: a search tries it. NUMERICS: other widths of what is kept,
    multiplied or sent: named with its gain, never taken unasked. FACT: what a release, a script or the data are like,
    which one has or has not.
    """

    SPEED = "speed"
    NUMERICS = "numerics"
    FACT = "fact"


class StackOption(BaseModel):
    """`fields`: section of a stack -> what the option replaces there. `meaning`: in a line. `kind`: what turns it on,
    `because` of this.

    `engine`: of the stacks that take it, any where None. `precisions`: recipes that it changes, all where empty.
    `since`, `until`: first and last release, as of a stack, that take it. `experts`: does it change mixtures of experts
    alone? `indexers`: models of sparse attention alone? `needed`: are other recipes refused with it? `dispatcher`: how
    tokens must reach their experts with it, any way where None. `needs`: what must be installed for it. `families`:
    of models that it changes, all where empty.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    frameworks: tuple[str, ...]
    engine: EngineKind | None = None
    since: str = ""
    until: str = ""
    precisions: tuple[Precision, ...] = ()
    experts: bool = False
    indexers: bool = False
    needed: bool = False
    dispatcher: Dispatcher | None = None
    needs: str = ""
    families: frozenset[str] = frozenset()
    kind: OptionKind
    because: str
    meaning: str
    source: str = ""
    fields: Mapping[str, Mapping[str, Any]]

    @field_validator("fields")
    @classmethod
    def _as_in_stacks(cls, stated: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        """The values as the sections of a stack, or of any engine that has them all, hold them."""
        found = {}
        for section, fields in stated.items():
            kinds: Any = ENGINES if section == "engine" else (Stack.model_fields[section].annotation,)
            kind = next((one for one in kinds if fields.keys() <= one.model_fields.keys()), kinds[0])
            read = kind.model_validate(fields)
            found[section] = {key: getattr(read, key) for key in fields}
        return found

    def fits(self, engine: AnyEngine) -> bool:
        """Is an engine one of those that take the option, and has it what that replaces?"""
        kind = self.engine in (None, engine.kind)
        return kind and self.fields.get("engine", {}).keys() <= type(engine).model_fields.keys()

    def same_fields(self, other: StackOption) -> bool:
        """Does it replace a field that the other one replaces?"""
        return any(self.fields[section].keys() & other.fields.get(section, {}) for section in self.fields)


OPTIONS: Final = TypeAdapter(tuple[StackOption, ...]).validate_json(
    (files("planner.catalog") / "stack_options.json").read_bytes()
)

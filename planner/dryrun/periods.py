"""Which of a model's equal periods of layers is an operation of, and which a block of memory?

An operation is of the period whose module runs it, else of the one whose tensors it takes or gives; a block is of the
period that made it. Left out: what is the same in all periods (`repeated.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

from planner.cost.captured.operation import Phase
from planner.dryrun.recording import Recording

PERIODS: Final = 4  # of a short model
_LONGEST: Final = 8  # layers in a period
_ROUNDS: Final = 4  # in which what is found of blocks tells more of operations


@dataclass(frozen=True)
class Stretch:
    """Layers of the list of modules `name` that are equal in periods of `length` layers, from layer `first` on."""

    name: str
    first: int
    length: int

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(?:^|(?<=\.)){re.escape(self.name)}\.(\d+)(?=\.|$)")

    def period(self, module: str) -> int | None:
        """Of the short model, in which period a module is; None where in none."""
        found = self._pattern.search(module)
        number = (int(found[1]) - self.first) // self.length if found else -1
        return number if 0 <= number < PERIODS else None

    def behind(self, module: str) -> bool:
        """Is a module in a layer behind all periods of the short model?"""
        found = self._pattern.search(module)
        return found is not None and int(found[1]) >= self.first + PERIODS * self.length

    def moved(self, module: str, periods: int) -> str:
        """The name of the module that is so many periods further behind."""

        def number(found: re.Match[str]) -> str:
            return f"{self.name}.{int(found[1]) + periods * self.length}"

        return self._pattern.sub(number, module)


def longest_stretch(signs: Sequence[object]) -> tuple[int, int, int]:
    """The first layer, the layers of a period and the periods of the longest stretch of equal ones, by layers that need
    not be run."""
    best = 0, 1, 0
    for length in range(1, _LONGEST + 1):
        first = 0
        for at in range(length, len(signs) + 1):
            if at < len(signs) and signs[at] == signs[at - length]:
                continue
            periods = (at - first) // length
            if (periods - PERIODS) * length > (best[2] - PERIODS) * best[1]:
                best = first, length, periods
            first = at - length + 1
    return best


@dataclass
class Links:
    """Which blocks the operations of a record take and give, and what model tensors have which names.

    `taken`, `given`: by operation, a block for each of its shapes, or -1; `names`: of tensors, by block.
    """

    taken: list[tuple[int, ...]] = field(default_factory=list)
    given: list[tuple[int, ...]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


class Periods:
    """Of a record's operations and blocks; None for those of none, and of several."""

    def __init__(self, recording: Recording, links: Links, stretch: Stretch) -> None:
        self._old, self._links = recording, links
        self._named = {block: stretch.period(name) for block, name in links.names.items()}
        self._made: list[list[int]] = [[] for _ in recording.operations]
        for block, by in enumerate(recording.made_by):
            if by >= 0:
                self._made[by].append(block)
        modules = [one.module for one in recording.operations]
        self._behind = [stretch.behind(module) for module in modules]
        self.operations = [stretch.period(module) for module in modules]
        self.blocks: list[int | None] = []
        self._met: list[frozenset[int]] = [frozenset()] * len(modules)
        known: dict[int, int | None] = {}
        for _ in range(_ROUNDS):
            before = list(self.operations)
            self._follow(known)
            self._fill()
            known |= self._built_of(known)
            if self.operations == before:
                break

    def _follow(self, known: Mapping[int, int | None]) -> None:
        """Go through the operations, with what is known of some and of blocks."""
        self.blocks = [None] * len(self._old.made_by)
        sure = {**known, **self._named}
        for block, own in sure.items():
            self.blocks[block] = own
        for number, (taken, given) in enumerate(zip(self._links.taken, self._links.given, strict=True)):
            own = self.operations[number]
            if own is None and not self._behind[number]:
                met = frozenset(
                    found
                    for block in (*taken, *given)
                    if block >= 0 and (found := self.blocks[block]) is not None
                )
                self._met[number] = met
                if len(met) == 1:
                    (own,) = met
                    self.operations[number] = own
            for block in self._made[number]:
                if block in sure:
                    continue
                self.blocks[block] = own
                if own is None and len(given) > 1 and block in given:  # of a list, as what it is made of
                    at = given.index(block)
                    source = taken[at] if at < len(taken) else -1
                    self.blocks[block] = self.blocks[source] if source >= 0 else None

    def _fill(self) -> None:
        """What runs between two operations of one period, or of neighbours, is of the first of them; but for what takes
        tensors of others."""
        phases = [one.phase for one in self._old.operations]
        known = [at for at, own in enumerate(self.operations) if own is not None]
        for before, behind in pairwise(known):
            one, other = self.operations[before], self.operations[behind]
            assert one is not None
            assert other is not None
            if abs(one - other) > 1 or phases[before] != phases[behind]:
                continue
            between = self._met[before + 1 : behind]
            if all(met <= {one - 1, one, one + 1} and len(met) <= 2 for met in between):
                self.operations[before + 1 : behind] = [one] * len(between)

    def _built_of(self, known: Mapping[int, int | None]) -> dict[int, int | None]:
        """While the model is built, what a tensor of one period is made of is of that one."""
        users: dict[int, set[int | None]] = {}
        for number, own in enumerate(self.operations):
            if self._old.operations[number].phase is Phase.BUILD:
                for block in self._links.taken[number]:
                    users.setdefault(block, set()).add(own)
        return {
            block: next(iter(own)) for block, own in users.items()
            if len(own) == 1 and block >= 0 and block not in known and self.blocks[block] is None
        }  # fmt: skip

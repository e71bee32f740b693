"""What does each period of a short model's layers do, in every pass over them, and where is everything made?

Two of the four periods, the second and the third, must do alike. Left out: which period an operation is of
(`periods.py`), and the record of a model with more of them (`repeated.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import groupby
from typing import Any, NamedTuple

from planner.dryrun.allocator.trace import Kind
from planner.dryrun.folding import UnequalPartsError
from planner.dryrun.periods import PERIODS, Links, Periods, Stretch
from planner.dryrun.recording import Recording

TEMPLATE, REPEATED = 1, 2  # the two that do alike; copies are made of the second of them
OPERATIONS, BLOCKS = 0, 1  # what an item can need


def same_record(one: Recording, other: Recording) -> bool:
    """Did two programs ask for the same, up to their ends?"""
    return (
        one.end == other.end
        and _in_order_of_blocks(one) == _in_order_of_blocks(other)
        and all(
            getattr(one, name) == getattr(other, name)
            for name in ("first_step", "second_step", "operations", "made_by", "kinds", "waits")
        )
    )


def _events(recording: Recording) -> list[tuple[int, int, int]]:
    """What, block and stream of every event up to the end."""
    trace, end = recording.trace, recording.end
    return list(
        zip(trace.what[:end].tolist(), trace.blocks[:end].tolist(), trace.streams[:end].tolist(), strict=True)
    )


def _in_order_of_blocks(recording: Recording) -> list[tuple[int, int, int]]:
    """The same; of blocks given back at once the first made comes first: where autocast forgets its copies of weights,
    their order is one of addresses."""
    events = _events(recording)
    for first, behind in _given_back(recording, [what for what, _, _ in events]):
        events[first:behind] = sorted(events[first:behind], key=lambda one: one[1])
    return events


def _given_back(recording: Recording, what: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of events in which only blocks are given back, and no operation begins."""
    edges = {one.first for one in recording.operations} | {recording.first_step, recording.second_step}
    first = 0
    for event in range(len(what) + 1):
        if event == len(what) or event in edges or what[event] != Kind.FREE:
            if event - first > 1:
                yield first, event
            first = event if event < len(what) and what[event] == Kind.FREE else event + 1


class Is(IntEnum):
    """What an item of a record is."""

    OPERATION = 0
    EVENT = 1
    WAIT = 2


class Item(NamedTuple):
    """A part of a record, and the how manyth of its kind it is."""

    kind: Is
    number: int


class Place(NamedTuple):
    """An item of a period: in which pass over the layers, and the how manyth there."""

    period: int
    passed: int
    at: int


class Short:
    """A short record, by periods: what each does in every pass over the layers, and where everything is made."""

    def __init__(self, recording: Recording, links: Links, stretch: Stretch) -> None:
        self.old, self.links, self.stretch = recording, links, stretch
        self.periods = Periods(recording, links, stretch)
        self.what, self.blocks, self.streams = map(list, zip(*self._events(), strict=True))
        self.together = self._together()
        self.runs = self._runs()
        self.home: tuple[dict[int, Place], dict[int, Place]] = ({}, {})  # of operations, and of blocks
        self.period_of = dict[Item, int]()
        self.passes = self._passes()

    def _events(self) -> list[tuple[int, int, int]]:
        """Those of the record, in another order where blocks of several layers are given back at once."""
        events, first_made = _events(self.old), _in_order_of_blocks(self.old)
        for first, behind in _given_back(self.old, [what for what, _, _ in events]):
            if len({self.periods.blocks[block] for _, block, _ in events[first:behind]} - {None}) > 1:
                events[first:behind] = first_made[first:behind]
        return events

    def _runs(self) -> list[tuple[int | None, list[Item]]]:
        """All items in order, those of one period one behind the other together."""
        old = self.old
        items: list[tuple[int | None, Item]] = []
        number = wait = 0
        current: int | None = None
        for event in range(old.end + 1):
            while number < len(old.operations) and old.operations[number].first <= event:
                own = self.periods.operations[number]
                while wait < len(old.waits) and old.waits[wait].at <= number:
                    items.append((own, Item(Is.WAIT, wait)))
                    wait += 1
                items.append((own, Item(Is.OPERATION, number)))
                current, number = own, number + 1
            if event < old.end:
                items.append((self._of_event(event, current), Item(Is.EVENT, event)))
        return [(own, [item for _, item in run]) for own, run in groupby(items, key=lambda one: one[0])]

    def _together(self) -> dict[int, set[int]]:
        """Of events that only give blocks back, with no operation between them, the periods of all of these blocks."""
        found = dict[int, set[int]]()
        for first, behind in _given_back(self.old, self.what):
            periods = (self.periods.blocks[block] for block in self.blocks[first:behind])
            own = {period for period in periods if period is not None}
            found |= dict.fromkeys(range(first, behind), own)
        return found

    def _of_event(self, event: int, current: int | None) -> int | None:
        """The period of an event, by that of the operation that runs: what it gives back may be a neighbour's.

        Of what is given back for all layers at once, each is of its own.
        """
        what = self.what[event]
        if what in (Kind.CATCH_UP, Kind.EMPTY_CACHE, Kind.RESET_PEAKS):
            return current if what == Kind.CATCH_UP else None
        own = self.periods.blocks[self.blocks[event]]
        if current is None or any(abs(one - current) > 1 for one in self.together.get(event, ())):
            return own
        return current if what >= 0 or own is None or abs(own - current) <= 1 else own

    def _passes(self) -> list[list[list[Item]]]:
        """By period, its items in every pass over the layers; where each operation and block is made is noted."""
        passes: list[list[list[Item]]] = [[] for _ in range(PERIODS)]
        for own, run in self.runs:
            if own is None:
                continue
            for at, (kind, number) in enumerate(run):
                self.period_of[Item(kind, number)] = own
                place = Place(own, len(passes[own]), at)
                if kind is Is.OPERATION:
                    self.home[OPERATIONS][number] = place
                elif kind is Is.EVENT and self.what[number] >= 0:
                    self.home[BLOCKS][self.blocks[number]] = place
            passes[own].append(run)
        self._check_alike(passes)
        return passes

    def _check_alike(self, passes: list[list[list[Item]]]) -> None:
        ours, theirs = passes[TEMPLATE], passes[REPEATED]
        if list(map(len, ours)) != list(map(len, theirs)):
            raise UnequalPartsError("the second and the third period do not do as much")
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            for at, (left, right) in enumerate(zip(one, other, strict=True)):
                if self._shape(left) != self._shape(right):
                    raise UnequalPartsError(
                        f"the second and the third period differ in item {at} of pass {number}"
                    )

    def _shape(self, item: Item) -> tuple[Any, ...]:
        """What an item of one period has in common with that of another."""
        kind, number = item
        if kind is Is.OPERATION:
            one = self.old.operations[number]
            period = self.stretch.period(one.module)
            name = one.module if period is None else self.stretch.moved(one.module, -period)
            return kind, replace(one, module=name, first=0)
        if kind is Is.WAIT:
            end = self._relation(OPERATIONS, self.old.waits[number].end, item)
            return kind, self.old.waits[number].stream, end
        what, block = self.what[number], self.blocks[number]
        if what >= 0:
            made = self._relation(OPERATIONS, self.old.made_by[block], item)
            return kind, what, self.streams[number], self.old.kinds.get(block), made
        needs = what in (Kind.FREE, Kind.USE_ON)
        return kind, what, self.streams[number], self._relation(BLOCKS, block, item) if needs else None

    def _relation(self, sort: int, number: int, item: Item) -> tuple[int, ...]:
        """Where what an item needs is made, as seen from its period; the number of what is made outside of periods."""
        found, own = self.home[sort].get(number), self.period_of[item]
        if found is None:
            return (number,)
        away = found.period - own
        return (away, *found[1:]) if not away else (away, -1)

    def needed(self, sort: int, item: Item) -> int:
        """The operation or block that an item needs."""
        if item.kind is Is.WAIT:
            return self.old.waits[item.number].end
        block = self.blocks[item.number]
        return self.old.made_by[block] if sort == OPERATIONS else block

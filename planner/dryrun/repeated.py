"""What would a model of more equal layers have recorded? The record of a short one, with its middle layers repeated.

Layers come in periods, such as a pair of which one attends to a window. A short model has four of them; whatever the
second and third do alike, in every pass over the layers, those between them do. A block or an operation that one period
needs of itself or of a neighbour is found again there. Left out: which layers are equal (`transformers/shortened.py`),
and records in which the two do not do alike, which are found out and refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

from planner.dryrun.allocator.trace import Kind
from planner.dryrun.folding import UnequalPartsError
from planner.dryrun.periods import PERIODS, Links, Periods, Stretch
from planner.dryrun.recording import Operation, Recording, Shape, Wait

_LAST = PERIODS - 1
_TEMPLATE, _REPEATED = 1, 2  # the two that do alike; copies are made of the second of them
_OPERATIONS, _BLOCKS = 0, 1  # what an item can need


def repeated(
    recording: Recording, links: Links, stretch: Stretch, shorter: Recording, periods: int
) -> Recording:
    """The record up to its end of a model of so many periods, by that of one of `PERIODS` and that of one less.

    Raises `UnequalPartsError` where the shorter one is not as the other says.
    """
    if len(recording.host):
        raise UnequalPartsError("the host has tensors of its own")
    short = _Short(recording, links, stretch)
    writer = _Writer(short, -1, {})
    less = writer.written()
    growth = dict[int, Growth]()
    for number, made in writer.single[0].items():
        if made < len(shorter.operations):
            growth[number] = _growth(recording.operations[number], shorter.operations[made])
            less.operations[made] = _grown(less.operations[made], growth[number], -1)
    if not same_record(less, shorter):
        raise UnequalPartsError("a shorter model does otherwise")
    return _Writer(short, periods - PERIODS, growth).written()


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


Growth = tuple[int, int, int]
"""By how much a period more adds to what the host does for one operation, and to what it sends: views, modules,
bytes."""


def _growth(one: Operation, shorter: Operation) -> Growth:
    return (
        one.host.views - shorter.host.views, one.host.modules - shorter.host.modules,
        one.message.size - shorter.message.size if one.message and shorter.message else 0,
    )  # fmt: skip


def _grown(one: Operation, growth: Growth, periods: int) -> Operation:
    """The operation in a model of so many periods more."""
    if not any(growth):
        return one
    views, modules, size = (by * periods for by in growth)
    host = one.host._replace(views=one.host.views + views, modules=one.host.modules + modules)
    message = one.message and one.message._replace(size=one.message.size + size)
    return replace(one, host=host, message=message)


class _Is(IntEnum):
    """What an item of a record is."""

    OPERATION = 0
    EVENT = 1
    WAIT = 2


class _Item(NamedTuple):
    """A part of a record, and the how manyth of its kind it is."""

    kind: _Is
    number: int


class _Place(NamedTuple):
    """An item of a period: in which pass over the layers, and the how manyth there."""

    period: int
    passed: int
    at: int


class _Copy(NamedTuple):
    """An item that is written: of which period it is in the short record, None for none, and where it stands in the
    longer one."""

    item: _Item
    own: int | None
    place: _Place


class _Short:
    """A short record, by periods: what each does in every pass over the layers, and where everything is made."""

    def __init__(self, recording: Recording, links: Links, stretch: Stretch) -> None:
        self.old, self.links, self.stretch = recording, links, stretch
        self.periods = Periods(recording, links, stretch)
        self.what, self.blocks, self.streams = map(list, zip(*self._events(), strict=True))
        self.together = self._together()
        self.runs = self._runs()
        self.home: tuple[dict[int, _Place], dict[int, _Place]] = ({}, {})  # of operations, and of blocks
        self.period_of = dict[_Item, int]()
        self.passes = self._passes()

    def _events(self) -> list[tuple[int, int, int]]:
        """Those of the record, in another order where blocks of several layers are given back at once."""
        events, first_made = _events(self.old), _in_order_of_blocks(self.old)
        for first, behind in _given_back(self.old, [what for what, _, _ in events]):
            if len({self.periods.blocks[block] for _, block, _ in events[first:behind]} - {None}) > 1:
                events[first:behind] = first_made[first:behind]
        return events

    def _runs(self) -> list[tuple[int | None, list[_Item]]]:
        """All items in order, those of one period one behind the other together."""
        old = self.old
        items: list[tuple[int | None, _Item]] = []
        number = wait = 0
        current: int | None = None
        for event in range(old.end + 1):
            while number < len(old.operations) and old.operations[number].first <= event:
                own = self.periods.operations[number]
                while wait < len(old.waits) and old.waits[wait].at <= number:
                    items.append((own, _Item(_Is.WAIT, wait)))
                    wait += 1
                items.append((own, _Item(_Is.OPERATION, number)))
                current, number = own, number + 1
            if event < old.end:
                items.append((self._of_event(event, current), _Item(_Is.EVENT, event)))
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

    def _passes(self) -> list[list[list[_Item]]]:
        """By period, its items in every pass over the layers; where each operation and block is made is noted."""
        passes: list[list[list[_Item]]] = [[] for _ in range(PERIODS)]
        for own, run in self.runs:
            if own is None:
                continue
            for at, (kind, number) in enumerate(run):
                self.period_of[_Item(kind, number)] = own
                place = _Place(own, len(passes[own]), at)
                if kind is _Is.OPERATION:
                    self.home[_OPERATIONS][number] = place
                elif kind is _Is.EVENT and self.what[number] >= 0:
                    self.home[_BLOCKS][self.blocks[number]] = place
            passes[own].append(run)
        self._check_alike(passes)
        return passes

    def _check_alike(self, passes: list[list[list[_Item]]]) -> None:
        ours, theirs = passes[_TEMPLATE], passes[_REPEATED]
        if list(map(len, ours)) != list(map(len, theirs)):
            raise UnequalPartsError("the second and the third period do not do as much")
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            for at, (left, right) in enumerate(zip(one, other, strict=True)):
                if self._shape(left) != self._shape(right):
                    raise UnequalPartsError(
                        f"the second and the third period differ in item {at} of pass {number}"
                    )

    def _shape(self, item: _Item) -> tuple[Any, ...]:
        """What an item of one period has in common with that of another."""
        kind, number = item
        if kind is _Is.OPERATION:
            one = self.old.operations[number]
            period = self.stretch.period(one.module)
            name = one.module if period is None else self.stretch.moved(one.module, -period)
            return kind, replace(one, module=name, first=0)
        if kind is _Is.WAIT:
            end = self._relation(_OPERATIONS, self.old.waits[number].end, item)
            return kind, self.old.waits[number].stream, end
        what, block = self.what[number], self.blocks[number]
        if what >= 0:
            made = self._relation(_OPERATIONS, self.old.made_by[block], item)
            return kind, what, self.streams[number], self.old.kinds.get(block), made
        needs = what in (Kind.FREE, Kind.USE_ON)
        return kind, what, self.streams[number], self._relation(_BLOCKS, block, item) if needs else None

    def _relation(self, sort: int, number: int, item: _Item) -> tuple[int, ...]:
        """Where what an item needs is made, as seen from its period; the number of what is made outside of periods."""
        found, own = self.home[sort].get(number), self.period_of[item]
        if found is None:
            return (number,)
        away = found.period - own
        return (away, *found[1:]) if not away else (away, -1)

    def needed(self, sort: int, item: _Item) -> int:
        """The operation or block that an item needs."""
        if item.kind is _Is.WAIT:
            return self.old.waits[item.number].end
        block = self.blocks[item.number]
        return self.old.made_by[block] if sort == _OPERATIONS else block


class _Writer:
    """Writes the record of a model with `more` periods than a short one has, which may be -1."""

    def __init__(self, short: _Short, more: int, growth: Mapping[int, Growth]) -> None:
        self.short, self.old, self.stretch = short, short.old, short.stretch
        self.more, self.growth = more, growth
        self.last = _LAST + more  # period of the longer model
        self.new = Recording()
        # by operations and blocks: of those of a period at a place, and of the others
        self.placed: tuple[dict[_Place, int], dict[_Place, int]] = ({}, {})
        self.single: tuple[dict[int, int], dict[int, int]] = ({}, {})
        # blocks outside of periods whose size follows their number
        self.grown = dict[int, tuple[Shape, Shape]]()

    def written(self) -> Recording:
        """The longer record."""
        seen = [0] * PERIODS
        for place, (own, run) in enumerate(self.short.runs):
            if own is None:
                for item in run:
                    self._write(_Copy(item, None, _Place(0, 0, 0)))
                continue
            number = seen[own]
            seen[own] += 1
            if own == _REPEATED:
                periods = list(range(_REPEATED, self.last))
                if not self._ascends(place):
                    periods.reverse()
            else:
                periods = [self.last if own == _LAST else own]
            for new in periods:
                for at, item in enumerate(run):
                    self._write(_Copy(item, own, _Place(new, number, at)))
        self.new.end = len(self.new.trace)
        return self.new

    def _ascends(self, place: int) -> bool:
        """Does the pass go from the first layer to the last, as seen from where the repeated period runs?"""
        before = self.short.runs[place - 1][0] if place else None
        behind = self.short.runs[place + 1][0] if place + 1 < len(self.short.runs) else None
        if before == _TEMPLATE and behind != _TEMPLATE:
            return True
        if behind == _TEMPLATE and before != _TEMPLATE:
            return False
        raise UnequalPartsError("periods do not run one behind the other")

    def _write(self, copy: _Copy) -> None:
        kind, index = copy.item
        if kind is _Is.OPERATION:
            self._write_operation(copy)
        elif kind is _Is.WAIT:
            wait = self.old.waits[index]
            end = self._found(_OPERATIONS, wait.end, copy)
            self.new.waits.append(Wait(len(self.new.operations), wait.stream, end))
        else:
            self._write_event(copy)

    def _note(self, sort: int, number: int, copy: _Copy, made: int) -> None:
        """An operation or a block of the short record has that number in the longer one, or this copy of it has."""
        if copy.own is None:
            self.single[sort][number] = made
        else:
            self.placed[sort][copy.place] = made

    def _write_operation(self, copy: _Copy) -> None:
        own, new, index = copy.own, copy.place.period, copy.item.number
        one = self.old.operations[index]
        self._note(_OPERATIONS, index, copy, len(self.new.operations))
        module, period = one.module, self.stretch.period(one.module)
        if self.stretch.behind(module):
            module = self.stretch.moved(module, self.more)
        elif period is not None:
            module = self.stretch.moved(module, new - period if own == period else self._new(period) - period)
        taken, given = one.taken, one.given
        if own is None:
            taken, given = self._widened(index)
        written = replace(one, module=module, first=len(self.new.trace), taken=taken, given=given)
        if own is None and index in self.growth:
            written = _grown(written, self.growth[index], self.more)
        self.new.operations.append(written)

    def _widened(self, index: int) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """What an operation outside of periods takes and gives, with that of those which are repeated."""
        one, sources, results = (
            self.old.operations[index],
            self.short.links.taken[index],
            self.short.links.given[index],
        )
        shapes = [
            self.grown[block][1] if block in self.grown and shape == self.grown[block][0] else shape
            for shape, block in zip(one.taken, sources, strict=True)
        ]
        taken = self._with_repeated(shapes, sources)
        given = self._with_repeated(one.given, results)
        if len(one.given) == 1 and taken != one.taken:
            (dims, dtype), block = one.given[0], results[0]
            before, after = (sum(prod(shape) for shape, _ in some) for some in (one.taken, taken))
            if before and prod(dims) == before and block >= 0:
                grown = (dims[0] * after // before, *dims[1:]), dtype
                self.grown[block] = one.given[0], grown
                given = (grown,)
        return taken, given

    def _with_repeated(self, shapes: Sequence[Shape], blocks: Sequence[int]) -> tuple[Shape, ...]:
        """Shapes of a list, in which those of the repeated period stand once for each."""
        found: list[Shape] = []
        periods = [self.short.periods.blocks[block] if block >= 0 else None for block in blocks]
        for period, run in groupby(range(len(shapes)), key=periods.__getitem__):
            part = [shapes[at] for at in run]
            found += part * (1 + self.more) if period == _REPEATED else part
        return tuple(found)

    def _write_event(self, copy: _Copy) -> None:
        old, trace, event = self.old, self.new.trace, copy.item.number
        self._mark(event)
        what, block = self.short.what[event], self.short.blocks[event]
        if what >= 0:
            if block in self.grown:
                before, after = (prod(shape) for shape, _ in self.grown[block])
                what = what * after // before
            made = trace.allocate(what, self.short.streams[event])
            by = old.made_by[block]
            self.new.made_by.append(-1 if by < 0 else self._found(_OPERATIONS, by, copy))
            if block in old.kinds:
                self.new.kinds[made] = old.kinds[block]
            self._note(_BLOCKS, block, copy, made)
        elif what == Kind.CATCH_UP:
            trace.catch_up(self.short.streams[event])
        elif what == Kind.EMPTY_CACHE:
            trace.empty_cache()
        elif what == Kind.RESET_PEAKS:
            trace.reset_peaks()
        else:
            found = self._found(_BLOCKS, block, copy)
            try:
                if what == Kind.FREE:
                    trace.free(found)
                else:
                    trace.use_on(found, self.short.streams[event])
            except ValueError as error:
                raise UnequalPartsError(f"event {event}: {error}") from error

    def _mark(self, event: int) -> None:
        """Where the steps begin."""
        if event == self.old.first_step:
            self.new.first_step = self.new.first_step or len(self.new.trace)
        if event == self.old.second_step:
            self.new.second_step = self.new.second_step or len(self.new.trace)

    def _new(self, period: int) -> int:
        """The number that one of the periods which are not repeated has in the longer model."""
        if period == _REPEATED and self.more:
            raise UnequalPartsError("an operation outside of periods needs one that is repeated")
        return period if period < _REPEATED else period + self.more

    def _found(self, sort: int, number: int, copy: _Copy) -> int:
        """What stands for an operation or a block of the short record, seen from a copy of an item."""
        try:
            home = self.short.home[sort].get(number)
            return (
                self.single[sort][number]
                if home is None
                else self.placed[sort][self._place(sort, home, copy)]
            )
        except KeyError as error:
            raise UnequalPartsError(f"what item {copy.item.number} needs is not there") from error

    def _place(self, sort: int, home: _Place, copy: _Copy) -> _Place:
        own, number = copy.own, copy.item.number
        if own is None:
            return home._replace(period=self._new(home.period))
        if abs(home.period - own) > 1:
            raise UnequalPartsError(f"item {number} needs what is further than a neighbour")
        target = copy.place.period + home.period - own
        wanted = target if target < _REPEATED else _LAST if target == self.last else _REPEATED
        if home.period != wanted and {home.period, wanted} != {_TEMPLATE, _REPEATED}:
            # as the same item of the other period of the two that do alike needs it
            if own not in (_TEMPLATE, _REPEATED):
                raise UnequalPartsError(f"item {number} needs what no other does")
            other = self.short.passes[_TEMPLATE + _REPEATED - own][copy.place.passed][copy.place.at]
            home = self.short.home[sort][self.short.needed(sort, other)]
            if home.period != wanted:
                raise UnequalPartsError(f"item {number} needs what others do not")
        return home._replace(period=target)

"""What would a model of more equal layers have recorded? The record of a short one, with its middle layers repeated.

Layers come in periods, such as a pair of which one attends to a window. A short model has four of them; whatever the
second and third do alike, in every pass over the layers, those between them do. A block or an operation that one period
needs of itself or of a neighbour is found again there. Left out: which layers are equal (`transformers/shortened.py`),
and records in which the two do not do alike, which are found out and refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import NamedTuple

from planner.cost.captured.operation import Operation, Shape
from planner.dryrun.allocator.trace import Kind
from planner.dryrun.folding import UnequalPartsError
from planner.dryrun.periods import PERIODS, Links, Stretch
from planner.dryrun.recording import Recording, Wait
from planner.dryrun.short_record import (
    BLOCKS,
    OPERATIONS,
    REPEATED,
    TEMPLATE,
    Is,
    Item,
    Place,
    Short,
    same_record,
)

_LAST = PERIODS - 1


def repeated(
    recording: Recording, links: Links, stretch: Stretch, shorter: Recording, periods: int
) -> Recording:
    """The record up to its end of a model of so many periods, by that of one of `PERIODS` and that of one less.

    Raises `UnequalPartsError` where the shorter one is not as the other says.
    """
    if len(recording.host):
        raise UnequalPartsError("the host has tensors of its own")
    short = Short(recording, links, stretch)
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


class _Copy(NamedTuple):
    """An item that is written: of which period it is in the short record, None for none, and where it stands in the
    longer one."""

    item: Item
    own: int | None
    place: Place


class _Writer:
    """Writes the record of a model with `more` periods than a short one has, which may be -1."""

    def __init__(self, short: Short, more: int, growth: Mapping[int, Growth]) -> None:
        self.short, self.old, self.stretch = short, short.old, short.stretch
        self.more, self.growth = more, growth
        self.last = _LAST + more  # period of the longer model
        self.new = Recording()
        # by operations and blocks: of those of a period at a place, and of the others
        self.placed: tuple[dict[Place, int], dict[Place, int]] = ({}, {})
        self.single: tuple[dict[int, int], dict[int, int]] = ({}, {})
        # blocks outside of periods whose size follows their number
        self.grown = dict[int, tuple[Shape, Shape]]()

    def written(self) -> Recording:
        """The longer record."""
        seen = [0] * PERIODS
        for place, (own, run) in enumerate(self.short.runs):
            if own is None:
                for item in run:
                    self._write(_Copy(item, None, Place(0, 0, 0)))
                continue
            number = seen[own]
            seen[own] += 1
            if own == REPEATED:
                periods = list(range(REPEATED, self.last))
                if not self._ascends(place):
                    periods.reverse()
            else:
                periods = [self.last if own == _LAST else own]
            for new in periods:
                for at, item in enumerate(run):
                    self._write(_Copy(item, own, Place(new, number, at)))
        self.new.end = len(self.new.trace)
        return self.new

    def _ascends(self, place: int) -> bool:
        """Does the pass go from the first layer to the last, as seen from where the repeated period runs?"""
        before = self.short.runs[place - 1][0] if place else None
        behind = self.short.runs[place + 1][0] if place + 1 < len(self.short.runs) else None
        if before == TEMPLATE and behind != TEMPLATE:
            return True
        if behind == TEMPLATE and before != TEMPLATE:
            return False
        raise UnequalPartsError("periods do not run one behind the other")

    def _write(self, copy: _Copy) -> None:
        kind, index = copy.item
        if kind is Is.OPERATION:
            self._write_operation(copy)
        elif kind is Is.WAIT:
            wait = self.old.waits[index]
            end = self._found(OPERATIONS, wait.end, copy)
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
        self._note(OPERATIONS, index, copy, len(self.new.operations))
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
            found += part * (1 + self.more) if period == REPEATED else part
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
            self.new.made_by.append(-1 if by < 0 else self._found(OPERATIONS, by, copy))
            if block in old.kinds:
                self.new.kinds[made] = old.kinds[block]
            self._note(BLOCKS, block, copy, made)
        elif what == Kind.CATCH_UP:
            trace.catch_up(self.short.streams[event])
        elif what == Kind.EMPTY_CACHE:
            trace.empty_cache()
        elif what == Kind.RESET_PEAKS:
            trace.reset_peaks()
        else:
            found = self._found(BLOCKS, block, copy)
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
        if period == REPEATED and self.more:
            raise UnequalPartsError("an operation outside of periods needs one that is repeated")
        return period if period < REPEATED else period + self.more

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

    def _place(self, sort: int, home: Place, copy: _Copy) -> Place:
        own, number = copy.own, copy.item.number
        if own is None:
            return home._replace(period=self._new(home.period))
        if abs(home.period - own) > 1:
            raise UnequalPartsError(f"item {number} needs what is further than a neighbour")
        target = copy.place.period + home.period - own
        wanted = target if target < REPEATED else _LAST if target == self.last else REPEATED
        if home.period != wanted and {home.period, wanted} != {TEMPLATE, REPEATED}:
            # as the same item of the other period of the two that do alike needs it
            if own not in (TEMPLATE, REPEATED):
                raise UnequalPartsError(f"item {number} needs what no other does")
            other = self.short.passes[TEMPLATE + REPEATED - own][copy.place.passed][copy.place.at]
            home = self.short.home[sort][self.short.needed(sort, other)]
            if home.period != wanted:
                raise UnequalPartsError(f"item {number} needs what others do not")
        return home._replace(period=target)

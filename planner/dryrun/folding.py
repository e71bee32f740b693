"""What would a longer program of equal parts have recorded? The record of a short one, with a part of it repeated.

The forward and backward passes of a pipeline's micro-batches ask for equal blocks in equal order, so that few of them
need to be run. Every block that a part gives back is found again by where it was made: in the same micro-batch, or so
many parts earlier. Left out: parts that are not equal, which are found out and refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.dryrun.allocator.trace import Kind, Trace
from planner.dryrun.recording import Recording

SHORTEST: Final = 4  # forward passes ahead of the first backward pass that are run
_NEAR: Final = 2  # parts: what is given back from further behind is of one part for good


class UnequalPartsError(ValueError):
    """Parts that were taken for equal are not."""


@dataclass(frozen=True)
class Part:
    """The events `first` to `end` (without it) of a pass (`forward` or backward) of one micro-batch of a `step`."""

    step: int
    forward: bool
    number: int
    first: int
    end: int


def lengthened(recording: Recording, parts: Sequence[Part], more: int) -> Recording:
    """The record of a program that runs `more` micro-batches ahead of the first backward pass.

    `parts`: those of every step, in the order in which they ran: F0 F1 F2 F3 B0 F4 B1 B2 B3 B4, without F4 and B4 where
    no micro-batch comes behind. F2 is repeated, and the last backward pass but one.
    Raises `UnequalPartsError`.
    """
    return _Writer(recording, parts, more).written()


class _Writer:
    """Writes the longer record. A target place is one in the order of the passes that it holds."""

    def __init__(self, recording: Recording, parts: Sequence[Part], more: int) -> None:
        # nothing is repeated before the first step
        self.old, self.new = recording, Recording(host=recording.host, first_step=recording.first_step)
        self.more = more
        self.parts = list(parts)
        trace = recording.trace
        self.events = list(
            zip(trace.what.tolist(), trace.blocks.tolist(), trace.streams.tolist(), strict=True)
        )
        self.firsts = [one.first for one in recording.operations]
        self.place = [-1] * trace.num_blocks  # of the part that makes a block, and the how manyth of it
        self.turn = [0] * trace.num_blocks
        self.made = [self._made_in(place) for place in range(len(self.parts))]
        self.copies: list[tuple[int, int]] = []  # by target place: the part's, and its micro-batch there
        self.targets: dict[int, int] = {}  # by part: its target place, the first of its copies
        self.blocks: list[list[int]] = []  # by target place: numbers of what it makes
        self.outside: dict[int, int] = {}
        self.operation = 0
        self._plan()

    def _made_in(self, place: int) -> list[int]:
        """What a part asks for, in order [bytes]."""
        part, found = self.parts[place], list[int]()
        for what, block, _ in self.events[part.first : part.end]:
            if what >= 0:
                self.place[block], self.turn[block] = place, len(found)
                found.append(what)
        return found

    def _plan(self) -> None:
        """Which part runs at each target place, for which micro-batch."""
        for place, part in enumerate(self.parts):
            count = 1 + max(
                one.number for one in self.parts if one.step == part.step and one.forward == part.forward
            )
            repeated = SHORTEST - 2 + (not part.forward and count > SHORTEST)
            self.targets[place] = len(self.copies)
            number = part.number + (self.more if part.number > repeated else 0)
            if part.number == repeated and self.made[place] != self.made[self._before(part)]:
                raise UnequalPartsError(f"parts {place} and before ask for other blocks")
            again = range(1 + (self.more if part.number == repeated else 0))
            self.copies += [(place, number + one) for one in again]
        self.at = {
            (self.parts[place].step, self.parts[place].forward, number): target
            for target, (place, number) in enumerate(self.copies)
        }

    def _before(self, part: Part) -> int:
        """The place of the same pass of the micro-batch before."""
        return next(
            place
            for place, one in enumerate(self.parts)
            if (one.step, one.forward, one.number) == (part.step, part.forward, part.number - 1)
        )

    def written(self) -> Recording:
        """The longer record."""
        old, event = self.old, 0
        for place, part in enumerate(self.parts):
            self._copy_outside(event, part.first)
            first, last = self.targets[place], self.targets.get(place + 1, len(self.copies))
            for target in range(first, last):
                self._copy_part(target)
            event = part.end
        self._copy_outside(event, len(self.events))
        if not old.second_step or not self.new.second_step:
            raise UnequalPartsError("there must be two steps")
        self.new.end = self.new.end or len(self.new.trace)
        return self.new

    def _copy_outside(self, first: int, end: int) -> None:
        for event in range(first, end):
            if event == self.old.second_step and event:
                self.new.second_step = len(self.new.trace)
            if event == self.old.end and event:
                self.new.end = len(self.new.trace)
            self._operations(event + 1)
            self._event(event, None)

    def _copy_part(self, target: int) -> None:
        place, _ = self.copies[target]
        part = self.parts[place]
        numbers: list[int] = []
        self.blocks.append(numbers)
        self.operation = bisect_left(self.firsts, part.first)
        for event in range(part.first, part.end):
            self._operations(event + 1)
            what, _, stream = self.events[event]
            if what >= 0:
                numbers.append(self._allocate(self.events[event][1], what, stream))
            else:
                self._event(event, target)
        self._operations(part.end)

    def _operations(self, event: int) -> None:
        """Write down operations that begin before an event."""
        while self.operation < len(self.firsts) and self.firsts[self.operation] < event:
            one = self.old.operations[self.operation]
            self.new.operations.append(replace(one, first=len(self.new.trace)))
            self.operation += 1

    def _allocate(self, block: int, size: int, stream: int) -> int:
        made_by = self.old.made_by[block]
        self.new.made_by.append(-1 if made_by < 0 else len(self.new.operations) - 1)
        found = self.new.trace.allocate(size, stream)
        if block in self.old.kinds:
            self.new.kinds[found] = self.old.kinds[block]
        return found

    def _event(self, event: int, target: int | None) -> None:
        what, block, stream = self.events[event]
        trace: Trace = self.new.trace
        if what >= 0:
            self.outside[block] = self._allocate(block, what, stream)
            return
        try:
            if what == Kind.FREE:
                trace.free(self._found(block, target))
            elif what == Kind.USE_ON:
                trace.use_on(self._found(block, target), stream)
        except (ValueError, KeyError, IndexError) as error:
            raise UnequalPartsError(f"event {event}: {error}") from error
        if what == Kind.CATCH_UP:
            trace.catch_up(stream)
        elif what == Kind.EMPTY_CACHE:
            trace.empty_cache()
        elif what == Kind.RESET_PEAKS:
            trace.reset_peaks()

    def _found(self, block: int, target: int | None) -> int:
        """The block that stands for one of the short record."""
        maker = self.place[block]
        if maker < 0:
            return self.outside[block]
        return self.blocks[self._maker(maker, target)][self.turn[block]]

    def _maker(self, maker: int, target: int | None) -> int:
        """The target place of the part that made a block, seen from another."""
        made = self.parts[maker]
        last = self.at[made.step, made.forward, self._last_number(maker)]
        if target is None:
            return last
        place, number = self.copies[target]
        part = self.parts[place]
        if part.step == made.step and part.number == made.number:
            return self.at[made.step, made.forward, number]
        return last if place - maker > _NEAR else target - (place - maker)

    def _last_number(self, maker: int) -> int:
        """Of a part, the micro-batch of its last copy."""
        first, last = self.targets[maker], self.targets.get(maker + 1, len(self.copies))
        return self.copies[last - 1][1] if last > first else self.parts[maker].number

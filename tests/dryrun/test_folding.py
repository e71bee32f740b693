"""Is the record of a short pipeline, lengthened, that of a long one? Hand-made programs, without PyTorch."""

from __future__ import annotations

import pytest

from planner.cost.captured.operation import Operation, Phase
from planner.dryrun.folding import SHORTEST, Part, UnequalPartsError, lengthened
from planner.dryrun.recording import Holds, Recording


class Program:
    """Two steps of a stage of 1F1B with `ahead` forward passes before the first backward pass, and one more behind.

    A forward pass keeps a block until its backward pass, holds what it sends until the next pass of its kind, and has a
    temporary; the first backward pass makes gradients that the end of the step gives back. `odd`: of which micro-batch
    the forward pass keeps more.
    """

    def __init__(self, ahead: int, odd: int = -1) -> None:
        self.recording, self.parts, self.odd = Recording(), list[Part](), odd
        self.weights = self.make("build", 1000)
        self.recording.kinds[self.weights] = Holds.WEIGHTS
        for step in range(2):
            if step:
                self.recording.second_step = len(self.recording.trace)
                self.recording.trace.reset_peaks()
            self.step(step, ahead)
        self.recording.end = len(self.recording.trace)

    def make(self, name: str, size: int) -> int:
        trace = self.recording.trace
        self.recording.operations.append(Operation(name, "", Phase.FORWARD, len(trace), (), ()))
        self.recording.made_by.append(len(self.recording.operations) - 1)
        return trace.allocate(size)

    def step(self, step: int, ahead: int) -> None:
        self.kept, self.sent, self.gradients = dict[int, int](), -1, -1
        order = [(True, one) for one in range(ahead)] + [(False, 0), (True, ahead)]
        for forward, number in [*order, *((False, one + 1) for one in range(ahead))]:
            first = len(self.recording.trace)
            self.forward(number) if forward else self.backward(number)
            self.parts.append(Part(step, forward, number, first, len(self.recording.trace)))
        for block in (self.sent, self.gradients):
            self.recording.trace.free(block)

    def forward(self, number: int) -> None:
        temporary = self.make("product", 7)
        self.kept[number] = self.make("kept", 11 if number == self.odd else 10)
        if self.sent >= 0:
            self.recording.trace.free(self.sent)
        self.sent = self.make("sent", 5)
        self.recording.trace.free(temporary)

    def backward(self, number: int) -> None:
        if self.gradients < 0:
            self.gradients = self.make("gradients", 2000)
        temporary = self.make("backward", 8)
        self.recording.trace.free(self.kept.pop(number))
        self.recording.trace.free(temporary)


@pytest.mark.parametrize("more", [1, 2, 9])
def test_a_longer_record_is_that_of_the_longer_program(more: int) -> None:
    short, long = Program(SHORTEST), Program(SHORTEST + more)
    found = lengthened(short.recording, short.parts, more)
    for column in ("what", "blocks", "streams"):
        assert getattr(found.trace, column).tolist() == getattr(long.recording.trace, column).tolist()
    assert found.operations == long.recording.operations
    assert (found.made_by, found.kinds) == (long.recording.made_by, long.recording.kinds)
    assert (found.second_step, found.end) == (long.recording.second_step, long.recording.end)


def test_parts_that_are_not_equal_are_refused() -> None:
    short = Program(SHORTEST, odd=SHORTEST - 2)
    with pytest.raises(UnequalPartsError, match="other blocks"):
        lengthened(short.recording, short.parts, 3)

"""Does a predicted peak fit? One definition for every verb and for published runs.

Left out: the peak itself (`cost/memory/peak.py`) and the words a report says it in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from planner.spec.rule import Problem

# What a configuration that may not fit must be faster by than one that surely does. Two runs with the same settings
# differ by less in 9 of 10 cases (0.9 % a run, benchmarks/noise_floor.py): no run would show a smaller gain, and it is
# paid for with the risk that nothing runs.
WORTH_THE_RISK: Final = 0.02


class MemoryVerdict(StrEnum):
    """Does the peak fit? Borderline is as wide as the measured error of the memory model."""

    FITS = "fits"
    BORDERLINE = "borderline"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True)
class MemoryRoom:
    """What a peak is judged by. `capacity`: of a device; `limit`: what of it may be used [bytes]; `error`: of the
    stack's memory model on runs it never saw [1]."""

    capacity: float
    limit: float
    error: float

    @classmethod
    def of(cls, problem: Problem, headroom: float) -> Self:
        """That of a problem's devices under its stack, of which a share `headroom` is kept back [1]."""
        capacity = problem.cluster.accelerator.memory
        return cls(capacity, capacity * (1 - headroom), problem.stack.overhead.error)

    @property
    def sure(self) -> float:
        """The largest peak whose verdict is fits [bytes]."""
        return safe_limit(self.limit, self.capacity, self.error)

    @property
    def most(self) -> float:
        """The largest peak whose verdict is not that it does not fit [bytes]."""
        return self.limit / (1 - self.error)

    @property
    def tiers(self) -> tuple[float, ...]:
        """What peaks may take [bytes], each where nothing is found within the one before: what surely fits, what may be
        used, what does not surely not fit."""
        return tuple(sorted({self.sure, self.limit, self.most}))

    def verdict(self, peak: float) -> MemoryVerdict:
        """Does a `peak` fit [bytes]?

        It fits where it is within what may be used and, were it larger by the error, within the device; it does not fit
        where it exceeds what may be used even were it smaller by the error; anything between is borderline.
        """
        if peak <= self.sure:
            return MemoryVerdict.FITS
        return MemoryVerdict.BORDERLINE if peak <= self.most else MemoryVerdict.DOES_NOT_FIT

    def allowed(self, peak: float) -> float:
        """What a change of a configuration with that `peak` may take [bytes]: what surely fits, where that did."""
        return self.sure if peak <= self.sure else self.most


def safe_limit(limit: float, capacity: float, error: float) -> float:
    """The largest peak whose verdict is fits [bytes]."""
    return min(limit, capacity / (1 + error))


def worth_the_risk(seconds: float, surely: float) -> bool:
    """Is a step of `seconds` that may not fit to be taken where one of `surely` does [s]?"""
    return seconds * (1 + WORTH_THE_RISK) < surely

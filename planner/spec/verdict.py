"""Does a predicted peak fit? One definition for plans and for published runs.

Left out: the peak itself (`cost/memory/peak.py`) and the words a report says it in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# What a configuration that may not fit must be faster by than one that surely does. Two runs with the same settings
# differ by less in 9 of 10 cases (0.9 % a run, benchmarks/noise_floor.py): no run would show a smaller gain, and it is
# paid for with the risk that nothing runs.
WORTH_THE_RISK: Final = 0.02


class MemoryVerdict(StrEnum):
    """Does the peak fit? Borderline is as wide as the measured error of the memory model."""

    FITS = "fits"
    BORDERLINE = "borderline"
    DOES_NOT_FIT = "does_not_fit"


def memory_verdict(peak: float, limit: float, capacity: float, error: float) -> MemoryVerdict:
    """Does a predicted `peak` fit? One definition for plans and for published runs.

    `limit`: capacity less what is reserved; `error`: of the stack on runs it never saw [1]. It fits below the limit
    where the error cannot reach the capacity, so that what is reserved absorbs it; it does not fit where even the
    error leaves it above the limit.
    """
    if peak <= safe_limit(limit, capacity, error):
        return MemoryVerdict.FITS
    return MemoryVerdict.DOES_NOT_FIT if peak * (1 - error) > limit else MemoryVerdict.BORDERLINE


def safe_limit(limit: float, capacity: float, error: float) -> float:
    """The largest peak whose verdict is fits [bytes]."""
    return min(limit, capacity / (1 + error))


def worth_the_risk(seconds: float, surely: float) -> bool:
    """Is a step of `seconds` that may not fit to be taken where one of `surely` does [s]?"""
    return seconds * (1 + WORTH_THE_RISK) < surely

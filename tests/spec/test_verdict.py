"""Does a peak fit, may it, or doesn't it, by one definition?"""

from __future__ import annotations

import pytest

from planner.spec.verdict import MemoryRoom


@pytest.mark.parametrize(
    ("peak", "limit", "verdict"),
    [
        (90, 100, "fits"),
        (98, 100, "borderline"),
        (104, 100, "borderline"),
        (110, 100, "does_not_fit"),
        # what is kept back absorbs the error below the limit, and is kept by no more than the error above it
        (94, 95, "fits"),
        (98, 95, "borderline"),
        (101, 95, "does_not_fit"),
    ],
)
def test_by_hand(peak: float, limit: float, verdict: str) -> None:
    assert MemoryRoom(100, limit, 0.05).verdict(peak) == verdict


@pytest.mark.parametrize("limit", [70.0, 95.0, 100.0])
@pytest.mark.parametrize("error", [0.0, 0.04, 0.3])
def test_the_largest_peaks_of_either_verdict(limit: float, error: float) -> None:
    room = MemoryRoom(100, limit, error)
    assert room.sure <= room.limit <= room.most
    assert (room.tiers[0], room.tiers[-1]) == (room.sure, room.most)
    assert room.limit in room.tiers
    assert room.verdict(room.sure) == "fits"
    assert room.verdict(room.sure * 1.001) != "fits"
    assert room.verdict(room.most) != "does_not_fit"
    assert room.verdict(room.most * 1.001) == "does_not_fit"
    assert room.allowed(room.sure) == room.sure
    assert room.allowed(room.sure * 1.001) == room.most

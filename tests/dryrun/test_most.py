"""Is the largest number found that fits, in few tries?"""

from __future__ import annotations

import pytest

from planner.dryrun.most import largest_that_fits


class Device:
    """Peaks of a law, and how often one was asked for."""

    def __init__(self, fixed: float, each: float, squared: float, limit: float) -> None:
        self.law, self.limit, self.tries = (fixed, each, squared), limit, 0

    def peak(self, number: int) -> tuple[bool, float]:
        self.tries += 1
        fixed, each, squared = self.law
        size = fixed + each * number + squared * number**2
        return size <= self.limit, size


@pytest.mark.parametrize(
    ("law", "most", "expected"),
    [
        ((10.0, 3.0, 0.0), 1000, 30),
        ((10.0, 3.0, 0.0), 7, 7),
        ((101.0, 1.0, 0.0), 1000, 0),
        ((99.5, 0.5, 0.0), 1000, 1),
        ((10.0, 0.001, 0.0), 10**6, 90000),
        ((1.0, 1.0, 0.5), 1000, 13),
        ((50.0, 0.0, 0.0), 64, 64),
    ],
)
@pytest.mark.parametrize("start", [1, 4, 100])
def test_largest_is_found(law: tuple[float, float, float], most: int, expected: int, start: int) -> None:
    device = Device(*law, limit=100.0)
    assert largest_that_fits(device.peak, start, 100.0, most) == expected
    assert device.tries <= 12

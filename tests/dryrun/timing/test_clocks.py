"""Does the device wait for the host where it must, and the host for the device where it reads?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.dryrun.timing.clocks import ends

times = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1, max_size=30)


def one_by_one(host: list[float], device: list[float], waits: list[int], read: float) -> list[float]:
    """The two clocks, an operation after the other."""
    clock = last = 0.0
    done = []
    for i, (issue, run) in enumerate(zip(host, device, strict=True)):
        clock += issue
        last = max(clock, last) + run
        done.append(last)
        if i in waits:
            clock = max(clock, last) + read
    return done


def test_a_slow_host_is_waited_for() -> None:
    assert ends(np.array([2.0, 2.0]), np.array([1.0, 1.0]), []) == pytest.approx([3.0, 5.0])


def test_a_slow_device_is_never_idle() -> None:
    assert ends(np.array([1.0, 1.0, 1.0]), np.array([5.0, 5.0, 5.0]), []) == pytest.approx([6.0, 11.0, 16.0])


def test_a_read_stops_the_host() -> None:
    # the first ends at 6; the host has its value at 6.5 and issues the second at 7.5
    found = ends(np.array([1.0, 1.0]), np.array([5.0, 1.0]), [0], read=0.5)
    assert found == pytest.approx([6.0, 8.5])


@given(times, st.floats(0, 1))
def test_as_one_by_one(each: list[tuple[float, float, bool]], read: float) -> None:
    host, device = [one[0] for one in each], [one[1] for one in each]
    waits = [i for i, one in enumerate(each) if one[2]]
    found = ends(np.array(host), np.array(device), waits, read)
    assert found == pytest.approx(one_by_one(host, device, waits, read))

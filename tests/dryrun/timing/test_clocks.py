"""Do a host, the queues of a device and its links wait for each other where they must?"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.captured.operation import Message, Operation, Phase
from planner.dryrun.recording import HOST, Wait
from planner.dryrun.timing.clocks import ended

SENT = Message("all_gather", 1, 2, 1, apart=False)
APART = SENT._replace(apart=True)
seconds = st.floats(0, 1)
programs = st.lists(
    st.tuples(seconds, seconds, st.booleans(), st.integers(0, 2), st.booleans()), min_size=1, max_size=20
)


def operation(stream: int = 0, message: Message | None = None) -> Operation:
    return Operation("aten.add.Tensor", "", Phase.FORWARD, 0, (), (), stream, message=message)


def times(
    issue: Sequence[float], run: Sequence[float], reads: Sequence[int] = (), read: float = 0.0
) -> list[float]:
    """Of operations of the main queue."""
    plain = [operation() for _ in issue]
    return ended(plain, np.array(issue), np.array(run), reads, read).at.tolist()


def test_a_slow_host_is_waited_for() -> None:
    assert times([2.0, 2.0], [1.0, 1.0]) == pytest.approx([3.0, 5.0])


def test_a_slow_device_is_never_idle() -> None:
    assert times([1.0, 1.0, 1.0], [5.0, 5.0, 5.0]) == pytest.approx([6.0, 11.0, 16.0])


def test_a_read_stops_the_host() -> None:
    # the first ends at 6; the host has its value at 6.5 and issues the second at 7.5
    assert times([1.0, 1.0], [5.0, 1.0], [0], read=0.5) == pytest.approx([6.0, 8.5])


def test_queues_run_side_by_side_but_for_what_waits() -> None:
    """Work, a gather beside it, work that does not need it, and work that does."""
    ran = [operation(), operation(stream=1, message=SENT), operation(), operation()]
    found = ended(ran, np.zeros(4), np.array([2.0, 5.0, 1.0, 1.0]), waits=[Wait(3, 0, 1)], links={1: 0})
    assert found.at == pytest.approx([2.0, 5.0, 3.0, 6.0])
    assert found.waited == pytest.approx([0.0, 0.0, 0.0, 2.0])


def test_a_message_of_its_own_queue_is_not_waited_for_unasked() -> None:
    ran = [operation(message=APART), operation(), operation()]
    found = ended(ran, np.zeros(3), np.array([4.0, 1.0, 1.0]), waits=[Wait(2, 0, 0)], links={0: 0})
    assert found.at == pytest.approx([4.0, 1.0, 5.0])
    sent = [operation(message=SENT), *ran[1:]]
    here = ended(sent, np.zeros(3), np.array([4.0, 1.0, 1.0]), links={0: 0})
    assert here.at == pytest.approx([4.0, 5.0, 6.0])
    assert here.waited[-1] == pytest.approx(4.0)


def test_messages_share_links() -> None:
    two = [operation(stream=1, message=SENT), operation(stream=2, message=SENT)]
    run = np.array([3.0, 3.0])
    assert ended(two, np.zeros(2), run, links={0: 0, 1: 0}).at == pytest.approx([3.0, 6.0])
    assert ended(two, np.zeros(2), run, links={0: 0, 1: 1}).at == pytest.approx([3.0, 3.0])


def test_the_host_waits_where_it_is_told() -> None:
    found = ended(
        [operation(1), operation()], np.array([1.0, 1.0]), np.array([5.0, 1.0]), waits=[Wait(1, HOST, 0)]
    )
    assert found.at == pytest.approx([6.0, 8.0])


@given(programs, st.floats(0, 1))
def test_more_queues_never_take_longer_and_waits_never_less(
    program: list[tuple[float, float, bool, int, bool]], read: float
) -> None:
    """Between what one queue takes and the longest of the host and each queue."""
    issue, run = (np.array([one[k] for one in program]) for k in (0, 1))
    reads = [i for i, one in enumerate(program) if one[2]]
    several = [operation(one[3]) for one in program]
    waits = [Wait(i, one[3], i - 1) for i, one in enumerate(program) if i and one[4]]
    serial = ended([operation() for _ in program], issue, run, reads, read).at
    free, bound = (ended(several, issue, run, reads, read, told).at for told in ([], waits))
    assert np.all(free <= bound + 1e-9)
    assert np.all(bound <= serial + 1e-9)
    assert (
        free.max()
        >= max(issue.sum(), *(run[[one[3] == k for one in program]].sum() for k in range(3))) - 1e-9
    )

"""Are messages of a step timed by the laws of estimates, and hidden by what runs meanwhile?"""

import pytest

from planner.catalog.cluster_rates import rates_of
from planner.cost.captured.operation import Message
from planner.cost.network.collectives import all_gather_time, all_reduce_time
from planner.cost.network.traffic import group_links
from planner.dryrun.timing.messages import Wires
from planner.spec.machine.load_cluster import load_cluster

NODES = load_cluster("dgx-h100", 32)
WIRES = Wires(NODES, rates_of(NODES)[1])
GIB = 2**30


def message(kind: str, ranks: int, stride: int, size: int = GIB) -> Message:
    return Message(kind, size, ranks, stride, apart=False)


def test_a_message_takes_what_estimates_say() -> None:
    for ranks, stride in ((8, 1), (4, 8), (32, 1)):
        group = group_links(float(stride), float(ranks), NODES)
        assert WIRES.seconds(message("all_gather", ranks, stride)) == all_gather_time(GIB, group, WIRES.rates)
        assert WIRES.seconds(message("all_reduce", ranks, stride)) == all_reduce_time(GIB, group, WIRES.rates)


@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
)
def test_kinds_are_known_and_larger_ones_take_longer(kind: str) -> None:
    assert WIRES.knows(message(kind, 8, 1))
    assert 0 < WIRES.seconds(message(kind, 8, 1)) < WIRES.seconds(message(kind, 8, 1, 2 * GIB))
    assert WIRES.seconds(message(kind, 1, 1)) == 0.0


def test_links_are_those_of_the_outermost_tier() -> None:
    assert WIRES.outermost(message("all_gather", 8, 1)) == 0
    assert WIRES.outermost(message("all_gather", 2, 8)) == WIRES.outermost(message("all_gather", 32, 1)) > 0


def test_what_nobody_timed_is_not_known() -> None:
    assert not WIRES.knows(message("gather_", 8, 1))

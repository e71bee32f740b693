"""What does a listed pass take and hold? By hand."""

from __future__ import annotations

import pytest

from planner.catalog.cluster_rates import rates_of
from planner.catalog.load_host import load_host_rates
from planner.cost.captured.kernels import Device
from planner.cost.captured.passes import ListedCosts
from planner.spec.listed import Both, Change, ListedOperation, ListedPass, ListedShape, Lists, Product
from planner.spec.machine.load_cluster import load_cluster

WHOLE, TOKENS, WIDTH, WEIGHT = range(4)
EXPRESSIONS = (
    (Product(2.0, ("b", "s", "h")),),
    (Product(1.0, ("b", "s")),),
    (Product(1.0, ("h",)),),
    (Product(2.0, ("h", "h")),),
)
STREAM, SQUARE = ListedShape((TOKENS, WIDTH), "bfloat16"), ListedShape((WIDTH, WIDTH), "bfloat16")
OPERATIONS = (
    ListedOperation("aten.mm.default", (STREAM, SQUARE), (STREAM,), (False, True), False, 1, 1, False),
    ListedOperation("aten.silu.default", (STREAM,), (STREAM,), (), True, 0, 0, False),
)
SIZES = {"b": 2, "s": 512, "h": 1024}
STREAM_BYTES, WEIGHT_BYTES = 2.0 * 2 * 512 * 1024, 2.0 * 1024 * 1024
EMPTY = ListedPass((), (), 0)


def costs() -> ListedCosts:
    cluster = load_cluster("1x1 h100", 1)
    both = Both(EMPTY, EMPTY)
    lists = Lists(EXPRESSIONS, OPERATIONS, both, {}, both)
    return ListedCosts(lists, SIZES, Device(cluster.accelerator, rates_of(cluster)[0]), load_host_rates())


def test_levels_are_what_comes_less_what_goes() -> None:
    changes = (Change(WEIGHT, 1, cast=True), Change(WHOLE, 1), Change(WHOLE, 1), Change(WHOLE, -1))
    one = costs().both(Both(ListedPass((0, 1), changes, born=3), EMPTY)).forward
    assert (one.peak, one.net) == (WEIGHT_BYTES + 2 * STREAM_BYTES, WEIGHT_BYTES + STREAM_BYTES)
    assert one.early == WEIGHT_BYTES + 2 * STREAM_BYTES  # before the first gradient that stays
    assert one.late == WEIGHT_BYTES + STREAM_BYTES
    assert costs().copies(Both(ListedPass((0, 1), changes, born=3), EMPTY)) == WEIGHT_BYTES


def test_a_pass_takes_the_longer_of_device_and_host() -> None:
    few, many = (costs().both(Both(ListedPass((0, 1) * times, (), 0), EMPTY)).forward for times in (1, 20))
    assert set(few.device) == {"gemm", "memory_bound"}
    assert many.busy == pytest.approx(20 * few.busy)
    assert many.host == pytest.approx(20 * few.host)
    assert few.seconds == max(few.busy, few.host)
    host = load_host_rates()
    assert few.host == pytest.approx(2 * host.operation + host.view + host.module)


def test_a_pass_without_operations_costs_nothing() -> None:
    nothing = costs().both(Both(EMPTY, EMPTY))
    assert (nothing.seconds, nothing.forward.net, nothing.forward.peak, nothing.host) == (0.0, 0.0, 0.0, 0.0)

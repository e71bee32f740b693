"""Collectives on a torus: the scaling book's worked figures, and links counted one by one."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from planner.catalog.load_links import load_link_rates
from planner.cost.network.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    neighbour_time,
    reduce_scatter_time,
)
from planner.cost.network.torus import links_of, torus_links
from planner.cost.network.traffic import GroupLinks, group_links, pipeline_links
from planner.spec.machine.build_cluster import assemble_cluster
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.links import LinkRates
from planner.spec.machine.load_cluster import load_accelerator, load_cluster
from planner.spec.machine.torus import Torus

CUBE = Torus((4, 4, 4), (45e9, 45e9, 45e9), 4, cubes=True)  # TPU v4
POD = Torus((16, 16), (90e9, 90e9), 16)


def rates_of(cluster: Cluster) -> LinkRates:
    chip = cluster.accelerator
    return load_link_rates(chip.name, chip.architecture, cluster.tiers[0].kind, cluster.fabric)


def test_the_scaling_books_gathers() -> None:
    """Its question 2 on sharding: v4, 4 x 4 x 4, bf16[1024, 4096]: one axis 23 us, two axes 46 us."""
    one, two = links_of(1, 4, CUBE)[0], links_of(1, 16, CUBE)[0]
    assert 2 * 1024 * 4096 / 4 / one == pytest.approx(23e-6, rel=0.02)
    assert 2 * 1024 * 4096 / two == pytest.approx(46e-6, rel=0.02)
    assert links_of(1, 64, CUBE)[0] == 270e9  # all links of a device


def test_a_line_takes_twice_a_ring() -> None:
    line = Torus((8, 8), (90e9, 90e9), 16)
    assert links_of(1, 16, POD)[0] == 2 * links_of(1, 8, line)[0] == 180e9


def test_hops_are_half_a_ring_and_a_whole_line() -> None:
    assert links_of(1, 64, CUBE)[3] == 2 + 2 + 2
    assert links_of(1, 4, Torus((4, 4), (45e9, 45e9), 16))[3] == 3


def test_groups_side_by_side_share_an_axis() -> None:
    # tensor groups of 4 lie along a line, a quarter of an axis; four data groups share its ring
    inner, outer = links_of(1, 4, POD), links_of(4, 64, POD)
    assert inner[0] == 90e9
    assert outer[0] == pytest.approx(2 * 90e9 / 4 + 2 * 90e9)


def test_a_group_lies_along_the_axis_that_it_fills() -> None:
    slice_ = Torus((4, 8, 8), (90e9, 90e9, 90e9), 4, cubes=True)
    assert links_of(1, 8, slice_)[0] == 180e9  # a ring of 8, not one of 4 and a half
    assert links_of(8, 32, slice_)[0] == 360e9


def most_loaded(lengths: tuple[int, ...], ring: bool) -> float:
    """Bytes on the busiest link, of what each device has for all others together; each pair goes the shortest
    way, axis by axis, halves both ways round where those are as long."""
    load: Counter[tuple[tuple[int, ...], int, int]] = Counter()
    places = list(product(*(range(n) for n in lengths)))
    for start, end in product(places, places):
        at = list(start)
        for axis, n in enumerate(lengths):
            ahead = (end[axis] - at[axis]) % n
            ways = [(1, ahead)] if not ring else [(1, ahead), (-1, n - ahead)]
            if not ring:
                ways = [(1, end[axis] - at[axis])] if end[axis] >= at[axis] else [(-1, at[axis] - end[axis])]
            shortest = min(steps for _, steps in ways)
            chosen = [way for way in ways if way[1] == shortest]
            for direction, steps in chosen:
                here = list(at)
                for _ in range(steps):
                    load[tuple(here), axis, direction] += 1.0 / len(chosen)  # type: ignore[assignment]
                    here[axis] = (here[axis] + direction) % n
            at[axis] = end[axis]
    return max(load.values()) / len(places)


@pytest.mark.parametrize(
    ("lengths", "ring"), [((8,), True), ((4, 4), True), ((4, 8), True), ((4,), False), ((2, 4), False)]
)
def test_an_all_to_all_is_as_slow_as_its_busiest_link(lengths: tuple[int, ...], ring: bool) -> None:
    torus = Torus(lengths, (1.0,) * len(lengths), 4 if ring else 99)
    size = int(np.prod(lengths))
    exchange = links_of(1, size, torus)[1]
    assert (size - 1) / size / exchange == pytest.approx(most_loaded(lengths, ring))


def test_a_row_alone_is_a_row_of_a_table() -> None:
    strides, sizes = np.array([1.0, 4.0, 16.0, 1.0]), np.array([4.0, 16.0, 16.0, 1.0])
    table = torus_links(strides, sizes, POD)
    for i in range(len(strides)):
        alone = links_of(int(strides[i]), int(sizes[i]), POD)
        got = (table.gather, table.exchange, table.neighbour, table.hops)
        assert tuple(np.asarray(column)[i] for column in got) == alone


def test_collectives_of_a_slice_by_hand() -> None:
    pod = load_cluster("tpu-v6e", 256)
    group, links = group_links(1.0, 256.0, pod), rates_of(pod)
    size = 1e9
    wire = size * 255 / 256 / 360e9
    assert float(all_gather_time(size, group, links)) == pytest.approx(wire + 16e-6)
    assert float(reduce_scatter_time(size, group, links)) == pytest.approx(wire + 16e-6)
    assert float(all_reduce_time(size, group, links)) == pytest.approx(2 * wire + 32e-6)
    # a quarter of a gather of what all have together, on one axis
    one = group_links(1.0, 16.0, pod)
    gathered = float(all_gather_time(16 * size, one, links)) - 8e-6
    exchanged = float(all_to_all_time(size, one, links)) - 8e-6
    assert exchanged / gathered == pytest.approx(0.25 * 16 / 15)


def test_messages_pass_one_link() -> None:
    pod = load_cluster("tpu-v6e", 256)
    assert float(neighbour_time(90e6, group_links(1.0, 16.0, pod), rates_of(pod))) == pytest.approx(
        1e-3 + 1e-6
    )
    assert float(pipeline_links(64.0, 4.0, pod).bandwidth[0]) == 90e9


def test_slices_exchange_what_each_device_has() -> None:
    """Two slices of 64 v5p: gathers inside at 540 GB/s, and half of each device's share over its own 6.25 GB/s."""
    two = assemble_cluster(load_accelerator("tpu-v5p"), 128, 4, 64)
    group, links = group_links(1.0, 128.0, two), rates_of(two)
    size, fabric = 1e9, links.fabric
    inside = size * 63 / 64 / 540e9 + 6e-6
    between = size / 64 / 2 / (6.25e9 * fabric.fraction) + fabric.p2p_base
    assert float(all_gather_time(size, group, links)) == pytest.approx(inside + between)
    assert float(all_reduce_time(size, group, links)) == pytest.approx(2 * (inside + between))


def test_one_slice_alone_has_nothing_between() -> None:
    two = assemble_cluster(load_accelerator("tpu-v5p"), 128, 4, 64)
    alone = load_cluster("tpu-v5p", 64)
    for time in (all_gather_time, reduce_scatter_time, all_reduce_time):
        here, there = (
            time(np.array([1e8]), group_links(np.array([1.0]), np.array([64.0]), c), rates_of(c))
            for c in (two, alone)
        )
        np.testing.assert_allclose(here, there)
        assert float(np.asarray(time(1e8, group_links(1.0, 1.0, two), rates_of(two)))) == 0.0


def test_more_bandwidth_is_never_slower() -> None:
    wide = Torus(POD.shape, (180e9, 180e9), 16)
    for stride, size in ((1, 16), (1, 256), (4, 64), (2, 4)):
        assert all(
            w >= n
            for w, n in zip(links_of(stride, size, wide)[:3], links_of(stride, size, POD)[:3], strict=True)
        )


def test_links_without_a_torus_are_the_switchs() -> None:
    group = GroupLinks(8.0, 8.0, 450e9, 50e9, 50e9)
    assert (group.steps, group.exchange, group.neighbour) == (7.0, 450e9, 450e9)

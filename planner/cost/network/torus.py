"""How fast do a group's collectives run on a torus, where every device is linked to its neighbours alone?

Ranks fill the slice axis by axis, in the order of axes that splits the fewest for the group, then suits it best:
software lays its parallel axes over whole axes of the torus, and divides one where no whole ones have their size (jax
mesh_utils.create_device_mesh with allow_split_physical_axes, which files for MaxText set there). Left out: that two
groups may want different orders, links shared by collectives of several axes at once, and twisted tori.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from planner.spec.config import distinct
from planner.spec.machine.torus import Axis, Torus

Array = NDArray[np.float64]
Quantity = float | Array


@dataclass(frozen=True)
class TorusLinks:
    """What a group of ranks has of a torus. Bytes/s per direction of a device: `gather` where each receives what all
    others have (all-gather, reduce-scatter), `exchange` where it sends another part to each (all-to-all), `neighbour`
    from one rank to the next. `hops`: links in a row that the last bytes pass [1]."""

    gather: Quantity
    exchange: Quantity
    neighbour: Quantity
    hops: Quantity


@dataclass(frozen=True)
class _Span:
    """A group along one axis of the torus: `members`, `apart` devices from each other, so that as many groups share
    the links. `part`: not the whole axis."""

    members: float
    apart: float
    link: float
    ring: bool
    part: bool

    @property
    def directions(self) -> float:
        """Ways that bytes take at once: both around a ring; on a line, whose end hears all from one side, one."""
        return 2.0 if self.ring else 1.0


def torus_links(stride: Quantity, size: Quantity, torus: Torus) -> TorusLinks:
    """Links of groups of `size` ranks of one slice that are `stride` ranks apart; see `links_of`."""
    strides, sizes = np.broadcast_arrays(np.asarray(stride, dtype=np.int64), np.asarray(size, dtype=np.int64))
    first, inverse = distinct(strides.reshape(-1), sizes.reshape(-1))
    pairs = zip(strides.reshape(-1)[first].tolist(), sizes.reshape(-1)[first].tolist(), strict=True)
    found = np.array([links_of(s, n, torus) for s, n in pairs], dtype=np.float64)
    return TorusLinks(*(column[inverse].reshape(strides.shape) for column in found.T))


@lru_cache(maxsize=65536)
def links_of(stride: int, size: int, torus: Torus) -> tuple[float, float, float, float]:
    """Gather, exchange and neighbour of `TorusLinks` [bytes/s], and hops [1], for one group.

    m = 2 around a ring, 1 on a line, `c` members of the group along an axis, `k` devices apart, W one link's bytes/s:
    gather   = sum over the group's axes of m W / k: a device receives over all its links at once;
    exchange = (N - 1) / N min over the axes of 4 m W / (k c): half of all bytes cross the middle of the longest axis.
    Source: jax-ml/scaling-book@0819a7d sharding.md (one ring: V / (2 W), a quarter of it for an all-to-all; several
    axes: their sum), tpus.md (no ring: twice the time). Validity: axes of one length; on axes a < b an all-gather takes
    up to 1/a - 1/b longer than this sum, which is what each device must receive.
    """
    if size <= 1:
        return torus.bandwidth, torus.bandwidth, min(torus.links), 0.0
    layouts = _layouts(stride, size, torus.axes)
    return max((-sum(s.part for s in spans), _of_spans(spans, size)) for spans in layouts)[1]


def _of_spans(spans: list[_Span], size: int) -> tuple[float, float, float, float]:
    gather = sum(s.directions * s.link / s.apart for s in spans)
    middle = min(4.0 * s.directions * s.link / (s.apart * s.members) for s in spans)
    neighbour = min(s.link / s.apart for s in spans)
    hops = sum(s.apart * (s.members / 2.0 if s.ring else s.members - 1.0) for s in spans)
    return gather, (size - 1) / size * middle, neighbour, hops


def _layouts(stride: int, size: int, axes: tuple[Axis, ...]) -> Iterator[list[_Span]]:
    """The group's spans under each order of the axes, the first one's devices being consecutive ranks."""
    for order in sorted(set(permutations(axes))):
        below, spans = 1, []
        for axis in order:
            first, last = max(stride, below), min(stride * size, below * axis.length)
            if last > first:
                to_end = last == below * axis.length
                part = not to_end or first > below
                spans.append(_Span(last / first, first / below, axis.link, axis.closed and to_end, part))
            below *= axis.length
        yield spans

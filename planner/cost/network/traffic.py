"""Which links does the process group of an axis use, and at what rate when all groups of the axis talk at once?

Ranks are laid out tensor, context, data, pipeline, innermost first, and experts on consecutive ranks inside a
stage (Megatron-LM's default order). Groups need not be aligned with nodes: the worst placed one counts. Left out:
other orders, and traffic of different axes at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.cost.network.torus import TorusLinks, torus_links
from planner.spec.config import distinct
from planner.spec.machine.cluster import Cluster

Array = NDArray[np.float64]
Quantity = float | Array


@dataclass(frozen=True)
class GroupLinks:
    """Where a group of `ranks` ranks lies. `local`: those inside one scale-up domain (NVLink, xGMI, PCIe host), the
    fewest of any domain it touches [1]. `scale_up`: bytes/s per direction of a device inside it. `fabric`: bytes/s per
    direction that each of them gets beyond the domain when every group of the axis sends. `message`: bytes/s of what
    one rank sends to the next in a ring that leaves the domain: all that the group has there, but no more than the
    rank's own card. `torus`: what it has of one inside a domain, whose `gather` is `scale_up`; None behind a switch or
    on a mesh."""

    ranks: Quantity
    local: Quantity
    scale_up: Quantity
    fabric: Quantity
    message: Quantity
    torus: TorusLinks | None = None

    @property
    def nodes(self) -> Quantity:
        """Domains that it touches [1]."""
        return self.ranks / self.local

    @property
    def steps(self) -> Quantity:
        """Steps of a collective inside a domain, one after the other [1]."""
        return self.local - 1 if self.torus is None else self.torus.hops

    @property
    def exchange(self) -> Quantity:
        """Bytes/s per direction of a device in an all-to-all inside a domain."""
        return self.scale_up if self.torus is None else self.torus.exchange

    @property
    def neighbour(self) -> Quantity:
        """Bytes/s of what one rank sends to the next inside a domain."""
        return self.scale_up if self.torus is None else self.torus.neighbour


@lru_cache(maxsize=65536)
def least_inside(stride: int, size: int, domain: int) -> int:
    """Ranks of a group in the domain where it has the fewest, over all groups of the axis [1].

    Groups of `size` ranks `stride` apart tile the ranks in blocks of stride x size; domains hold `domain` consecutive
    ranks. Groups that straddle a boundary have a first and a last part, with full domains between them.
    """
    block = stride * size
    if stride >= domain:
        return 1
    if domain % block == 0:
        return size
    if domain % stride == 0 and block % domain == 0:
        return domain // stride
    starts = np.arange(domain // np.gcd(domain, block), dtype=np.int64)[:, None] * block % domain
    first = (starts + np.arange(stride)) % domain  # place of every group's first rank in its domain
    head = np.minimum(-(-(domain - first) // stride), size)
    last = first + (size - 1) * stride
    tail = np.where(head == size, size, last % domain // stride + 1)
    inside = np.where(last // domain >= 2, domain // stride, size)
    return int(np.minimum(np.minimum(head, tail), inside).min())


def _least_inside(stride: Quantity, size: Quantity, domain: int) -> Array:
    """`least_inside` for columns, asked once per distinct pair."""
    # experts on more ranks than there are, as some published runs state them, leave groups of less than one
    whole = np.maximum(np.asarray(size, dtype=np.int64), 1)
    strides, sizes = np.broadcast_arrays(np.asarray(stride, dtype=np.int64), whole)
    first, inverse = distinct(strides.reshape(-1), sizes.reshape(-1))
    pairs = zip(strides.reshape(-1)[first].tolist(), sizes.reshape(-1)[first].tolist(), strict=True)
    found = [least_inside(s, n, domain) for s, n in pairs]
    return np.array(found, dtype=np.float64)[inverse].reshape(strides.shape)


def group_links(stride: Quantity, size: Quantity, cluster: Cluster) -> GroupLinks:
    """Links of groups of `size` ranks that are `stride` ranks apart [1], [bytes/s].

    A ring leaves a domain once for the ranks it has inside, so it is bound by (ranks inside) x (a device's share of
    the links out of the domain), the least over the tiers it spans and the domains it touches: a pod oversubscribed
    1:7 slows only groups with fewer than 7 ranks in the pod.
    """
    local = _least_inside(stride, size, cluster.tiers[0].size)
    fabric: Quantity = np.full(np.shape(local), np.inf)
    alone: Quantity = fabric
    for below, tier in zip(cluster.tiers, cluster.tiers[1:], strict=False):
        inside = _least_inside(stride, size, below.size)
        fabric = np.where(inside < size, np.minimum(fabric, inside / local * tier.bandwidth), fabric)
        alone = np.where(inside < size, np.minimum(alone, tier.bandwidth_alone), alone)
    beyond = cluster.tiers[min(1, len(cluster.tiers) - 1)].bandwidth
    fabric = np.where(np.isinf(fabric), beyond, fabric)
    scale_up, torus = inside_links(stride, local, cluster)
    return GroupLinks(size, local, scale_up, fabric, np.minimum(fabric * local, alone), torus)


def inside_links(stride: Quantity, local: Quantity, cluster: Cluster) -> tuple[Quantity, TorusLinks | None]:
    """Bytes/s per direction of a device inside its scale-up domain, and what a group has of a torus there.

    In a mesh a device has a link to each other device of the group, and no more of its links are of use to it.
    """
    inner = cluster.tiers[0]
    if inner.torus is None and inner.mesh_pair is not None:
        linked = inner.mesh_pair * np.maximum(np.asarray(local, dtype=float) - 1.0, 1.0)
        return np.minimum(inner.bandwidth, linked), None
    if inner.torus is None:
        return inner.bandwidth, None
    links = torus_links(stride, local, inner.torus)
    return links.gather, links


@dataclass(frozen=True)
class BoundaryLinks:
    """The boundaries between the stages of a pipeline, by the outermost tier that their messages cross.

    `count[k]`: boundaries whose messages cross tier k and none beyond it (0: inside the scale-up domain).
    `bandwidth[k]`: bytes/s of a device there. `wrap`: the tier that a message from the last stage to the first crosses.
    """

    count: list[Array]
    bandwidth: list[Array]
    wrap: NDArray[np.intp]


def pipeline_links(width: Quantity, stages: Quantity, cluster: Cluster) -> BoundaryLinks:
    """Where the messages of a pipeline go whose stages are `width` = t c d consecutive ranks wide.

    Of the pipelines that run side by side the one that crosses most often counts: floor((p w - 1) / D) of its p - 1
    boundaries leave a domain of D ranks where w < D, all where not. A device has its all-at-once share of a tier,
    more where only the w devices of a stage out of a domain's D send, its own link at most.
    """
    w, p = np.asarray(width, dtype=float), np.asarray(stages, dtype=float)
    left, bandwidth = p - 1.0, np.full(np.shape(w), cluster.tiers[0].hop_bandwidth)
    count, bandwidths, wrap = [], [bandwidth], np.zeros(np.shape(w), dtype=np.intp)
    reach = np.full(np.shape(w), np.inf)
    for k, (below, tier) in enumerate(zip(cluster.tiers, cluster.tiers[1:], strict=False), start=1):
        leaving = np.where(w >= below.size, p - 1.0, np.floor((p * w - 1.0) / below.size))
        leaving = np.minimum(leaving, left)
        count.append(left - leaving)
        share = tier.bandwidth * np.maximum(below.size / w, 1.0)
        reach = np.minimum(reach, np.minimum(share, tier.bandwidth_alone))
        bandwidths.append(reach)
        wrap = np.where(leaving > 0, k, wrap)
        left = leaving
    return BoundaryLinks([*count, left], bandwidths, wrap)


def boundary_tier(boundary: int, width: int, cluster: Cluster) -> int:
    """The outermost tier that a message from stage `boundary` to the next crosses, for the last rank of a stage."""
    here, there = (boundary + 1) * width - 1, (boundary + 2) * width - 1
    crossed = [
        k for k, below in enumerate(cluster.tiers[:-1], start=1) if here // below.size != there // below.size
    ]
    return max(crossed, default=0)

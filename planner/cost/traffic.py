"""Which links does the process group of an axis use, and at what rate when all groups of the axis talk at once?

Ranks are laid out tensor, context, data, pipeline, innermost first, and experts on consecutive ranks inside a
stage (Megatron-LM's default order). Left out: other orders, and traffic of different axes at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.spec.cluster import Cluster

Quantity = float | NDArray[np.float64]


@dataclass(frozen=True)
class GroupLinks:
    """Where a group lies. `local`: its ranks inside one scale-up domain [1]. `fabric`: bytes/s per direction
    that each of them gets beyond the domain when every group of the axis sends."""

    local: Quantity
    fabric: Quantity


def group_links(stride: Quantity, size: Quantity, cluster: Cluster) -> GroupLinks:
    """Links of groups of `size` ranks that are `stride` ranks apart [1], [bytes/s].

    A ring leaves a domain of D devices once for the ranks it has inside, D / stride, so it is bound by
    (ranks inside) x (a device's share of the links out of the domain), the least over the tiers it spans:
    a pod oversubscribed 1:7 slows only groups with fewer than 7 ranks in the pod.
    """
    scale_up = cluster.tiers[0]
    local = np.clip(scale_up.size // np.asarray(stride), 1, size)
    fabric: Quantity = np.full(np.shape(local), np.inf)
    for below, tier in zip(cluster.tiers, cluster.tiers[1:], strict=False):
        inside = np.clip(below.size // np.asarray(stride), 1, size)
        spans = np.asarray(stride) * size > below.size
        fabric = np.where(spans, np.minimum(fabric, inside / local * tier.bandwidth), fabric)
    if len(cluster.tiers) == 1:
        return GroupLinks(local, np.full(np.shape(local), scale_up.bandwidth))
    return GroupLinks(local, np.where(np.isinf(fabric), cluster.tiers[1].bandwidth, fabric))


def neighbour_links(stride: Quantity, cluster: Cluster) -> tuple[NDArray[np.bool_], Quantity]:
    """Does a message to the rank `stride` ranks away leave the scale-up domain, and at what bytes/s?

    Every device of a stage sends at once, so each has its all-at-once share of the outermost tier crossed.
    """
    crosses = np.asarray(stride) >= cluster.tiers[0].size
    fabric: Quantity = np.full(np.shape(stride), np.inf)
    for below, tier in zip(cluster.tiers, cluster.tiers[1:], strict=False):
        fabric = np.where(np.asarray(stride) >= below.size, np.minimum(fabric, tier.bandwidth), fabric)
    last = cluster.tiers[min(1, len(cluster.tiers) - 1)].bandwidth
    return crosses, np.where(np.isinf(fabric), last, fabric)

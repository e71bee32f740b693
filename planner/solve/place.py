"""Where does every axis of a configuration live: which ranks form its groups, which links do they cross, with how much?

Ranks are numbered through the framework's grids, experts through a grid of their own over the same ranks, and node
by node along the cluster. Bytes and seconds are those from which the cost makes the step's terms. Left out: other
jobs on the links, and traffic of different axes at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.exchanges import Exchange, exchanges, link_time
from planner.cost.model import CostModel
from planner.cost.network.traffic import (
    GroupLinks,
    boundary_tier,
    group_links,
    inside_links,
    pipeline_links,
)
from planner.frameworks import framework, framework_of_stack
from planner.frameworks.framework import Framework
from planner.spec.config import ParallelConfig
from planner.spec.machine.cluster import Cluster
from planner.spec.planned_config import PlannedConfig
from planner.spec.rule import Problem

Grid = NDArray[np.int64]

# name of a group -> (grid, axes in which its ranks differ)
GROUPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "tp": ("dense", ("tp",)),
    "cp": ("dense", ("cp",)),
    "ep": ("expert", ("ep",)),
    "etp": ("expert", ("etp",)),
    "dp": ("dense", ("dp",)),
    "dp_cp": ("dense", ("dp", "cp")),
    "edp": ("expert", ("edp",)),
    "pp": ("dense", ("pp",)),
}


@dataclass(frozen=True)
class Layout:
    """The ranks of a configuration as grids. `sizes`: of every axis; orders name axes fastest first."""

    sizes: Mapping[str, int]
    dense_order: tuple[str, ...]
    expert_order: tuple[str, ...]
    devices: int

    def order(self, group: str) -> tuple[str, ...]:
        """The order of the grid in which a group lies."""
        return self.dense_order if GROUPS[group][0] == "dense" else self.expert_order

    def has(self, group: str) -> bool:
        """Does the group have more than one rank, and is it not the same as another?"""
        order, axes = self.order(group), GROUPS[group][1]
        if not set(axes) <= set(order) or (group == "dp_cp" and self.sizes["cp"] == 1):
            return False
        return int(np.prod([self.sizes[axis] for axis in axes])) > 1

    def groups(self, group: str) -> Grid:
        """Every group as a row of ranks in ascending order."""
        order, axes = self.order(group), GROUPS[group][1]
        names = list(reversed(order))
        shape = [self.sizes[axis] for axis in names]
        grid = np.arange(self.devices, dtype=np.int64).reshape(shape)
        moved = [i for i, axis in enumerate(names) if axis in axes]
        kept = [i for i in range(len(names)) if i not in moved]
        width = int(np.prod([shape[i] for i in moved]))
        return np.sort(grid.transpose([*kept, *moved]).reshape(-1, width), axis=1)

    def place_of(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank along every axis."""
        found: dict[str, int] = {}
        for order in (self.dense_order, self.expert_order):
            left = rank
            for axis in order:
                found.setdefault(axis, left % self.sizes[axis])
                left //= self.sizes[axis]
        return found


@dataclass(frozen=True)
class AxisPlace:
    """Where the groups of one axis lie, and what crosses their links.

    `stride`: ranks between neighbours of a group. `tier`: the outermost tier of the cluster that any group crosses.
    `inside`: fewest ranks of a group in a domain of each tier. `same_rail`: in every node a group touches its ranks
    have the same places, so that each talks to its like over one rail. `links`: rates of the collectives.
    `exchanges`: what a rank of `stage` sends in a step. `busy`: seconds its links work for what the step's terms count,
    `exposed`: those that nothing hides, absent until they are asked for (`solve/in_sight.py`).
    """

    axis: str
    size: int
    count: int
    stride: int
    tier: int
    inside: tuple[int, ...]
    same_rail: bool
    links: GroupLinks
    exchanges: tuple[Exchange, ...]
    busy: float
    exposed: float | None = None

    @property
    def sent(self) -> float:
        """Bytes that a rank sends in a step [bytes]."""
        return sum(exchange.sent_per_step for exchange in self.exchanges)


@dataclass(frozen=True)
class Placement:
    """A configuration on a cluster: its grids and where every axis lives, fastest first; for ranks of one stage."""

    config: ParallelConfig
    cluster: Cluster
    framework: str
    layout: Layout
    stage: int
    axes: tuple[AxisPlace, ...]

    @cached_property
    def by_axis(self) -> dict[str, AxisPlace]:
        """Axes by name."""
        return {place.axis: place for place in self.axes}

    def groups_of(self, rank: int) -> dict[str, list[int]]:
        """The groups that a rank is in, by axis."""
        found = {}
        for place in self.axes:
            rows = self.layout.groups(place.axis)
            found[place.axis] = [int(r) for r in rows[int(np.flatnonzero((rows == rank).any(axis=1))[0])]]
        return found


def layout_of(problem: Problem, config: ParallelConfig) -> Layout:
    """The grids of a configuration as the stack's framework numbers its ranks; Megatron-LM's where it is unknown."""
    return grids_of(problem.stack.framework, problem.model.is_moe, config)


def _numbering(stack_framework: str) -> Framework:
    """The framework that numbers the ranks."""
    return framework_of_stack(stack_framework) or framework("megatron")


def grids_of(stack_framework: str, with_experts: bool, config: ParallelConfig | PlannedConfig) -> Layout:
    """As `layout_of`, from what a plan file says."""
    numbering = _numbering(stack_framework)
    sizes = {axis: int(getattr(config, axis)) for axis in ("tp", "cp", "pp", "dp", "ep", "etp")}
    devices = config.tp * config.cp * config.pp * config.dp
    etp = sizes["etp"] if "etp" in numbering.expert_order else 1
    sizes["edp"] = max(devices // (config.pp * config.ep * etp), 1)
    expert = numbering.expert_order if with_experts else ()
    return Layout(sizes, numbering.dense_order, expert, devices)


def place(model: CostModel, config: ParallelConfig, stage: int | None = None) -> Placement:
    """Where a legal configuration lives. `stage`: whose messages are counted (default: a middle one)."""
    problem = model.problem
    layout = layout_of(problem, config)
    chosen = config.pp // 2 if stage is None else stage
    sent = exchanges(model, config, chosen)
    axes = tuple(_axis(model, config, layout, name, sent, chosen) for name in GROUPS if layout.has(name))
    numbering = _numbering(problem.stack.framework).title
    ordered = tuple(sorted(axes, key=lambda a: (a.stride, a.size)))
    return Placement(config, problem.cluster, numbering, layout, chosen, ordered)


def _axis(
    model: CostModel, config: ParallelConfig, layout: Layout, name: str, sent: Sequence[Exchange], stage: int
) -> AxisPlace:
    cluster = model.problem.cluster
    groups = layout.groups(name)
    count, size = groups.shape
    inside = tuple(_fewest_inside(groups, tier.size) for tier in cluster.tiers)
    tier = next((k for k, n in enumerate(inside) if n == size), len(inside) - 1)
    stride = int((groups[:, 1] - groups[:, 0]).min())
    own = tuple(e for e in sent if e.axis == messages_of(name, layout))
    links = _links(inside, size, stride, cluster)
    if name == "pp":
        links = _boundary(config, layout, stage, cluster)
    busy = seconds_of(own, links, model)
    rail = _same_rail(groups, cluster.devices_per_node)
    return AxisPlace(name, size, count, stride, tier, inside, rail, links, own, busy)


def seconds_of(messages: Iterable[Exchange], links: GroupLinks, model: CostModel) -> float:
    """Seconds that the links of a group work for a step's messages, without those under compute."""
    cluster, seconds = model.problem.cluster, 0.0
    for e in messages:
        if not e.hidden:
            used = links if e.part is None else group_links(e.part[1], e.part[0], cluster)
            seconds += e.calls * link_time(e, used, model.links)
    return seconds


def messages_of(group: str, layout: Layout) -> str:
    """The axis under which the messages of a group are counted: gradients go over dp x cp where there is cp."""
    if group == "dp_cp":
        return "dp"
    return "" if group == "dp" and layout.has("dp_cp") else group


def _links(inside: tuple[int, ...], size: int, stride: int, cluster: Cluster) -> GroupLinks:
    """As `cost.network.traffic.group_links`, from the ranks that are really inside each domain."""
    local, fabric, alone = inside[0], np.inf, np.inf
    for ranks, tier in zip(inside, cluster.tiers[1:], strict=False):
        if ranks < size:
            fabric = min(fabric, ranks / local * tier.bandwidth)
            alone = min(alone, tier.bandwidth_alone)
    if np.isinf(fabric):
        fabric = cluster.tiers[min(1, len(cluster.tiers) - 1)].bandwidth
    scale_up, torus = inside_links(float(stride), float(local), cluster)
    message = float(min(fabric * local, alone))
    return GroupLinks(float(size), float(local), scale_up, float(fabric), message, torus)


def _boundary(config: ParallelConfig, layout: Layout, stage: int, cluster: Cluster) -> GroupLinks:
    """Links of the messages from a stage to the next; `local`: 1 where they leave the scale-up domain, else the
    devices of it that send at once, pp at least."""
    order = layout.dense_order
    width = int(np.prod([layout.sizes[axis] for axis in order[: order.index("pp")]]))
    tier = boundary_tier(min(stage, config.pp - 2), width, cluster)
    links = pipeline_links(float(width), float(config.pp), cluster)
    bandwidth = float(links.bandwidth[tier])
    inside = max(config.pp, min(width * config.pp, cluster.tiers[0].size))
    local, scale_up = 1.0 if tier else float(inside), cluster.tiers[0].hop_bandwidth
    return GroupLinks(float(config.pp), local, scale_up, bandwidth, bandwidth)


def _fewest_inside(groups: Grid, domain: int) -> int:
    """Ranks of a group in the domain where it has the fewest, over all groups."""
    numbers = groups // domain
    domains = int(numbers.max()) + 1
    _, counts = np.unique(np.arange(len(groups))[:, None] * domains + numbers, return_counts=True)
    return int(counts.min())


def _same_rail(groups: Grid, per_node: int) -> bool:
    """Does every group have, in each node it touches, ranks in the same places?"""
    size = groups.shape[1]
    if size == 1 or int(groups.max()) < per_node:
        return True
    nodes, places = np.sort(groups // per_node, axis=1), np.sort(groups % per_node, axis=1)
    distinct_nodes = 1 + (np.diff(nodes, axis=1) > 0).sum(axis=1)
    distinct_places = 1 + (np.diff(places, axis=1) > 0).sum(axis=1)
    return bool((distinct_nodes * distinct_places == size).all())

"""Where does every axis of a configuration live: which ranks form its groups, which links do they cross, with how much?

Ranks are numbered through the framework's grids, experts through a grid of their own over the same ranks, and node
by node along the cluster. Bytes and seconds are those from which the cost makes the step's terms. Left out: other
jobs on the links, and traffic of different axes at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.messages.message import SentMessage
from planner.cost.model import CostModel
from planner.cost.network.traffic import GroupLinks, group_links
from planner.frameworks import framework, framework_of_stack
from planner.frameworks.framework import Framework
from planner.solve.step_messages import StepMessages
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
# groups of which the first that there is carries the messages of an axis
_HOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "dp": ("dp_cp", "dp"),
    "etp": ("etp", "tp"),
    "edp": ("edp", "dp_cp", "dp"),
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
    have the same places, so that each talks to its like over one rail. `links`: those of its groups.
    `exchanges`: what a rank of `stage` sends in a step. `exposed`: seconds of it that nothing hides [s], absent until
    they are asked for (`solve/in_sight.py`).
    """

    axis: str
    size: int
    count: int
    stride: int
    tier: int
    inside: tuple[int, ...]
    same_rail: bool
    links: GroupLinks
    exchanges: tuple[SentMessage, ...]
    exposed: float | None = None

    @property
    def sent(self) -> float:
        """Bytes that a rank sends in a step [bytes]."""
        return sum(exchange.sent_per_step for exchange in self.exchanges)

    @property
    def busy(self) -> float:
        """Seconds that its links work for what the step's terms count [s]."""
        return sum(exchange.busy for exchange in self.exchanges)


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
    messages = StepMessages.of(model, config)
    sent = messages.of_stage(chosen)
    axes = tuple(_axis(messages, layout, name, sent, chosen) for name in GROUPS if layout.has(name))
    numbering = _numbering(problem.stack.framework).title
    ordered = tuple(sorted(axes, key=lambda a: (a.stride, a.size)))
    return Placement(config, problem.cluster, numbering, layout, chosen, ordered)


def _axis(
    messages: StepMessages, layout: Layout, name: str, sent: Sequence[SentMessage], stage: int
) -> AxisPlace:
    cluster = messages.model.problem.cluster
    groups = layout.groups(name)
    count, size = groups.shape
    inside = tuple(_fewest_inside(groups, tier.size) for tier in cluster.tiers)
    tier = next((k for k, n in enumerate(inside) if n == size), len(inside) - 1)
    stride = int((groups[:, 1] - groups[:, 0]).min())
    own = tuple(one for one in sent if home_of(one.axis, layout) == name)
    links = group_links(float(stride), float(size), cluster)
    if name == "pp":
        at = messages.boundary(stage).links
        parts = (at.ranks, at.local, at.scale_up, at.fabric)
        ranks, local, scale_up, fabric = (float(np.asarray(part).item()) for part in parts)
        links = GroupLinks(ranks, local, scale_up, fabric, fabric)
    rail = _same_rail(groups, cluster.devices_per_node)
    return AxisPlace(name, size, count, stride, tier, inside, rail, links, own)


def home_of(axis: str, layout: Layout) -> str:
    """The group whose messages those of an axis are: gradients go over dp x cp where there is cp; where experts have no
    grid of their own, over those of the dense parts; "" where none of them has more than one rank."""
    return next((group for group in _HOMES.get(axis, (axis,)) if layout.has(group)), "")


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

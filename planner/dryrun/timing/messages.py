"""How long does a message of a step take, and which links does it run on? By the laws that estimates use
(`cost/network`).

Left out: what messages of other groups take on the same links at the same time, but for those of the rank itself, which
wait for each other (`clocks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.network.collectives import CollectiveKind, collective_time
from planner.cost.network.traffic import group_links
from planner.dryrun.recording import Message
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.links import LinkRates


@dataclass(frozen=True)
class Wires:
    """What messages run over."""

    cluster: Cluster
    rates: LinkRates

    def knows(self, message: Message) -> bool:
        """Can it be timed?"""
        return message.kind in tuple(CollectiveKind)

    def seconds(self, message: Message) -> float:
        """From when all ranks of the group have come to it until it is over [s]."""
        if message.ranks == 1:
            return 0.0
        group = group_links(float(message.stride), float(message.ranks), self.cluster)
        return float(collective_time(CollectiveKind(message.kind), float(message.size), group, self.rates))

    def outermost(self, message: Message) -> int:
        """The outermost tier of links that a group crosses."""
        span = message.stride * (message.ranks - 1) + 1
        tiers = self.cluster.tiers
        return next((k for k, tier in enumerate(tiers) if span <= tier.size), len(tiers) - 1)

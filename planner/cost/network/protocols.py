"""What does a collective between nodes cost in each algorithm and protocol of NCCL, and which is the fastest?

Rings, trees and switch-assisted trees (NVLSTree) in the protocols LL, LL128 and Simple. Every constant is NCCL's or the
network plug-in's own, none is fitted: NVIDIA/nccl@5067397 src/graph/tuning.cc (latencies, bandwidths, corrections) and
src/enqueue.cc (chunks). NCCL estimates all of them and takes the least; so does this. Left out: CollNet and NVLS in the
network's switches (SHARP), which need a plug-in; the tuner of EFA's plug-in, which chooses nearly the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.spec.machine.links import FabricRates

Quantity = float | NDArray[np.float64]
KIB = 2.0**10


@dataclass(frozen=True)
class Protocol:
    """A protocol of NCCL. `start`, `step`: what its launch and each step inside a domain take more than those of LL,
    which the shortest messages measure [s]; `tree_step` the same on a tree. `ring_hop`, `tree_hop`: a crossing between
    nodes [s]. `ring_share`, `tree_share`: of the bandwidth [1]. `chunk`: the largest [bytes]."""

    start: float
    step: float
    tree_step: float
    ring_hop: float
    tree_hop: float
    ring_share: float
    tree_share: float
    chunk: float


# chunks: an eighth of the buffers of 512 KiB (half of it flags), 4.7 MiB (an eighth ... of 16 words one flag) and 4 MiB
LL: Final = Protocol(0.0, 0.0, 0.0, 2.7e-6, 5.0e-6, 0.5, 0.92 / 3.8, 32 * KIB)
LL128: Final = Protocol(7.4e-6, 1.3e-6, 0.65e-6, 4.0e-6, 8.5e-6, 0.92, 0.92 * 120 / 128, 562.5 * KIB)
SIMPLE: Final = Protocol(1.8e-6, 2.8e-6, 3.4e-6, 14.0e-6, 14.0e-6, 1.0, 0.92, 512 * KIB)
# bus bandwidth of LL on two nodes and on more, Intel hosts (llMaxBws) [bytes/s]
LL_LIMITS: Final = (39.0e9, 20.4e9)
RING_PLATEAU = 1.4  # latency of a Simple ring's all-reduce
SWITCH_HOP = 20.9e-6
PAT_BASE, PAT_RANK, PAT_HOP_SHARE, PAT_SHARE = 8e-6, 2.8e-6, 1 / 3.5, 0.75
# channels: two a card, of which a device has no more than one and one carries no less; 12 fill the scale-up link
CARD_BANDWIDTH = 12e9
RINGS_IN_BANDWIDTH = 12.0
SWITCH_CHANNELS = 16.0
# below so many chunks a channel and head NCCL cuts them to ...
SWITCH_CHUNKS: Final = ((32.0, 256 * KIB), (16.0, 128 * KIB), (4.0, 64 * KIB), (1.0, 32 * KIB))


@dataclass(frozen=True)
class Crossing:
    """A group over several nodes. `nodes`, `local`: its nodes and its ranks in each [1]. `cards`: of a node, what
    collectives reach [bytes/s]; `scale_up`: bus bandwidth of a ring inside a node [bytes/s], infinite for one rank;
    `nvlink`: what it crosses there is no PCIe."""

    nodes: Quantity
    local: Quantity
    cards: Quantity
    scale_up: Quantity
    fabric: FabricRates
    nvlink: bool = True

    @property
    def ranks(self) -> Quantity:
        return self.nodes * self.local

    @property
    def levels(self) -> Quantity:
        """Levels of a binary tree over nodes [1]."""
        return np.log2(self.nodes)

    def hop(self, of_nccl: Quantity, protocol: Protocol) -> Quantity:
        """One crossing [s]: NCCL's and the fabric's latency, which counts twice where the receiver must flush, and what
        a message beyond LL's size waits for its receiver."""
        fabric = self.fabric
        twice = 2.0 if protocol is SIMPLE and fabric.flush else 1.0
        agreed = 0.0 if protocol is LL else fabric.rendezvous
        return fabric.latency_factor * (of_nccl + twice * fabric.latency + agreed)

    def ll_limit(self) -> Quantity:
        """Bus bandwidth of LL [bytes/s]."""
        return np.where(self.nodes > 2, LL_LIMITS[1], LL_LIMITS[0])

    def protocols(self) -> tuple[Protocol, ...]:
        """LL and LL128 read flags beside the data, which must arrive in order."""
        return (LL, LL128, SIMPLE) if self.fabric.ordered else (SIMPLE,)

    def lacks(self, protocol: Protocol) -> NDArray[np.bool_]:
        """Whether ranks of a node that meet over PCIe keep NCCL from LL128 (tuning.cc: typeIntra <= PATH_NVB)."""
        return (np.asarray(self.local) > 1) & (protocol is LL128 and not self.nvlink)


def ring_time(
    moved: Quantity, floor: Quantity, passes: float, at: Crossing, crossings: Quantity | None = None
) -> Quantity:
    """Seconds of a ring around all ranks in its fastest protocol [s].

    `moved`: bytes that a rank sends; `floor`: launch and steps inside nodes of an empty LL message [s]; `passes`: times
    around the ring, 1 or (all-reduce) 2; `crossings`: of the steps around it those that take as long as one between
    nodes, nodes - 1 unless given. The slower of scale-up link and cards. With one rank a node a crossing costs what it
    does on a tree.
    """
    best: Quantity = np.inf
    far = at.nodes - 1 if crossings is None else crossings
    bandwidth = np.minimum(at.scale_up, at.cards)
    for protocol in at.protocols():
        simple = protocol is SIMPLE
        of_nccl = np.where(np.asarray(at.local) > 1, protocol.ring_hop, protocol.tree_hop)
        inside = protocol.start + passes * protocol.step * (at.ranks - 1 - far)
        latency = floor + inside + passes * far * at.hop(of_nccl, protocol)
        reached = bandwidth * protocol.ring_share
        if protocol is LL:
            reached = np.minimum(reached, at.ll_limit())
        if simple and passes > 1:
            latency = latency * RING_PLATEAU
        best = np.where(at.lacks(protocol), best, np.minimum(best, latency + moved / reached))
    return best


def pat_time(moved: Quantity, at: Crossing) -> Quantity:
    """Seconds of an all-gather or reduce-scatter by parallel trees (PAT) with one rank a node [s].

    8 µs + log2(nodes) hop / 3.5 + 2.8 µs x ranks, 0.75 of the bandwidth; NCCL 2.23 and later.
    """
    hop = PAT_HOP_SHARE * at.hop(SIMPLE.tree_hop, SIMPLE)
    return PAT_BASE + at.levels * hop + PAT_RANK * at.ranks + moved / (at.cards * PAT_SHARE)


def tree_time(size: Quantity, floor: Quantity, at: Crossing) -> Quantity:
    """Seconds of an all-reduce of `size` bytes on a double binary tree with chains inside nodes [s].

    `floor`: launch and the chains of an empty LL message [s]. 2 log2(nodes) crossings. A rank passes the buffer up and
    down its chain; between two nodes each card carries it once each way, between more twice.
    """
    best: Quantity = np.inf
    across = at.cards * np.where(np.asarray(at.nodes) > 2, 1.0, 2.0)
    bandwidth = np.minimum(at.scale_up, across)
    for protocol in at.protocols():
        latency = floor + protocol.start + 2 * protocol.tree_step * (at.local - 1)
        latency = latency + 2 * at.levels * at.hop(protocol.tree_hop, protocol)
        reached = bandwidth * protocol.tree_share
        if protocol is LL:
            reached = np.minimum(reached, at.ll_limit())
        time = latency + 2 * size / reached + _chunks_on_the_way(size, protocol, at)
        best = np.where(at.lacks(protocol), best, np.minimum(best, time))
    return best


def switch_tree_time(size: Quantity, floor: Quantity, switched: Quantity, at: Crossing) -> Quantity:
    """Seconds of an all-reduce of `size` bytes whose switches reduce inside nodes, a tree between them (NVLSTree) [s].

    `floor`: an empty all-reduce in one switch [s]; `switched`: what the switch adds for this size [s]. A message passes
    4 + 2 log2(nodes) stages (scatter, reduce, levels up and down, broadcast, gather), and the last chunk is late by the
    chunks of all stages but one. Infinite where nodes have fewer than three ranks.
    """
    bus = 2 * size * (at.ranks - 1) / at.ranks
    across = at.cards * np.where(np.asarray(at.nodes) > 2, 1.0, 2.0)
    heads = SWITCH_CHANNELS * at.local
    chunk: Quantity = at.fabric.switch_chunk
    for count, smaller in SWITCH_CHUNKS:
        chunk = np.where((size < count * heads * chunk) & (chunk > smaller), smaller, chunk)
    late = (3 + 2 * at.levels) * np.minimum(heads * chunk, size) / at.cards
    latency = floor + 2 * at.levels * at.hop(SWITCH_HOP, SIMPLE)
    time = latency + np.maximum(switched, bus / across) + late
    return np.where(np.asarray(at.local) > 2, time, np.inf)


def _chunks_on_the_way(size: Quantity, protocol: Protocol, at: Crossing) -> Quantity:
    """By how much the last chunk of a tree is late [s]: one chunk's time on each link of the way.

    LL128 cuts smaller chunks where there would be few a channel (enqueue.cc, calcCollChunking; there by halves).
    """
    channels = np.maximum(2 * np.minimum(at.local, at.cards / CARD_BANDWIDTH), 1.0)
    each = size / channels
    chunk = np.minimum(protocol.chunk, each)
    if protocol is LL128:
        steps = (1 + at.levels + 0.1 * at.local) / at.local
        most = np.maximum(each / (64 * steps), protocol.chunk / 8)
        least = np.maximum(each / (16 * steps), protocol.chunk / 32)
        chunk = np.minimum(chunk, np.minimum(most, least))
    inside = 2 * (at.local - 1) * chunk * RINGS_IN_BANDWIDTH / at.scale_up
    return inside + 2 * at.levels * channels * chunk / at.cards

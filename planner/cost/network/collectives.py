"""How long does a collective of a process group take, alone on its links?

The bandwidths of a group (`network/traffic.py`) are nominal, bytes/s per direction per device; `rates` turns them into
reached ones. Inside a domain every time has one form, latency + W + 2 sqrt(ramp W), W being the wire time: the
time of a pipeline cut into the best number of slices, which follows the tables of nccl-tests from 1 KiB to 16 GiB
(benchmarks/fit_links.py prints the errors) and smooths NCCL's protocol switches. Between nodes reductions and gathers
take the fastest of NCCL's algorithms, protocols (`network/protocols.py`). Left out: contention between groups and with
compute (the caller divides the bandwidth), stragglers.

On a torus (`network/torus.py`) the devices' own collectives run inside slices and between them, not NCCL's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.network.protocols import SIMPLE, Crossing, pat_time, ring_time, switch_tree_time, tree_time
from planner.cost.network.traffic import GroupLinks, Quantity
from planner.spec.machine.links import FabricRates, LinkRates, OperationRates

DISPATCH_BASE = 15e-6
DISPATCH_LEVEL = 20e-6
# what DeepEP's 20 multiprocessors copy [bytes/s]: 16 GB/s each, as 4 of them, which no link holds up, do on one H100
# node (ai-dynamo/aiconfigurator@095f58a: 14.6 in dispatch, 17.3 in combine, medians from 4,096 tokens on)
DISPATCH_COPIES = 20 * 16e9
# of how many groups of experts the router picks how many, where it picks none
ANY_GROUP = (1.0, 1.0)


class CollectiveKind(StrEnum):
    """An operation between the ranks of one process group."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    P2P = "p2p"


def moved_bytes(kind: CollectiveKind, size: Quantity, ranks: Quantity) -> Quantity:
    """Bytes that one rank sends [bytes]; `size` is the total buffer, for an all-to-all that of one rank.

    Ring all-reduce 2 (N-1)/N size; all-gather, reduce-scatter, all-to-all, and on average a broadcast (N-1)/N size; p2p
    size.
    Source: Patarasuk and Yuan 2009 (doi:10.1016/j.jpdc.2008.09.002); nccl-tests doc/PERFORMANCE.md.
    """
    if kind is CollectiveKind.P2P:
        return size
    times = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    return times * size * (ranks - 1) / ranks


def remote_copies(
    top_k: Quantity,
    parts: Quantity,
    experts: Quantity = np.inf,
    chosen: tuple[float, float] = ANY_GROUP,
    shards: Quantity = 1.0,
) -> Quantity:
    """Expected number of distinct parts, the token's own left out, that a token is sent to [1].

    Experts are dealt in turn to P = `parts` parts (ranks, nodes). Routing is balanced: `top_k` different experts, all
    sets equally likely. (P - 1) (1 - q) parts away from home are hit, q the chance that a part with `n` of `m` experts
    has none of them, prod_{i<k} (1 - n / (m - i)). `experts` infinite (the default): (1 - 1/P)^k.

    `chosen` (M, G): the router first picks M of G groups of experts, all sets equally likely, then experts in those
    (DeepSeek-V3, arXiv:2412.19437, section 2.1.2). Parts of a group: it is picked with M/G, m = E M/G. Parts of g = G/P
    whole groups: j of them are picked with C(g, j) C(G - g, M - j) / C(G, M), which leaves n = j E/G; linear in g
    between whole numbers. `shards`: parts over which each expert is cut; a token that it is sent to reaches all.
    """
    best, groups = chosen
    of = np.asarray(parts, dtype=float) / shards
    eligible = np.asarray(experts, dtype=float) * best / groups
    inside = best / groups * (1 - _missed(top_k, np.minimum(groups / (best * of), 1.0), eligible))
    hit: Quantity = inside
    if groups > 1:
        whole = _hits_of_groups(float(top_k), float(eligible), int(best), int(groups))
        hit = np.where(of >= groups, inside, np.interp(groups / of, np.arange(groups + 1), whole))
    return _scalar_or_column((np.asarray(parts, dtype=float) - 1) * hit)


def _missed(top_k: Quantity, share: Quantity, eligible: Quantity) -> Quantity:
    """Chance that none of `top_k` among the `eligible` experts is in a part that holds this share of them [1]."""
    missed: Quantity = np.ones(np.broadcast(top_k, share, eligible).shape)
    for drawn in range(int(np.max(top_k))):
        with np.errstate(divide="ignore", invalid="ignore"):
            here = np.where(np.isinf(eligible), share, share * eligible / (eligible - drawn))
        missed = np.where(drawn < np.asarray(top_k), missed * np.maximum(1 - here, 0.0), missed)
    return missed


@lru_cache(maxsize=256)
def _hits_of_groups(top_k: float, eligible: float, best: int, groups: int) -> tuple[float, ...]:
    """Chance that a part is hit which holds 0, 1, ... all groups [1]."""
    missed = [float(_missed(top_k, j / best, eligible)) for j in range(best + 1)]
    found = []
    for held in range(groups + 1):
        ways = [math.comb(held, j) * math.comb(groups - held, best - j) for j in range(best + 1)]
        found.append(sum(n * (1.0 - q) for n, q in zip(ways, missed, strict=True)) / math.comb(groups, best))
    return tuple(found)


def all_gather_time(size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """Time of an all-gather whose gathered buffer has `size` bytes [s]. See `_one_way_time`."""
    return _one_way_time(size, group, rates.all_gather, rates)


def reduce_scatter_time(size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """Time of a reduce-scatter whose input on each rank has `size` bytes [s]. See `_one_way_time`."""
    return _one_way_time(size, group, rates.reduce_scatter, rates)


def broadcast_time(size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """Time of a broadcast of `size` bytes from one rank to its group [s]: a ring, inside a domain as an all-gather.

    Where it leaves a domain NCCL takes each of its N - 1 steps for one between nodes, since a rank passes a chunk on
    once it has all of it. Source: NCCL src/graph/tuning.cc at 5067397 (nsteps x the network's latency).
    """
    operation, ranks = rates.all_gather, group.ranks
    inside = all_gather_time(size, group, rates)
    if group.torus is not None or not np.any(np.asarray(group.nodes) > 1):
        return inside
    at = _crossing(group, operation, rates)
    across = ring_time(size, operation.base, 1.0, at, ranks - 1)
    return _unless_alone(np.where(np.asarray(group.nodes) > 1, across, inside), ranks)


def all_reduce_time(size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """Time of an all-reduce of `size` bytes [s]: the fastest algorithm, as NCCL chooses.

    Inside a domain a ring, switch-assisted where the switch reduces: 2 (N-1)/N size on the scale-up link. Between
    nodes the fastest of ring, tree and switch-assisted tree, no faster than inside one of them. Source: NCCL
    src/graph/tuning.cc at 5067397.
    """
    operation, ranks, local, nodes = rates.all_reduce, group.ranks, group.local, group.nodes
    within = moved_bytes(CollectiveKind.ALL_REDUCE, size, local)
    chain = operation.base + operation.hop * group.steps
    wire = _intra_wire(within, group, operation)
    inside = np.minimum(chain, rates.switch_floor) + _transfer(wire, local, operation)
    inside = inside + np.zeros(np.shape(group.fabric))  # as many rows as any argument has
    if not np.any(np.asarray(nodes) > 1):
        return _unless_alone(inside, ranks)
    if group.torus is not None:
        return _unless_alone(inside + 2.0 * _between_slices(size, group, rates), ranks)
    at = _crossing(group, operation, rates)
    moved = moved_bytes(CollectiveKind.ALL_REDUCE, size, ranks)
    ring = ring_time(moved, operation.base + operation.hop * (ranks - nodes), 2.0, at)
    across = np.minimum(ring, tree_time(size, chain, at))
    if np.isfinite(rates.switch_floor):
        switched = _transfer(_intra_wire(moved, group, operation), local, operation)
        across = np.minimum(across, switch_tree_time(size, rates.switch_floor, switched, at))
    return _unless_alone(np.where(np.asarray(nodes) > 1, np.maximum(across, inside), inside), ranks)


def all_to_all_time(size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """Time of an all-to-all in which each rank's own send buffer has `size` bytes [s].

    (N - local)/N of it crosses to other nodes over the rank's card, (local - 1)/N stays on the scale-up link; both
    work at the same time. Grouped send and receive: one message per remote rank.
    """
    operation, fabric = rates.all_to_all, rates.fabric
    ranks, local, nodes = group.ranks, group.local, group.nodes
    intra = _intra_wire(size * (local - 1) / ranks, group, operation, group.exchange)
    crossing = size * (ranks - local) / ranks
    inter = _inter_wire(crossing, nodes, group.fabric * fabric.all_to_all_fraction)
    wire = np.maximum(intra, inter)
    floor = operation.base + operation.hop * group.steps + np.where(nodes > 1, _message_hop(fabric), 0.0)
    transfer = _transfer(wire, local, operation) + _filled_across(wire, nodes, fabric)
    peers = ranks - local
    each = inter / np.maximum(peers, 1.0)
    messages = fabric.message + _bounded(_filling(each, fabric.message_ramp), fabric.message_saturation)
    return _unless_alone(floor + peers * messages + transfer, ranks)


def dispatch_time(
    token_bytes: Quantity,
    top_k: Quantity,
    experts: Quantity,
    group: GroupLinks,
    rates: LinkRates,
    chosen: tuple[float, float] = ANY_GROUP,
    copies: Quantity = DISPATCH_COPIES,
    shards: Quantity = 1.0,
) -> Quantity:
    """Time of a fused expert dispatch or combine (DeepEP) of `token_bytes` = tokens x bytes per token [s].

    A token crosses once to each other node that holds one of its experts (`remote_copies` over nodes) and the
    scale-up link once to each rank that does (`remote_copies` over ranks). Across nodes multiprocessors put a
    token into the card's buffer for each node and forward it from there to each rank, home included, at `copies`
    bytes/s (deepseek-ai/DeepEP@dd758ca csrc/kernels/legacy/internode.cu): on two nodes that takes longest. The count
    exchange adds 15 µs + 20 µs log2(nodes) (30, 51, 70 µs on 2, 4, 8 H100 nodes: ai-dynamo/aiconfigurator@095f58a).
    `chosen`: as `remote_copies` takes it. `shards`: ranks side by side that each expert is cut over. Balanced routing:
    the caller scales for imbalance.
    """
    operation, fabric = rates.dispatch, rates.fabric
    ranks, local, nodes = group.ranks, group.local, group.nodes
    to_ranks = remote_copies(top_k, ranks, experts, chosen, shards)
    intra = _intra_wire(token_bytes * to_ranks, group, operation, group.exchange)
    to_nodes = remote_copies(top_k, nodes, experts, chosen, np.maximum(np.asarray(shards) / local, 1.0))
    inter = _inter_wire(token_bytes * to_nodes, nodes, group.fabric * fabric.all_to_all_fraction)
    others = np.maximum(nodes - 1, 1.0)  # a group within a node has none, and copies nothing for the card
    copied = (
        token_bytes * (to_nodes * nodes / others + to_ranks * ranks / np.maximum(ranks - 1, 1.0)) / copies
    )
    floor = operation.base + operation.hop * group.steps
    floor = floor + np.where(nodes > 1, DISPATCH_BASE + DISPATCH_LEVEL * np.log2(nodes), 0.0)
    wire = np.maximum(np.maximum(intra, inter), np.where(nodes > 1, copied, 0.0))
    transfer = _transfer(wire, local, operation) + _filled_across(wire, nodes, fabric)
    return _unless_alone(floor + transfer, ranks)


def p2p_time(
    size: Quantity,
    crosses_domain: Quantity | bool | NDArray[np.bool_],
    intra_bandwidth: Quantity,
    inter_bandwidth: Quantity,
    rates: LinkRates,
    among: Quantity = 2.0,
) -> Quantity:
    """Time from a send to its completed receive [s]: floor + W + 2 sqrt(ramp W), W = size / bandwidth.

    `among`: devices of a domain that pass on to their neighbours at once, which share host bridges on PCIe [1].
    """
    operation, fabric = rates.p2p, rates.fabric
    crosses = np.asarray(crosses_domain, dtype=bool)
    fraction = np.interp(np.log2(among), np.log2(operation.ranks), operation.fraction)
    inside_wire = size / np.where(crosses, 1.0, intra_bandwidth * fraction)
    outside_wire = size / np.where(crosses, inter_bandwidth * fabric.p2p_fraction, 1.0)
    inside = operation.base + inside_wire + _filling(inside_wire, operation.ramp[0])
    outside = fabric.p2p_base + outside_wire + _filling(outside_wire, fabric.p2p_ramp)
    return _scalar_or_column(np.where(crosses, outside, inside))


def neighbour_time(size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """Time of a message from one rank of a group to the next around it [s]. See `p2p_time`."""
    crosses = np.asarray(group.ranks) > group.local
    return p2p_time(size, crosses, group.neighbour, group.message, rates, group.local)


def collective_time(kind: CollectiveKind, size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """Time of one call of an operation, `size` as `moved_bytes` takes it [s]."""
    return _TIMES[kind](size, group, rates)


_TIMES: Final[Mapping[CollectiveKind, Callable[[Quantity, GroupLinks, LinkRates], Quantity]]] = {
    CollectiveKind.ALL_REDUCE: all_reduce_time,
    CollectiveKind.ALL_GATHER: all_gather_time,
    CollectiveKind.REDUCE_SCATTER: reduce_scatter_time,
    CollectiveKind.ALL_TO_ALL: all_to_all_time,
    CollectiveKind.BROADCAST: broadcast_time,
    CollectiveKind.P2P: neighbour_time,
}


def _one_way_time(size: Quantity, group: GroupLinks, operation: OperationRates, rates: LinkRates) -> Quantity:
    """Time of an all-gather or reduce-scatter [s]: a ring; with one device per node the faster of ring and PAT.

    (N-1)/N size at min(scale-up bus bandwidth, local x card), ranks - nodes hops inside and nodes - 1 across.
    Source: NCCL src/graph/tuning.cc at 5067397; no public table has these two operations on more than one node.
    """
    ranks, local, nodes = group.ranks, group.local, group.nodes
    moved = size * (ranks - 1) / ranks
    wire = _intra_wire(moved, group, operation)
    if group.torus is not None:
        within = (
            operation.base
            + operation.hop * group.steps
            + _intra_wire(size * (local - 1) / local, group, operation)
        )
        return _unless_alone(np.where(local > 1, within, 0.0) + _between_slices(size, group, rates), ranks)
    floor = operation.base + operation.hop * (ranks - nodes)
    inside = floor + _transfer(wire, local, operation) + np.zeros(np.shape(group.fabric))
    if not np.any(np.asarray(nodes) > 1):
        return _unless_alone(inside, ranks)
    at = _crossing(group, operation, rates)
    ring = ring_time(moved, floor, 1.0, at) + _transfer(wire, local, operation) - wire
    across = np.where(np.asarray(local) > 1, ring, np.minimum(ring, pat_time(moved, at)))
    return _unless_alone(np.where(np.asarray(nodes) > 1, across, inside), ranks)


def _between_slices(size: Quantity, group: GroupLinks, rates: LinkRates) -> Quantity:
    """What a gather or scatter of `size` bytes takes between the slices of a torus, before or after it runs inside them
    [s]; 0 in one slice.

    Each rank's share, size / local, goes over its own part of the cards, (n - 1) / n of it, log2(n) messages deep. XLA
    does one part after the other (jax-ml/scaling-book@0819a7d sharding.md); pipelined, the longer would count alone.
    """
    nodes, fabric = np.asarray(group.nodes), rates.fabric
    wire = _inter_wire(size / group.local * (nodes - 1) / nodes, nodes, group.fabric * fabric.fraction)
    messages = fabric.latency_factor * fabric.p2p_base * np.ceil(np.log2(np.maximum(nodes, 1.0)))
    return wire + messages


def _crossing(group: GroupLinks, operation: OperationRates, rates: LinkRates) -> Crossing:
    """A group as rings see it: inside a domain at the operation's bus bandwidth, or, where that may be the switch's, at
    that of an all-gather, which no switch helps."""
    across = np.asarray(group.nodes) > 1
    cards = np.where(across, group.fabric * rates.fabric.fraction * group.local, 1.0)
    ring = rates.all_gather if np.isfinite(rates.switch_floor) else operation
    scale_up = _scale_up_reached(group, ring)
    nodes = np.where(across, group.nodes, 2.0)
    return Crossing(nodes, group.local, cards, scale_up, rates.fabric, rates.nvlink)


def _message_hop(fabric: FabricRates) -> float:
    """A message between two nodes, in NCCL's protocol of full bandwidth [s]."""
    latency = (2 if fabric.flush else 1) * fabric.latency
    return fabric.latency_factor * (SIMPLE.ring_hop + latency + fabric.rendezvous)


def _scale_up_reached(
    group: GroupLinks, operation: OperationRates, nominal: Quantity | None = None
) -> Quantity:
    """Bus bandwidth inside a domain [bytes/s]; infinite for a rank alone in its domain."""
    fraction = np.interp(np.log2(group.local), np.log2(operation.ranks), operation.fraction)
    scale_up = group.scale_up if nominal is None else nominal
    return np.where(np.asarray(group.local) > 1, scale_up * fraction, np.inf)


def _intra_wire(
    moved: Quantity, group: GroupLinks, operation: OperationRates, nominal: Quantity | None = None
) -> Quantity:
    """Wire time on the scale-up link [s]; 0 for a rank alone in its domain. `nominal`: bytes/s where not `scale_up`."""
    return moved / _scale_up_reached(group, operation, nominal)


def _inter_wire(moved: Quantity, nodes: Quantity, bandwidth: Quantity) -> Quantity:
    """Wire time on the fabric [s]; 0 for a group inside one domain, whatever its (absent) cards."""
    across = np.asarray(nodes) > 1
    return np.where(across, moved / np.where(across, bandwidth, 1.0), 0.0)


def _transfer(wire: Quantity, local: Quantity, operation: OperationRates) -> Quantity:
    """Wire time and the filling of the pipeline inside a domain: W + 2 sqrt(ramp W) [s]."""
    ramp = np.interp(np.log2(local), np.log2(operation.ranks), operation.ramp)
    return wire + np.where(np.asarray(local) > 1, _filling(wire, ramp), 0.0)


def _filled_across(wire: Quantity, nodes: Quantity, fabric: FabricRates) -> Quantity:
    """Filling of the pipeline between nodes [s]: s E / (s + E), s = 2 sqrt(ramp W), E = `saturation`."""
    bounded = _bounded(_filling(wire, fabric.ramp), fabric.saturation)
    return np.where(np.asarray(nodes) > 1, bounded, 0.0)


def _bounded(time: Quantity, most: float) -> Quantity:
    """s E / (s + E): `time` s where it is short, near E = `most` where it is long [s]."""
    return time / (1 + time / most) if most > 0 else 0.0 * time


def _filling(wire: Quantity, ramp: Quantity) -> Quantity:
    """2 sqrt(ramp W) [s]: what filling the pipeline adds to the wire time W.

    k slices through s stages with a start-up of a seconds each take (k + s - 1) (a + W/k); the least over k
    is W + (s - 1) a + 2 sqrt((s - 1) a W). The middle term is in the latency; ramp = (s - 1) a.
    """
    return 2 * np.sqrt(ramp * wire)


def _unless_alone(time: Quantity, ranks: Quantity) -> Quantity:
    """`time`, and exactly 0 for a group of one."""
    return _scalar_or_column(np.where(np.asarray(ranks) > 1, time, 0.0))


def _scalar_or_column(value: Quantity) -> Quantity:
    """A float for a row, an array for a column."""
    return float(value) if np.ndim(value) == 0 else value

"""What can no split of one configuration's layers beat, and what does each layer cost it?

Found without a solver. Left out: paths that need the order of passes (`splits/model.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import hop_seconds
from planner.cost.model import CostModel
from planner.cost.pipeline.least_chunks import ChunkSizes
from planner.cost.pipeline.step import FORWARD_SHARE, measured_factor, straggling
from planner.cost.prepared import PreparedCosts
from planner.cost.probe import rank_memory
from planner.schedule.critical import CriticalPaths, critical_paths
from planner.schedule.generate import action_table
from planner.schedule.graph import dependency_graph
from planner.schedule.simulate import stage_times
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

Array = NDArray[np.float64]

SLOWEST_TIMES: Final = 33
HEAVIER: Final = 1.25  # a rank's chunks where it decides
LARGEST_SCHEDULE: Final = 60_000  # passes of one whose longest paths are looked for rank by rank
FEW_SPLITS: Final = 10_000  # of an interleaved pipeline, which are looked at one by one
LEVELS: Final = 8  # of parameters on the stage that holds most, from which on collectives take longer
NOTHING: Final = 1e-9  # [s] of a chunk without layers, as the simulator needs some
GROUPS: Final = 4  # of micro-batches, after which an interleaved schedule repeats itself


def fewest_layers(layers: int, config: ParallelConfig) -> int:
    """The fewest that a solved split may put into a chunk which is neither the first nor the last of an interleaved
    pipeline."""
    return 1 if config.vpp == 1 else max(layers // (config.pp * config.vpp), 1)


def most_layers(layers: int, config: ParallelConfig) -> int:
    """The most that a solved split may put into a chunk."""
    return layers if config.vpp == 1 else layers // (config.pp * config.vpp) + 1


@lru_cache(maxsize=64)
def few_splits(layers: int, pp: int, vpp: int) -> NDArray[np.int64] | None:
    """All splits that an interleaved pipeline may have, (splits, chunks); None if there are many.

    A chunk in the middle holds one layer less than the most or as many, the first and the last any number less.
    """
    chunks = pp * vpp
    fewest, most = max(layers // chunks, 1), layers // chunks + 1
    lacking, inner = chunks * most - layers, (chunks - 2) * (most - fewest)
    ends = [end for end in product(range(most + 1), repeat=2) if 0 <= lacking - sum(end) <= inner]
    if sum(comb(inner, lacking - sum(end)) for end in ends) > FEW_SPLITS:
        return None
    found = []
    for first, last in ends:
        for less in combinations(range(1, inner + 1), lacking - first - last):
            split = np.full(chunks, most)
            split[[0, -1]] -= first, last
            split[list(less)] -= 1
            found.append(split)
    return np.array(found).reshape(-1, chunks)


def near_splits(chunks: tuple[int, ...], most: int) -> NDArray[np.int64]:
    """A split and up to `most` others that differ from it in the chunk of one layer: (splits, chunks)."""
    own = np.array(chunks)
    moves = [(i, j) for i in range(len(own)) for j in range(len(own)) if i != j and own[i] > 0]
    chosen = np.unique(np.linspace(0, len(moves) - 1, min(most, len(moves))).astype(int))
    splits = np.tile(own, (1 + len(chosen), 1))
    for row, at in enumerate(chosen.tolist(), start=1):
        splits[row, moves[at][0]] -= 1
        splits[row, moves[at][1]] += 1
    return splits


def sums_of_layers(amount: Mapping[int, int], most: int, outer: Iterable[int]) -> NDArray[np.int64]:
    """All sums of one of the parameters `outer` and of those that up to `most` layers may have, ascending; `amount`:
    how many layers have so many."""
    bits = most.bit_length()
    # a sum, and in the last bits the fewest layers that have it
    found = np.array(sorted(outer), dtype=np.int64) << bits
    for one, count in amount.items():
        left, some = min(count, most), 1
        while left:  # 1, 2, 4 .. of them together make any number
            some = min(some, left)
            further = found[(found & ((1 << bits) - 1)) <= most - some] + (((some * one) << bits) + some)
            found = np.sort(np.concatenate([found, further]))
            sums = found >> bits
            found = found[np.concatenate([[True], sums[1:] != sums[:-1]])]
            left, some = left - some, 2 * some
    return found >> bits


class LayerCosts:
    """Seconds of a layer of each kind of one configuration, of the ends of its pipeline, and of messages."""

    def __init__(self, model: CostModel, config: ParallelConfig) -> None:
        self.config, self.problem, self.spec = config, model.problem, model.problem.model
        self.shards, self.prepared = model.shards, model.prepare(ConfigTable.of([config]))
        # layers of a rank from which on it recomputes all it holds
        self.whole = -(-self.spec.num_layers // config.pp)
        keys = ConfigTable.of([config])
        layers = [model.layers.layer(kind, keys) for kind in self.spec.layer_kinds]
        self.forward = [float(cost.forward_time[0]) for cost in layers]
        self.backward = [float(cost.time[0] - cost.forward_time[0]) for cost in layers]
        self.again = [float(cost.time_full[0] - cost.time[0]) for cost in layers]
        edges = model.layers.edges(keys)
        ends = np.array([float(edges.embedding[0]), float(edges.head[0])])
        self.ends = (FORWARD_SHARE * ends, (1 - FORWARD_SHARE) * ends)
        self.ends[0][1] += sum(count * self.forward[kind] for kind, count in self.spec.mtp_kinds)
        self.ends[1][1] += sum(count * self.backward[kind] for kind, count in self.spec.mtp_kinds)
        exposed = self.problem.stack.communication.p2p_exposed
        # beyond 1 the simulated step charges more than the path that messages lengthen; left out of the bound
        self.hop = min(exposed, 1.0) * hop_seconds(model.layers, self.config)
        self.hops = np.cumsum([0.0, *self.hop])
        kinds = self.spec.layer_kind_of
        self.counts = [kinds.count(kind) for kind in range(len(layers))]
        degrees = (np.array([float(degree)]) for degree in (config.tp, config.ep, config.etp))
        # parameters of a layer by kind on a rank: dense, of experts
        self.parameters = [
            [float(one[0]) for one in side] for side in model.shards.parameters_by_kind(*degrees)
        ]
        most = max(range(len(self.forward)), key=kinds.count)
        self.most = self.forward[most] + self.backward[most]  # of a layer of the kind of which there are most
        self.total = sum(self.forward[k] + self.backward[k] for k in kinds) + float(sum(map(sum, self.ends)))

    def lightest(self) -> tuple[float, float]:
        """Dense and expert parameters that some stage of any split holds, whatever the split.

        The mean; what lies outside the layers of the first or the last stage, with the fewest layers that its
        chunks may hold; and of the layers of each kind the mean, rounded up.
        """
        shards, classes, config = self.prepared.shards, self.prepared.classes, self.config
        alive = classes.count[0] > 0
        fewest = (config.vpp - 1 or 1) * fewest_layers(self.spec.num_layers, config)
        found, none = [], 0 * shards.outer[0]
        sides = ((shards.dense[0], shards.outer[0]), (shards.expert[0], none))
        for (held, outer), of_kind in zip(sides, self.parameters, strict=True):
            mean = float((held * classes.count[0]).sum()) / config.pp
            ends = float(outer[alive].max()) + fewest * min(of_kind)
            full = max(-(-self.counts[kind] // config.pp) * one for kind, one in enumerate(of_kind))
            found.append(min(max(mean, ends, full), float(held[alive].max())))
        return found[0], found[1]

    def holding(self, held: tuple[float, float]) -> PreparedCosts:
        """The configuration where the stages that hold most dense and most expert parameters hold `held`."""
        own = self.prepared
        return own.with_shards(self.shards.with_heaviest(own.shards, own.stems, own.classes, *held))

    @cached_property
    def lighter(self) -> PreparedCosts:
        """The configuration where no stage holds more than any split leaves some."""
        return self.holding(self.lightest())

    def outer(self) -> NDArray[np.int64]:
        """Dense parameters of every rank outside its layers."""
        outer, shards, classes = (
            np.zeros(self.config.pp, dtype=np.int64),
            self.prepared.shards,
            self.prepared.classes,
        )
        for held, ranks in zip(shards.outer[0], classes.members[0], strict=False):
            outer[list(ranks)] = int(held)
        return outer

    def levels(self, of_kind: list[int], outer: set[int], least: float) -> list[int]:
        """Some of the numbers of parameters above `least` that a stage of usual depth may hold, the largest too."""
        amount = Counter[int]()
        for one, count in zip(of_kind, self.counts, strict=True):
            amount[one] += count
        above = sums_of_layers(amount, self.whole, outer)
        above = above[above > least]
        if not len(above):
            return []
        return above[np.unique(np.linspace(0, len(above) - 1, LEVELS).astype(int))].tolist()

    def times_of(self, splits: NDArray[np.int64], again: Sequence[float] = ()) -> tuple[Array, Array]:
        """Seconds of the passes of chunks under some splits (splits, chunks); `again`: of recomputation, which is left
        out by default, for a layer of each kind."""
        ends = np.cumsum(splits, axis=1)
        backward = [b + a for b, a in zip(self.backward, again or [0.0] * len(self.backward), strict=True)]
        sides = []
        for of_kind, outside in zip((self.forward, backward), self.ends, strict=True):
            before = np.cumsum([0.0, *(of_kind[kind] for kind in self.spec.layer_kind_of)])
            seconds = before[ends] - before[ends - splits]
            seconds[:, [0, -1]] += outside
            sides.append(np.maximum(seconds, NOTHING))
        return sides[0], sides[1]

    def least_again(self, count: int, deepest: float) -> list[float]:
        """Seconds that recomputation adds to a layer's backward pass by kind, on average over layers and at least,
        where each rank recomputes `count` of its layers and none holds more than `deepest`: of every chunk of an
        interleaved pipeline, count / v layers or all."""
        if count >= self.whole:
            return self.again
        v = self.config.vpp
        if v > 1:
            deepest = min(deepest, most_layers(self.spec.num_layers, self.config))
        return [min(self.again) * min(count // v / max(deepest, 1), 1.0)] * len(self.again)

    def fullest(self, room: NDArray[np.int64]) -> int:
        """The layers that some rank holds at least where ranks have `room` for so many.

        Of the kind of which there are most, some rank holds the mean, rounded up; more where others are full.
        """
        count = max(self.spec.layer_kind_of.count(kind) for kind in range(len(self.forward)))
        held = -(-count // self.config.pp)
        while np.minimum(room, held).sum() < count:
            held += 1
        return held

    def interleaved(self, again: list[float], held: int) -> float:
        """A makespan that no split of an interleaved pipeline beats [s].

        The mean of some paths (`known_paths`) with layers where they weigh least; or the least of those whose rank is
        the fullest, with `held` layers, alone or with that mean. `again`: see `least_again`.
        """
        p, v, m = self.config.pp, self.config.vpp, self.config.num_microbatches
        if m % p:
            return 0.0
        paths = known_paths(p, v, m)
        weights = np.stack([paths.forward, paths.backward], axis=1)
        hops = paths.hops @ self.hop
        mean = weights.mean(axis=0)
        usual = self._least_path(mean, again, 0, 0) + float(hops.mean())
        if len(weights) <= p:
            return usual
        through = []
        for rank in range(p):
            paths_mixed = ((share * weights[rank + 1] + (1 - share) * mean, share) for share in (0.5, 1.0))
            through.append(
                max(
                    self._least_path(mixed, again, rank, held)
                    + share * float(hops[rank + 1])
                    + (1 - share) * float(hops.mean())
                    for mixed, share in paths_mixed
                )
            )
        return max(usual, min(through))

    def fastest_of(self, splits: NDArray[np.int64], again: list[float], room: NDArray[np.int64]) -> float:
        """A makespan that none of some splits (splits, chunks) of an interleaved pipeline beats that leave every rank
        `room` for its layers [s]: of `known_paths` the longest, where that is shortest. `again`: see `least_again`."""
        p, v, m = self.config.pp, self.config.vpp, self.config.num_microbatches
        if m % p:
            return 0.0
        paths = known_paths(p, v, m)
        splits = splits[(splits.reshape(-1, v, p).sum(axis=1) <= room).all(axis=1)]
        ahead, back = self.times_of(splits, again)
        lengths = ahead @ paths.forward.T + back @ paths.backward.T + paths.hops @ self.hop
        return float(lengths.max(axis=1).min(initial=np.inf))

    def _least_path(self, weights: Array, again: list[float], rank: int, held: int) -> float:
        """Seconds of a path on which forwards and backwards of chunks weigh `weights` (2, chunks), with layers where
        they weigh least, `held` or more on `rank`. As large a share of every chunk as `again` says is recomputed, or
        more."""
        p, v, layers = self.config.pp, self.config.vpp, self.spec.num_layers
        ahead, back = weights
        low = np.full(p * v, fewest_layers(layers, self.config))
        low[[0, -1]] = 0
        room = most_layers(layers, self.config) - low
        total = sum(float(s[0] * w[0] + s[1] * w[-1]) for s, w in zip(self.ends, weights, strict=True))
        kinds = [self.spec.layer_kind_of.count(kind) for kind in range(len(self.forward))]
        most = max(range(len(kinds)), key=kinds.__getitem__)
        costs = [
            f * ahead + (b + a) * back for f, b, a in zip(self.forward, self.backward, again, strict=True)
        ]
        cost = costs[most]
        order = np.argsort(cost, kind="stable")
        for chunk in order[order % p == rank]:
            some = min(max(held - int(low[rank::p].sum()), 0), int(room[chunk]))
            low[chunk] += some
            room[chunk] -= some
        left = layers - int(low.sum())
        total += float(cost @ low)
        for chunk in order:
            some = min(left, int(room[chunk]))
            total, left = total + some * float(cost[chunk]), left - some
        # layers of other kinds, wherever they make the least difference
        return total + sum(n * float((costs[k] - cost).min()) for k, n in enumerate(kinds) if k != most)

    def step_time(self, subtotal: float) -> float:
        """The whole step where all but stragglers take `subtotal` [s]."""
        nodes = float(self.problem.cluster.num_nodes)
        own = float(measured_factor(self.problem, ConfigTable.of([self.config]))[0])
        return own * (
            subtotal + float(straggling(np.array(subtotal), nodes, self.problem.stack.communication))
        )


@dataclass(frozen=True)
class Capacity:
    """How many layers every rank can hold at most, by how many of them it recomputes, whatever the others hold.

    `choices`: ascending; `layers` (choices, ranks): -1 where not even an empty rank fits.
    """

    choices: tuple[int, ...]
    layers: NDArray[np.int64]


def rank_limits(layers: int, config: ParallelConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The fewest and the most layers that a solved split may put on every rank."""
    low = np.full(config.pp, config.vpp * fewest_layers(layers, config))
    if config.vpp == 1:
        return low, np.full(config.pp, layers)
    low[0] -= fewest_layers(layers, config)
    low[-1] -= fewest_layers(layers, config)
    return low, np.full(config.pp, config.vpp * most_layers(layers, config))


def capacity(model: CostModel, config: ParallelConfig, choices: Sequence[int], limit: float) -> Capacity:
    """The capacity of every rank of a configuration within `limit` bytes."""
    spec, ordered = model.problem.model, tuple(sorted(set(choices)))
    whole = -(-spec.num_layers // config.pp)
    deepest = int(min(rank_limits(spec.num_layers, config)[1].max(), 2 * whole + 2))
    if np.isinf(limit):
        return Capacity(ordered, np.full((len(ordered), config.pp), spec.num_layers))
    sizes = ChunkSizes(fewest_layers(spec.num_layers, config), most_layers(spec.num_layers, config))
    fits = rank_memory(model, config, ordered, deepest, sizes) <= limit * (1 + 1e-9)
    most = np.where(fits.any(axis=2), deepest - fits[:, :, ::-1].argmax(axis=2), -1)
    return Capacity(ordered, np.where(most == deepest, spec.num_layers, most))


def quick_bound(
    model: CostModel, config: ParallelConfig, step_time: float, room: Capacity | None = None,
    splits: NDArray[np.int64] | None = None, costs: LayerCosts | None = None,
) -> float:  # fmt: skip
    """A step time that no split of `config` beats, unless it is slower than `step_time`; without a solver [s].

    1F1B: a rank's work lies behind that of one micro-batch on the ranks before it; added up over ranks, m W + what lies
    before; with m > p the last stage waits for all others as well, 2 W + (m - p - 1) times the slowest. Interleaved:
    `LayerCosts.interleaved`. `room`: what memory leaves for each number of recomputed layers, of which that with the
    least bound counts; infinite where no split fits. `splits`: all that an interleaved pipeline may have, if they are
    to be looked at one by one (`few_splits`), which bounds higher. `costs`: of the configuration, where they are known.
    """
    costs, layers = costs or LayerCosts(model, config), model.problem.model.num_layers
    if room is None:
        room = Capacity((0,), np.full((1, config.pp), layers))
    low, high = rank_limits(layers, config)
    found = [
        _bound_with(costs, step_time, count, np.minimum(most, high), splits)
        for count, most in zip(room.choices, room.layers, strict=True)
        if (most >= low).all() and np.minimum(most, high).sum() >= layers
    ]
    return min(found, default=np.inf)


def _bound_with(
    costs: LayerCosts, step_time: float, count: int, room: NDArray[np.int64], splits: NDArray[np.int64] | None
) -> float:  # fmt: skip
    """`quick_bound` where every rank recomputes `count` layers and has room for so many."""
    config = costs.config
    p, m = config.pp, config.num_microbatches
    inner = min(f + b for f, b in zip(costs.forward, costs.backward, strict=True))
    # a split that is fast enough has no deeper rank
    deepest = min(float(room.max()), max(step_time / (m * inner), 1.0))
    again = costs.least_again(count, deepest)
    whole = costs.total + sum(again[kind] for kind in costs.spec.layer_kind_of)
    held = costs.fullest(room)
    if config.vpp > 1:
        makespan = max(m * whole / p, costs.interleaved(again, held))
        if splits is not None:
            makespan = max(makespan, costs.fastest_of(splits, again, room))
            if np.isinf(makespan):
                return np.inf
    else:
        slowest = max(whole / p, held * costs.most + min(costs.again) * min(count, held))
        before = sum(max(rank - 1, 0) for rank in range(p)) * inner
        makespan = max((m * whole + before) / p, 2 * whole + (m - p - 1) * slowest if m > p else whole)
    # the slower the slowest stage, the more it hides: between two of these times at least the work of the lower one and
    # what the higher one leaves exposed
    times = np.linspace(whole / p, max(step_time, makespan) / m, SLOWEST_TIMES)
    rest = costs.lighter.once(float(costs.spec.num_layers), times)
    least = float((np.maximum(makespan, m * times[:-1]) + rest[1:]).min())
    subtotal = least
    if config.vpp == 1:
        subtotal += float(costs.prepared.pipelines.hops[0])
    return costs.step_time(subtotal)


@lru_cache(maxsize=64)
def known_paths(p: int, v: int, m: int) -> CriticalPaths:
    """Paths through an interleaved schedule: the longest where all chunks are equal (case 0), and where those of rank r
    are heavier than the others (case r + 1; of a large schedule, of some ranks).

    They are found with few micro-batches; each further group of p passes once more over the chunks of the rank on which
    a path stays while the schedule repeats itself.
    """
    few = min(m, GROUPS * p)
    ranks = list(range(p)) if 2 * p * v * few <= LARGEST_SCHEDULE else [0, p // 2, p - 1]
    heavier = np.ones((len(ranks) + 1, p * v))
    for case, rank in enumerate(ranks, start=1):
        heavier[case, rank::p] = HEAVIER
    times = stage_times(p * v, heavier, 2.0 * heavier)
    paths = critical_paths(dependency_graph(action_table(Schedule.INTERLEAVED, p, few, v)), times)
    passes = (paths.forward + paths.backward).reshape(len(heavier), v, p).sum(axis=1)
    stays = np.arange(p * v)[None, :] % p == passes.argmax(axis=1)[:, None]
    more = np.where(stays, float(m - few), 0.0)
    return CriticalPaths(paths.forward + more, paths.backward + more, paths.hops)

"""How long does each chunk of one configuration's pipeline take, pass by pass?

What the vectorised cost sums over stages, kept apart per chunk (virtual stage) so that a schedule can be simulated,
drawn and traced. One configuration at a time. Left out: what happens once a step (data parallelism, optimizer).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.layer import LayerModel
from planner.cost.levels import boundary_seconds, layer_level
from planner.cost.network.traffic import boundary_tier, pipeline_links
from planner.cost.pipeline.stages import recomputed_of_chunk
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.schedule.actions import ActionTable
from planner.schedule.formulas import MOST_PASSES
from planner.schedule.generate import action_table
from planner.schedule.graph import DependencyGraph, dependency_graph, schedule_graph
from planner.schedule.simulate import StageTimes, makespans, side_by_side, stage_times
from planner.schedule.steady import makespans_of_many, repeats
from planner.space.split import deal_layers
from planner.spec.config import ConfigTable, ParallelConfig, Placement, Recompute, Schedule, ranks_of_chunks

Array = NDArray[np.float64]
_NOTHING: Final = 1e-9  # [s]


@dataclass(frozen=True)
class ChunkTimes:
    """Seconds of one micro-batch in every chunk, (chunks,) in pipeline order.

    `backward` = recomputation + input gradient + weight gradient. `hops` (chunks - 1,): a message from each chunk to
    the next. `hidden`: what an overlapped forward and backward of the chunk save (0: no such pairs). `layers`: layers
    of every chunk.
    """

    forward: Array
    recompute: Array
    input_gradient: Array
    weight_gradient: Array
    hops: Array
    layers: tuple[int, ...]
    hidden: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def backward(self) -> Array:
        """The whole backward pass."""
        return self.recompute + self.input_gradient + self.weight_gradient

    @property
    def hop(self) -> float:
        """The slowest message [s]."""
        return float(self.hops.max(initial=0.0))

    def stage_times(self, hops: tuple[float, ...] | None = None) -> StageTimes:
        """For the simulator, a case per hop time, the same at all boundaries (the slowest by default)."""
        return self._cases(np.array([[h] * len(self.hops) for h in hops or (self.hop,)]))

    def without_and_with_messages(self) -> StageTimes:
        """For the simulator, two cases: free messages, and each boundary's own."""
        return self._cases(np.stack([np.zeros(len(self.hops)), self.hops]))

    def _cases(self, hops: Array) -> StageTimes:
        """Recomputation is part of the input gradient. A pair is a forward and a backward of the rank's two chunks."""
        backward = self.recompute + self.input_gradient
        pairs = None
        if self.hidden.any():
            whole = self.backward[
                ::-1
            ]  # the rank's other chunk, as far from the end as this one from the start
            pairs = np.maximum(self.forward + whole - (self.hidden + self.hidden[::-1]) / 2, self.forward)
        # a chunk without a layer holds a norm at most, which takes no time here; the simulator needs some
        forward, backward = np.maximum(self.forward, _NOTHING), np.maximum(backward, _NOTHING)
        return stage_times(len(forward), forward, backward, self.weight_gradient, hops, pairs)


def chunk_times(
    model: LayerModel, config: ParallelConfig, embedding_in_layers: float, head_in_layers: float
) -> ChunkTimes:
    """The times of every chunk of `config`, which must be legal."""
    problem, schedule = model.problem, Schedule(config.schedule)
    counts = deal_layers(
        problem.model.num_layers,
        config.pp,
        config.vpp,
        problem.stack.split,
        embedding_in_layers,
        head_in_layers,
        schedule.placement,
    )
    ranks = ranks_of_chunks(config.pp, config.vpp, schedule.placement)
    keys = ConfigTable.of([config])
    level = layer_level(model, keys)
    chunks = len(counts)
    leading = _recomputed_of_ranks(model, config, max(counts))
    # of a layer of each kind, as it is and recomputed (K, 2, 5)
    ahead, behind, saved = level.forward_time[:, 0], level.weight_gradient[:, 0], level.saved[:, 0]
    of_kind = np.array([
        (ahead, again[:, 0], behind, saved, total[:, 0] - ahead)
        for again, total in ((level.again, level.time), (level.again_full, level.time_full))
    ]).transpose(2, 0, 1)  # fmt: skip
    of_layer = np.repeat(np.arange(chunks), counts)
    place = np.arange(len(of_layer)) - (np.cumsum(counts) - counts)[of_layer]
    full = (place < leading[np.array(ranks)[of_layer]]).astype(int)
    sums = np.zeros((chunks, 5))
    np.add.at(sums, of_layer, of_kind[np.array(problem.model.layer_kind_of), full])
    forward, again, weight, hidden, backward = sums.T.copy()
    for kind, extra in problem.model.mtp_kinds:
        forward[-1] += extra * float(ahead[kind])
        backward[-1] += extra * float(level.time[kind, 0] - ahead[kind])
        weight[-1] += extra * float(behind[kind])
        hidden[-1] += extra * float(saved[kind])
    for chunk, seconds in ((0, float(level.embedding[0])), (chunks - 1, float(level.head[0]))):
        forward[chunk] += FORWARD_SHARE * seconds
        backward[chunk] += (1 - FORWARD_SHARE) * seconds
        weight[chunk] += FORWARD_SHARE * seconds
    again = np.minimum(again, backward)
    weight = np.minimum(weight, backward - again)
    return ChunkTimes(
        forward=forward,
        recompute=again,
        input_gradient=backward - again - weight,
        weight_gradient=weight,
        hops=hop_seconds(model, config),
        hidden=hidden if schedule in (Schedule.DUALPIPE, Schedule.DUALPIPE_V) else np.zeros(chunks),
        layers=tuple(counts),
    )


def _recomputed_of_ranks(model: LayerModel, config: ParallelConfig, deepest: int) -> NDArray[np.int64]:
    """Layers that each chunk of every rank recomputes, (ranks,); `deepest` where it recomputes all."""
    recomputed = np.full(config.pp, config.recompute_layers if config.recompute == Recompute.FULL else 0)
    if recomputed.any() and model.recomputed:
        recomputed = np.array(model.recomputed)
    most = -(-model.problem.model.num_layers // config.pp)
    return recomputed_of_chunk(recomputed, config.vpp, most, deepest)


def kept_by_chunk(model: LayerModel, config: ParallelConfig, counts: tuple[int, ...]) -> Array:
    """What a micro-batch leaves for its backward pass in chunks with `counts` layers, (chunks,) [bytes]."""
    spec, keys = model.problem.model, ConfigTable.of([config])
    level = layer_level(model, keys)
    leading = _recomputed_of_ranks(model, config, max(counts))
    ranks = ranks_of_chunks(config.pp, config.vpp, Schedule(config.schedule).placement)
    kept, first = np.zeros(len(counts)), 0
    for chunk, count in enumerate(counts):
        for place, kind in enumerate(spec.layer_kind_of[first : first + count]):
            full = place < leading[ranks[chunk]]
            kept[chunk] += float((level.kept_full if full else level.kept)[kind, 0])
        first += count
    kept[-1] += sum(extra * float(level.kept[kind, 0]) for kind, extra in spec.mtp_kinds)
    return kept


def hop_seconds(model: LayerModel, config: ParallelConfig) -> Array:
    """Seconds of one activation from each chunk to the next, by the tier of the boundary between their ranks."""
    cluster = model.problem.cluster
    width, p = config.tp * config.cp * config.dp, config.pp
    links = pipeline_links(float(width), float(p), cluster)
    seconds = [float(hop[0]) for hop in boundary_seconds(model, ConfigTable.of([config]), links)]
    tiers = [boundary_tier(rank, width, cluster) for rank in range(p - 1)] + [int(links.wrap)]
    ranks = ranks_of_chunks(p, config.vpp, Schedule(config.schedule).placement)
    folded = Schedule(config.schedule).placement is Placement.FOLDED
    hops = []
    for here, there in pairwise(ranks):  # a boundary is that behind the lower rank, or the wrap to the first
        boundary = here if there > here else (there if folded else p - 1)
        hops.append(0.0 if here == there else seconds[tiers[boundary]])
    return np.array(hops)


LARGEST_PIPELINE = 3_000_000  # passes; a larger one keeps its estimate
_ADAPTIVE: Final = (Schedule.V_HALF, Schedule.V_MIN)


def are_simulated(table: ConfigTable) -> NDArray[np.bool_]:
    """Which rows have no closed form that is exact, and a pipeline small enough to be simulated in a moment?"""
    adapts = np.isin(table["schedule"], _ADAPTIVE)
    passes = 3.0 * table["pp"] * table["vpp"] * table["num_microbatches"]
    return (table["schedule"] != Schedule.ONE_F_ONE_B) & (
        passes <= np.where(adapts, MOST_PASSES, LARGEST_PIPELINE)
    )


class PipelineSimulator:
    """Exact makespans of one problem's configurations; equal orders are built and equal pipelines simulated once."""

    def __init__(self, model: LayerModel, embedding_in_layers: float, head_in_layers: float) -> None:
        self.model, self.ends = model, (embedding_in_layers, head_in_layers)
        self._graphs: dict[tuple[int, int, int, int], DependencyGraph] = {}
        self._seen: dict[ParallelConfig, tuple[float, float]] = {}

    def dealt(self, model: LayerModel) -> PipelineSimulator:
        """For the same layers dealt in another way (`CostModel.with_split`), whose orders of passes are the same."""
        other = copy(self)
        other.model, other._seen = model, {}
        return other

    def chunk_times(self, config: ParallelConfig) -> ChunkTimes:
        """The times of every chunk of `config`."""
        return chunk_times(self.model, config, *self.ends)

    def makespans(self, configs: Sequence[ParallelConfig]) -> list[tuple[float, float]]:
        """Makespans without and with messages between ranks, exact for the schedule [s]."""
        keys = [replace(config, zero=0, hsdp=0) for config in configs]  # what the passes do not depend on
        alike: dict[object, list[tuple[ParallelConfig, StageTimes]]] = {}  # timed together
        for key in dict.fromkeys(keys):
            if key not in self._seen:
                cases = self.chunk_times(key).without_and_with_messages()
                own = key if _adapts(key) else (cases.overlapped is None, *_shape(key))
                alike.setdefault(own, []).append((key, cases))
        for group in alike.values():
            found = self._timed(group).tolist()
            for (key, _), (free, real) in zip(group, found, strict=True):
                self._seen[key] = free, real
        return [self._seen[key] for key in keys]

    def _timed(self, group: Sequence[tuple[ParallelConfig, StageTimes]]) -> Array:
        """Makespans of pipelines of one order of passes, without and with messages, (pipelines, 2) [s]."""
        return self.timed(group[0][0], side_by_side([cases for _, cases in group])).reshape(-1, 2)

    def timed(self, config: ParallelConfig, times: StageTimes) -> Array:
        """Makespans of the order of passes of a configuration, however long they take, (cases,) [s]."""
        found = np.full(times.cases, np.nan)
        if repeats(_order_of(config), config.pp, config.num_microbatches):
            found = makespans_of_many(config.pp, config.num_microbatches, config.vpp, times)
        left = np.flatnonzero(np.isnan(found))
        if len(left):
            some = times if len(left) == times.cases else times.of(left)
            found[left] = makespans(self._graph(config, some), some)
        return found

    def order(self, config: ParallelConfig, times: StageTimes) -> ActionTable:
        """The order of passes of a configuration; `times` for schedules that adapt to them. Raises `InputError`."""
        schedule = _order_of(config)
        if _adapts(config):
            from planner.schedule.memory_limited import memory_limited_table  # few schedules do

            return memory_limited_table(schedule, config.pp, config.num_microbatches, times)
        return action_table(schedule, config.pp, config.num_microbatches, config.vpp)

    def _graph(self, config: ParallelConfig, times: StageTimes) -> DependencyGraph:
        shape = _shape(config)
        if _adapts(config):
            return dependency_graph(self.order(config, times))
        if shape not in self._graphs:
            self._graphs[shape] = schedule_graph(
                _order_of(config), config.pp, config.num_microbatches, config.vpp
            )
        return self._graphs[shape]


def _adapts(config: ParallelConfig) -> bool:
    """Does the order of its passes depend on their times?"""
    return config.schedule in _ADAPTIVE


def _shape(config: ParallelConfig) -> tuple[int, int, int, int]:
    """What else the order of passes depends on."""
    return config.schedule, config.pp, config.vpp, config.num_microbatches


def _order_of(config: ParallelConfig) -> Schedule:
    """Of a configuration's passes: with virtual stages 1F1B is interleaved."""
    schedule = Schedule(config.schedule)
    return Schedule.INTERLEAVED if schedule is Schedule.ONE_F_ONE_B and config.vpp > 1 else schedule

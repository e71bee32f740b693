"""What do the layers of one configuration cost, in whichever chunks they lie, and what does its step take beside them?

Seconds of passes add up over layers, as do parameters of a rank; what a step takes once depends on the slowest and on
the heaviest rank alone. Left out: which split is best.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import hop_seconds
from planner.cost.messages.data_parallel import exposed_data_parallel
from planner.cost.model import CostModel
from planner.cost.pipeline.stages import recomputed_of_chunk
from planner.cost.pipeline.step import FORWARD_SHARE, measured_factor, straggling
from planner.cost.stems import StemModel
from planner.spec.config import ConfigTable, ParallelConfig, Schedule, ranks_of_chunks
from planner.spec.precision import RECIPES
from planner.spec.stack.kinds import StaysGathered

Array = NDArray[np.float64]
Index = NDArray[np.intp]

NOTHING = 1e-9  # [s] of a chunk without layers, as the simulator needs some
PAIRED = (Schedule.DUALPIPE, Schedule.DUALPIPE_V)


class LayerCosts:
    """Seconds of a layer of each kind and of the ends of the pipeline, parameters, and messages.

    Arrays (4, ..): forward pass, backward pass with what is recomputed, of it the recomputation, of it the weight
    gradients. `of_layer` (4, L): of every layer; `again` (2, L): what full recomputation adds to its backward pass and
    to its recomputation. `ends` (4, 2): embedding, and head with prediction modules. `hidden` (L,): what an overlapped
    pair of passes saves, `hidden_behind` in prediction modules. `hops` (C - 1,): of a message behind every chunk.
    """

    def __init__(self, model: CostModel, config: ParallelConfig) -> None:
        self.model, self.config, self.spec = model, config, model.problem.model
        self.p, self.v, self.m = config.pp, config.vpp, config.num_microbatches
        self.layers = self.spec.num_layers
        self.prepared = model.prepare(ConfigTable.of([config]))
        schedule = Schedule(config.schedule)
        # with virtual stages 1F1B is interleaved
        self.schedule = Schedule.INTERLEAVED if schedule is Schedule.ONE_F_ONE_B and self.v > 1 else schedule
        self.rank_of = np.array(ranks_of_chunks(self.p, self.v, self.schedule.placement))
        self.kinds = np.array(self.spec.layer_kind_of)
        level = self.prepared.layers
        forward, time, full = (of[:, 0] for of in (level.forward_time, level.time, level.time_full))
        of_kind = np.array([forward, time - forward, level.again[:, 0], level.weight_gradient[:, 0]])
        more = np.array([full - time, level.again_full[:, 0] - level.again[:, 0]])
        self.of_layer, self.again = of_kind[:, self.kinds], more[:, self.kinds]
        edges = np.array([level.embedding[0], level.head[0]])
        share = FORWARD_SHARE * edges
        self.ends = np.array([share, edges - share, 0 * edges, share])
        saved = level.saved[:, 0] * (self.schedule in PAIRED)
        self.hidden, self.hidden_behind = saved[self.kinds], 0.0
        for kind, count in self.spec.mtp_kinds:
            self.ends[:, 1] += count * of_kind[:, kind]
            self.hidden_behind += count * float(saved[kind])

    @cached_property
    def hops(self) -> Array:
        """Seconds of a message from every chunk to the next."""
        return hop_seconds(self.model.layers, self.config)

    @cached_property
    def mean_layer(self) -> Array:
        """Seconds of the passes of a layer on average, as `Passes` tells them apart, but for full recomputation
        (4,)."""
        forward, backward, _, weight = self.of_layer.mean(axis=1)
        return np.array([forward, backward - weight, weight, self.hidden.mean()])

    @cached_property
    def total(self) -> float:
        """A micro-batch's passes, whatever is recomputed left out [s]."""
        return float(self.of_layer[:2].sum() + self.ends[:2].sum())

    def deepest(self, slowest: float) -> float:
        """Layers that a rank may hold that takes no longer than so much for a micro-batch [1]."""
        each = np.sort(self.of_layer[:2].sum(axis=0) - self.hidden)
        return float(max(int((each.cumsum() <= slowest).sum()) + sum(self.spec.last_stage_layers), 1))

    def recomputed(self, count: int) -> int:
        """Layers that each chunk recomputes, its first ones, where a configuration recomputes `count` of a rank."""
        most = -(-self.layers // self.p)
        return int(recomputed_of_chunk(np.array(count), self.v, most, self.layers))

    @cached_property
    def _parameters(self) -> Array:
        """Dense and expert parameters on a rank of the first n layers (2, L + 1)."""
        of_kind = self._of_kind()
        return np.concatenate([np.zeros((2, 1)), of_kind[:, self.kinds].cumsum(axis=1)], axis=1)

    def _of_kind(self) -> Array:
        """Dense and expert parameters of a layer of every kind on a rank (2, K)."""
        degrees = (np.array([float(getattr(self.config, axis))]) for axis in ("tp", "ep", "etp"))
        return np.array(self.model.shards.parameters_by_kind(*degrees))[:, :, 0]

    @cached_property
    def _outer(self) -> Array:
        """Of every rank, dense and expert parameters beside the layers that a split deals, the embedding's, norms' and
        head's among them, and the head's alone (4, p)."""
        shards, found = self.prepared.shards, np.zeros((4, self.p))
        for j, ranks in enumerate(self.prepared.classes.members[0]):
            found[0, list(ranks)] = found[2, list(ranks)] = shards.outer[0, j]
            found[3, list(ranks)] = shards.head[0, j]
        of_kind = self._of_kind()
        for kind, count in self.spec.mtp_kinds:
            found[:2, self.rank_of[-1]] += count * of_kind[:, kind]
        return found

    def parameters(self, first: Index, layers: Index) -> Array:
        """Dense and expert ones of `layers` from the layer `first` on, on a rank (2, ..)."""
        return np.asarray(self._parameters[:, first + layers] - self._parameters[:, first])

    def heavy(self, rank: Index, held: Array, layers: Index) -> Array:
        """What makes collectives of ranks long that hold `layers` with so many dense and expert parameters (2, n): all
        of their parameters, and where some stay gathered between passes, those that do not, (n, 2) or (n, 4)."""
        every, stack = held + self._outer[:2, rank], self.model.problem.stack
        if stack.engine.keeps_gathered is StaysGathered.NOTHING:
            return every.T
        behind = sum(self.spec.last_stage_layers) * (rank == self.rank_of[-1])
        half = RECIPES[self.model.problem.job.precision].activation_bytes
        sent, (outer, head) = (half * every[0], half * every[1]), self._outer[2:, rank]
        stays = self.model.shards.staying_bytes(sent, outer, head, (layers + behind).astype(float))
        again = np.maximum(every - np.array(stays) / half, 0.0)
        return np.concatenate([every, again]).T

    def lightest(self) -> Array:
        """What, as `heavy` has it, the heaviest rank of any split has at least (2,) or (4,): the mean, what lies
        outside the layers of one, or of the layers of a kind the mean, rounded up."""
        stays = self.model.problem.stack.engine.keeps_gathered is not StaysGathered.NOTHING
        every, largest = self._parameters[:, -1] + self._outer[:2].sum(axis=1), self._of_kind().max(axis=1)
        found = []
        for i, outer in enumerate(self._outer[:2]):
            of_layer = np.diff(self._parameters[i])
            full = [
                -(-int((self.kinds == kind).sum()) // self.p) * float(of_layer[self.kinds == kind][0])
                for kind in set(self.kinds.tolist())
            ]
            found.append(max(float(every[i]) / self.p, float(outer.max()), *full))
        staying = largest + np.array([self._outer[2].sum(), 0.0])
        return np.array([*found, *(np.maximum(every - staying, 0.0) / self.p if stays else ())])

    def step_time(self, subtotal: float) -> float:
        """The whole step where all but stragglers take `subtotal` [s]."""
        problem = self.model.problem
        own = float(measured_factor(problem, ConfigTable.of([self.config]))[0])
        lost = straggling(np.array(subtotal), problem)
        return own * (subtotal + float(lost))

    def subtotal(self, step_time: float) -> float:
        """What all but stragglers take of a step [s]."""
        return step_time / self.step_time(1.0)


class Passes:
    """Seconds of the passes of any run of neighbouring layers, of which the first `count` are recomputed in full."""

    def __init__(self, costs: LayerCosts, count: int) -> None:
        self.costs, self.count = costs, count
        self.before = np.concatenate([np.zeros((4, 1)), costs.of_layer.cumsum(axis=1)], axis=1)
        self.again = np.concatenate([np.zeros((2, 1)), costs.again.cumsum(axis=1)], axis=1)
        self.saved = np.concatenate([[0.0], costs.hidden.cumsum()])

    def of(self, first: Index, layers: Index, chunk: int | Index = -1) -> Array:
        """Forward pass, backward pass but for weight gradients, these, and what pairs save: of `layers` from the layer
        `first` on, in a chunk that is the first of a pipeline (0), the last (1) or neither (-1): (4, ..) [s]."""
        past = first + layers
        sums = self.before[:, past] - self.before[:, first]
        full = self.again[:, first + np.minimum(layers, self.count)] - self.again[:, first]
        hidden = self.saved[past] - self.saved[first]
        for end in (0, 1):
            here = np.asarray(chunk) == end
            sums = sums + np.where(here, self.costs.ends[:, end].reshape(4, *([1] * (sums.ndim - 1))), 0.0)
            hidden = hidden + np.where(here & (end == 1), self.costs.hidden_behind, 0.0)
        forward, backward, again, weight = sums
        backward, again = backward + full[0], again + full[1]
        weight = np.minimum(weight, backward - np.minimum(again, backward))
        return np.array([forward, backward - weight, weight, hidden])

    def of_splits(self, splits: NDArray[np.int64]) -> Array:
        """The same of every chunk of some splits: (4, splits, chunks)."""
        chunks = splits.shape[1]
        place = np.full(chunks, -1)
        place[[0, -1]] = 0, 1
        return self.of(np.cumsum(splits, axis=1) - splits, splits, place)


class Beside:
    """What a step takes beside its passes and messages, at least, where ranks are no heavier than `heaviest`
    (n, 2 or 4), as `LayerCosts.heavy` has it."""

    def __init__(self, costs: LayerCosts, heaviest: Array) -> None:
        own, number = costs.prepared, len(heaviest)
        stem, classes, same = own.stems.take(slice(0, 1)), own.classes, np.zeros(number, dtype=np.intp)
        shards = costs.model.shards.with_heaviest(own.shards, stem, classes, heaviest)
        # of an optimizer that updates whole matrices some rank has the mean rank's or more
        count = classes.count[:, :, None]
        mean = (count * classes.layers).sum(axis=1, keepdims=True) / count.sum(axis=1, keepdims=True)
        even = replace(classes, layers=np.broadcast_to(mean, classes.layers.shape))
        pipelines = replace(own.pipelines, of_row=own.pipelines.of_row[same])
        self.stems = StemModel(own.model, even, own.layers, pipelines, shards, least=True)
        self.batch = self.stems.batch(stem.take(same), slice(0, number), memory=False)

    def seconds(self, level: Index, slowest: Array, deepest: Array) -> Array:
        """Of rows, the `level`-th of those (k,), where the slowest rank takes `slowest` for a micro-batch and the
        deepest holds so many layers: exposed collectives, the update, copies and the host's work [s]. Convex in
        `slowest`, falling in both."""
        batch, host, waits = self.batch, np.zeros(len(level)), np.zeros(len(level))
        if batch.offload.any():
            none, m = np.zeros(len(level)), batch.data.microbatches[level]
            host, waits = self.stems.host_transfer(batch, level, none, slowest, m)
        exposed = exposed_data_parallel(batch.data.take(level), slowest + waits, deepest)
        return np.asarray(exposed + host + batch.copies[level] + batch.once[level] + batch.overhead[level])

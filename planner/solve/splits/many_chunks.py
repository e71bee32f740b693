"""Which split is fast where the makespan has no closed form: several chunks a rank, and schedules of their own?

Found by moving layers one by one from a split that is known, all moves simulated at a time. Left out: whether it is the
fastest (`programme.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import PipelineSimulator
from planner.schedule.critical import critical_paths
from planner.schedule.graph import schedule_graph
from planner.schedule.simulate import StageTimes
from planner.solve.splits.layers import NOTHING, Beside, LayerCosts, Passes
from planner.solve.splits.paths import timed
from planner.solve.splits.room import Room

Array = NDArray[np.float64]
Splits = NDArray[np.int64]

MOVES: Final = 600  # of a layer that are simulated at a time at most
PASSES, FEWEST_MOVES = 4_000_000, 40  # of all of them; but never fewer moves
ASKED: Final = 16  # splits whose memory is looked at together
REPAIRED: Final = 64  # moves that are looked at together
REPAIRS: Final = 40  # moves of a layer until a split fits
PASS, SIMULATED = 4e-9, 3e-3  # seconds of a processor, about, of a simulated pass
RANK: Final = 1e-4  # of a rank whose memory is looked at
DESCENT: Final = 0.5  # of moving layers from one split on, at most
GAIN: Final = 1e-9  # of a step that is worth a move


class Simulated:
    """How long steps take under splits of one configuration, of each of whose chunks the first layers are recomputed,
    `count` (p,) by rank."""

    def __init__(self, costs: LayerCosts, simulator: PipelineSimulator, count: NDArray[np.int64]) -> None:
        self.costs, self.simulator = costs, simulator
        self.count = count
        self.passes = {int(n): Passes(costs, int(n)) for n in set(count.tolist())}
        self.exposed = costs.model.problem.stack.communication.p2p_exposed
        self.on_rank = (costs.rank_of[:, None] == np.arange(costs.p)).astype(float)
        self.behind = np.where(np.arange(costs.p) == costs.rank_of[-1], sum(costs.spec.last_stage_layers), 0)
        self.effort = 0.0

    def times(self, splits: Splits) -> Array:
        """Passes of chunks (4, splits, chunks)."""
        if len(self.passes) == 1:
            return next(iter(self.passes.values())).of_splits(splits)
        every = {n: passes.of_splits(splits) for n, passes in self.passes.items()}
        of_chunk = [every[int(self.count[rank])][:, :, c] for c, rank in enumerate(self.costs.rank_of)]
        return np.stack(of_chunk, axis=2)

    def seconds(self, splits: Splits) -> Array:
        """What steps take, stragglers and memory that may be short left out (splits,) [s]."""
        times = self.times(splits)
        return self.makespans(times) + self.beside(splits, times)

    def makespans(self, times: Array) -> Array:
        """Makespans and what messages add to them (splits,) [s]."""
        costs = self.costs
        self.effort += SIMULATED + PASS * 2 * costs.m * times[0].size
        real = self.simulator.timed(costs.config, self.stage_times(times, costs.hops))
        if self.exposed == 1.0:
            return real
        free = self.simulator.timed(costs.config, self.stage_times(times, 0.0 * costs.hops))
        return np.asarray((1.0 - self.exposed) * free + self.exposed * real)

    def stage_times(self, times: Array, hops: Array) -> StageTimes:
        """Passes for the simulator."""
        return timed(np.concatenate([np.maximum(times[:2], NOTHING), times[2:]]), hops)

    def beside(self, splits: Splits, times: Array) -> Array:
        """What steps take beside their passes, at least (splits,) [s]."""
        costs = self.costs
        slowest = ((times[:3].sum(axis=0) - times[3]) @ self.on_rank).max(axis=1)
        layers = splits @ self.on_rank
        held = costs.parameters(np.cumsum(splits, axis=1) - splits, splits) @ self.on_rank
        ranks = np.tile(np.arange(costs.p), len(splits))
        heavy = (
            costs.heavy(ranks, held.reshape(2, -1), layers.ravel())
            .reshape(len(splits), costs.p, -1)
            .max(axis=1)
        )
        some, row = np.unique(heavy, axis=0, return_inverse=True)
        deepest = np.maximum((layers + self.behind).max(axis=1), 1.0)
        return Beside(costs, some).seconds(row.ravel(), slowest, deepest)

    def weights(self, split: Splits) -> Array:
        """Seconds that a layer more adds to the longest way through a split's schedule, by chunk."""
        costs = self.costs
        graph = schedule_graph(costs.schedule, costs.p, costs.m, costs.v)
        ways = critical_paths(graph, self.stage_times(self.times(split[None]), costs.hops))
        return np.asarray(costs.mean_layer @ ways.passes[:, 0])


class Search:
    """Looks for a fast split that fits, one of whose chunks may recompute layers as `simulated` has it.

    `stated`: layers of a rank that the configuration says are recomputed. `fewest`: layers of chunks between the first
    and the last. `best`, `taken`: the fastest that fits, and what it takes, stragglers left out [s].
    """

    def __init__(self, simulated: Simulated, room: Room, stated: int, fewest: int) -> None:
        self.simulated, self.room, self.stated, self.fewest = simulated, room, stated, fewest
        self.best: Splits | None = None
        self.taken = np.inf

    def fit(self, splits: Splits) -> NDArray[np.bool_]:
        """Which of some splits fit?"""
        if np.isinf(self.room.limit):
            return np.ones(len(splits), dtype=np.bool_)
        return np.asarray((self._needed(splits) <= self.room.limit).all(axis=1))

    def too_full(self, split: Splits) -> list[int]:
        """Ranks that need more than there is."""
        over: list[int] = np.flatnonzero(self._needed(split[None])[0] > self.room.limit).tolist()
        return over

    def _needed(self, splits: Splits) -> Array:
        before = self.room.asked
        found = self.room.needed(splits, self.stated, self.simulated.count)
        self.simulated.effort += RANK * (self.room.asked - before)
        return found

    def descend(self, start: Splits) -> None:
        """Move layers from one split on as long as that is faster, or until it fits, or has taken too much effort."""
        end = self.simulated.effort + DESCENT
        split = self._repaired(start)
        if split is None:
            return
        taken = float(self.simulated.seconds(split[None])[0])
        while (better := self._moved(split, taken)) is not None:
            split, taken = better
            if self.simulated.effort > end:
                break
        if taken < self.taken:
            self.best, self.taken = split, taken

    def _moved(self, split: Splits, taken: float) -> tuple[Splits, float] | None:
        """The fastest split that differs in the chunk of one layer, and fits; None where none is faster."""
        moves = self._moves(split)
        seconds = self.simulated.seconds(moves) if len(moves) else np.zeros(0)
        order = np.argsort(seconds, kind="stable")
        order = order[seconds[order] < taken * (1 - GAIN)]
        for start in range(0, len(order), ASKED):
            some = order[start : start + ASKED]
            fits = np.flatnonzero(self.fit(moves[some]))
            if len(fits):
                return moves[some[fits[0]]], float(seconds[some[fits[0]]])
        return None

    def _moves(self, split: Splits) -> Splits:
        """Splits that differ in the chunk of one layer; of many those that shorten the longest way most."""
        source, target = _pairs(split, self.fewest)
        most = max(min(MOVES, PASSES // (2 * self.simulated.costs.m * len(split))), FEWEST_MOVES)
        if len(source) > most:
            weights = self.simulated.weights(split)
            gain = weights[source] - weights[target]
            chosen = np.sort(np.argsort(-gain, kind="stable")[:most])
            source, target = source[chosen], target[chosen]
        return _after(split, source, target)

    def _repaired(self, split: Splits) -> Splits | None:
        """A split near one that fits: as long as it does not, a layer leaves the rank that needs most."""
        if np.isinf(self.room.limit):
            return split
        needed = self._needed(split[None])[0]
        for _ in range(REPAIRS):
            if (needed <= self.room.limit).all():
                return split
            source, target = _pairs(split, self.fewest)
            chosen = np.flatnonzero(self.simulated.costs.rank_of[source] == needed.argmax())
            chosen = chosen[:: max(len(chosen) // REPAIRED, 1)]
            moves = _after(split, source[chosen], target[chosen])
            if not len(moves):
                return None
            memory = self._needed(moves)
            over = np.maximum(memory - self.room.limit, 0.0).sum(axis=1)
            if over.min() >= np.maximum(needed - self.room.limit, 0.0).sum():
                return None
            split, needed = moves[over.argmin()], memory[over.argmin()]
        return None


def _pairs(split: Splits, fewest: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """From which chunk to which a layer can move."""
    least = np.full(len(split), fewest)
    least[[0, -1]] = 0
    source, target = np.nonzero((split > least)[:, None] & ~np.eye(len(split), dtype=np.bool_))
    return source, target


def _after(split: Splits, source: NDArray[np.intp], target: NDArray[np.intp]) -> Splits:
    """A split after each of some moves."""
    found = np.tile(split, (len(source), 1))
    rows = np.arange(len(source))
    found[rows, source] -= 1
    found[rows, target] += 1
    return found


def even_splits(costs: LayerCosts) -> list[tuple[int, ...]]:
    """As many layers in every chunk, one more in the first where they do not divide; and the same without a layer in
    the first or in the last chunk, whose ends may be heavy."""
    chunks, found = len(costs.rank_of), []
    for first, last in ((0, 0), (1, 0), (0, 1), (1, 1)):
        inner = chunks - first - last
        if inner < 1:
            continue
        base, rest = divmod(costs.layers, inner)
        found.append((*[0] * first, *(base + (chunk < rest) for chunk in range(inner)), *[0] * last))
    return found

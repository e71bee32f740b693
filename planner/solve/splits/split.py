"""Which layers does every pipeline stage hold, and how many of them does it recompute, so that one configuration is
fastest and every rank's memory suffices?

CP-SAT minimises a lower bound of the step over all splits (`splits/model.py`); its candidate is costed exactly
(simulated where it is interleaved) and excluded, until no split's bound beats the best found. A candidate that does not
fit on devices excludes every split that gives that rank (or, of inner ranks, an earlier one, which holds more
micro-batches) at least as many layers of every kind and keeps as many of them (`SplitModel._lighter`); one that its
hosts have no room for excludes itself.
Chunks in the middle hold one layer or more; of interleaved pipelines, the average rounded down or one more, the first
and the last any number up to that. Left out: schedules other than these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cost.chunks import PipelineSimulator
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.cost.table import CostTable
from planner.solve.splits.bound import LayerCosts, capacity, few_splits, quick_bound
from planner.solve.splits.dealt import Chunks, Dealt
from planner.solve.splits.model import SplitModel
from planner.space.split import deal_layers
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

TOLERANCE: Final = 1e-4  # a gap below it counts as closed
MOST_CANDIDATES: Final = 40  # costed exactly for one configuration
EFFORT: Final = (
    1.0  # deterministic time of CP-SAT for one configuration, about as many seconds of a processor
)


@dataclass(frozen=True)
class SplitResult:
    """`config`: with as many recomputed layers as were found best; `dealt`: the fastest split that fits, None where
    none was found; `step_time` of it [s]. `bound`: what no split of the configuration can beat [s]. `own`: the step
    time of the stack's own split, infinite where it does not fit. `tried`: candidates costed exactly. `effort`:
    deterministic time spent."""

    config: ParallelConfig
    dealt: Dealt | None
    step_time: float
    bound: float
    own: float
    tried: int
    effort: float = 0.0

    @property
    def chunks(self) -> Chunks:
        """Layers of every chunk, empty where no split fits."""
        return self.dealt.chunks if self.dealt else ()

    @property
    def gap(self) -> float:
        """(step time - bound) / step time [1]."""
        return max(1 - self.bound / self.step_time, 0.0) if np.isfinite(self.step_time) else 1.0

    @property
    def proven(self) -> bool:
        """Is there no faster split?"""
        return self.gap <= TOLERANCE


def own_split(model: CostModel, config: ParallelConfig) -> Chunks:
    """The stack's own split of a configuration."""
    spec, stack = model.problem.model, model.problem.stack
    ends = (model.embedding_in_layers, model.head_in_layers)
    placement = Schedule(config.schedule).placement
    return tuple(deal_layers(spec.num_layers, config.pp, config.vpp, stack.split, *ends, placement))


def even_split(layers: int, pp: int, vpp: int) -> Chunks:
    """Equally many layers in every chunk, one more in the first where they do not divide; empty where there are fewer
    layers than chunks."""
    base, rest = divmod(layers, pp * vpp)
    return tuple(base + (chunk < rest) for chunk in range(pp * vpp)) if base else ()


def simple_splits(own: Chunks, config: ParallelConfig) -> list[Chunks]:
    """Splits to try before a solver does: the even one and, of 1F1B, `own` with the deepest stages first, where their
    work hides behind that of others at the start and the end of a step. Without `own` itself."""
    tried = [even_split(sum(own), config.pp, config.vpp)]
    if config.vpp == 1 and min(own) > 0:
        tried.append(tuple(sorted(own, reverse=True)))
    return [split for split in dict.fromkeys(tried) if split and split != own]


def cost_of_split(
    model: CostModel,
    config: ParallelConfig,
    split: Chunks | Dealt,
    simulator: PipelineSimulator | None = None,
) -> CostTable:
    """The exact cost of one configuration under a split of its own; `simulator`: of `model`, which may know its order
    of passes."""
    dealt = split if isinstance(split, Dealt) else Dealt(split, (config.recompute_layers,))
    other = dealt.of_model(model)
    simulator = simulator.dealt(other.layers) if simulator else simulator_of(other)
    return evaluate_exactly(other, ConfigTable.of([dealt.config(config)]), simulator)


def hosts_hold(model: CostModel, config: ParallelConfig, split: Dealt) -> bool:
    """Have the hosts room for one configuration under a split of its own?"""
    # what a checkpoint copies is no matter of the split
    dealt = split.of_model(model) if config.offload else model
    return bool(on_host(dealt, ConfigTable.of([split.config(config)]))[0])


def only_split(model: CostModel, config: ParallelConfig) -> bool:
    """Do so few layers leave one way to deal them?"""
    layers, chunks = model.problem.model.num_layers, config.pp * config.vpp
    return layers == (chunks if config.vpp == 1 else chunks - 2)


def solvable(config: ParallelConfig) -> bool:
    """Has the configuration a split to solve?"""
    plain = config.schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
    return plain and config.pp > 1


def solve_split(
    model: CostModel, config: ParallelConfig, limit: float, cutoff: float = np.inf, effort: float = EFFORT,
    choices: Sequence[int] = (), per_stage: bool = False, candidates: int = MOST_CANDIDATES,
) -> SplitResult:  # fmt: skip
    """The fastest split of `config` within `limit` bytes; only splits faster than `cutoff` [s] are of interest.

    `choices`, `per_stage`: see `SplitSearch`. `candidates`: costed exactly at most. Where the bound reaches the cutoff,
    `bound` is it: nothing faster was missed.
    """
    search = SplitSearch(model, config, limit, choices, per_stage, cutoff)
    search.advance(cutoff, effort, candidates)
    return search.result


class SplitSearch:
    """The search for the fastest split of one configuration within `limit` bytes of a device and the memory of its
    hosts, which can be gone on with.

    `choices`: numbers of layers of a rank that may be recomputed, the configuration's own alone by default; the same
    number on every rank unless `per_stage`. `simulator`: of `model`, which may have timed the configuration before.
    `costs`: of the configuration's layers, where they are known.
    `result`: what is known so far. `done`: nothing is left to find.
    """

    def __init__(
        self, model: CostModel, config: ParallelConfig, limit: float, choices: Sequence[int] = (),
        per_stage: bool = False, cutoff: float = np.inf, simulator: PipelineSimulator | None = None,
        costs: LayerCosts | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.limit, self.per_stage = model, config, limit, per_stage
        self.own = Dealt(
            own_split(model, config), (config.recompute_layers,) * (config.pp if per_stage else 1)
        )
        self.simulator = simulator or simulator_of(model)
        self.cost = evaluate_exactly(model, ConfigTable.of([config]), self.simulator)
        self.fits = bool(self.cost.device_memory[0] <= limit and hosts_hold(model, config, self.own))
        own_time = float(self.cost.step_time[0]) if self.fits else np.inf
        self.done = not solvable(config)
        best, dealt, bound = own_time, self.own if self.fits else None, own_time
        self.tried: list[tuple[Dealt, CostTable]] = []  # beside the stack's own
        if not self.done:
            for split in simple_splits(self.own.chunks, config):
                other = Dealt(split, self.own.recomputed)
                cost = cost_of_split(model, config, other, self.simulator)
                self.tried.append((other, cost))
                faster = cost.device_memory[0] <= limit and float(cost.step_time[0]) < best
                if faster and hosts_hold(model, config, other):
                    best, dealt = float(cost.step_time[0]), other
            self.room = capacity(model, config, choices or (config.recompute_layers,), limit)
            least = min(best, cutoff)
            self.costs = costs or LayerCosts(model, config)
            room = None if per_stage else self.room
            bound = quick_bound(model, config, min(least, 1e9), room, costs=self.costs)
            bound, self.done = min(bound, least), bound >= least
        self.result = SplitResult(config, dealt, best, bound, own_time, 0)
        self.search: SplitModel | None = None

    def advance(self, cutoff: float, effort: float, candidates: int = MOST_CANDIDATES) -> None:
        """Go on with so much effort, or until it is done; only splits faster than `cutoff` [s] are of interest."""
        now = self.result
        best, dealt, bound, tried, left = now.step_time, now.dealt, now.bound, now.tried, effort
        if not self.done and self.search is None and self._none_is_faster(min(best, cutoff)):
            bound, self.done = min(best, cutoff), True
        if not self.done and self.search is None:
            target = min(best, cutoff)
            hint = dealt or self.own
            self.search = SplitModel(self.model, self.config, hint, target, self.room, self.per_stage)
            for split, cost in [(self.own, self.cost), *self.tried]:
                if cost.device_memory[0] > self.limit:
                    self.search.exclude_memory(split, _too_large(cost, self.limit))
        while not self.done and left > 0 and tried < candidates:
            assert self.search is not None, "made above"
            target = min(best, cutoff)
            found, least, spent = self.search.solve(target, left)
            left -= spent
            bound = max(bound, min(least, target))
            if found is None or least >= target * (1 - TOLERANCE):
                self.done = bound >= target * (1 - TOLERANCE)
                break
            tried += 1
            cost = cost_of_split(self.model, self.config, found, self.simulator)
            if cost.device_memory[0] > self.limit:
                self.search.exclude_memory(found, _too_large(cost, self.limit))
                continue
            self.search.exclude(found)
            self.search.add_longest_paths(found.chunks)
            if float(cost.step_time[0]) < best and hosts_hold(self.model, self.config, found):
                best, dealt = float(cost.step_time[0]), found
        self.done |= tried >= candidates
        config = self.config if dealt is None else dealt.config(self.config)
        spent = now.effort + effort - left
        self.result = SplitResult(config, dealt, best, min(bound, best), now.own, tried, spent)

    def _none_is_faster(self, target: float) -> bool:
        """Do the few splits that an interleaved pipeline has all take `target` [s] or more? Saves loading a solver."""
        layers, config = self.model.problem.model.num_layers, self.config
        splits = few_splits(layers, config.pp, config.vpp) if config.vpp > 1 else None
        if splits is None or np.isinf(target):
            return False
        room = None if self.per_stage else self.room
        return quick_bound(self.model, config, target, room, splits, self.costs) >= target


def _too_large(cost: CostTable, limit: float) -> list[int]:
    """Ranks whose memory exceeds the limit: of each class the last, which holds fewest micro-batches."""
    detail = cost.detail
    assert detail is not None, "costed with keep_terms"
    over = detail.by_class[0] + detail.outside[0] > limit
    members = detail.classes.members[int(detail.class_row[0])]
    # a class is costed as its earliest rank, of which alone the excess is known
    return [ranks[0] for j, ranks in enumerate(members) if over[j]]

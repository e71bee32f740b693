"""Which layers does every pipeline stage hold, and how many of them does it recompute, so that one configuration is
fastest and every rank's memory suffices?

Over every layout of the layers that the framework takes, chunks without a layer among them. For each number of
recomputed layers: where a makespan has a closed form, exactly (`one_chunk.py`); elsewhere by moving layers
(`many_chunks.py`), by bounds that hold for every split (`relaxed.py`), and by programmes that find a faster one or show
that there is none (`programme.py`). What is found is costed exactly. Left out: schedules whose order adapts to times,
mirrored pipelines, and memory of hosts in bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.cost.chunks import PipelineSimulator
from planner.cost.host_memory import on_host
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.cost.table import CostTable
from planner.frameworks.rulebook import FILLED_CHUNKS
from planner.solve.splits.cases import Case, Layout
from planner.solve.splits.dealt import Chunks, Dealt
from planner.solve.splits.families import ADAPTIVE
from planner.solve.splits.layers import LayerCosts
from planner.solve.splits.pipe import Pipe
from planner.solve.splits.relaxed import Known
from planner.space.framework_rules import all_rules_for
from planner.space.split import deal_layers
from planner.spec.config import ConfigTable, ParallelConfig, Schedule

TOLERANCE: Final = 1e-4  # a gap below it counts as closed
EFFORT: Final = 1.0  # for one configuration, about as many seconds of a processor
EXACTLY: Final = 0.01  # seconds of a processor, about, of costing a split


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


def fewest_inner(model: CostModel, config: ParallelConfig) -> int:
    """The fewest layers that a chunk between the first and the last may hold, as the framework's rules say."""
    chunks, layers = config.pp * config.vpp, model.problem.model.num_layers
    rules = [rule for rule in all_rules_for(model.problem.stack.framework) if rule.id == FILLED_CHUNKS]
    stack = model.problem.stack.model_copy(update={"split": (layers, *[0] * (chunks - 1))})
    table, dealt = ConfigTable.of([config]), replace(model.problem, stack=stack)
    return int(any(not rule.holds(table.columns, dealt)[0] for rule in rules))


def solve_split(
    model: CostModel, config: ParallelConfig, limit: float, cutoff: float = np.inf, effort: float = EFFORT,
    choices: Sequence[int] = (), per_stage: bool = False,
) -> SplitResult:  # fmt: skip
    """The fastest split of `config` within `limit` bytes; only splits faster than `cutoff` [s] are of interest.

    `choices`, `per_stage`: see `SplitSearch`. Where the bound reaches the cutoff, `bound` is it: nothing faster was
    missed.
    """
    search = SplitSearch(model, config, limit, choices, per_stage, cutoff)
    search.advance(cutoff, effort)
    return search.result


class SplitSearch:
    """The search for the fastest split of one configuration within `limit` bytes of a device and the memory of its
    hosts, which can be gone on with.

    `choices`: numbers of layers of a rank that may be recomputed, the configuration's own alone by default; the same
    number on every rank unless `per_stage`. `simulator`: of `model`, which may have timed the configuration before.
    `costs`: of the configuration's layers, where they are known. `own_time`: of a step under the stack's own split,
    infinite where it does not fit, where that is known [s]. `known`: of pipelines, which may be of others as well.
    `least`: of numbers of recomputed layers what no split beats, where that is known [s].
    `result`: what is known so far. `done`: nothing is left to find.
    """

    def __init__(
        self, model: CostModel, config: ParallelConfig, limit: float, choices: Sequence[int] = (),
        per_stage: bool = False, cutoff: float = np.inf, simulator: PipelineSimulator | None = None,
        costs: LayerCosts | None = None, own_time: float | None = None, known: dict[Pipe, Known] | None = None,
        least: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.limit, self.per_stage = model, config, limit, per_stage
        self.own = Dealt(
            own_split(model, config), (config.recompute_layers,) * (config.pp if per_stage else 1)
        )
        self.simulator = simulator or simulator_of(model)
        if own_time is None:
            cost = evaluate_exactly(model, ConfigTable.of([config]), self.simulator)
            fits = bool(cost.device_memory[0] <= limit and hosts_hold(model, config, self.own))
            own_time = float(cost.step_time[0]) if fits else np.inf
        self.own_time = self.best = own_time
        self.dealt = self.own if np.isfinite(own_time) else None
        self.tried, self.effort = 0, 0.0
        self.cases: list[Case] = []
        if config.pp > 1 and config.schedule not in ADAPTIVE:
            costs = costs or LayerCosts(model, config)
            fewest, known = fewest_inner(model, config), {} if known is None else known
            some = Layout(config, limit, self.simulator, costs, per_stage, fewest, known)
            some.fits = bool(np.isfinite(own_time))
            given = tuple(sorted(set(choices or (config.recompute_layers,))))
            self.cases = some.cases(given, least or {})
        self._settle(cutoff)

    @property
    def result(self) -> SplitResult:
        """What is known so far."""
        config = self.config if self.dealt is None else self.dealt.config(self.config)
        return SplitResult(config, self.dealt, self.best, self.bound, self.own_time, self.tried, self.effort)

    def _settle(self, cutoff: float) -> None:
        """Say what is known now."""
        target = min(self.best, cutoff)
        self.bound = min([target, *(case.bound for case in self.cases)])
        self.done = not self._open(target)

    def _open(self, target: float) -> list[Case]:
        """Cases that may have a split faster than `target`, and that more effort may tell more about."""
        return [
            case for case in self.cases if case.bound < target * (1 - TOLERANCE) and case.may_learn(target)
        ]

    def consider(self, dealt: Dealt, cutoff: float) -> None:
        """Cost a split that another configuration is fast with; see `advance`."""
        self._cost([dealt])
        self._settle(cutoff)

    def advance(self, cutoff: float, effort: float) -> None:
        """Go on with so much effort, or until it is done; only splits faster than `cutoff` [s] are of interest."""
        end = self.effort + effort
        while self.effort < end:
            target = min(self.best, cutoff)
            open_ = self._open(target)
            if not open_:
                break
            case = min(open_, key=lambda one: one.bound)
            starts = [self.own.chunks] + ([self.dealt.chunks] if self.dealt else [])
            found, spent = case.learn(target, starts)
            self.effort += spent
            self._cost(found)
            for other in self.cases[self.cases.index(case) + 1 :]:
                other.bound, other.free = max(other.bound, case.free), max(other.free, case.free)
        self._settle(cutoff)

    def _cost(self, found: Iterable[Dealt]) -> None:
        """Cost some splits exactly, up to the first that fits."""
        for dealt in found:
            self.effort += EXACTLY
            self.tried += 1
            cost = cost_of_split(self.model, self.config, dealt, self.simulator)
            if cost.device_memory[0] > self.limit or not hosts_hold(self.model, self.config, dealt):
                continue
            if float(cost.step_time[0]) < self.best:
                self.best, self.dealt = float(cost.step_time[0]), dealt
            break

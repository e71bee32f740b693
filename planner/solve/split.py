"""Which layers does every pipeline stage hold, so that one configuration is fastest and every rank's memory suffices?

CP-SAT minimises a lower bound of the step over all splits; its candidate is costed exactly (simulated where it is
interleaved) and excluded, until no split's bound beats the best found:
  bound  paths through the schedule, each linear in the layers of the chunks: what a rank waits for, its own work, and
         what follows; 1F1B: some of those of `schedule/uneven.py`; and the longest path of every candidate, so that
         its bound becomes its simulated time. To them come tangents of what data-parallel collectives leave exposed,
         convex in the slowest stage's time
  memory a candidate that does not fit excludes every split that gives that rank (or, of inner ranks, an earlier one,
         which holds more micro-batches) at least as many layers of every kind
Chunks in the middle hold one layer or more; of interleaved pipelines, the average rounded down or one more, the first
and the last any number up to that. Recomputed layers are as many on every rank, which is all that a framework can
be told. Left out: other schedules, and splits of configurations that keep something
on the host.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import hop_seconds
from planner.cost.model import CostModel
from planner.cost.prepared import PreparedCosts
from planner.cost.simulated import evaluate_exactly, simulator_of
from planner.cost.step import FORWARD_SHARE, straggling
from planner.cost.table import CostTable
from planner.schedule.actions import Pass
from planner.schedule.generate import action_table
from planner.schedule.graph import NO_HOP, DependencyGraph, dependency_graph
from planner.schedule.simulate import entry_times, stage_times
from planner.space.split import deal_layers
from planner.spec.config import ConfigTable, ParallelConfig, Recompute, Schedule

Array = NDArray[np.float64]
Chunks = tuple[int, ...]
Expression = Any  # of CP-SAT: a variable, a sum of them, or a number

TOLERANCE: Final = 1e-4  # a gap below it counts as closed
MOST_CANDIDATES: Final = 40  # costed exactly for one configuration
EFFORT: Final = 2.0  # deterministic time of CP-SAT for one configuration, about as many seconds
UNITS: Final = 10**8  # of time in one step: CP-SAT counts in whole numbers
TANGENTS: Final = 8
LARGEST_SCHEDULE: Final = 60_000  # passes of one whose longest paths are looked for


@dataclass(frozen=True)
class SplitResult:
    """`chunks`: layers of every chunk of the fastest split that fits, empty where none was found; `step_time` of it
    [s]. `bound`: what no split of the configuration can beat [s]. `own`: the stack's own split and its step time,
    infinite where it does not fit. `tried`: candidates costed exactly. `effort`: deterministic time spent."""

    chunks: Chunks
    step_time: float
    bound: float
    own: float
    tried: int
    effort: float = 0.0

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


def cost_of_split(model: CostModel, config: ParallelConfig, chunks: Chunks) -> CostTable:
    """The exact cost of one configuration under a split of its own."""
    split = model.with_split(chunks)
    return evaluate_exactly(split, ConfigTable.of([config]), simulator_of(split))


def quick_bound(model: CostModel, config: ParallelConfig, step_time: float) -> float:
    """A step time that no split of `config` beats, unless it is slower than `step_time`; without a solver [s].

    A rank's work lies behind that of one micro-batch on the ranks before it; added up over ranks, m W + what lies
    before. 1F1B with m > p: the last stage waits for all others as well, 2 W + (m - p - 1) times the slowest.
    """
    search = _LayerCosts(model, config)
    p, m, whole = config.pp, config.num_microbatches, search.total
    inner = min(f + b for f, b in zip(search.forward, search.backward, strict=True))
    least = max(search.spec.num_layers // (p * config.vpp), 1) * inner
    makespan = (m * whole + sum(max(rank - 1, 0) for rank in range(p)) * least) / p
    if config.vpp == 1 and m > p:
        makespan = max(makespan, whole * (m + p - 1) / p)
    if config.vpp == 1:
        makespan = max(makespan, whole)
    prepared = model.prepare(ConfigTable.of([config]))
    rest = prepared.least_once(
        search.lightest(prepared), float(search.spec.num_layers), np.array([step_time / m])
    )
    subtotal = makespan + float(rest[0]) + model.problem.stack.host.step_overhead
    if config.vpp == 1:
        subtotal += float(prepared.pipelines.hops[0])
    return search.step_time(subtotal)


def only_split(model: CostModel, config: ParallelConfig) -> bool:
    """Do so few layers leave one way to deal them?"""
    layers, chunks = model.problem.model.num_layers, config.pp * config.vpp
    return layers == (chunks if config.vpp == 1 else chunks - 2)


def solvable(config: ParallelConfig) -> bool:
    """Has the configuration a split to solve?"""
    plain = config.schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
    return plain and config.pp > 1 and not config.offload


def solve_split(
    model: CostModel, config: ParallelConfig, limit: float, cutoff: float = np.inf, effort: float = EFFORT
) -> SplitResult:
    """The fastest split of `config` within `limit` bytes; only splits faster than `cutoff` [s] are of interest.

    Where the bound reaches the cutoff, `bound` is it: nothing faster was missed.
    """
    own = own_split(model, config)
    cost = evaluate_exactly(model, ConfigTable.of([config]), simulator_of(model))
    fits = bool(cost.device_memory[0] <= limit)
    own_time = float(cost.step_time[0]) if fits else np.inf
    best, chunks = own_time, own if fits else ()
    if not solvable(config):
        return SplitResult(chunks, best, best, own_time, 0)
    search = _SplitModel(model, config, own, min(own_time, cutoff))
    if not fits:
        search.exclude_memory(own, _too_large(cost, limit))
    bound, tried, given = quick_bound(model, config, min(own_time, cutoff, 1e9)), 0, effort
    bound = min(bound, own_time, cutoff)
    while tried < MOST_CANDIDATES and effort > 0:
        target = min(best, cutoff)
        found, least, spent = search.solve(target, effort)
        effort -= spent
        bound = max(bound, min(least, target))
        if found is None or least >= target * (1 - TOLERANCE):
            break
        tried += 1
        cost = cost_of_split(model, config, found)
        if cost.device_memory[0] > limit:
            search.exclude_memory(found, _too_large(cost, limit))
            continue
        search.exclude(found)
        search.add_longest_path(model.with_split(found))
        if float(cost.step_time[0]) < best:
            best, chunks = float(cost.step_time[0]), found
    return SplitResult(chunks, best, min(bound, best), own_time, tried, given - effort)


def _too_large(cost: CostTable, limit: float) -> list[int]:
    """Ranks whose memory exceeds the limit: of each class the last, which holds fewest micro-batches."""
    detail = cost.detail
    assert detail is not None, "costed with keep_terms"
    over = detail.by_class[0] + detail.outside[0] > limit
    members = detail.classes.members[int(detail.class_row[0])]
    # a class is costed as its earliest rank, of which alone the excess is known
    return [ranks[0] for j, ranks in enumerate(members) if over[j]]


class _LayerCosts:
    """Seconds of a layer of each kind of one configuration, of the ends of its pipeline, and of messages."""

    def __init__(self, model: CostModel, config: ParallelConfig) -> None:
        self.config, self.problem, self.spec = config, model.problem, model.problem.model
        keys = ConfigTable.of([config])
        layers = [model.layers.layer(kind, keys) for kind in self.spec.layer_kinds]
        self.forward = [float(cost.forward_time[0]) for cost in layers]
        self.backward = [float(cost.time[0] - cost.forward_time[0]) for cost in layers]
        self.again = min(float(cost.time_full[0] - cost.time[0]) for cost in layers)
        edges, extra = model.layers.edges(keys), self.spec.mtp_layers
        last = self.spec.layer_kind_of[-1]
        ends = np.array([float(edges.embedding[0]), float(edges.head[0])])
        self.ends = (FORWARD_SHARE * ends, (1 - FORWARD_SHARE) * ends)
        self.ends[0][1] += extra * self.forward[last]
        self.ends[1][1] += extra * self.backward[last]
        exposed = self.problem.stack.communication.p2p_exposed
        # beyond 1 the simulated step charges more than the path that messages lengthen; left out of the bound
        self.hop = min(exposed, 1.0) * hop_seconds(model.layers, self.config)
        self.hops = np.cumsum([0.0, *self.hop])
        kinds = self.spec.layer_kind_of
        self.total = sum(self.forward[k] + self.backward[k] for k in kinds) + float(sum(map(sum, self.ends)))

    def lightest(self, prepared: PreparedCosts) -> float:
        """What the heaviest stage of any split holds at least, in parts of what that of the stack's own split holds.

        At least the mean; at least what lies outside the layers of the first or the last stage, with the fewest layers
        that its chunks may hold, of the lightest kind.
        """
        shards, classes = prepared.shards, prepared.classes
        alive, deep = classes.count[0] > 0, classes.layers[0].sum(axis=1)
        fewest = (self.config.vpp - 1 or 1) * max(
            self.spec.num_layers // (self.config.pp * self.config.vpp), 1
        )
        least, none = 1.0, 0 * shards.outer[0]
        for held, outer in ((shards.dense[0], shards.outer[0]), (shards.expert[0], none)):
            if held[alive].max() > 0:
                mean = float((held * classes.count[0]).sum()) / self.config.pp
                filled = alive & (deep > 0)
                one_kind = len(self.spec.layer_kinds) == 1
                layer = float(((held - outer)[filled] / deep[filled]).min()) if one_kind else 0.0
                ends = float(outer[alive].max()) + fewest * layer
                least = min(least, max(mean, ends) / float(held[alive].max()))
        return least

    def step_time(self, subtotal: float) -> float:
        """The whole step where all but stragglers take `subtotal` [s]."""
        nodes = float(self.problem.cluster.num_nodes)
        return subtotal + float(straggling(np.array(subtotal), nodes, self.problem.stack.communication))


class _SplitModel(_LayerCosts):
    """The CP-SAT model of one configuration's splits."""

    def __init__(self, model: CostModel, config: ParallelConfig, own: Chunks, target: float) -> None:
        from ortools.sat.python import cp_model

        super().__init__(model, config)
        self.target = target  # only faster splits are of interest [s]
        self.graph: DependencyGraph | None = None
        self.cp, self.own = cp_model.CpModel(), own
        self.p, self.v, self.m = config.pp, config.vpp, config.num_microbatches
        self.unit = (self.m + self.p) * (self.total + self.again * self.spec.num_layers) / UNITS
        self._variables()
        self._step(model)

    def _variables(self) -> None:
        """Layers of every chunk, and of each kind where there are several."""
        cp, chunks, layers = self.cp, self.p * self.v, self.spec.num_layers
        low, high = 1, layers
        if self.v > 1:
            low, high = max(layers // chunks, 1), layers // chunks + 1
        least = [low] * chunks
        if self.v > 1:  # embedding and head may fill a chunk
            least[0] = least[-1] = 0
        self.n = [cp.new_int_var(least[i], high, f"n{i}") for i in range(chunks)]
        cp.add(sum(self.n) == layers)
        for variable, count in zip(self.n, self.own, strict=True):
            cp.add_hint(variable, count)
        if len(self.spec.layer_kinds) == 1:
            self.of_kind = [[variable] for variable in self.n]
            return
        starts: list[Expression] = [0]
        for i in range(chunks):
            ends = cp.new_int_var(0, layers, f"c{i}")
            cp.add(ends == starts[-1] + self.n[i])
            starts.append(ends)
        self.of_kind = [[] for _ in self.n]
        for kind in range(len(self.spec.layer_kinds)):
            before = np.cumsum([0, *(k == kind for k in self.spec.layer_kind_of)]).tolist()
            behind: list[Expression] = [0]
            for start in starts[1:]:
                value = cp.new_int_var(0, before[-1], "")
                cp.add_element(start, before, value)
                behind.append(value)
            for i in range(chunks):
                self.of_kind[i].append(behind[i + 1] - behind[i])

    def _units(self, seconds: float) -> int:
        """Rounded down: a bound stays one."""
        return int(np.floor(seconds / self.unit))

    def _pass(self, chunk: int, seconds: list[float], ends: Array) -> Expression:
        """A chunk's forward or backward of one micro-batch, fully recomputed layers left out."""
        own: Expression = sum(self._units(s) * n for s, n in zip(seconds, self.of_kind[chunk], strict=True))
        own = own + (self._units(float(ends[0])) if chunk == 0 else 0)
        return own + (self._units(float(ends[1])) if chunk == self.p * self.v - 1 else 0)

    def _recomputed(self, rank: int) -> Expression:
        """Time of a rank's fully recomputed layers."""
        count = self.config.recompute_layers if self.config.recompute == Recompute.FULL else 0
        if not count:
            return 0
        held = sum(self.n[rank :: self.p])
        if count >= -(-self.spec.num_layers // self.p):  # all of a stage, however deep
            return self._units(self.again) * held
        some = self.cp.new_int_var(0, count, "")
        self.cp.add_min_equality(some, [held, count])
        return self._units(self.again) * some

    def _step(self, model: CostModel) -> None:
        """The bound of the step, to be minimised."""
        cp, p, m = self.cp, self.p, self.m
        chunks = range(p * self.v)
        f = self.f = [self._pass(i, self.forward, self.ends[0]) for i in chunks]
        b = self.b = [self._pass(i, self.backward, self.ends[1]) for i in chunks]
        more = [self._recomputed(rank) for rank in range(p)]
        work = []
        for rank in range(
            p
        ):  # a whole number of layers, which the sum over chunks alone does not tell the solver
            held = cp.new_int_var(0, self.spec.num_layers, f"rank{rank}")
            cp.add(held == sum(self.n[rank::p]))
            work.append(sum(f[rank::p]) + sum(b[rank::p]) + more[rank])
        self.makespan = cp.new_int_var(0, 4 * UNITS, "makespan")
        slowest = cp.new_int_var(0, UNITS, "slowest")
        if len(self.spec.layer_kinds) == 1:
            cp.add_max_equality(slowest, work)  # not a bound of it: longer stages hide more
        else:  # several kinds make the equality slow to solve; without it all is taken to be hidden, still a bound
            for rank in range(p):
                cp.add(slowest >= work[rank])
        before: Any = 0
        for rank in range(p):
            hops = 2 * self._units(float(self.hops[rank])) if self.v > 1 else 0
            cp.add(self.makespan >= before + m * work[rank] + hops)
            before = before + f[rank] + b[rank] + (more[rank] if self.v == 1 else 0)
        if self.v > 1:
            self._detours(f, b)
        else:
            b = self.b = [x + y for x, y in zip(b, more, strict=True)]
            self._paths(f, b)
        self.rest = cp.new_int_var(0, 4 * UNITS, "rest")
        self._exposed(model, slowest)
        cp.minimize(self.makespan + self.rest)

    def _paths(self, f: list[Expression], b: list[Expression]) -> None:
        """1F1B: some paths of `one_f_one_b_makespan`, those that enter and leave through the last stage or none."""
        all_f, all_b = sum(f), sum(b)
        done_f: Expression = 0
        done_b: Expression = 0
        for s in range(self.p):
            done_f, done_b = done_f + f[s], done_b + b[s]
            if s < self.p - self.m:
                continue
            later = self.p - 1 - s
            for enter in (all_f + all_b - done_b, done_f + later * f[s]):
                for leave in (all_b + all_f - done_f, done_b + later * b[s]):
                    self.cp.add(self.makespan >= enter + (self.m - self.p + s) * (f[s] + b[s]) + leave)

    def _detours(self, f: list[Expression], b: list[Expression]) -> None:
        """Interleaved: the first micro-batch's way to a chunk, what its rank then does until the last micro-batch comes
        back through that chunk, and the way from there; with the messages between."""
        if 2 * self.p * self.v * self.m > LARGEST_SCHEDULE:
            return
        table = action_table(Schedule(self.config.schedule), self.p, self.m, self.v)
        there: Expression = 0
        for chunk in range(self.p * self.v):
            rank = chunk % self.p
            kind, stage, batch = table.kind[rank], table.stage[rank], table.microbatch[rank]
            forward, here = kind == Pass.FORWARD, stage == chunk
            start = int(np.flatnonzero(forward & here & (batch == 0))[0])
            stop = int(np.flatnonzero(~forward & here & (batch == self.m - 1))[-1])
            total = there + 2 * self._units(float(self.hops[chunk]))
            if start < stop:
                between = slice(start, stop + 1)
                for passes, ahead in ((f, True), (b, False)):
                    mine = stage[between][forward[between] == ahead]
                    for other, times in Counter(mine.tolist()).items():
                        total = total + times * passes[other]
                self.cp.add(self.makespan >= total)
            there = there + f[chunk] + b[chunk]

    def _exposed(self, model: CostModel, slowest: Expression) -> None:
        """What a step takes beside its pipeline: tangents of the exposed collectives, the update, the overhead."""
        prepared = model.prepare(ConfigTable.of([self.config]))
        share, layer = self.lightest(prepared), min(map(sum, zip(self.forward, self.backward, strict=True)))
        # a faster split has no deeper stage than this
        deepest = min(float(self.spec.num_layers), max(self.target / (self.m * layer), 1.0))
        at = np.linspace(0.5, 2.0, TANGENTS) * self.total / self.p
        step = 1e-6 * self.total
        here, ahead = (prepared.least_once(share, deepest, points) for points in (at, at + step))
        fixed = model.problem.stack.host.step_overhead
        if self.v == 1:  # interleaved messages are part of the makespan's bound
            fixed += float(prepared.pipelines.hops[0])
        for point, value, slope in zip(at, here, (ahead - here) / step, strict=True):
            # slope <= 0: scaled by 1000 and rounded down, with the constant rounded down as well, and what rounding
            # may take from a stage
            tilt = int(np.floor(1000 * slope))
            start = self._units(float(value + fixed - slope * point))
            self.cp.add(1000 * self.rest >= 1000 * (start - 1 - 4 * self.spec.num_layers) + tilt * slowest)

    def add_longest_path(self, model: CostModel) -> None:
        """The step takes at least as long as the passes and messages on the longest path of the model's own split."""
        if 2 * self.p * self.v * self.m > LARGEST_SCHEDULE:
            return
        if self.graph is None:
            order = action_table(Schedule(self.config.schedule), self.p, self.m, self.v)
            self.graph = dependency_graph(order)
        graph, chunks = self.graph, simulator_of(model).chunk_times(self.config)
        hop = self.hop if self.v > 1 else np.zeros(len(self.hop))
        times = stage_times(len(chunks.forward), chunks.forward, chunks.backward, 0.0, hop)
        end = entry_times(graph, times)[1][:, 0]
        end = np.concatenate([end[: graph.size], [0.0]])
        kind, stage = (column.ravel()[graph.place] for column in (graph.table.kind, graph.table.stage))
        entry, length, path = int(end[: graph.size].argmax()), 0.0, []
        while entry < graph.size:
            path.append((bool(kind[entry] == Pass.FORWARD), int(stage[entry])))
            crossed, need = int(graph.hop[entry, 0]), int(graph.needs[entry, 0])
            delay = float(hop[crossed]) if crossed != NO_HOP else 0.0
            own = int(graph.before[entry])
            if end[need] + delay > end[own]:
                length += delay
                entry = need
            else:
                entry = own
        total: Expression = self._units(length)
        for (forward, chunk), times_passed in Counter(path).items():
            total = total + times_passed * (self.f if forward else self.b)[chunk]
        self.cp.add(self.makespan >= total)

    def exclude(self, chunks: Chunks) -> None:
        """No longer this split."""
        self._any_differs([(n, count) for n, count in zip(self.n, chunks, strict=True)])

    def _any_differs(self, pairs: list[tuple[Expression, int]]) -> None:
        literals = []
        for variable, count in pairs[:-1]:  # the last follows from the others
            for less in (True, False):
                literal = self.cp.new_bool_var("")
                constraint = variable < count if less else variable > count
                self.cp.add(constraint).only_enforce_if(literal)
                literals.append(literal)
        self.cp.add_bool_or(literals)

    def exclude_memory(self, chunks: Chunks, ranks: list[int]) -> None:
        """No longer a split that gives one of `ranks` (or, of inner ranks, an earlier inner one) as much of all."""
        ends = np.cumsum(chunks)
        for rank in ranks:
            held = np.zeros(len(self.spec.layer_kinds), dtype=np.int64)
            for i in range(rank, len(chunks), self.p):
                kinds = self.spec.layer_kind_of[ends[i] - chunks[i] : ends[i]]
                held += np.bincount(kinds, minlength=len(held)).astype(np.int64)
            inner = 0 < rank < self.p - 1
            for other in range(1, rank + 1) if inner else [rank]:
                literals = []
                for kind, count in enumerate(held.tolist()):
                    if count:
                        literal = self.cp.new_bool_var("")
                        mine = sum(self.of_kind[i][kind] for i in range(other, len(chunks), self.p))
                        self.cp.add(mine < count).only_enforce_if(literal)
                        literals.append(literal)
                self.cp.add_bool_or(literals)

    def solve(self, target: float, effort: float) -> tuple[Chunks | None, float, float]:
        """The split of the least bound, that bound as a step time [s], and the effort spent. None: there is none whose
        bound is below `target`."""
        from ortools.sat.python import cp_model

        if np.isfinite(target):
            slower = self.step_time(1.0)
            self.cp.add(self.makespan + self.rest <= int(np.ceil(target / slower / self.unit)))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1  # the same answer every time
        solver.parameters.max_deterministic_time = effort
        solver.parameters.max_time_in_seconds = (
            2 * effort + 0.5
        )  # a net for presolving, which effort does not count
        status = solver.solve(self.cp)
        spent = max(solver.response_proto.deterministic_time, solver.wall_time / 4) + 1e-3
        if status == cp_model.INFEASIBLE:
            return None, np.inf, spent
        least = self.step_time(max(solver.best_objective_bound, 0.0) * self.unit)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or least >= target:
            return None, least, spent
        return tuple(int(solver.value(n)) for n in self.n), least, spent


def with_recomputed(config: ParallelConfig, layers: int) -> ParallelConfig:
    """The configuration with so many layers of every rank recomputed in full."""
    if not layers and config.recompute != Recompute.FULL:
        return config
    full = int(Recompute.FULL if layers else Recompute.NONE)
    return replace(config, recompute=full, recompute_layers=layers)

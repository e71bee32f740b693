"""The CP-SAT model of one configuration's splits: the layers of every chunk and the layers that ranks recompute.

It minimises a lower bound of the step:
  makespan  of 1F1B and of short interleaved schedules as it is (`splits/schedule.py`); of longer ones, some paths
            through them and the longest of every candidate, whose bound so becomes its simulated time
  rest      tangents of what data-parallel collectives and copies to the host leave exposed, convex in the slowest
            stage's time, for a few numbers of parameters on the heaviest stages
Left out: a chunk that recomputes a part of its layers and holds several kinds is taken to recompute the fastest.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np

from planner.cost.model import CostModel
from planner.cost.prepared import PreparedCosts
from planner.schedule.critical import CriticalPaths, critical_paths
from planner.schedule.graph import DependencyGraph, schedule_graph
from planner.schedule.simulate import stage_times
from planner.solve.splits.bound import (
    LARGEST_SCHEDULE,
    Array,
    Capacity,
    LayerCosts,
    fewest_layers,
    known_paths,
    most_layers,
    near_splits,
)
from planner.solve.splits.dealt import Chunks, Dealt
from planner.solve.splits.schedule import less_in_flight, one_f_one_b
from planner.spec.config import ParallelConfig, Schedule

Expression = Any  # of CP-SAT: a variable, a sum of them, or a number

UNITS: Final = 10**9  # of time in about one step: CP-SAT counts in whole numbers
TANGENTS: Final = 8
SIMULATED_PASSES: Final = 20_000  # of schedules whose longest paths are looked for at a time
# Deterministic time of CP-SAT counts neither starting a solve nor most of presolving. In its unit, of which one takes
# 1.2 to 2 s of an AMD EPYC: per solve, and per constraint. They bound work rather than foretell it: set by eye, where
# least squares over 203 solves of ten plans give 5e-3 and 7e-6, by which a plan left out takes 0.4 to 3 times as long.
# Not counted: making the model, and finding longest paths.
STARTING: Final = 1e-3
PRESOLVING: Final = 3e-5


class SplitModel(LayerCosts):
    """`room`: numbers of layers that ranks may recompute, the same number everywhere unless `per_stage`, and how many
    layers they have room for with each."""

    def __init__(
        self, model: CostModel, config: ParallelConfig, own: Dealt, target: float, room: Capacity,
        per_stage: bool = False,
    ) -> None:  # fmt: skip
        from planner.solve.cp_sat import cp_model

        super().__init__(model, config)
        self.target = target  # only faster splits are of interest [s]
        self.graph: DependencyGraph | None = None
        self.paths = set[bytes]()
        self.cp, self.own, self.per_stage = cp_model.CpModel(), own, per_stage
        self.p, self.v, self.m = config.pp, config.vpp, config.num_microbatches
        whole = self.total + max(self.again) * self.spec.num_layers
        self.unit = (self.m + self.p) * whole / self.p / UNITS
        self.longest = 4 * self.p * UNITS  # of any split
        self._variables()
        self._recomputation(room)
        self._step()

    def _variables(self) -> None:
        """Layers of every chunk, and of each kind where there are several."""
        cp, chunks, layers = self.cp, self.p * self.v, self.spec.num_layers
        high = most_layers(layers, self.config)
        least = [fewest_layers(layers, self.config)] * chunks
        if self.v > 1:  # embedding and head may fill a chunk
            least[0] = least[-1] = 0
        self.n = [cp.new_int_var(least[i], high, f"n{i}") for i in range(chunks)]
        cp.add(sum(self.n) == layers)
        for variable, count in zip(self.n, self.own.chunks, strict=True):
            cp.add_hint(variable, count)
        if len(self.spec.layer_kinds) == 1:
            self.of_kind: list[list[Expression]] = [[variable] for variable in self.n]
            return
        self.of_kind = [[0 for _ in self.spec.layer_kinds] for _ in self.n]
        # from this layer on all are of one kind
        last = self.spec.layer_kind_of[-1]
        pure = next(i for i in range(layers, 0, -1) if self.spec.layer_kind_of[i - 1] != last)
        start: Expression = 0
        behind: list[Expression] = [0] * len(self.spec.layer_kinds)
        for i in range(chunks):
            if sum(least[:i]) >= pure:
                self.of_kind[i][last] = self.n[i]
                continue
            end = cp.new_int_var(0, layers, f"c{i}")
            cp.add(end == start + self.n[i])
            start = end
            for kind in range(len(self.spec.layer_kinds)):
                before = np.cumsum([0, *(k == kind for k in self.spec.layer_kind_of)]).tolist()
                value = cp.new_int_var(0, before[-1], "")
                cp.add_element(end, before, value)
                self.of_kind[i][kind], behind[kind] = value - behind[kind], value

    def _recomputation(self, room: Capacity) -> None:
        """`r`: layers that may be recomputed, of all ranks or of each; `again_of`: those of every chunk, r / v or
        all."""
        from planner.solve.cp_sat import cp_model

        cp, layers = self.cp, self.spec.num_layers
        allowed = [self._effective(c) for c in room.choices]
        domain = cp_model.Domain.from_values(allowed)
        count = self.p if self.per_stage else 1
        self.r: list[Expression] = [cp.new_int_var_from_domain(domain, f"r{i}") for i in range(count)]
        for variable, own in zip(self.r, self.own.recomputed, strict=True):
            cp.add_hint(variable, self._effective(own))
        held = [sum(self.n[rank :: self.p]) for rank in range(self.p)]
        for rank in range(self.p):
            for choice, most in zip(allowed, room.layers[:, rank].tolist(), strict=True):
                if most < layers:
                    taken = self._literal(self.r[rank % count] != choice)
                    cp.add(held[rank] <= most).only_enforce_if(~taken)
        self.again_of: list[Expression] = [0] * (self.p * self.v)
        if allowed == [0]:
            return
        if allowed == [self._effective(self.whole)]:
            self.again_of = list(self.n)
            return
        each = [self._of_chunk(r, allowed) for r in self.r]
        for chunk, layers_of in enumerate(self.n):
            some = cp.new_int_var(0, layers, "")
            cp.add_min_equality(some, [layers_of, each[chunk % self.p % count]])
            self.again_of[chunk] = some

    def _of_chunk(self, r: Expression, allowed: list[int]) -> Expression:
        """Layers that each chunk of a rank recomputes at most where the rank is said to recompute `r`."""
        if self.v == 1:
            return r
        each = self.cp.new_int_var(0, self.spec.num_layers, "")
        self.cp.add_allowed_assignments([r, each], [(count, count // self.v) for count in allowed])
        return each

    def _recomputing(self, again: Expression, of_kind: list[Expression]) -> Expression:
        """Time of so many recomputed layers: as if all were of the kind that takes longest, less what each of another
        kind, as many as can be among them, takes less. Exact for one kind."""
        if isinstance(again, int) or not any(self.again):
            return 0
        longest = self._units(max(self.again))
        others: Expression = 0
        for count, seconds in zip(of_kind, self.again, strict=True):
            if seconds < max(self.again) and not isinstance(count, int):
                among = self.cp.new_int_var(0, self.spec.num_layers, "")
                self.cp.add(among <= count)
                self.cp.add(among <= again)
                others = others + (longest - self._units(seconds) + 1) * among
        return longest * again - others

    def _effective(self, count: int) -> int:
        """So many recomputed layers of a rank; whole stages are more than any of them holds, in every chunk."""
        return self.spec.num_layers * self.v if count >= self.whole else count

    def _units(self, seconds: float) -> int:
        """Rounded down: a bound stays one."""
        return int(np.floor(seconds / self.unit))

    def _pass(self, chunk: int, seconds: list[float], ends: Array) -> Expression:
        """A chunk's forward or backward of one micro-batch, fully recomputed layers left out."""
        own: Expression = sum(self._units(s) * n for s, n in zip(seconds, self.of_kind[chunk], strict=True))
        own = own + (self._units(float(ends[0])) if chunk == 0 else 0)
        return own + (self._units(float(ends[1])) if chunk == self.p * self.v - 1 else 0)

    def _step(self) -> None:
        """The bound of the step, to be minimised."""
        cp, p, m = self.cp, self.p, self.m
        chunks = range(p * self.v)
        f = self.f = [self._pass(i, self.forward, self.ends[0]) for i in chunks]
        b = self.b = [
            self._pass(i, self.backward, self.ends[1]) + self._recomputing(self.again_of[i], self.of_kind[i])
            for i in chunks
        ]
        self.held = [self._held(rank) for rank in range(p)]
        work = [self._work(rank) for rank in range(p)]
        self.makespan = cp.new_int_var(0, self.longest, "makespan")
        slowest = cp.new_int_var(0, p * UNITS // (m + p) + 1, "slowest")  # a whole micro-batch at most
        cp.add_max_equality(slowest, work)  # not a bound of it: longer stages hide more
        before: Expression = 0
        for rank in range(p):
            hops = 2 * self._units(float(self.hops[rank])) if self.v > 1 else 0
            cp.add(self.makespan >= before + m * work[rank] + hops)
            before = before + f[rank] + b[rank]
        if self.v == 1:
            one_f_one_b(cp, f, b, m, self.makespan, self.longest)
        else:
            if m % p == 0:
                self._add_paths(known_paths(p, self.v, m))
            self.add_longest_paths(self.own.chunks)
        self.rest = cp.new_int_var(0, self.longest, "rest")
        self._exposed(slowest)
        cp.minimize(self.makespan + self.rest)

    def _held(self, rank: int) -> list[Expression]:
        """A rank's layers by kind. Variables of their own where it holds several chunks: a sum over chunks does not
        tell the solver that it is whole, and presolving would list the values that it may take."""
        if self.v == 1:
            return self.of_kind[rank]
        held: list[Expression] = [self.cp.new_int_var(0, count, "") for count in self.counts]
        for kind, count in enumerate(held):
            self.cp.add(count == sum(of_kind[kind] for of_kind in self.of_kind[rank :: self.p]))
        return held

    def _work(self, rank: int) -> Expression:
        """A rank's passes of one micro-batch."""
        if self.v == 1:
            return self.f[rank] + self.b[rank]
        again: Expression = sum(self.again_of[rank :: self.p])
        if not isinstance(again, int):
            again, chunks = self.cp.new_int_var(0, self.spec.num_layers, ""), again
            self.cp.add(again == chunks)
        costs = zip(self.forward, self.backward, self.held[rank], strict=True)
        total: Expression = sum((self._units(f) + self._units(b)) * count for f, b, count in costs)
        for end, place in enumerate((0, self.p - 1)):
            total += sum(self._units(float(side[end])) for side in self.ends) if rank == place else 0
        return total + self._recomputing(again, self.held[rank])

    def _add_paths(self, paths: CriticalPaths) -> None:
        """The makespan is no shorter than any path through the schedule."""
        for row in np.unique(np.concatenate([paths.forward, paths.backward, paths.hops], axis=1), axis=0):
            if row.tobytes() in self.paths:
                continue
            self.paths.add(row.tobytes())
            ahead, back, hops = np.split(row, [len(self.f), 2 * len(self.f)])
            total: Expression = self._units(float(hops @ self.hop))
            for passes, weights in ((self.f, ahead), (self.b, back)):
                for chunk in np.flatnonzero(weights):
                    total = total + int(weights[chunk]) * passes[chunk]
            self.cp.add(self.makespan >= total)

    def _exposed(self, slowest: Expression) -> None:
        """What a step takes beside its pipeline: exposed collectives, the update, the overhead; for the least that the
        heaviest stage of any split holds, and for more of dense and of expert parameters."""
        least = self.lightest()
        self._tangents(self.lighter, slowest)
        for expert in (False, True):
            of_kind = [int(count) for count in self.parameters[expert]]
            outer = np.zeros(self.p, dtype=np.int64) if expert else self.outer()
            outer[-1] += sum(count * of_kind[kind] for kind, count in self.spec.mtp_kinds)
            for level in self.levels(of_kind, set(outer.tolist()), least[expert]):
                more = self.cp.new_bool_var("")
                for own, held in zip(outer.tolist(), self.held, strict=True):
                    there = own + sum(count * layers for count, layers in zip(of_kind, held, strict=True))
                    self.cp.add(there < level).only_enforce_if(~more)
                heavier = (least[0], float(level)) if expert else (float(level), least[1])
                self._tangents(self.holding(heavier), slowest, more)

    def _tangents(self, held: PreparedCosts, slowest: Expression, where: Expression = None) -> None:
        """`rest` is no less than with what the heaviest stages hold in `held`, if `where` holds."""
        layer = min(map(sum, zip(self.forward, self.backward, strict=True)))
        # a faster split has no deeper stage than this
        deepest = min(float(self.spec.num_layers), max(np.floor(self.target / (self.m * layer)), 1.0))
        at = np.linspace(0.5, 2.0, TANGENTS) * self.total / self.p
        step = 1e-6 * self.total
        here, ahead = np.split(held.once(deepest, np.concatenate([at, at + step])), 2)
        # interleaved messages are part of the makespan's bound
        fixed = float(self.prepared.pipelines.hops[0]) if self.v == 1 else 0.0
        for point, value, slope in zip(at, here, (ahead - here) / step, strict=True):
            # slope <= 0: scaled by 1000 and rounded down, with the constant rounded down as well, and what rounding
            # may take from a stage
            tilt = int(np.floor(1000 * slope))
            start = self._units(float(value + fixed - slope * point))
            bound = self.cp.add(
                1000 * self.rest >= 1000 * (start - 1 - 4 * self.spec.num_layers) + tilt * slowest
            )
            if where is not None:
                bound.only_enforce_if(where)

    def add_longest_paths(self, chunks: Chunks) -> None:
        """An interleaved step takes at least as long as the passes and messages on the path that is longest under a
        split, and on those that are under splits which differ from it in the chunk of one layer."""
        passes = 2 * self.p * self.v * self.m
        if self.v == 1 or passes > LARGEST_SCHEDULE:
            return
        if self.graph is None:
            self.graph = schedule_graph(Schedule(self.config.schedule), self.p, self.m, self.v)
        ahead, back = self.times_of(near_splits(chunks, max(SIMULATED_PASSES // passes, 1)))
        times = stage_times(len(chunks), ahead, back, 0.0, self.hop)
        self._add_paths(critical_paths(self.graph, times))

    def exclude(self, dealt: Dealt) -> None:
        """No longer this split with as many recomputed layers or more, which takes no less."""
        literals = self._differs(self.n, dealt.chunks)
        literals += [
            self._literal(r < self._effective(count))
            for r, count in zip(self.r, dealt.recomputed, strict=True)
            if self._effective(count)
        ]
        self.cp.add_bool_or(literals)

    def _differs(self, variables: list[Expression], counts: tuple[int, ...]) -> list[Expression]:
        """Of these truth values one holds where the variables are not the counts."""
        pairs = [
            (variable, self._effective(count) if variables is self.r else count)
            for variable, count in zip(variables, counts, strict=True)
        ]
        return [self._literal(test) for x, count in pairs for test in (x < count, x > count)]

    def _literal(self, constraint: Expression) -> Expression:
        """A truth value that implies a constraint."""
        literal = self.cp.new_bool_var("")
        self.cp.add(constraint).only_enforce_if(literal)
        return literal

    def exclude_memory(self, dealt: Dealt, ranks: list[int]) -> None:
        """No longer a split that gives one of `ranks` (or, of inner ranks, an earlier inner one) as much of all, and
        keeps as much of it (`_lighter`).

        What is at work in a backward pass depends on whether anything is recomputed at all, so that a split which
        recomputes nothing is excluded by its like alone.
        """
        chunks, kinds = dealt.chunks, self.spec.layer_kind_of
        ends, some = np.cumsum(chunks), max(dealt.recomputed) > 0
        if some and list(kinds) != sorted(kinds):  # which kinds are recomputed depends on where a rank begins
            self.cp.add_bool_or([*self._differs(self.n, chunks), *self._differs(self.r, dealt.recomputed)])
            return
        for rank in ranks:
            held = [
                np.bincount(
                    kinds[ends[i] - chunks[i] : ends[i]], minlength=len(self.spec.layer_kinds)
                ).tolist()
                for i in range(rank, len(chunks), self.p)
            ]
            count = self._effective(dealt.recomputed[rank % len(dealt.recomputed)])
            inner = 0 < rank < self.p - 1
            for other in range(1, rank + 1) if inner else [rank]:
                tests = self._lighter(rank, other, held, count)
                tests += [sum(self.r) == 0] if some else [sum(self.r) > 0]
                self.cp.add_bool_or([self._literal(test) for test in tests])

    def _lighter(self, rank: int, other: int, held: list[list[int]], count: int) -> list[Expression]:
        """Of these constraints one holds where rank `other` may need less memory than `rank` with `held` (v, kinds)
        layers in its chunks and `count` of them recomputed.

        It holds fewer layers of some kind, or keeps fewer that are not recomputed; of several chunks, each layer counts
        by the micro-batches that are in flight of its chunk, at some moment that may be the worst. With some layers of
        each of several chunks recomputed and several kinds, what a chunk keeps of each falls with `r` alone where the
        chunk holds as many of all.
        """
        mine = self.of_kind[other :: self.p]
        fewer = [
            sum(chunk[kind] for chunk in mine) < layers
            for kind, layers in enumerate(map(sum, zip(*held, strict=True)))
            if layers
        ]
        more = self.r[other % len(self.r)] > count
        if self.v == 1:
            return [*fewer, more]
        if count in (0, self._effective(self.whole)):
            return [*fewer, *less_in_flight(self.config, rank, mine, held), more]
        if len(self.spec.layer_kinds) > 1:
            chunks = zip(mine, held, strict=True)
            return [x < n for chunk, of in chunks for x, n in zip(chunk, of, strict=True) if n] + [more]
        kept = [[max(layers - count // self.v, 0)] for (layers,) in held]
        again = zip(self.n[other :: self.p], self.again_of[other :: self.p], strict=True)
        left = [[n - some] for n, some in again]
        less = [
            test
            for of, n in ((mine, held), (left, kept))
            for test in less_in_flight(self.config, rank, of, n)
        ]
        return [*fewer, sum(x for (x,) in left) < sum(n for (n,) in kept), *less]

    def _alternates(self) -> bool:
        """Does the kind of layer change more than once, so that chunks hold many numbers of each?"""
        kinds = self.spec.layer_kind_of
        return sum(one != other for one, other in pairwise(kinds)) > 1

    def solve(self, target: float, effort: float) -> tuple[Dealt | None, float, float]:
        """The split of the least bound, that bound as a step time [s], and the effort spent. None: there is none whose
        bound is below `target`."""
        from planner.solve.cp_sat import cp_model

        if np.isfinite(target):
            slower = self.step_time(1.0)
            self.cp.add(self.makespan + self.rest <= int(np.ceil(target / slower / self.unit)))
        solver = cp_model.CpSolver()
        limits = solver.parameters
        limits.num_workers = 1  # no limit of wall time: the same answer every time
        limits.max_deterministic_time = effort
        # of presolving what takes long and seldom removes anything of such a model
        limits.cp_model_probing_level = limits.symmetry_level = 0
        limits.max_presolve_iterations = 1
        if self._alternates():  # sums of domains, which presolving makes, take a minute
            limits.cp_model_presolve = False
        status = solver.solve(self.cp)
        spent = solver.response_proto.deterministic_time + STARTING
        spent += PRESOLVING * len(self.cp.proto.constraints)
        if status == cp_model.INFEASIBLE:
            return None, np.inf, spent
        least = self.step_time(max(solver.best_objective_bound, 0.0) * self.unit)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or least >= target:
            return None, least, spent
        counts = tuple(min(int(solver.value(r)), self.whole) for r in self.r)
        return Dealt(tuple(int(solver.value(n)) for n in self.n), counts), least, spent

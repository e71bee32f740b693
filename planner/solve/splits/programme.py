"""Which layers in which chunks keep all ways through a schedule, and the memory of all ranks, within what is allowed?

A constraint programme: a few ways, each a sum over chunks, and moments of ranks' memory hold of every split; where they
leave none, none is fast enough and fits. Layers are whole, neighbours, and of their own kinds, as far as that is
needed. Left out: which ways and moments matter (`relaxed.py`), and what a split that is found costs exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.solve.splits.pipe import Kinds, Pipe, lines_about
from planner.solve.splits.profiles import SAVED, Profiles
from planner.solve.splits.relaxed import Known, memory_row

Array = NDArray[np.float64]
Split = NDArray[np.int64]

UNIT: Final = 10_000_000  # of what is allowed, in whole numbers
ROUNDING: Final = 1e-9
TERM: Final = 2e-7  # seconds of a processor, about, of a term of a constraint


class Outcome(Enum):
    """What came of looking for a split: there is none, or there is one, or it is not known."""

    NONE = "none"
    FOUND = "found"
    UNKNOWN = "unknown"


class Programme:
    """Splits of one profile's layers. `exact`: a number of layers that each chunk recomputes; as many as one likes up
    to the profile's where it is None. `effort`: seconds of a processor, about."""

    def __init__(
        self, pipe: Pipe, profile: Profiles, known: Known, kinds: Kinds, exact: int | None = None
    ) -> None:
        self.pipe, self.profile, self.known, self.kinds, self.exact = pipe, profile, known, kinds, exact
        self.in_order = set[int]()  # boundaries at which kinds are told exactly
        self.excluded: list[list[tuple[int, int, int]]] = []
        self.near: Split | None = None
        self.effort = 0.0

    def look_near(self, split: Array) -> None:
        """Look about such a split first, of layers that may be cut (C,)."""
        ends = np.round(np.cumsum(split)).astype(np.int64)
        self.near = np.diff(ends, prepend=0)

    def in_order_at(self, boundaries: Sequence[int]) -> bool:
        """Tell kinds exactly at some boundaries, chunk 1 beginning at the first; whether that is new."""
        before = len(self.in_order)
        self.in_order |= set(boundaries)
        return len(self.in_order) > before

    def without(self, split: Split, chunks: Sequence[int]) -> bool:
        """Only splits with fewer layers of some kind in one of these chunks than a split has; whether that is new."""
        held = self.kinds.of_split(split)
        fewer = [(c, k, int(held[c, k])) for c in chunks for k in np.flatnonzero(held[c]).tolist()]
        if fewer in self.excluded:
            return False
        self.excluded.append(fewer)
        return True

    def solve(self, allowed: float, effort: float, fits: bool = True) -> tuple[Outcome, Split | None]:
        """A split that takes no more than `allowed`, as a share of what is, and `fits`, as far as this is known here;
        within so much deterministic time of the solver."""
        from planner.solve.cp_sat import cp_model

        if self.profile.allowed[0] <= 0 or self.pipe.fewest * (self.pipe.chunks - 2) > len(self.pipe.kinds):
            return Outcome.NONE, None
        built = _Built(self, cp_model.CpModel(), allowed, fits)
        if built.impossible:
            return Outcome.NONE, None
        if self.near is not None:
            for count, layers in zip(built.count, self.near.tolist(), strict=True):
                built.model.add_hint(count, layers)
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers, parameters.random_seed = 1, 0
        parameters.cp_model_presolve, parameters.linearization_level = False, 2
        parameters.add_lp_constraints_lazily = False
        parameters.max_deterministic_time = effort
        status = solver.solve(built.model)
        self.effort += built.terms * TERM + float(solver.response_proto.deterministic_time)
        if status == cp_model.INFEASIBLE:
            return Outcome.NONE, None
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Outcome.UNKNOWN, None
        return Outcome.FOUND, np.array([solver.value(count) for count in built.count])


class _Built:
    """A programme as the solver takes it. `terms`: of its constraints."""

    def __init__(self, programme: Programme, model: Any, allowed: float, fits: bool) -> None:
        self.programme, self.pipe, self.profile = programme, programme.pipe, programme.profile
        self.model, self.kinds, self.terms, self.impossible = model, programme.kinds, 0, False
        layers, chunks = len(self.pipe.kinds), self.pipe.chunks
        self.number, self.rank_of = self.kinds.number, self.pipe.rank_of
        self.passes = self.profile.passes[0, self.kinds.first]
        self.again_each = float(self.profile.again[0, self.kinds.first].min())
        most = self._most_layers(allowed)
        low = [self.pipe.fewest if 0 < c < chunks - 1 else 0 for c in range(chunks)]
        high = most[self.rank_of].tolist()
        self.impossible = most.sum() < layers or any(h < max(lo, 0) for lo, h in zip(low, high, strict=True))
        if self.impossible:
            return
        self.count = [model.new_int_var(lo, h, "") for lo, h in zip(low, high, strict=True)]
        self._sum(self.count, [1] * chunks, layers, layers)
        self.held = [[count] for count in self.count] if len(self.number) == 1 else self._kinds_of_chunks()
        self.again = self._recomputed()
        self._within_ways(allowed)
        if fits:
            self._within_memory()
        for some in programme.excluded:
            self._fewer_somewhere(some)

    def _sum(self, variables: Sequence[Any], weights: Sequence[int], low: int | None, high: int) -> None:
        from planner.solve.cp_sat import cp_model

        self.terms += len(variables)
        expression = cp_model.LinearExpr.weighted_sum(variables, weights)
        self.model.add_linear_constraint(expression, cp_model.INT_MIN if low is None else low, high)

    def _most_layers(self, allowed: float) -> NDArray[np.int64]:
        """Layers that every rank has time for at most (p,); less than none where its ends take too long."""
        work = (self.passes[:, :SAVED].sum(axis=1) - self.passes[:, SAVED]).min()
        found = np.array([allowed / self.pipe.m - self._ends_of(rank) for rank in range(self.pipe.p)])
        most = np.floor(found / max(work, 1e-30) * (1 + ROUNDING) + ROUNDING)
        return np.where(found < -ROUNDING, -1, np.minimum(most, len(self.pipe.kinds))).astype(np.int64)

    def _ends_of(self, rank: int) -> float:
        """What the ends take on a rank of a micro-batch."""
        ends = self.profile.ends[0]
        return sum(float(ends[e, :SAVED].sum() - ends[e, SAVED]) for e in self.pipe.ends_on(rank))

    def _kinds_of_chunks(self) -> list[list[Any]]:
        """Layers of each kind in every chunk: of neighbours there are neither fewer nor more of a kind than of any as
        many in the model, and up to every boundary not than up to where it may lie."""
        model, kinds, chunks = self.model, len(self.number), self.pipe.chunks
        before = self.kinds.before
        held = [[model.new_int_var(0, int(n), "") for n in self.number] for _ in range(chunks)]
        for count, of in zip(self.count, held, strict=True):
            self._sum([*of, count], [1] * kinds + [-1], 0, 0)
        layers = len(self.pipe.kinds)
        starts: list[Any] = [0]
        for c in range(chunks - 1):
            start = model.new_int_var(0, layers, "")
            self._sum(
                [start, self.count[c], *([starts[-1]] if c else [])], [1, -1, *([-1] if c else [])], 0, 0
            )
            starts.append(start)
        for kind in range(kinds):
            self._sum([of[kind] for of in held], [1] * chunks, int(self.number[kind]), int(self.number[kind]))
            for count, of in zip(self.count, held, strict=True):
                for a, b, c in self.kinds.lines[kind]:
                    self._sum([count, of[kind]], [a, b], None, c)
            past: Any = None
            about = lines_about(before[:, kind].tolist(), before[:, kind].tolist())
            for c in range(chunks - 1):
                following = model.new_int_var(0, int(self.number[kind]), "")
                self._sum(
                    [following, held[c][kind], *([] if past is None else [past])],
                    [1, -1, *([] if past is None else [-1])],
                    0,
                    0,
                )
                for a, b, most in about:
                    self._sum([starts[c + 1], following], [a, b], None, most)
                if c in (0, chunks - 2) or c + 1 in self.programme.in_order:
                    model.add_element(starts[c + 1], before[:, kind].tolist(), following)
                    self.terms += layers
                past = following
        return held

    def _recomputed(self) -> list[Any]:
        """Layers of every chunk that are recomputed; empty where none is."""
        exact, most = self.programme.exact, int(self.profile.recomputed[0])
        if not (most if exact is None else exact):
            return []
        found = []
        for count in self.count:
            again = self.model.new_int_var(0, most if exact is None else exact, "")
            if exact is None:
                self._sum([again, count], [1, -1], None, 0)
            else:
                self.model.add_min_equality(again, [count, exact])
            found.append(again)
        return found

    def _within_ways(self, allowed: float) -> None:
        """No way takes longer than is allowed."""
        ways, ends = self.programme.known.ways, self.profile.ends[0]
        each, again = np.einsum("wic,ki->wck", ways.passes, self.passes), ways.passes[:, 1] * self.again_each
        fixed = ways.hops @ self.profile.hops[0] + ways.passes[:, :, 0] @ ends[0]
        fixed = fixed + ways.passes[:, :, -1] @ ends[1]
        for row in range(len(each)):
            self._row(each[row], again[row], allowed - float(fixed[row]))
        work = self.passes[:, :SAVED].sum(axis=1) - self.passes[:, SAVED]
        for rank in range(self.pipe.p):
            on = (self.rank_of == rank).astype(float)
            left = allowed / self.pipe.m - self._ends_of(rank)
            self._row(on[:, None] * work, on * self.again_each, left)

    def _row(self, each: Array, again: Array, most: float) -> None:
        """A sum over layers of every kind in every chunk (C, K), and of those recomputed (C,), of at most `most`."""
        variables, weights = [], []
        for c, of in enumerate(np.floor(each * UNIT).astype(np.int64).tolist()):
            for variable, weight in zip(self.held[c], of, strict=True):
                if weight:
                    variables.append(variable)
                    weights.append(weight)
        if self.again:
            for variable, weight in zip(
                self.again, np.floor(again * UNIT).astype(np.int64).tolist(), strict=True
            ):
                if weight:
                    variables.append(variable)
                    weights.append(weight)
        limit = int(np.ceil((most + ROUNDING) * UNIT))
        if variables:
            self._sum(variables, weights, None, limit)
        elif limit < 0:
            self.model.add_bool_or([])

    def _within_memory(self) -> None:
        """No rank needs more than there is."""
        for rank, held in self.programme.known.moments:
            self._row(*memory_row(self.pipe, self.profile, self.kinds, rank, np.array(held)))

    def _fewer_somewhere(self, some: Sequence[tuple[int, int, int]]) -> None:
        """In some chunk fewer layers of some kind than so many."""
        fewer = []
        for chunk, kind, layers in some:
            less = self.model.new_bool_var("")
            self.model.add_linear_constraint(self.held[chunk][kind], 0, layers - 1).only_enforce_if(less)
            fewer.append(less)
        self.model.add_bool_or(fewer)

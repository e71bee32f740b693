"""How much memory does every stage need, and when is the peak?

Rows are candidates, columns classes of stages. The peak is the largest over stages and moments of a step
(`memory/moments.py`). Rows of a table are taken by `take`: indexing with rows is several times slower. Left out:
allocator rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.of_stack import engine_of
from planner.cost.memory.graph_pool import GraphPool, RowGraphs
from planner.cost.memory.moments import PHASES, MemoryInputs, Moment
from planner.spec.stack import Stack

Array = NDArray[np.float64]
# of two moments that differ by rounding alone the first counts, as where a pool fills every one
_SAME = 1 + 1e-12
PASSES: Final = PHASES[: PHASES.index("optimizer")]  # in which micro-batches run


@dataclass(frozen=True)
class Kept:
    """Activations of candidates, of one micro-batch in flight: `peak` (n, C) on stages of each class, at the moment at
    which they are most; `loss` (n, H) at the loss on those that hold the head, `head` (n, H) (None: the same). They
    differ where the chunks of a rank do. [bytes]"""

    peak: Array
    loss: Array | None = None
    head: NDArray[np.intp] | None = None

    def of(self, moment: Moment) -> Array:
        """Those of a moment (n, C) [bytes]."""
        if self.loss is None or self.head is None or not moment.at_loss:
            return self.peak
        kept = self.peak.copy()
        np.put_along_axis(kept, self.head, self.loss, axis=1)
        return kept

    def on(self, stage_class: NDArray[np.intp]) -> tuple[Array, Array]:
        """Those on one class of each row, at most moments and at the loss: (n,) each [bytes]."""
        kept = self.peak[np.arange(len(stage_class)), stage_class]
        loss = kept
        if self.loss is not None and self.head is not None:
            for head, there in zip(self.head.T, self.loss.T, strict=True):
                loss = np.where(stage_class == head, there, loss)
        return kept, loss

    def rows(self, rows: NDArray[np.intp]) -> Kept:
        """Those of some rows, which may repeat."""
        if self.loss is None or self.head is None:
            return Kept(self.peak.take(rows, axis=0))
        peak, loss = (of.take(rows, axis=0) for of in (self.peak, self.loss))
        return Kept(peak, loss, self.head.take(rows, axis=0))

    def but(self, rows: NDArray[np.bool_], other: Array) -> Kept:
        """The same but for `rows`, which keep `other` (n, C) at all moments."""
        wide = rows[:, None]
        peak = np.where(wide, other, self.peak)
        if self.loss is None or self.head is None:
            return Kept(peak)
        return Kept(peak, np.where(wide, np.take_along_axis(other, self.head, axis=1), self.loss), self.head)


@dataclass(frozen=True)
class MemoryCost:
    """Peak of every candidate. `peak` (n,): what the stack's counter logs [bytes]; `device` (n,): with everything
    outside the allocator, `outside` (n,) alone. `stage_class`, `phase` (n,): where it is reached. `terms`: named
    (n, C) arrays of every phase. `by_class` (n, C): the allocator's peak of every class, fragmentation included."""

    peak: Array
    device: Array
    outside: Array
    stage_class: NDArray[np.intp]
    phase: NDArray[np.intp]
    by_class: Array
    terms: dict[str, dict[str, Array]]


def _peak_by_class(
    x: MemoryInputs,
    moments: list[Moment],
    stem: NDArray[np.intp],
    kept: Kept,
    working: Array,
    factor: float,
) -> Array:
    """Largest over moments (n, C); moments that keep equally much share one product."""
    groups: dict[int, list[Moment]] = {}
    for moment in moments:
        groups.setdefault(id(moment.kept), []).append(moment)
    result: Array | None = None
    for members in groups.values():
        at_loss = [m for m in members if kept.loss is not None and m.at_loss]
        quiet = [
            np.where(x.holds_head, -np.inf, m.fixed) if m in at_loss else m.fixed
            for m in members
            if not m.works
        ]
        busy = [m.fixed for m in members if m.works]
        found: Array | None = None
        if quiet:
            # a padded class must never bind
            found = np.where(x.alive > 0, np.maximum.reduce(quiet), -np.inf).take(stem, axis=0)
        if busy:
            at_work = np.where(x.alive > 0, np.maximum.reduce(busy), -np.inf).take(stem, axis=0)
            at_work += working[:, None]
            found = at_work if found is None else np.maximum(found, at_work)
        assert found is not None
        if members[0].kept is not None:
            held = factor * members[0].kept
            found = found + held.take(stem, axis=0) * kept.peak
            if at_loss and kept.loss is not None and kept.head is not None:
                fixed, rows = np.maximum.reduce([m.fixed for m in at_loss]), np.arange(len(stem))
                for head, loss in zip(kept.head.T, kept.loss.T, strict=True):
                    there = fixed[stem, head] + held[stem, head] * loss
                    found[rows, head] = np.maximum(found[rows, head], there)
        result = found if result is None else np.maximum(result, found)
    assert result is not None
    return result


@dataclass(frozen=True)
class _Counter:
    """What the log of a stack shows of a stage class of each row. `waste`: of activations, what the allocator wastes
    [1]; `shows_waste`: whether it is shown. Of reserved memory, blocks without a tensor, where `most` leaves room for
    them: `at_loss` there, `deferred` in all passes; None of allocated memory (n,) [bytes]."""

    waste: float
    shows_waste: bool = False
    at_loss: Array | None = None
    deferred: Array | float = 0.0
    most: Array | float = np.inf

    @classmethod
    def of(
        cls, x: MemoryInputs, stem: NDArray[np.intp], stage_class: NDArray[np.intp], largest: Array,
        cached: Array | float, most: Array, stack: Stack,
    ) -> _Counter:  # fmt: skip
        """Of a stack: `cached` bytes of recomputed layers lie idle at the loss, the `largest` moment has so many."""
        engine, waste = engine_of(stack), stack.overhead.fragmentation
        if not stack.overhead.logs_reserved:
            return cls(waste)
        idle = engine.idle_gathers(x)
        late = idle if isinstance(idle, float) else idle[stem, stage_class]
        deferred = x.deferred[stem, stage_class]
        held = np.where(deferred <= np.maximum(most - largest, 0.0), deferred, 0.0)
        return cls(waste, engine.logs_fragmentation, np.zeros(len(stem)) + cached + late, held, most)

    def shown(self, phase: str, total: Array, unused: Array | None) -> Array:
        """At a moment of a phase with `total` bytes in blocks, of which the allocator wastes `unused` (n,)."""
        tensors = total if unused is None or self.shows_waste else total - unused
        if self.at_loss is None or phase not in PASSES:
            return tensors
        if phase == "loss":
            tensors = tensors + np.minimum(self.at_loss, np.maximum(self.most - total - self.deferred, 0.0))
        return tensors + self.deferred


def _binding_moment(
    x: MemoryInputs, moments: list[Moment], stem: NDArray[np.intp], kept: Kept, working: Array,
    stage_class: NDArray[np.intp], pool: GraphPool | None, counter: _Counter,
) -> tuple[NDArray[np.intp], Array]:  # fmt: skip
    """The phase of the largest moment of each row's stage class, and the most that the counter shows at any (n,)."""
    at, (usual, at_loss) = stem * x.alive.shape[1] + stage_class, kept.on(stage_class)
    phase, best = np.zeros(len(stem), dtype=np.intp), np.full(len(stem), -np.inf)
    most = best.copy()
    for moment in moments:
        total, unused = moment.fixed.take(at), None
        if moment.kept is not None:
            active = moment.kept.take(at) * (at_loss if moment.at_loss else usual)
            total += (1.0 + counter.waste) * active
            unused = counter.waste * active
        if moment.works:
            total += working
        if pool is not None:
            total += pool.idle(moment)[np.arange(len(stem)), stage_class]
        better = total > best * _SAME
        np.copyto(best, total, where=better)
        np.copyto(phase, PHASES.index(moment.phase), where=better)
        np.maximum(most, counter.shown(moment.phase, total, unused), out=most)
    return phase, most


def memory_cost(
    x: MemoryInputs,
    stem: NDArray[np.intp],
    kept: Kept,
    working: Array,
    stack: Stack,
    keep_terms: bool = True,
    cached: Array | float = 0.0,
    capacity: float = np.inf,
    graphs: RowGraphs | None = None,
) -> MemoryCost:
    """Terms and peak of memory for every candidate, stage class and moment [bytes].

    Row i has the stem `stem[i]` of `x`, keeps `kept` of a micro-batch in flight and works in `working[i]`.
    `terms` is empty unless `keep_terms`, and has the larger of two moments of a phase. `cached`: blocks of recomputed
    layers, which as those of the last step's gradients a counter of reserved memory shows at the loss, whose tensors
    are too large for them. Short of memory the allocator returns them before it gives up (torch
    c10/cuda/CUDACachingAllocator.cpp, malloc: release_cached_blocks and another try), so that `peak`, the most that is
    shown at any moment, has no more of them than `capacity` leaves, and none of the deferred ones where the largest
    moment has no room for all; `device`, on which the verdict rests, counts none. A moment's total: its constant terms
    + activations in flight and what the allocator wastes of them + the working set of a layer's backward pass.
    `graphs`: memory of CUDA graphs, None where no row captures any.
    """
    engine, waste = engine_of(stack), stack.overhead.fragmentation
    moments = engine.moments(x, keep_terms)
    pool = None
    if graphs is None:
        by_class = _peak_by_class(x, moments, stem, kept, working, 1.0 + waste)
    else:
        pool = GraphPool(x, moments, stem, kept.of, working, 1.0 + waste, graphs)
        by_class = pool.by_class
    stage_class, rows = by_class.argmax(axis=1), np.arange(len(stem))
    outside = stack.overhead.context + x.communicators[stem]
    largest, logged = by_class[rows, stage_class], stage_class
    if engine.logs_first_stage:  # classes are in the order of their earliest stage
        logged = np.zeros_like(stage_class)
    counter = _Counter.of(x, stem, logged, by_class[rows, logged], cached, capacity - outside, stack)
    phase, peak = _binding_moment(x, moments, stem, kept, working, stage_class, pool, counter)
    if engine.logs_first_stage:
        _, peak = _binding_moment(x, moments, stem, kept, working, logged, pool, counter)
    terms: dict[str, dict[str, Array]] = {}
    for moment in moments if keep_terms else ():
        found = _terms_of(moment, stem, kept, working, waste, pool)
        terms[moment.phase] = _larger(terms[moment.phase], found) if moment.phase in terms else found
    return MemoryCost(peak, largest + outside, outside, stage_class, phase, by_class, terms)


def worst_moment(costs: Sequence[MemoryCost]) -> MemoryCost:
    """Of several moments of a schedule, the one in which each row needs most."""
    worst = costs[0]
    for other in costs[1:]:
        more = other.device > worst.device
        wide = more[:, None]
        worst = MemoryCost(
            np.maximum(worst.peak, other.peak),
            np.where(more, other.device, worst.device),
            worst.outside,
            np.where(more, other.stage_class, worst.stage_class),
            np.where(more, other.phase, worst.phase),
            np.maximum(worst.by_class, other.by_class),
            {
                phase: {name: np.where(wide, other.terms[phase][name], term) for name, term in terms.items()}
                for phase, terms in worst.terms.items()
            },
        )
    return worst


def _larger(one: dict[str, Array], other: dict[str, Array]) -> dict[str, Array]:
    """Terms of the larger of two moments of a phase, of every row and class (n, C)."""
    more, none = sum(other.values()) > sum(one.values()), np.zeros(1)
    return {name: np.where(more, other.get(name, none), one.get(name, none)) for name in {**one, **other}}


def _terms_of(
    moment: Moment, stem: NDArray[np.intp], kept: Kept, working: Array, waste: float, pool: GraphPool | None
) -> dict[str, Array]:
    """Every term of a moment, row by row (n, C)."""
    terms = {name: value.take(stem, axis=0) for name, value in moment.terms.items()}
    if moment.kept is not None:
        terms.setdefault("weight_gradients_due", np.zeros_like(kept.peak))
        terms["activations"] = moment.kept.take(stem, axis=0) * kept.of(moment)
        terms["fragmentation"] = waste * terms["activations"]
    if moment.works:
        terms["working_set"] = working[:, None] * np.ones_like(kept.peak)
    if pool is not None:
        idle = pool.idle(moment)
        terms["cuda_graph_buffers"] = np.minimum(pool.buffers, idle)
        terms["cuda_graph_pool"] = idle - terms["cuda_graph_buffers"]
    return terms

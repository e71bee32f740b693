"""What do CUDA graphs hold at every moment of a step beside what is alive in it?

A pool serves the graphs of a rank and nothing else, so that it keeps the most that they ever hold while the loss, the
update or what is not captured needs room of its own. Left out: rounding, and order of captures that reuses less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.moments import MemoryInputs, Moment

Array = NDArray[np.float64]
# of a moment's constant terms, what a graph of the full iteration allocates
_OF_ITERATION = (
    "logits", "head_gradient", "working_set", "weight_gradients_due", "gathered_parameters", "reduction_buffers",
)  # fmt: skip


@dataclass(frozen=True)
class RowGraphs:
    """Graphs of rows (n,) and their stage classes (n, C). `share`: of what a micro-batch keeps, in the pool [1].
    `working`: of a layer's backward pass, in the pool [bytes]. `copied`: of a micro-batch in flight, in buffers.
    `gradients`: in static buffers [bytes]. `whole`: 1.0 where the full iteration is captured."""

    share: Array
    working: Array
    copied: Array
    gradients: Array
    whole: Array


class GraphPool:
    """The pool of every row and class, and its share that lies idle at each moment (n, C) [bytes].

    pool = max over moments of what graphs hold there; at a moment, idle = pool - what they hold there. `buffers`: one
    copy of the stream for every graph and micro-batch in flight, and the graphs' gradients.
    """

    def __init__(
        self, x: MemoryInputs, moments: list[Moment], stem: NDArray[np.intp], kept: Callable[[Moment], Array],
        working: Array, factor: float, graphs: RowGraphs,
    ) -> None:  # fmt: skip
        """`kept`: of a micro-batch in flight at a moment (n, C) [bytes]. `working` (n,): of a layer's backward pass."""
        self._stem, self._kept, self._factor, self._graphs = stem, kept, factor, graphs
        captured = (graphs.gradients > 0)[:, None]
        self.buffers = x.in_flight[stem] * graphs.copied + captured * graphs.gradients[:, None]
        self.size = np.maximum.reduce([self._held(moment) for moment in moments])
        totals = []
        for moment in moments:
            total = moment.fixed[stem] + self.idle(moment) + (working[:, None] if moment.works else 0.0)
            if moment.kept is not None:
                total = total + factor * moment.kept[stem] * kept(moment)
            totals.append(total)
        self.by_class = np.where(x.alive[stem] > 0, np.maximum.reduce(totals), -np.inf)

    def _held(self, moment: Moment) -> Array:
        """What graphs hold of a moment."""
        graphs = self._graphs
        held = np.zeros_like(graphs.share)
        if moment.kept is not None:
            held = held + self._factor * moment.kept[self._stem] * graphs.share * self._kept(moment)
        if moment.works:
            held = held + graphs.working[:, None]
        iteration = [moment.terms[name] for name in _OF_ITERATION if name in moment.terms]
        if iteration and graphs.whole.any():
            held = held + graphs.whole[:, None] * sum(iteration[1:], iteration[0])[self._stem]
        return held

    def idle(self, moment: Moment) -> Array:
        """The pool's room that nothing else may use in a moment, and the graphs' buffers; none before the first step,
        as steps to warm up precede the capture."""
        if moment.phase == "after_init":
            return np.zeros_like(self.buffers)
        return self.buffers + self.size - self._held(moment)

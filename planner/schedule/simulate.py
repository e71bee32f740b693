"""How long does a schedule take with each stage's own times, and where does every rank wait?

Every pass starts as soon as its rank is free and its input has arrived. Exact under that rule; left out:
contention between hops and compute, and anything outside the pipeline (optimizer, data-parallel traffic).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import InputError
from planner.schedule.actions import ActionTable, InFlight, peak_in_flight
from planner.schedule.graph import DependencyGraph, dependency_graph

Floats = NDArray[np.float64]
_BLOCK_BYTES = 32 * 2**20  # of end times held at once by `makespans`


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Seconds of each pass, per stage (virtual stages counted one by one); arrays (stages,) or (cases, stages).

    `hop` is the time from the end of a pass until its result is on the next rank, per boundary between stages,
    (stages - 1,) or (cases, stages - 1); 0 is used between stages of one rank. `overlapped` is the time of an
    overlapped forward and backward, by the forward's stage; None means the sum of the two: run as one piece, no
    faster, which is how DualPipe's published schedule runs without overlap.
    """

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats
    hop: Floats
    overlapped: Floats | None = None

    @property
    def cases(self) -> int:
        return int(self.forward.shape[0])

    def of(self, cases: NDArray[np.intp]) -> StageTimes:
        """Some of the cases."""
        pairs = None if self.overlapped is None else self.overlapped[cases]
        forward, ahead, weight, hop = (
            times[cases] for times in (self.forward, self.input_gradient, self.weight_gradient, self.hop)
        )
        return StageTimes(forward, ahead, weight, hop, pairs)


def stage_times(
    stages: int,
    forward: ArrayLike,
    input_gradient: ArrayLike,
    weight_gradient: ArrayLike = 0.0,
    hop: ArrayLike = 0.0,
    overlapped: ArrayLike | None = None,
) -> StageTimes:
    """Checked times of a pipeline of `stages` stages; scalars mean the same for all. Raises `InputError`."""
    fields = {"forward": forward, "input_gradient": input_gradient, "weight_gradient": weight_gradient}
    columns = {name: _column(name, value, stages) for name, value in fields.items()}
    columns["hop"] = _column("hop", hop, stages - 1)
    pair = None if overlapped is None else _column("overlapped", overlapped, stages)
    for name in ("forward", "input_gradient"):
        if not (columns[name] > 0).all():
            raise InputError(f"{name} times must be above 0", _offender(columns[name], columns[name] <= 0))
    cases = {c.shape[0] for c in (*columns.values(), *([] if pair is None else [pair]))} - {1}
    if len(cases) > 1:
        raise InputError(
            "all times must have the same number of cases", " and ".join(map(str, sorted(cases)))
        )
    count = cases.pop() if cases else 1
    columns = {name: np.broadcast_to(c, (count, c.shape[1])) for name, c in columns.items()}
    if pair is not None:
        pair = np.broadcast_to(pair, (count, stages))
        if (pair < columns["forward"]).any():
            must = "an overlapped pair must take at least as long as its forward alone"
            raise InputError(must, _offender(pair, pair < columns["forward"]))
    return StageTimes(
        columns["forward"], columns["input_gradient"], columns["weight_gradient"], columns["hop"], pair
    )


def side_by_side(times: Sequence[StageTimes]) -> StageTimes:
    """The cases of several times of one schedule, in their order; all with times of overlapped pairs, or none."""
    pairs = [one.overlapped for one in times if one.overlapped is not None]
    return StageTimes(
        forward=np.concatenate([one.forward for one in times]),
        input_gradient=np.concatenate([one.input_gradient for one in times]),
        weight_gradient=np.concatenate([one.weight_gradient for one in times]),
        hop=np.concatenate([one.hop for one in times]),
        overlapped=np.concatenate(pairs) if pairs else None,
    )


def _column(name: str, value: ArrayLike, width: int) -> Floats:
    try:
        column = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} times must be numbers", repr(value)[:80]) from None
    column = np.broadcast_to(column, (width,)) if column.ndim == 0 else column
    if column.ndim > 2 or column.shape[-1] != width:
        raise InputError(
            f"{name} times must be one number or one per stage ({width})", f"shape {column.shape}"
        )
    bad = ~(np.isfinite(column) & (column >= 0))
    if bad.any():
        raise InputError(f"{name} times must be finite and not negative", _offender(column, bad))
    return np.atleast_2d(column)


def _offender(column: Floats, bad: NDArray[np.bool_]) -> str:
    at = np.argwhere(bad)[0]
    return f"{column[tuple(at)]:g} for stage {at[-1]}"


@dataclass(frozen=True, eq=False)
class Timeline:
    """A timed schedule. `start`, `end` have the shape of `table.kind`, NaN where a rank has no pass [s].

    `busy` and `idle` (ranks,) add up to the makespan. `bubble` is the makespan less the busy time of the busiest
    rank [s].
    """

    table: ActionTable
    start: Floats
    end: Floats
    makespan: float
    busy: Floats
    in_flight: InFlight

    @property
    def idle(self) -> Floats:
        return self.makespan - self.busy

    @property
    def bubble(self) -> float:
        return float(self.makespan - self.busy.max())

    @property
    def longest_span(self) -> float:
        """Longest time between a rank's own first start and last end [s]."""
        return float((np.nanmax(self.end, axis=1) - np.nanmin(self.start, axis=1)).max())


def simulate(table: ActionTable, times: StageTimes) -> Timeline:
    """Time every pass of one case; hops leave the ranks free."""
    graph = dependency_graph(table)
    taken = _durations(graph, times, slice(0, 1))
    end = _end_times(graph, taken, times.hop[:1])[:-1, 0]
    starts = np.full(table.kind.size, np.nan)
    ends = np.full(table.kind.size, np.nan)
    starts[graph.place], ends[graph.place] = end - taken[:, 0], end
    pair = np.flatnonzero(graph.needs[:, 1] < graph.size)
    starts[graph.place[pair] + 1], ends[graph.place[pair] + 1] = starts[graph.place[pair]], end[pair]
    rank = graph.place // table.kind.shape[1]
    busy: Floats = np.bincount(rank, weights=taken[:, 0], minlength=table.ranks).astype(np.float64)
    shape = table.kind.shape
    in_flight = peak_in_flight(table)
    return Timeline(table, starts.reshape(shape), ends.reshape(shape), float(end.max()), busy, in_flight)


def makespans(graph: DependencyGraph, times: StageTimes) -> Floats:
    """Makespan of many cases of one schedule, shape (cases,) [s]. The graph is worth keeping between calls."""
    block = max(1, _BLOCK_BYTES // (8 * (graph.size + 1)))
    out = np.empty(times.cases)
    for low in range(0, times.cases, block):
        part = slice(low, low + block)
        end = _end_times(graph, _durations(graph, times, part), times.hop[part])
        out[part] = end.max(axis=0)
    return out


def entry_times(graph: DependencyGraph, times: StageTimes) -> tuple[Floats, Floats]:
    """Duration and end of every entry of the graph, each of shape (size, cases) [s]."""
    taken = _durations(graph, times, slice(None))
    return taken, _end_times(graph, taken, times.hop)[:-1]


def _durations(graph: DependencyGraph, times: StageTimes, part: slice) -> Floats:
    """Seconds of every entry of the graph, shape (size, cases of `part`)."""
    f, b, w = (x[part] for x in (times.forward, times.input_gradient, times.weight_gradient))
    full = b + w
    pair = f + full[:, graph.partner] if times.overlapped is None else times.overlapped[part]
    table = np.concatenate((f, b, w, full, pair), axis=1).T
    return table[graph.duration]


def _end_times(graph: DependencyGraph, taken: Floats, hop: Floats) -> Floats:
    """End of every entry of the graph, shape (size + 1, cases); the last row is 0, for nothing to wait for."""
    cases = taken.shape[1]
    end = np.zeros((graph.size + 1, cases))
    end[:-1] = taken
    delay = None
    if hop.any():
        delay = np.concatenate((hop.T, np.zeros((1, cases))))  # the last row, at NO_HOP, is 0
    inputs = [
        (np.ascontiguousarray(graph.needs[:, i]), np.ascontiguousarray(graph.hop[:, i]))
        for i in range(1 + graph.has_pairs)
    ]
    bounds = graph.bounds.tolist()
    for low, high in pairwise(bounds):
        start = end.take(graph.before[low:high], axis=0)
        for needed, crossed in inputs:
            arrival = end.take(needed[low:high], axis=0)
            if delay is not None:
                arrival += delay.take(crossed[low:high], axis=0, mode="wrap")
            np.maximum(start, arrival, out=start)
        end[low:high] += start
    return end

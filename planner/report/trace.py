"""What does every pipeline rank do at every moment of a step? The events of a Chrome trace, which Perfetto opens.

A row per rank (a second one beside it for the backward of an overlapped pair), rows of messages, and memory as a
counter per rank. A backward pass is drawn as recomputation, input gradient and weight gradient one after another;
frameworks alternate them layer by layer. Data-parallel communication that compute does not hide is drawn once, after
the last pass. Left out: what happens inside a pass, hidden communication, and writing files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.chunks import ChunkTimes
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.errors import InputError
from planner.schedule.actions import Pass
from planner.schedule.simulate import Timeline

Event = dict[str, Any]
Array = NDArray[np.float64]
MOST_EVENTS: Final = 200_000
PASSES, MESSAGES, MEMORY = 1, 2, 3  # process ids: three groups of rows
_GROUPS: Final = {PASSES: "pipeline", MESSAGES: "communication", MEMORY: "memory"}
_Row = tuple[int, int, int]  # group, rank, lane: numbered once all are known
_COLORS: Final = {  # reserved names of chrome://tracing; Perfetto colours by the name of a slice
    "forward": "thread_state_running", "backward": "rail_response", "weight gradient": "yellow",
    "recompute": "grey", "communication": "thread_state_iowait", "optimizer": "olive",
}  # fmt: skip


@dataclass(frozen=True)
class MemoryLevels:
    """What the counter of a rank is made of [bytes]. `name`: of the counter.

    `held` (ranks,): there during all passes. `chunk` (chunks,): activations of a micro-batch, from the start of its
    forward to the end of its backward (of its weight gradient where that runs apart). `working` (chunks,): of a layer
    in its backward pass. `loss`, `head`: above `held` while the last chunk's loss and its backward run. `optimizer`
    (ranks,): all there is in the optimizer's step.
    """

    name: str
    held: Array
    chunk: Array
    working: Array
    loss: float
    head: float
    optimizer: Array


@dataclass(frozen=True)
class TracedStep:
    """A timed pipeline and what follows it. `hop`: seconds of a message. `head`: of the head and the loss, forward and
    backward. `once`: parts of the step after the pipeline, name -> seconds. `facts`: said in the document."""

    timeline: Timeline
    chunks: ChunkTimes
    hop: float
    head: float
    once: Mapping[str, float]
    memory: MemoryLevels
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Span:
    """A pass on whole nanoseconds, so that neighbours meet exactly."""

    kind: int
    chunk: int
    microbatch: int
    start: int
    end: int
    joined: bool  # runs beside another pass
    lane: int


def trace_document(step: TracedStep, ranks: Sequence[int] | None = None) -> dict[str, Any]:
    """The trace of these pipeline ranks as a JSON object; None: of all, or where that grows too large of the first, the
    busiest and the last, which a note says. Raises `InputError` if it grows too large."""
    facts = dict(step.facts)
    every = list(range(step.timeline.table.ranks))
    try:
        events = _bounded(step, every if ranks is None else list(ranks))
    except InputError as error:
        few = sorted({0, int(np.argmax(step.timeline.busy.round(9))), every[-1]})
        if ranks is not None or few == every:
            raise
        events = _bounded(step, few)
        note = (
            f"ranks {', '.join(map(str, few))} are drawn, the first, the busiest and the last: all {len(every)} are "
            f"{error.given} events, above {MOST_EVENTS:,}; --ranks names others"
        )
        facts["note"] = "; ".join(filter(None, (facts.get("note"), note)))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _bounded(step: TracedStep, drawn: Sequence[int]) -> list[Event]:
    """The events of these ranks. Raises `InputError` if they are too many."""
    passes = int(np.count_nonzero(step.timeline.table.kind[drawn] >= 0))
    if passes > MOST_EVENTS:
        _refuse(passes, drawn)
    events = trace_events(step, drawn)
    if len(events) > MOST_EVENTS:
        _refuse(len(events), drawn)
    return events


def trace_text(document: Mapping[str, Any]) -> str:
    """The document as JSON, an event a line."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in document["traceEvents"])
    rest = {key: value for key, value in document.items() if key != "traceEvents"}
    tail = json.dumps(rest, ensure_ascii=False, indent=1, allow_nan=False).removeprefix("{").strip()
    return '{"traceEvents": [\n' + lines + "\n],\n" + tail + "\n"


def _refuse(events: int, drawn: Sequence[int]) -> None:
    fit = len(drawn) * MOST_EVENTS // events
    hint = "trace a plan with a larger micro-batch or a smaller global batch"
    if fit >= 1 and len(drawn) > 1:
        kept = drawn[:fit]
        apart = kept[-1] - kept[0] >= len(kept)
        hint = f"draw fewer ranks: --ranks {','.join(map(str, kept)) if apart else f'{kept[0]}-{kept[-1]}'}"
    raise InputError(f"a trace must have at most {MOST_EVENTS:,} events", f"{events:,} or more", hint)


def trace_events(step: TracedStep, ranks: Sequence[int]) -> list[Event]:
    """Names of rows first, then all events by rising time; times in microseconds, on whole nanoseconds."""
    spans = {rank: _spans(step.timeline, rank) for rank in range(step.timeline.table.ranks)}
    end = max(span.end for row in spans.values() for span in row)
    events = [event for rank in ranks for span in spans[rank] for event in _pass_events(step, rank, span)]
    events += _message_events(step, spans, set(ranks))
    for rank in ranks:
        events += _closing_events(step, rank, end)
        events += _counter_events(step, rank, spans[rank], end)
    events.sort(
        key=lambda event: (event["ts"], _ORDER[event["ph"]])
    )  # a flow follows the slice it belongs to
    rows = {row: number for number, row in enumerate(sorted({e["tid"] for e in events if "tid" in e}), 1)}
    for event in events:
        if "tid" in event:
            event["tid"] = rows[event["tid"]]
    return [*_row_names(rows, max(ranks)), *events]


_ORDER: Final = {"X": 0, "C": 1, "s": 2, "f": 3}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _spans(timeline: Timeline, rank: int) -> list[_Span]:
    """The passes of a rank in their order."""
    table, found, free = timeline.table, list[_Span](), 0
    second = False
    for k in range(int(np.count_nonzero(table.kind[rank] >= 0))):
        beside = bool(table.joined[rank, k])
        where = (int(table.kind[rank, k]), int(table.stage[rank, k]), int(table.microbatch[rank, k]))
        if second:
            found.append(_Span(*where, found[-1].start, found[-1].end, True, 1))
        else:
            start = max(_ns(float(timeline.start[rank, k])), free)
            end = max(_ns(float(timeline.end[rank, k])), start)
            found.append(_Span(*where, start, end, beside, 0))
        free, second = found[-1].end, beside
    return found


def _pieces(step: TracedStep, span: _Span) -> list[tuple[str, float]]:
    """What a pass consists of: name and seconds it would take alone."""
    c, times = span.chunk, step.chunks
    again = ("recompute", float(times.recompute[c]))
    backward = ("backward", float(times.input_gradient[c]))
    weight = ("weight gradient", float(times.weight_gradient[c]))
    match span.kind:
        case Pass.FORWARD:
            return [("forward", float(times.forward[c]))]
        case Pass.INPUT_GRADIENT:
            return [again, backward]
        case Pass.WEIGHT_GRADIENT:
            return [weight]
    return [again, backward, weight]


def _pass_events(step: TracedStep, rank: int, span: _Span) -> Iterator[Event]:
    pieces = _pieces(step, span)
    total = sum(seconds for _, seconds in pieces)
    arguments: dict[str, Any] = {
        "micro-batch": span.microbatch,
        "chunk": span.chunk,
        "layers": step.chunks.layers[span.chunk],
    }
    done, low = 0.0, span.start
    for name, seconds in pieces:
        done += seconds
        high = span.end if done >= total else span.start + round((span.end - span.start) * done / total)
        if high > low:
            said = {**arguments, "alone_us": round(seconds * 1e6, 3)} if span.joined else arguments
            row = (PASSES, rank, span.lane)
            yield _slice(f"{name} {span.microbatch}", name, row, low, high, said)
        low = high


def _slice(name: str, category: str, row: _Row, start: int, end: int, arguments: Mapping[str, Any]) -> Event:
    event: Event = {
        "name": name, "cat": category, "ph": "X", "pid": row[0], "tid": row,
        "ts": start / 1e3, "dur": (end - start) / 1e3, "args": dict(arguments),
    }  # fmt: skip
    return event | ({"cname": _COLORS[category]} if category in _COLORS else {})


def _message_events(
    step: TracedStep, spans: Mapping[int, Sequence[_Span]], drawn: set[int]
) -> Iterator[Event]:
    """Messages to the neighbouring stage on the rows of the sender, and arrows to the pass that waits for them."""
    hop, last = _ns(step.hop), step.timeline.table.stages - 1
    if hop <= 0:
        return
    taker = {
        (span.kind != Pass.FORWARD, span.microbatch, span.chunk): (rank, span)
        for rank, row in spans.items()
        for span in row
        if span.kind != Pass.WEIGHT_GRADIENT
    }
    number = 0
    for rank in sorted(drawn):
        free = list[int]()  # when each lane of the sender's rows is free again
        for span in sorted(spans[rank], key=lambda span: span.end):
            back = span.kind != Pass.FORWARD
            to = span.chunk + (-1 if back else 1)
            if span.kind == Pass.WEIGHT_GRADIENT or not 0 <= to <= last:
                continue
            receiver, waits = taker[back, span.microbatch, to]
            if receiver == rank:
                continue
            lane = next((i for i, until in enumerate(free) if until <= span.end), len(free))
            free[lane : lane + 1] = [span.end + hop]
            row, number = (MESSAGES, rank, lane), number + 1
            name = f"{'gradient' if back else 'activation'} {span.microbatch}"
            said = {
                "micro-batch": span.microbatch,
                "from chunk": span.chunk,
                "to chunk": to,
                "to rank": receiver,
            }
            yield _slice(name, "communication", row, span.end, span.end + hop, said)
            if receiver in drawn:
                arrow = {"name": "message", "cat": "communication", "id": number}
                sent = {"ph": "s", "pid": MESSAGES, "tid": row, "ts": span.end / 1e3}
                at = (PASSES, receiver, waits.lane)
                got = {"ph": "f", "bp": "e", "pid": PASSES, "tid": at, "ts": waits.start / 1e3}
                yield arrow | sent
                yield arrow | got


def _closing(step: TracedStep, end: int) -> Iterator[tuple[str, int, int]]:
    """What follows the pipeline: name, start, end."""
    done, low = 0.0, end
    for name, seconds in step.once.items():
        done += seconds
        high = end + _ns(done)
        if high > low:
            yield name, low, high
        low = high


def _closing_events(step: TracedStep, rank: int, end: int) -> Iterator[Event]:
    for name, low, high in _closing(step, end):
        exposed = name == "dp_comm"
        category = "communication" if exposed else name.replace("_", " ")
        said = _CLOSING_SAID.get(name, {})
        title = "exposed data-parallel communication" if exposed else category
        yield _slice(title, category, (MESSAGES if exposed else PASSES, rank, 0), low, high, said)


_CLOSING_SAID: Final = {
    "dp_comm": {"note": "what compute does not hide in the whole step, drawn once"},
    "memory_pressure": {"note": "expected loss from a device that may fill up"},
    "own_runs": {"note": "what runs of this configuration took beyond the prediction, drawn once"},
    "stragglers": {"note": "waiting for the slowest of all nodes, over the whole step, drawn once"},
    "step_overhead": {"note": "time of the host once a step"},
}


def _counter_events(step: TracedStep, rank: int, spans: Sequence[_Span], end: int) -> Iterator[Event]:
    """Memory of a rank, a value whenever it changes."""
    memory = step.memory
    changes: dict[int, float] = {0: 0.0}

    def during(low: int, high: int, size: float) -> None:
        if size and high > low:
            changes[low] = changes.get(low, 0.0) + size
            changes[high] = changes.get(high, 0.0) - size

    opened: dict[tuple[int, int], int] = {}
    for span in spans:
        mine = (span.chunk, span.microbatch)
        head = _head_end(step, span)
        if span.kind == Pass.FORWARD:
            opened[mine] = span.start
            during(head, span.end, memory.loss)
        elif span.kind != Pass.WEIGHT_GRADIENT:
            during(span.start, head, memory.head)
            during(head, span.end, float(memory.working[span.chunk]))
        if span.kind in (Pass.BACKWARD, Pass.WEIGHT_GRADIENT):
            during(opened[mine], span.end, float(memory.chunk[span.chunk]))
    for name, low, high in _closing(step, end):
        changes.setdefault(high, 0.0)  # the last value stays until the step ends
        if name == "optimizer":
            during(low, high, float(memory.optimizer[rank] - memory.held[rank]))
    value, width = float(memory.held[rank]), len(str(step.timeline.table.ranks - 1))
    name = f"rank {rank:0{width}d} {memory.name} [bytes]"
    for at in sorted(changes):
        value += changes[at]
        counted = {"bytes": max(round(value), 0)}
        yield {"name": name, "ph": "C", "pid": MEMORY, "ts": at / 1e3, "args": counted}


def _head_end(step: TracedStep, span: _Span) -> int:
    """In the last chunk, when a forward reaches the head or a backward leaves it; elsewhere the bare start or end."""
    forward = span.kind == Pass.FORWARD
    if span.chunk != len(step.chunks.forward) - 1:
        return span.end if forward else span.start
    alone = sum(seconds for _, seconds in _pieces(step, span))
    share = FORWARD_SHARE if forward or span.kind == Pass.INPUT_GRADIENT else 1 - FORWARD_SHARE
    part = round((span.end - span.start) * min(share * step.head / alone, 1.0))
    return span.end - part if forward else span.start + part


def _row_names(rows: Mapping[_Row, int], last: int) -> Iterator[Event]:
    """Metadata: names and order of the groups and their rows."""
    width = len(str(last))
    for group, name in _GROUPS.items():
        yield {"name": "process_name", "ph": "M", "pid": group, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": group, "args": {"sort_index": group}}
    for (group, rank, lane), number in rows.items():
        what = ("", " overlapped backward") if group == PASSES else (" sends",)
        label = what[lane] if lane < len(what) else f"{what[-1]} {lane + 1}"
        where = {"ph": "M", "pid": group, "tid": number}
        yield where | {"name": "thread_name", "args": {"name": f"rank {rank:0{width}d}{label}"}}
        yield where | {"name": "thread_sort_index", "args": {"sort_index": number}}
